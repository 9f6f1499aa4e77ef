//! Stories of programs that change after the switch-over: other shapes in other orders, an order that turns round, a part that is left out, a second
//! model of the same weights.

use super::scene::{MAY_STREAM, Scene};
use super::{Told, say};
use harness::driver::{Failure, check};
use harness::ft::Ft;

type Done = Result<(), Failure>;

const COUNT: u64 = 6;
const PAGES: u64 = 2;

const UP: [usize; 6] = [0, 1, 2, 3, 4, 5];
const DOWN: [usize; 6] = [5, 4, 3, 2, 1, 0];

pub(crate) fn tell(story: &str) -> Option<Told> {
    Some(match story {
        "shapes in orders of their own" => shapes_in_orders_of_their_own(),
        "a shape learnt in its own order" => a_shape_learnt_in_its_own_order(),
        "an order that turns round" => an_order_that_turns_round(),
        "a second half that is left out" => a_second_half_that_is_left_out(),
        "shapes that never come again" => shapes_that_never_come_again(),
        "an order that never settles" => an_order_that_never_settles(),
        "a second model of streamed weights" => a_second_model_of_streamed_weights(),
        "other kernels in another order, and no owners" => other_kernels_without_owners(),
        "changes under four threads" => changes_under_four_threads(),
        "a second model that is not learnt" => a_second_model_that_is_not_learnt(),
        "a second model where little is streamed" => a_second_model_where_little_is_streamed(),
        "a second model in a capture" => a_second_model_in_a_capture(),
        "a larger second model" => a_larger_second_model(),
        "a larger second model under four threads" => a_larger_second_model_under_four_threads(),
        "half of the weights from now on" => half_of_the_weights_from_now_on(),
        "half of the weights, and nobody asks" => half_of_the_weights(false),
        "half of the weights, and a plan that is asked for" => half_of_the_weights(true),
        "weights that the program chose" => weights_that_the_program_chose(),
        "a strategy that the program chose" => {
            chosen_before_learning("{\"name\": \"NthLayerStrategy\", \"parameters\": {\"nth_layer\": 2}}")
        }
        "too few weights that the program chose" => {
            chosen_before_learning("{\"name\": \"mine\", \"weights\": [\"layers.1.weight\"]}")
        }
        _ => return None,
    })
}

/// One pass in this shape over these weights, on the main stream.
fn pass(scene: &Scene, shape: u64, order: &[usize]) -> Done {
    pass_on(scene, scene.main, shape, order)
}

fn pass_on(scene: &Scene, stream: u64, shape: u64, order: &[usize]) -> Done {
    if let Some(ft) = &scene.ft {
        ft.pass_begin(scene.model, shape);
    }
    for &at in order {
        scene.owner(at, || scene.check(stream, at))?;
    }
    scene.end();
    Ok(())
}

/// What nobody foresaw so far: loads on demand, uses in another turn, hits that read over the link.
fn unforeseen(scene: &Scene) -> u64 {
    let Some(report) = scene.ft.as_ref().and_then(Ft::report) else { return 0 };
    let count = |key: &str| report["counters"][key].as_u64().unwrap_or(0);
    count("demand_loads") + count("mispredictions") + count("redirects")
}

/// Says how much was not foreseen while `passes` ran.
fn watched(scene: &Scene, what: &str, passes: impl FnOnce() -> Done) -> Done {
    let before = unforeseen(scene);
    passes()?;
    say(what, unforeseen(scene) - before);
    Ok(())
}

/// A shape that was not learnt goes through the weights the other way round; both come in turn, alone and in rows.
fn shapes_in_orders_of_their_own() -> Told {
    let scene = Scene::learnt(COUNT, PAGES)?;
    watched(&scene, "at first", || {
        pass(&scene, 1, &UP)?;
        (0..3).try_for_each(|_| pass(&scene, 2, &DOWN))
    })?;
    watched(&scene, "later", || {
        for _ in 0..3 {
            (0..3).try_for_each(|_| pass(&scene, 1, &UP))?;
            (0..3).try_for_each(|_| pass(&scene, 2, &DOWN))?;
        }
        Ok(())
    })?;
    scene.finish()
}

/// The learning passes show both shapes.
fn a_shape_learnt_in_its_own_order() -> Told {
    let scene = Scene::set(COUNT, PAGES, MAY_STREAM)?;
    for _ in 0..2 {
        for (shape, order) in [(1, UP), (2, DOWN), (1, UP)] {
            pass(&scene, shape, &order)?;
        }
    }
    scene.synchronize()?;
    say("phase", u64::try_from(scene.phase()).unwrap_or(99));
    watched(&scene, "later", || {
        for (shape, order) in [(1, UP), (2, DOWN), (2, DOWN), (1, UP)] {
            pass(&scene, shape, &order)?;
        }
        Ok(())
    })?;
    scene.finish()
}

