//! Stories of programs whose weights all fit: nothing is looked at any more, until something changes in the midst of launches.

use super::pressure::cache::{COUNT, Cache, PAGES, grow_between_passes, until_all_are_back};
use super::scene::{Done, MAY_STREAM, Scene};
use super::{Told, say};
use harness::driver::{Failure, check};
use harness::gpu::PAGE;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

pub(crate) fn tell(story: &str) -> Option<Told> {
    Some(match story {
        "weights make room in the midst of quiet launches" => room_amid_launches(),
        "weights make room behind quiet launches that take their time" => room_behind_launches(),
        "a capture begins while nothing is looked at" => capture(),
        "a second model comes while nothing is looked at" => second_model(),
        _ => return None,
    })
}

/// Learnt, and one more pass, behind which nothing needs to be looked at.
fn at_rest(count: u64, pages: u64) -> Result<Scene, Failure> {
    let scene = Scene::learnt(count, pages)?;
    scene.pass()?;
    scene.synchronize()?;
    say("quiet", scene.quiet());
    Ok(scene)
}

/// Three threads launch without any pass while a cache grows and shrinks. Between two growths the process becomes quiet again, as soon as all weights are back.
fn room_amid_launches() -> Told {
    let scene = at_rest(COUNT, PAGES)?;
    let mut cache = Cache::default();
    let stop = AtomicBool::new(false);
    let rounds: [AtomicU64; 3] = Default::default();
    let done: Result<(), Failure> = std::thread::scope(|scope| {
        let (scene, stop, rounds) = (&scene, &stop, &rounds);
        let launches = move |thread: usize| -> Done {
            scene.gpu.enter()?;
            let stream = scene.gpu.stream()?;
            while !stop.load(Ordering::Relaxed) {
                // So many at a time: whoever makes room waits for all that is enqueued.
                let checked = |at: usize| scene.check(stream, (at * (thread + 1)) % COUNT as usize);
                (0..4 * COUNT as usize).try_for_each(checked)?;
                check("cuStreamSynchronize", scene.gpu.driver.stream_synchronize(stream))?;
                rounds[thread].fetch_add(1, Ordering::Relaxed);
            }
            Ok(())
        };
        let running: Vec<_> = (0..3).map(|thread| scope.spawn(move || launches(thread))).collect();
        let mut quiet_again = 0;
        let mut story = || -> Done {
            for _ in 0..2 {
                // Everybody launches when the first page moves.
                let before: Vec<u64> = rounds.iter().map(|rounds| rounds.load(Ordering::Relaxed)).collect();
                while rounds.iter().zip(&before).any(|(now, before)| now.load(Ordering::Relaxed) == *before)
                    && !running.iter().any(std::thread::ScopedJoinHandle::is_finished)
                {
                    std::thread::yield_now();
                }
                (0..5).try_for_each(|_| cache.grow(scene, 2 * PAGE as u64).map(drop))?;
                cache.check(scene)?;
                say("quiet while some are streamed", scene.quiet());
                scene.pass()?;
                cache.shrink(scene, 0)?;
                until_all_are_back(scene)?;
                scene.pass()?;
                quiet_again += scene.quiet();
            }
            Ok(())
        };
        let told = story();
        say("quiet again", quiet_again);
        stop.store(true, Ordering::Relaxed);
        running.into_iter().try_for_each(|thread| thread.join().expect("a thread ends"))?;
        told
    });
    done?;
    scene.gpu.synchronize()?;
    cache.finish(&scene)
}

/// What was launched before takes its time; what makes room must wait for it, though nobody has looked at it.
fn room_behind_launches() -> Told {
    let scene = at_rest(COUNT, PAGES)?;
    let mut cache = Cache::default();
    for _ in 0..3 {
        (0..COUNT as usize).try_for_each(|at| scene.check_slowly_elsewhere(at, 2000))?;
        cache.grow(&scene, 4 * PAGE as u64)?;
        scene.pass()?;
    }
    scene.join()?;
    cache.check(&scene)?;
    cache.finish(&scene)
}

/// What is launched into the graph stays where it is, though nothing was looked at a moment before.
fn capture() -> Told {
    let scene = at_rest(COUNT, PAGES)?;
    let mut cache = Cache::default();
    let driver = &scene.gpu.driver;
    let executable = scene.captured((scene.main, 0), || {
        scene.check(scene.main, 0)?;
        scene.check(scene.main, 5)?;
        say("quiet in the capture", scene.quiet());
        Ok(())
    })?;
    scene.pass()?;
    say("quiet after the capture", scene.quiet());
    check("cuGraphLaunch", driver.graph_launch(executable, scene.main))?;
    grow_between_passes(&scene, &mut cache, 4)?;
    for _ in 0..3 {
        check("cuGraphLaunch", driver.graph_launch(executable, scene.main))?;
        scene.pass()?;
    }
    cache.check(&scene)?;
    cache.finish(&scene)
}

/// Passes of the first model go on while the second one is named, learnt, and makes weights of both move.
fn second_model() -> Told {
    let first = at_rest(COUNT / 2, PAGES)?;
    let second = Scene::set(COUNT / 2, PAGES, MAY_STREAM)?;
    say("quiet while one is learnt", first.quiet());
    for _ in 0..8 {
        first.pass()?;
        second.pass()?;
    }
    first.synchronize()?;
    second.synchronize()?;
    let phase = second.ft.as_ref().map_or(-2, |ft| ft.model_phase(second.model));
    say("phase of the second", u64::try_from(phase).unwrap_or(99));
    say("quiet with both", first.quiet());
    let mut cache = Cache::default();
    for _ in 0..5 {
        cache.grow(&first, 2 * PAGE as u64)?;
        first.pass()?;
        second.pass()?;
        cache.check(&first)?;
    }
    let wrong = second.finish()?;
    Ok(wrong + cache.finish(&first)?)
}
