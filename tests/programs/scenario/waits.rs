//! Stories of programs that wait for all of their context: for what they submitted, wherever, and for nothing of ours.

use super::scene::{Done, Scene};
use super::{Told, say};
use harness::driver::{Failure, check};
use harness::gpu::Argument::Word;
use harness::sim::Sim;
use std::time::{Duration, Instant};

pub(crate) fn tell(story: &str) -> Option<Told> {
    Some(match story {
        "waits for its device" => for_its_device(),
        "waits for work on every stream" => for_every_stream(),
        _ => return None,
    })
}

/// Each copy takes so long, so that some are on their way for the next pass when one has ended.
const LATE_US: u64 = 30_000;
/// A kernel that takes so long is not over when a wait begins.
const SLOW_US: u64 = 20_000;
const BYTES: u64 = 4096;
const SEED: u64 = 77;
const NON_BLOCKING: u32 = 1;
const RELAXED: u32 = 2;
const LEGACY: u64 = 0;
const OWN: u64 = 2;

/// A scene of which every pass leaves copies behind, and memory that is no weight.
fn slow_link() -> Result<(Scene, u64), Failure> {
    let scene = Scene::learnt(6, 2)?;
    let memory = scene.gpu.alloc(BYTES as usize)?;
    scene.launch("fill", &[memory, BYTES, SEED])?;
    scene.synchronize()?;
    if let Some(sim) = Sim::find() {
        sim.set("late_us", LATE_US);
    }
    Ok((scene, memory))
}

fn wait_for_all(scene: &Scene) -> Done {
    check("cuCtxSynchronize", scene.gpu.driver.context_synchronize())
}

/// All of its own has ended when it waits: how long it waits is how long it waits for others.
fn for_its_device() -> Told {
    let (scene, _) = slow_link()?;
    let mut least = u64::MAX;
    for _ in 0..3 {
        scene.pass()?;
        scene.synchronize()?;
        let begun = Instant::now();
        wait_for_all(&scene)?;
        least = least.min(begun.elapsed().as_micros() as u64);
    }
    say("waited", least);
    scene.finish()
}

/// A kernel that is slow on the stream, and an event behind it.
fn slow_work(scene: &Scene, memory: u64, stream: u64) -> Result<u64, Failure> {
    let event = scene.gpu.event()?;
    let arguments = [memory, BYTES, SEED, scene.counter, SLOW_US];
    scene.gpu.launch("check_slow", stream, &arguments.map(Word))?;
    scene.gpu.record(event, stream)?;
    Ok(event)
}

/// Says whether the work is over once the program has waited for all of its context, with copies of ours under way.
fn over_after_waiting(scene: &Scene, what: &str, work: impl FnOnce() -> Result<u64, Failure>) -> Done {
    scene.pass()?;
    scene.synchronize()?;
    let event = work()?;
    wait_for_all(scene)?;
    say(what, u64::from(scene.gpu.driver.event_query(event)));
    Ok(())
}

fn for_every_stream() -> Told {
    let (scene, memory) = slow_link()?;
    let driver = &scene.gpu.driver;
    let made = |flags: u32| -> Result<u64, Failure> {
        let mut stream = 0;
        check("cuStreamCreate", driver.stream_create(&mut stream, flags))?;
        Ok(stream)
    };
    let (plain, apart) = (made(0)?, made(NON_BLOCKING)?);
    over_after_waiting(&scene, "legacy", || slow_work(&scene, memory, LEGACY))?;
    over_after_waiting(&scene, "plain", || slow_work(&scene, memory, plain))?;
    over_after_waiting(&scene, "apart", || slow_work(&scene, memory, apart))?;
    for _ in 0..2 {
        over_after_waiting(&scene, "destroyed", || {
            let gone = made(NON_BLOCKING)?;
            let event = slow_work(&scene, memory, gone)?;
            check("cuStreamDestroy", driver.stream_destroy(gone))?;
            Ok(event)
        })?;
    }
    over_after_waiting(&scene, "destroyed meanwhile", || {
        let gone = made(NON_BLOCKING)?;
        let event = slow_work(&scene, memory, gone)?;
        destroyed_while_waited_for(&scene, gone)?;
        Ok(event)
    })?;
    say("refused", u64::from(driver.stream_destroy(apart + 1)));
    over_after_waiting(&scene, "apart", || slow_work(&scene, memory, apart))?;
    scene.pass()?;
    scene.synchronize()?;
    in_a_capture(&scene, apart)?;
    over_after_waiting(&scene, "own", || {
        std::thread::scope(|scope| {
            let elsewhere = scope.spawn(|| {
                scene.gpu.enter()?;
                slow_work(&scene, memory, OWN)
            });
            elsewhere.join().unwrap_or(Err(Failure { function: "a thread", code: 999 }))
        })
    })?;
    scene.finish()
}

/// Another thread waits for all of the context when the stream goes.
fn destroyed_while_waited_for(scene: &Scene, stream: u64) -> Done {
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            scene.gpu.enter()?;
            wait_for_all(scene)
        });
        std::thread::sleep(Duration::from_micros(SLOW_US / 4));
        check("cuStreamDestroy", scene.gpu.driver.stream_destroy(stream))?;
        waiting.join().unwrap_or(Err(Failure { function: "a thread", code: 999 }))
    })
}

/// The driver refuses to wait while something captures, and what became of the capture is its decision too.
fn in_a_capture(scene: &Scene, stream: u64) -> Done {
    let (driver, mut graph) = (&scene.gpu.driver, 0);
    check("cuStreamBeginCapture", driver.begin_capture(stream, RELAXED))?;
    say("in a capture", u64::from(driver.context_synchronize()));
    say("the capture", u64::from(driver.end_capture(stream, &mut graph)));
    Ok(())
}