fn an_order_that_turns_round() -> Told {
    let scene = Scene::learnt(COUNT, PAGES)?;
    (0..3).try_for_each(|_| pass(&scene, 1, &UP))?;
    watched(&scene, "at first", || (0..2).try_for_each(|_| pass(&scene, 1, &DOWN)))?;
    watched(&scene, "later", || (0..6).try_for_each(|_| pass(&scene, 1, &DOWN)))?;
    scene.finish()
}

/// From some pass on the second half is left out, and its pages are not copied any more; later it comes back.
fn a_second_half_that_is_left_out() -> Told {
    let scene = Scene::learnt(COUNT, PAGES)?;
    let copied = || {
        let report = scene.ft.as_ref().and_then(Ft::report);
        report.and_then(|report| report["counters"]["pages_in"].as_u64()).unwrap_or(0)
    };
    (0..4).try_for_each(|_| pass(&scene, 1, &UP[..3]))?;
    scene.synchronize()?;
    let before = copied();
    (0..10).try_for_each(|_| pass(&scene, 1, &UP[..3]))?;
    scene.synchronize()?;
    say("pages of ten halves", copied() - before);
    (0..4).try_for_each(|_| pass(&scene, 1, &UP))?;
    watched(&scene, "later", || (0..4).try_for_each(|_| pass(&scene, 1, &UP)))?;
    scene.finish()
}

/// As decoding with a mask that grows. The order turns round in the middle.
fn shapes_that_never_come_again() -> Told {
    let scene = Scene::learnt(COUNT, PAGES)?;
    watched(&scene, "at first", || (100..110).try_for_each(|shape| pass(&scene, shape, &UP)))?;
    (200..203).try_for_each(|shape| pass(&scene, shape, &DOWN))?;
    watched(&scene, "later", || (203..215).try_for_each(|shape| pass(&scene, shape, &DOWN)))?;
    // What was learnt of the first shape stands.
    pass(&scene, 1, &UP)?;
    watched(&scene, "again", || (0..3).try_for_each(|_| pass(&scene, 1, &UP)))?;
    scene.finish()
}

/// Says how many passes wanted to hear of owners.
fn an_order_that_never_settles() -> Told {
    let scene = Scene::learnt(COUNT, PAGES)?;
    let mut observed = 0;
    for round in 0..100_usize {
        let order: Vec<usize> = (0..6).map(|at| (at * [1, 5][round % 2] + round / 2) % 6).collect();
        let Some(ft) = &scene.ft else { continue };
        ft.pass_begin(scene.model, 1);
        observed += u64::from(ft.wants(scene.model) & 1 != 0);
        for at in order {
            scene.owner(at, || scene.check(scene.main, at))?;
        }
        scene.end();
    }
    say("observed", observed);
    scene.finish()
}

/// The same weights under a second model, which uses them in another order, in turn with the first.
fn a_second_model_of_streamed_weights() -> Told {
    let mut scene = Scene::learnt(COUNT, PAGES)?;
    let first = scene.model;
    scene.name();
    let second = scene.model;
    for _ in 0..2 {
        pass(&scene, 1, &DOWN)?;
    }
    let turn = |scene: &mut Scene| {
        scene.model = first;
        pass(scene, 1, &UP)?;
        scene.model = second;
        pass(scene, 1, &DOWN)
    };
    for _ in 0..2 {
        turn(&mut scene)?;
    }
    let before = unforeseen(&scene);
    for _ in 0..4 {
        turn(&mut scene)?;
    }
    say("later", unforeseen(&scene) - before);
    scene.finish()
}

/// As a compiled program: no owner is ever told of. From some pass on other kernels go through the weights the other way round.
fn other_kernels_without_owners() -> Told {
    let scene = Scene::set(COUNT, PAGES, MAY_STREAM)?;
    let pass = |kernel: &'static str, shape: u64, order: &[usize]| -> Done {
        if let Some(ft) = &scene.ft {
            ft.pass_begin(scene.model, shape);
        }
        for &at in order {
            let weight = scene.weights[at];
            let mut arguments = vec![weight.address, weight.bytes, weight.seed, scene.counter];
            if kernel == "check_slow" {
                arguments.push(10);
            }
            scene.launch(kernel, &arguments)?;
        }
        scene.end();
        Ok(())
    };
    (0..4).try_for_each(|_| pass("check", 1, &UP))?;
    say("phase", u64::try_from(scene.phase()).unwrap_or(99));
    watched(&scene, "at first", || (0..4).try_for_each(|_| pass("check_slow", 2, &DOWN)))?;
    watched(&scene, "later", || (0..6).try_for_each(|_| pass("check_slow", 2, &DOWN)))?;
    scene.finish()
}

