//! Stories of who is taken for a reader of weights, and who must not be: what learning proves, programs that run ahead, kernels that wrote nothing but private
//! pages or the same bytes so far, forwards that end elsewhere, and what launches between forwards cost.

use super::scene::{MAY_STREAM, Scene};
use super::{Told, say};
use harness::driver::{Failure, check};
use harness::ft::Ft;
use harness::gpu::PAGE;
use std::time::{Duration, Instant};

type Done = Result<(), Failure>;

const COUNT: u64 = 6;
const PAGES: u64 = 2;

pub(crate) fn tell(story: &str) -> Option<Told> {
    Some(match story {
        "readers that learning proves" => readers_that_learning_proves(),
        "a writer among readers while learning" => a_writer_among_readers_while_learning(),
        "private pages written while learning" => private_pages_written_while_learning(),
        "passes that run ahead" => passes_that_run_ahead(),
        "writes of private pages alone at first" => writes_of_private_pages_alone_at_first(),
        "a cache that is warmed up with the same bytes" => a_cache_warmed_up(true),
        "a cache that is written later on" => a_cache_warmed_up(false),
        "a forward that another thread ends" => a_forward_that_another_thread_ends(),
        "weights that are freed while they are looked at" => freed_while_they_are_looked_at(),
        "writes amid uses" => writes_amid_uses(),
        "writes from outside amid uses" => writes_from_outside_amid_uses(),
        "stale words between forwards" => stale_words_between_forwards(),
        _ => return None,
    })
}

/// A number of the report.
fn reported(scene: &Scene, part: &str, key: &str) -> u64 {
    let report = scene.ft.as_ref().and_then(Ft::report).unwrap_or_default();
    report[part][key].as_u64().unwrap_or(0)
}

fn pages_back(scene: &Scene) -> u64 {
    reported(scene, "counters", "pages_back")
}

/// Waits until something is so; for a minute at most, on a busy machine.
fn until(mut so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !so() && begun.elapsed() < Duration::from_secs(60) {
        std::thread::yield_now();
    }
}

/// Weights that are named and have been looked at.
fn looked_at() -> Result<Scene, Failure> {
    let scene = Scene::set(COUNT, PAGES, MAY_STREAM)?;
    if scene.ft.is_some() {
        until(|| reported(&scene, "learning", "looked_at_bytes") > 0);
    }
    Ok(scene)
}

fn readers_that_learning_proves() -> Told {
    let mut scene = looked_at()?;
    scene.learn()?;
    for _ in 0..4 {
        scene.pass()?;
    }
    scene.synchronize()?;
    say("back", pages_back(&scene));
    say("proven words", reported(&scene, "learning", "proven_words"));
    scene.finish()
}

/// A kernel writes other bytes in each pass, also while the model is learnt; readers show the same weights.
fn a_writer_among_readers_while_learning() -> Told {
    let mut scene = looked_at()?;
    for round in 0..12_u64 {
        for at in 0..COUNT as usize {
            scene.weights[at].seed = 100 * round + at as u64;
        }
        scene.pass_with(|scene, at| {
            let weight = scene.weights[at];
            scene.launch("write_words", &[weight.address, weight.bytes, weight.seed])?;
            scene.check(scene.main, at)
        })?;
    }
    scene.synchronize()?;
    say("phase", u64::try_from(scene.phase()).unwrap_or(99));
    scene.finish()
}

/// A weight of which a part will stay in private pages: as planned later, or `None` before that.
fn split(scene: &Scene) -> Option<usize> {
    let report = scene.ft.as_ref().and_then(Ft::report)?;
    (0..COUNT as usize).find(|at| {
        let name = format!("layers.{at}.weight");
        let mut units = report["placements"].as_array().into_iter().flatten();
        let unit = units.find(|unit| unit["name"] == name.as_str());
        unit.is_some_and(|unit| unit["streamed_bytes"].as_u64() == Some((PAGES - 1) * PAGE as u64))
    })
}

/// Writes the first page, which stays, or all of the weight, and checks what is there.
fn write_and_check(scene: &Scene, at: usize, first: u64, rest: u64) -> Done {
    let (weight, page) = (scene.weights[at], PAGE as u64);
    scene.launch("write_words", &[weight.address, page, first])?;
    scene.launch("check", &[weight.address, page, first, scene.counter])?;
    // Words are told apart by where they begin.
    scene.launch("check", &[weight.address + page, weight.bytes - page, rest, scene.counter])
}

/// In every pass the first pages of all weights are written, with other bytes each time; the other pages are not, until the end.
fn private_pages_written_while_learning() -> Told {
    let mut scene = looked_at()?;
    // What lies behind the first page is a pattern of its own.
    let page = PAGE as u64;
    for weight in scene.weights.clone() {
        scene.launch("copy_words", &[weight.address + page, weight.address, page / 8])?;
    }
    scene.synchronize()?;
    let seeds: Vec<u64> = scene.weights.iter().map(|weight| weight.seed).collect();
    for round in 0..12_u64 {
        scene.pass_with(|scene, at| write_and_check(scene, at, 1000 * round + at as u64, seeds[at]))?;
    }
    scene.synchronize()?;
    say("phase", u64::try_from(scene.phase()).unwrap_or(99));
    say("split", u64::from(split(&scene).is_some()));
    write_all(&mut scene)?;
    scene.finish()
}

