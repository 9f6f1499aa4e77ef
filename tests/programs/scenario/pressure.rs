//! Stories of GPU memory that runs short after everything was placed, or while it is learnt: a cache grows until it meets the weights, and shrinks again.

#[path = "pressure/cache.rs"]
pub(crate) mod cache;
#[path = "pressure/kinds.rs"]
mod kinds;
#[path = "pressure/others.rs"]
mod others;
#[path = "pressure/threads.rs"]
mod threads;

use super::pages::device_bytes;
use super::scene::{INDIRECT, MAY_STREAM, Scene};
use super::{Told, say};
use cache::{COUNT, Cache, PAGES, grow_between_passes, until_all_are_back};
use harness::driver::check;
use harness::gpu::Argument::Word;
use harness::gpu::PAGE;

pub(crate) fn tell(story: &str) -> Option<Told> {
    Some(match story {
        "a cache that grows and shrinks" => grows_and_shrinks(),
        "a cache that grows inside forwards" => grows_inside_forwards(),
        "a cache that grows under four threads" => threads::grows_under_four_threads(),
        "a cache that grows while a graph is captured" => grows_in_a_capture(),
        "a cache that grows beside a graph" => grows_beside_a_graph(),
        "a cache that grows while weights are learnt" => grows_while_learning(),
        "a cache that grows while pointers are read" => grows_while_pointers_are_read(),
        "a cache that grows once" => grows_once(),
        "a cache that grows beside many weights" => grows_beside_many(),
        "a cache that comes and goes" => comes_and_goes(),
        "memory of every kind" => kinds::memory_of_every_kind(),
        "others take memory and give it back" => others::take_and_give_back(),
        "random growth" => threads::random_growth(),
        _ => return None,
    })
}

fn grows_and_shrinks() -> Told {
    let scene = Scene::learnt(COUNT, PAGES)?;
    let mut cache = Cache::default();
    grow_between_passes(&scene, &mut cache, 5)?;
    say("streamed when full", scene.counted("streamed_units"));
    (0..4).try_for_each(|_| scene.pass())?;
    cache.check(&scene)?;
    cache.shrink(&scene, 0)?;
    until_all_are_back(&scene)?;
    cache.finish(&scene)
}

/// Memory is asked for between two layers, as activations are.
fn grows_inside_forwards() -> Told {
    let scene = Scene::learnt(COUNT, PAGES)?;
    let mut cache = Cache::default();
    for pass in 0..5 {
        scene.begin();
        for at in 0..COUNT as usize {
            scene.owner(at, || {
                scene.check(scene.main, at)?;
                if at == pass {
                    cache.grow(&scene, 2 * PAGE as u64)?;
                }
                scene.check(scene.main, at)
            })?;
        }
        scene.end();
        cache.check(&scene)?;
    }
    cache.finish(&scene)
}

/// While a stream captures, no weight moves, and what does not fit is refused; the capture lives on.
fn grows_in_a_capture() -> Told {
    let scene = Scene::learnt(COUNT, PAGES)?;
    let mut cache = Cache::default();
    grow_between_passes(&scene, &mut cache, 2)?;
    let driver = &scene.gpu.driver;
    let mut grew = Ok(false);
    // Relaxed, so that the program may allocate meanwhile.
    let executable = scene.captured((scene.other, 2), || {
        let mut mode = 2;
        check("cuThreadExchangeStreamCaptureMode", driver.exchange_capture_mode(&mut mode))?;
        scene.check(scene.other, 3)?;
        grew = cache.grow_quietly(&scene, 8 * PAGE as u64);
        check("cuThreadExchangeStreamCaptureMode", driver.exchange_capture_mode(&mut mode))
    })?;
    say("grew in the capture", u64::from(grew?));
    // Afterwards weights give way as before, but not the one in the graph.
    grow_between_passes(&scene, &mut cache, 3)?;
    for _ in 0..3 {
        check("cuGraphLaunch", driver.graph_launch(executable, scene.main))?;
        scene.pass()?;
    }
    cache.check(&scene)?;
    cache.finish(&scene)
}

/// A graph that reads two weights runs on while others give way.
fn grows_beside_a_graph() -> Told {
    let scene = Scene::learnt(COUNT, PAGES)?;
    let mut cache = Cache::default();
    let driver = &scene.gpu.driver;
    let executable = scene.captured((scene.main, 0), || {
        scene.check(scene.main, 0)?;
        scene.check(scene.main, 5)
    })?;
    for _ in 0..5 {
        check("cuGraphLaunch", driver.graph_launch(executable, scene.main))?;
        cache.grow(&scene, 2 * PAGE as u64)?;
        check("cuGraphLaunch", driver.graph_launch(executable, scene.main))?;
        scene.pass()?;
        cache.check(&scene)?;
    }
    cache.finish(&scene)
}