/// Four threads change shapes and orders as they like, one model between them.
fn changes_under_four_threads() -> Told {
    let scene = Scene::learnt(COUNT, PAGES)?;
    let work = |thread: u64| -> Done {
        scene.gpu.enter()?;
        let stream = scene.gpu.stream()?;
        for round in 0..10 {
            let shape = (thread + round) % 3;
            let order: Vec<usize> =
                (0..6).map(|at| (at * [1, 5, 1][shape as usize] + shape as usize) % 6).collect();
            pass_on(&scene, stream, shape, &order)?;
        }
        Ok(())
    };
    let results: Vec<Done> = std::thread::scope(|scope| {
        let work = &work;
        let running: Vec<_> = (0..4).map(|thread| scope.spawn(move || work(thread))).collect();
        running.into_iter().map(|thread| thread.join().expect("a thread ends")).collect()
    });
    results.into_iter().collect::<Done>()?;
    scene.gpu.synchronize()?;
    scene.finish()
}

/// New plans that were put in force, and that could not be.
fn replans(scene: &Scene) -> (u64, u64) {
    let Some(report) = scene.ft.as_ref().and_then(Ft::report) else { return (0, 0) };
    let count = |key: &str| report["counters"][key].as_u64().unwrap_or(0);
    (count("replans"), count("replans_given_up"))
}