/// The same kernel writes whole weights in forwards, one in each pass; all of them are read in all passes.
fn write_all(scene: &mut Scene) -> Done {
    for changed in 0..COUNT as usize {
        let seed = 70_000 + changed as u64;
        let weight = scene.weights[changed];
        scene.begin();
        scene.owner(changed, || scene.launch("write_words", &[weight.address, weight.bytes, seed]))?;
        scene.weights[changed].seed = seed;
        for at in 0..=changed {
            scene.owner(at, || scene.check(scene.main, at))?;
        }
        scene.end();
    }
    for _ in 0..2 {
        scene.pass()?;
    }
    scene.synchronize()
}

/// As a program that never waits for its results: two passes are always ahead of the GPU. Their kernel was not seen before.
fn passes_that_run_ahead() -> Told {
    let scene = Scene::learnt(COUNT, PAGES)?;
    let driver = &scene.gpu.driver;
    let ends: Vec<u64> = (0..3).map(|_| scene.gpu.event()).collect::<Result<_, _>>()?;
    let mut proven_after = 0;
    let mut last = pages_back(&scene);
    for round in 0..200_usize {
        scene.pass_with(|scene, at| {
            let weight = scene.weights[at];
            scene.launch("check_slow", &[weight.address, weight.bytes, weight.seed, scene.counter, 2000])
        })?;
        scene.gpu.record(ends[round % 3], scene.main)?;
        if round >= 2 {
            check("cuEventSynchronize", driver.event_synchronize(ends[(round - 2) % 3]))?;
        }
        let back = pages_back(&scene);
        // Several passes in a row: what is proven stays so.
        proven_after = if back == last { proven_after + 1 } else { 0 };
        last = back;
        if proven_after == 4 {
            break;
        }
    }
    say("passes without a page back", proven_after);
    scene.finish()
}

/// After learning, a kernel writes the private page of a weight in each pass, with other bytes each time; then the weight as a whole.
fn writes_of_private_pages_alone_at_first() -> Told {
    let mut scene = Scene::learnt(COUNT, PAGES)?;
    let Some(at) = split(&scene) else {
        say("split", 0);
        return scene.finish();
    };
    say("split", 1);
    let page = PAGE as u64;
    let weight = scene.weights[at];
    for round in 0..8_u64 {
        scene.begin();
        scene.owner(at, || scene.launch("write_words", &[weight.address, page, 500 + round]))?;
        for other in (0..COUNT as usize).filter(|&other| other != at) {
            scene.owner(other, || scene.check(scene.main, other))?;
        }
        scene.end();
        scene.synchronize()?;
        // What was written is looked at beside the program.
        std::thread::sleep(Duration::from_millis(20));
    }
    write_all(&mut scene)?;
    scene.finish()
}

/// A registered buffer that forwards write, with the same bytes at first: who knows says so, while the model is learnt or later.
fn a_cache_warmed_up(from_the_start: bool) -> Told {
    let mut scene = looked_at()?;
    let cache = 2;
    let mut runs = 0;
    let mut pass = |scene: &mut Scene, seed: u64, written: bool| -> Done {
        scene.weights[cache].seed = seed;
        scene.begin();
        let wanted = scene.ft.as_ref().is_some_and(|ft| ft.wants(scene.model) & 8 != 0);
        for at in 0..COUNT as usize {
            scene.owner(at, || {
                let weight = scene.weights[at];
                if at == cache && written {
                    scene.launch("write_words", &[weight.address, weight.bytes, weight.seed])?;
                }
                scene.check(scene.main, at)
            })?;
        }
        if let Some(ft) = scene.ft.as_ref().filter(|_| wanted && written) {
            ft.weight_written(scene.weights[cache].address);
            runs += 1;
        }
        scene.end();
        scene.synchronize()
    };
    let seed = scene.weights[cache].seed;
    for _ in 0..8 {
        pass(&mut scene, seed, from_the_start)?;
    }
    say("phase", u64::try_from(scene.phase()).unwrap_or(99));
    for _ in 0..6 {
        pass(&mut scene, seed, true)?;
        // What was written is looked at beside the program.
        std::thread::sleep(Duration::from_millis(20));
    }
    for seed in 900..906 {
        pass(&mut scene, seed, true)?;
    }
    say("told", runs);
    let report = scene.ft.as_ref().and_then(Ft::report).unwrap_or_default();
    let mut units = report["placements"].as_array().into_iter().flatten();
    let stays = units.any(|unit| unit["stay"] == "Written" && unit["streamed_bytes"] == 0);
    say("stays", u64::from(stays));
    scene.finish()
}