/// The first forwards need more than is left: weights that nobody knows the order of yet make room.
fn grows_while_learning() -> Told {
    let mut scene = Scene::set(COUNT, PAGES, MAY_STREAM)?;
    let mut cache = Cache::default();
    scene.pass_with(|scene, at| {
        if at < 5 {
            cache.grow(scene, 2 * PAGE as u64)?;
        }
        scene.check(scene.main, at)
    })?;
    cache.check(&scene)?;
    say("in the host", device_bytes("host_located_bytes"));
    scene.learn()?;
    (0..4).try_for_each(|_| scene.pass())?;
    cache.check(&scene)?;
    cache.finish(&scene)
}

/// Inside the forward of an owner that reads its weight through pointers: this one stays where it is.
fn grows_while_pointers_are_read() -> Told {
    let scene = {
        let mut scene = Scene::set(COUNT, PAGES, MAY_STREAM | INDIRECT)?;
        scene.learn()?;
        scene
    };
    let mut cache = Cache::default();
    for pass in 0..5 {
        scene.pass_with(|scene, at| {
            let weight = scene.weights[at];
            scene.launch("prepare_pointers", &[scene.array, weight.address, 0, 0, 0, 1])?;
            if at == pass {
                cache.grow(scene, 2 * PAGE as u64)?;
            }
            scene.gpu.launch(
                "check_indirect",
                scene.main,
                &[
                    Word(scene.array),
                    Word(1),
                    Word(weight.bytes),
                    harness::gpu::Argument::Struct(vec![weight.seed, 0, 0, 0]),
                    Word(scene.counter),
                ],
            )
        })?;
        cache.check(&scene)?;
    }
    cache.finish(&scene)
}

/// One block that does not fit, in a forward, where no host memory stands in, behind the mark `grow`. Says how often each driver function was called for it.
fn grows_once() -> Told {
    let scene = Scene::learnt(COUNT, PAGES)?;
    let mut cache = Cache::default();
    grow_between_passes(&scene, &mut cache, 2)?;
    scene.begin();
    super::pages::mark("grow");
    let before = MOVING.map(calls_of);
    let grew = cache.grow(&scene, 4 * PAGE as u64)?;
    say_calls(before);
    scene.end();
    say("grew", u64::from(grew));
    (0..4).try_for_each(|_| scene.pass())?;
    cache.check(&scene)?;
    cache.finish(&scene)
}

/// Many weights stream already, and a cache takes ever more of what they hold. Passes read the beginnings of weights, so that copies are what takes time. Says how many pages were mapped
/// for each block, behind a mark; then all bytes are read.
fn grows_beside_many() -> Told {
    let mut scene = Scene::set(MANY, 4, MAY_STREAM)?;
    let pass = |scene: &Scene| {
        scene.pass_with(|scene, at| {
            let weight = scene.weights[at];
            scene.launch("check", &[weight.address, 4096, weight.seed, scene.counter])
        })
    };
    scene.learn_by(pass)?;
    let mut cache = Cache::default();
    let mut grew = true;
    for block in 1..=8 {
        super::pages::mark(&format!("grow {block}"));
        let before = calls_of("cuMemMap");
        grew &= cache.grow(&scene, BLOCK * PAGE as u64)?;
        say(&format!("mapped for block {block}"), calls_of("cuMemMap") - before);
        pass(&scene)?;
        cache.check(&scene)?;
    }
    say("grew", u64::from(grew));
    scene.pass()?;
    cache.finish(&scene)
}

/// Weights that a change for little memory should leave alone.
const MANY: u64 = 32;
/// Pages of a block that grows beside them.
const BLOCK: u64 = 6;

/// Driver calls that moving weights makes.
const MOVING: [&str; 12] = [
    "cuMemGetInfo_v2",
    "cuCtxSynchronize",
    "cuStreamCreateWithPriority",
    "cuMemHostRegister_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuStreamSynchronize",
    "cuMemUnmap",
    "cuMemMap",
    "cuMemSetAccess",
    "cuMemRelease",
    "cuMemAddressReserve",
    "cuMemCreate",
];

fn calls_of(function: &str) -> u64 {
    device_bytes(&format!("calls:{function}"))
}

/// How often each of them was called since then.
fn say_calls(before: [u64; MOVING.len()]) {
    for (call, before) in MOVING.iter().zip(before) {
        say(call, calls_of(call) - before);
    }
}

/// Shortages that come again and again.
fn comes_and_goes() -> Told {
    let scene = Scene::learnt(COUNT, PAGES)?;
    let mut cache = Cache::default();
    for _ in 0..6 {
        grow_between_passes(&scene, &mut cache, 5)?;
        cache.shrink(&scene, 0)?;
        until_all_are_back(&scene)?;
    }
    say("handles", device_bytes("handles"));
    cache.finish(&scene)
}
