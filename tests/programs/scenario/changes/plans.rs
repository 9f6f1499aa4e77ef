//! New plans while the program runs: a second model comes, or only half of the weights is used from some moment on.

use super::super::scene::{Done, MAY_STREAM, Scene};
use super::super::{Told, say};
use super::{COUNT, PAGES, UP, pass, pass_on};
use harness::driver::check;
use harness::ft::Ft;

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
    let calls = || CHANGING.map(|call| super::super::pages::device_bytes(&format!("calls:{call}")));
    super::super::pages::mark("change");
    let before = calls();
    change()?;
    for ((call, before), after) in CHANGING.iter().zip(before).zip(calls()) {
        say(call, after - before);
    }
    Ok(())
}

/// The weight of which least is streamed is left of the first model, in a ring that is longer than that, or than the weight.
pub(crate) fn a_second_model_where_little_is_streamed() -> Told {
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

/// The first model streams through a short ring when a second one comes whose weights are longer than that.
/// It has run once, as the decoder of a pipeline does for each image.
pub(crate) fn a_second_model_that_is_not_learnt() -> Told {
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

/// Nothing moves in a capture, so that the newcomer cannot have its share at once; it is never run.
pub(crate) fn a_second_model_in_a_capture() -> Told {
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

pub(crate) fn a_larger_second_model() -> Told {
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
    say("device", super::super::pages::device_bytes("device_bytes"));
    Ok(first.finish()? + second.finish()?)
}

/// The same while four threads run the first model.
pub(crate) fn a_larger_second_model_under_four_threads() -> Told {
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
pub(crate) fn half_of_the_weights(asks: bool) -> Told {
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
pub(crate) fn half_of_the_weights_from_now_on() -> Told {
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