/// A kernel wrote the same bytes in all forwards, and so is taken for a reader there. The last forward begins here and ends on another thread; what the kernel
/// writes then counts.
fn a_forward_that_another_thread_ends() -> Told {
    let mut scene = looked_at()?;
    let pass = |scene: &Scene| {
        scene.pass_with(|scene, at| {
            let weight = scene.weights[at];
            scene.launch("write_words", &[weight.address, weight.bytes, weight.seed])?;
            scene.check(scene.main, at)
        })
    };
    for _ in 0..8 {
        pass(&scene)?;
    }
    scene.synchronize()?;
    say("phase", u64::try_from(scene.phase()).unwrap_or(99));
    let before = pages_back(&scene);
    for _ in 0..2 {
        pass(&scene)?;
    }
    scene.synchronize()?;
    say("taken for a reader", u64::from(pages_back(&scene) == before));
    scene.begin();
    std::thread::scope(|scope| {
        scope.spawn(|| scene.end()).join().expect("a thread that only ends a forward");
    });
    for at in 0..COUNT as usize {
        let seed = 600 + at as u64;
        let weight = scene.weights[at];
        scene.launch("write_words", &[weight.address, weight.bytes, seed])?;
        scene.weights[at].seed = seed;
    }
    scene.pass()?;
    scene.finish()
}

/// A weight is read, then written, and both launches are of one use. The reader is known for one.
fn writes_amid_uses() -> Told {
    let mut scene = looked_at()?;
    scene.learn()?;
    for round in 1..6_u64 {
        scene.pass_with(|scene, at| {
            let weight = scene.weights[at];
            scene.check(scene.main, at)?;
            scene.launch("write_words", &[weight.address, weight.bytes, 100 * round + weight.seed])
        })?;
        scene.weights.iter_mut().for_each(|weight| weight.seed += 100 * round);
        scene.pass()?;
    }
    scene.finish()
}

/// A kernel that is taken for a reader in forwards writes, from a thread that is in none, weights that a forward of another thread uses at that moment.
fn writes_from_outside_amid_uses() -> Told {
    let mut scene = looked_at()?;
    let write = |scene: &Scene, at: usize, seed: u64| {
        let weight = scene.weights[at];
        scene.launch("write_words", &[weight.address, weight.bytes, seed])
    };
    for _ in 0..10 {
        scene.pass_with(|scene, at| {
            scene.check(scene.main, at)?;
            write(scene, at, scene.weights[at].seed)
        })?;
    }
    scene.synchronize()?;
    say("phase", u64::try_from(scene.phase()).unwrap_or(99));
    scene.pass_with(|scene, at| {
        scene.check(scene.main, at)?;
        let outside = || {
            scene.gpu.enter()?;
            write(scene, at, 900 + at as u64)
        };
        std::thread::scope(|scope| scope.spawn(outside).join().expect("a thread that only writes"))
    })?;
    (0..).zip(&mut scene.weights).for_each(|(at, weight)| weight.seed = 900 + at);
    scene.pass()?;
    scene.finish()
}

/// A large weight goes while the library still reads it out, slowly; the other one stays.
fn freed_while_they_are_looked_at() -> Told {
    let mut scene = Scene::set(2, 32, MAY_STREAM)?;
    let gone = scene.weights.remove(0);
    scene.gpu.free(gone.address)?;
    until(|| scene.ft.is_none() || reported(&scene, "learning", "looked_at_bytes") > 0);
    say("looked at", reported(&scene, "learning", "looked_at_bytes"));
    scene.finish()
}

/// As sampling between the steps of a generation: kernels that never follow a word in which the address of a weight is left. Says what twenty rounds cost, for
/// addresses of the weight that was used last, of one amid the pass, and of the one that comes next.
fn stale_words_between_forwards() -> Told {
    let mut scene = looked_at()?;
    scene.learn()?;
    let stale = |scene: &Scene, at: usize| -> Done {
        use harness::gpu::Argument::Struct;
        // The weight that is checked is memory of ours, not one of the model.
        let words = vec![scene.weights[at].address, scene.array, 0, 0, scene.counter, 0, 0, 0];
        scene.gpu.launch("check_struct", scene.main, &[Struct(words)])
    };
    for _ in 0..4 {
        scene.pass()?;
    }
    scene.synchronize()?;
    let counted = |scene: &Scene| {
        ["pages_in", "pages_back", "redirects", "demand_loads"].map(|key| reported(scene, "counters", key))
    };
    for (name, at) in [
        ("nothing", None),
        ("last", Some(COUNT as usize - 1)),
        ("amid", Some(COUNT as usize / 2)),
        ("next", Some(0)),
    ] {
        let before = counted(&scene);
        for _ in 0..20 {
            scene.pass()?;
            if let Some(at) = at {
                stale(&scene, at)?;
            }
        }
        scene.synchronize()?;
        let after = counted(&scene);
        for (at, key) in ["in", "back", "redirected", "demanded"].into_iter().enumerate() {
            say(&format!("{name} {key}"), after[at] - before[at]);
        }
    }
    scene.finish()
}