/// Runs passes until a new plan is in force, or for a minute: copies and threads share the cores of a busy machine, where four seconds were not enough.
fn until_replanned(scene: &Scene, mut pass: impl FnMut() -> Done) -> Done {
    let begun = std::time::Instant::now();
    // Where none may come, a second shows it.
    let off = std::env::var("FT_REPLAN").is_ok_and(|replan| replan == "off");
    let most = std::time::Duration::from_secs(if off { 1 } else { 60 });
    while replans(scene) == (0, 0) && begun.elapsed() < most {
        pass()?;
        scene.synchronize()?;
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    say("replans", replans(scene).0);
    Ok(())
}

/// Calls of which a change of places is made.
const CHANGING: [&str; 7] = [
    "cuMemUnmap",
    "cuMemMap",
    "cuMemSetAccess",
    "cuMemCreate",
    "cuMemHostRegister_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyHtoDAsync_v2",
];

/// Runs a change of places behind the mark `change`, and says how often each call was made meanwhile.
fn with_calls_counted(change: impl FnOnce() -> Done) -> Done {
    let calls = || CHANGING.map(|call| super::pages::device_bytes(&format!("calls:{call}")));
    super::pages::mark("change");
    let before = calls();
    change()?;
    for ((call, before), after) in CHANGING.iter().zip(before).zip(calls()) {
        say(call, after - before);
    }
    Ok(())
}

/// The first model streams through a short ring when a second one comes whose weights are longer than that.
/// It has run once, as the decoder of a pipeline does for each image.
fn a_second_model_that_is_not_learnt() -> Told {
    let first = Scene::learnt(COUNT, PAGES)?;
    first.pass()?;
    first.synchronize()?;
    say("streamed before", first.counted("streamed_units"));
    let second = Scene::set(2, 1, MAY_STREAM)?;
    second.pass()?;
    first.pass()?;
    say("phase of the second", u64::try_from(second.phase()).unwrap_or(99));
    Ok(first.finish()? + second.finish()?)
}

/// The weight of which least is streamed is left of the first model, in a ring that is longer than that, or than the weight.
fn a_second_model_where_little_is_streamed() -> Told {
    let mut first = Scene::learnt(COUNT, PAGES)?;
    first.pass()?;
    first.synchronize()?;
    let streamed = streamed_bytes(&first);
    let kept = (0..6).filter(|&at| streamed[at] > 0).min_by_key(|&at| streamed[at]).unwrap_or(0);
    for (at, weight) in first.weights.iter().enumerate() {
        if at != kept {
            first.gpu.free(weight.address)?;
        }
    }
    first.weights = vec![first.weights[kept]];
    say("streamed before", first.counted("streamed_units"));
    let mut second = Scene::set(4, 1, MAY_STREAM)?;
    say("streamed when it comes", first.counted("streamed_units"));
    second.learn()?;
    (0..3).try_for_each(|_| {
        second.pass()?;
        first.pass()
    })?;
    Ok(first.finish()? + second.finish()?)
}

/// Nothing moves in a capture, so that the newcomer cannot have its share at once; it is never run.
fn a_second_model_in_a_capture() -> Told {
    let first = Scene::learnt(COUNT, PAGES)?;
    first.pass()?;
    first.synchronize()?;
    let driver = &first.gpu.driver;
    let (mut graph, mut mode) = (0, 2);
    check("cuStreamBeginCapture", driver.begin_capture(first.other, 2))?;
    check("cuThreadExchangeStreamCaptureMode", driver.exchange_capture_mode(&mut mode))?;
    let second = Scene::set(2, 1, MAY_STREAM)?;
    check("cuThreadExchangeStreamCaptureMode", driver.exchange_capture_mode(&mut mode))?;
    check("cuStreamEndCapture", driver.end_capture(first.other, &mut graph))?;
    (0..4).try_for_each(|_| first.pass())?;
    Ok(first.finish()? + second.finish()?)
}

fn a_larger_second_model() -> Told {
    let first = Scene::learnt(COUNT, PAGES)?;
    first.pass()?;
    let second = Scene::set(3, 5, MAY_STREAM)?;
    // Learning takes two passes, and the plan is put in force between later ones.
    for _ in 0..2 {
        second.pass()?;
    }
    second.synchronize()?;
    with_calls_counted(|| {
        until_replanned(&first, || {
            second.pass()?;
            first.pass()
        })
    })?;
    for _ in 0..4 {
        second.pass()?;
        first.pass()?;
    }
    say("device", super::pages::device_bytes("device_bytes"));
    Ok(first.finish()? + second.finish()?)
}

/// The same while four threads run the first model.
fn a_larger_second_model_under_four_threads() -> Told {
    let first = Scene::learnt(COUNT, PAGES)?;
    let stop = std::sync::atomic::AtomicBool::new(false);
    let stopped = || stop.load(std::sync::atomic::Ordering::Relaxed);
    let work = |thread: usize| -> Done {
        first.gpu.enter()?;
        let stream = first.gpu.stream()?;
        for round in 0.. {
            if stopped() {
                break;
            }
            let order: Vec<usize> =
                (0..6).map(|at| (at * [1, 5][thread % 2] + round * (thread / 2)) % 6).collect();
            pass_on(&first, stream, 1, &order)?;
            check("cuStreamSynchronize", first.gpu.driver.stream_synchronize(stream))?;
        }
        Ok(())
    };
    let wrong = std::thread::scope(|scope| -> Told {
        let work = &work;
        let running: Vec<_> = (0..4).map(|thread| scope.spawn(move || work(thread))).collect();
        let live = || -> Told {
            let second = Scene::set(3, 5, MAY_STREAM)?;
            for _ in 0..2 {
                second.pass()?;
            }
            until_replanned(&first, || second.pass())?;
            for _ in 0..4 {
                second.pass()?;
            }
            second.finish()
        };
        let told = live();
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        running.into_iter().try_for_each(|thread| thread.join().expect("a thread ends"))?;
        told
    })?;
    first.gpu.synchronize()?;
    Ok(wrong + first.finish()?)
}

/// How much is streamed of each weight, in bytes.
fn streamed_bytes(scene: &Scene) -> [u64; 6] {
    let report = scene.ft.as_ref().and_then(Ft::report).unwrap_or_default();
    std::array::from_fn(|at| {
        let name = format!("layers.{at}.weight");
        let mut units = report["placements"].as_array().into_iter().flatten();
        let unit = units.find(|unit| unit["name"] == name.as_str());
        unit.and_then(|unit| unit["streamed_bytes"].as_u64()).unwrap_or(0)
    })
}

/// The three weights of which most is streamed, in the order of use.
fn streamed_most(scene: &Scene) -> Vec<usize> {
    let streamed = streamed_bytes(scene);
    let mut half: Vec<usize> = (0..6).collect();
    half.sort_by_key(|&at| std::cmp::Reverse(streamed[at]));
    half.truncate(3);
    half.sort_unstable();
    half
}

/// Too few passes for times to say anything; the program asks for a new plan, or does not.
fn half_of_the_weights(asks: bool) -> Told {
    let scene = Scene::learnt(COUNT, PAGES)?;
    pass(&scene, 1, &UP)?;
    let half = streamed_most(&scene);
    (0..2).try_for_each(|_| pass(&scene, 1, &half))?;
    if asks {
        if let Some(ft) = &scene.ft {
            say("code", u64::from(ft.model_replan(scene.model).unsigned_abs()));
            say("code of a stranger", u64::from(ft.model_replan(99).unsigned_abs()));
        }
        until_replanned(&scene, || pass(&scene, 1, &half))?;
    } else {
        (0..4).try_for_each(|_| pass(&scene, 1, &half))?;
        say("replans", replans(&scene).0);
    }
    (0..2).try_for_each(|_| pass(&scene, 1, &half))?;
    scene.finish()
}

/// Half of the weights fit beside the ring, which holds one: once only the three are used that stream most, they can stay. Later all of them are used again.
fn half_of_the_weights_from_now_on() -> Told {
    let scene = Scene::learnt(COUNT, PAGES)?;
    (0..3).try_for_each(|_| pass(&scene, 1, &UP))?;
    let half = streamed_most(&scene);
    with_calls_counted(|| until_replanned(&scene, || pass(&scene, 1, &half)))?;
    (0..2).try_for_each(|_| pass(&scene, 1, &half))?;
    scene.synchronize()?;
    let copied = || {
        let report = scene.ft.as_ref().and_then(Ft::report);
        report.and_then(|report| report["counters"]["pages_in"].as_u64()).unwrap_or(0)
    };
    let before = copied();
    (0..10).try_for_each(|_| pass(&scene, 1, &half))?;
    scene.synchronize()?;
    say("pages of ten halves", copied() - before);
    (0..4).try_for_each(|_| pass(&scene, 1, &UP))?;
    scene.finish()
}

/// Streamed weights, as digits of a number: 1 for the first one, 10 for the second and so on.
fn streamed_weights(scene: &Scene) -> u64 {
    let Some(report) = scene.ft.as_ref().and_then(Ft::report) else { return 0 };
    let units = report["placements"].as_array().into_iter().flatten();
    let streamed = units.filter(|unit| unit["streamed_bytes"].as_u64() > Some(0));
    let number = |name: &str| name.strip_prefix("layers.")?.strip_suffix(".weight")?.parse::<u32>().ok();
    streamed.filter_map(|unit| number(unit["name"].as_str()?)).map(|at| 10u64.pow(at)).sum()
}

/// Passes until the plan is the program's, or many have gone by.
fn until_streamed(scene: &Scene, wanted: u64) -> Done {
    for _ in 0..400 {
        if streamed_weights(scene) == wanted {
            break;
        }
        pass(scene, 1, &UP)?;
        scene.synchronize()?;
    }
    Ok(())
}

/// Every other weight, then another half.
fn weights_that_the_program_chose() -> Told {
    let scene = Scene::learnt(COUNT, PAGES)?;
    let say_of = |text: Option<&str>| {
        let code = scene.ft.as_ref().map_or(0, |ft| ft.model_strategy(scene.model, text));
        u64::from(code.unsigned_abs())
    };
    let weights = |list: &str| format!("{{\"name\": \"mine\", \"weights\": [{list}]}}");
    let odd = weights("\"layers.1.weight\", \"layers.3.weight\", \"layers.5.weight\", \"elsewhere\"");
    say("code", say_of(Some(&odd)));
    until_streamed(&scene, 101_010)?;
    say("odd", streamed_weights(&scene));
    let last = weights("\"layers.3.weight\", \"layers.4.weight\", \"layers.5.weight\"");
    say("code of the last", say_of(Some(&last)));
    until_streamed(&scene, 111_000)?;
    say("last", streamed_weights(&scene));
    say("code of nonsense", say_of(Some("{\"name\": \"Nonsense\"}")));
    say(
        "code of a stranger",
        scene.ft.as_ref().map_or(0, |ft| ft.model_strategy(99, None)).unsigned_abs().into(),
    );
    watched(&scene, "later", || (0..6).try_for_each(|_| pass(&scene, 1, &UP)))?;
    scene.finish()
}

/// The program has its say before anything is learnt.
fn chosen_before_learning(text: &str) -> Told {
    let mut scene = Scene::set(COUNT, PAGES, MAY_STREAM)?;
    if let Some(ft) = &scene.ft {
        say("code", ft.model_strategy(scene.model, Some(text)).unsigned_abs().into());
    }
    scene.learn()?;
    say("streamed", streamed_weights(&scene));
    scene.finish()
}
