//! Stories of threads and of processes that split and end.
#![expect(unsafe_code, reason = "fork, signals and exits are the subject")]

use super::scene::{MAY_STREAM, Scene};
use super::{Told, say};
use harness::driver::Failure;
use harness::gpu::Argument::Word;
use std::sync::atomic::{AtomicBool, Ordering};

const COUNT: u64 = 6;
const PAGES: u64 = 2;

pub(crate) fn tell(story: &str) -> Option<Told> {
    Some(match story {
        "threads" => threads(),
        "a reader is late while another thread writes" => late_reader(),
        "two models learnt at once" => two_models_at_once(),
        "launches during the switch-over" => launches_during_the_switch_over(),
        "fork before the first use" => fork_before(),
        "fork after the switch" => fork_after(),
        "exit in a thread" => ends_while_busy(|| std::process::exit(0)),
        "_exit in a thread" => ends_while_busy(|| {
            // SAFETY: ends the process at once.
            unsafe { libc::_exit(0) }
        }),
        "terminated" => ends_while_busy(|| {
            // SAFETY: a signal to ourselves, with its default action.
            unsafe { libc::raise(libc::SIGTERM) };
            std::thread::sleep(std::time::Duration::from_secs(10));
        }),
        _ => return None,
    })
}

/// Four threads run forwards of one model, each on its stream, in step and out of step.
fn threads() -> Told {
    let scene = Scene::learnt(COUNT, PAGES)?;
    let results: Vec<Result<(), Failure>> = std::thread::scope(|scope| {
        let running: Vec<_> = (0..4)
            .map(|thread| {
                scope.spawn({
                    let scene = &scene;
                    move || forwards(scene, thread)
                })
            })
            .collect();
        running.into_iter().map(|thread| thread.join().expect("a thread ends")).collect()
    });
    results.into_iter().collect::<Result<(), Failure>>()?;
    scene.gpu.synchronize()?;
    scene.finish()
}

fn forwards(scene: &Scene, thread: usize) -> Result<(), Failure> {
    scene.gpu.enter()?;
    let stream = scene.gpu.stream()?;
    for round in 0..5 {
        if thread.is_multiple_of(2) {
            scene.pass_with(|scene, at| scene.check(stream, at))?;
        } else {
            scene.pass_with(|scene, at| scene.check(stream, (at * 5 + round) % COUNT as usize))?;
        }
    }
    Ok(())
}

/// A weight is read for a while. Meanwhile one thread enqueues a second reader behind work that fills its queue, so that it is checked long before it is enqueued; and
/// another one reads the weight outside of forwards, where a kernel counts as one that may write.
fn late_reader() -> Told {
    let scene = Scene::learnt(COUNT, PAGES)?;
    let streams = [scene.gpu.stream()?, scene.gpu.stream()?];
    for round in 0..6 {
        let at = round % COUNT as usize;
        // Twice: the second time nothing has used it for a while.
        for _ in 0..2 {
            scene.pass()?;
            scene.gpu.synchronize()?;
        }
        let about_to = std::sync::Barrier::new(2);
        let late = || -> Result<(), Failure> {
            scene.gpu.enter()?;
            for _ in 0..2 {
                scene.gpu.launch("pause", streams[0], &[Word(1000)])?;
            }
            scene.begin();
            about_to.wait();
            let reading = scene.owner(at, || scene.check(streams[0], at));
            scene.end();
            reading
        };
        let outside = || -> Result<(), Failure> {
            scene.gpu.enter()?;
            about_to.wait();
            // Nothing tells when the other one has been checked; the pauses take much longer.
            std::thread::sleep(std::time::Duration::from_millis(2));
            scene.check(streams[1], at)
        };
        scene.begin();
        let reading = (0..2).try_for_each(|_| scene.owner(at, || scene.check(scene.main, at)));
        let done: Vec<Result<(), Failure>> = std::thread::scope(|scope| {
            let running = [scope.spawn(late), scope.spawn(outside)];
            running.into_iter().map(|thread| thread.join().expect("a thread ends")).collect()
        });
        scene.end();
        done.into_iter().fold(reading, Result::and)?;
    }
    scene.gpu.synchronize()?;
    scene.finish()
}

/// Two threads bring a model each to its switch-over at the same moment.
fn two_models_at_once() -> Told {
    let together = std::sync::Barrier::new(2);
    let live = |pages: u64| -> Told {
        let mut scene = Scene::set(COUNT, pages, MAY_STREAM)?;
        scene.pass()?;
        // The last pass of learning ends on both threads at once.
        scene.begin();
        for at in 0..COUNT as usize {
            scene.owner(at, || scene.check(scene.main, at))?;
        }
        scene.synchronize()?;
        together.wait();
        scene.end();
        scene.learn()?;
        for _ in 0..3 {
            scene.pass()?;
        }
        scene.finish()
    };
    let told: Vec<Told> = std::thread::scope(|scope| {
        let live = &live;
        let running: Vec<_> = (0..2).map(|_| scope.spawn(move || live(3))).collect();
        running.into_iter().map(|thread| thread.join().expect("a thread ends")).collect()
    });
    told.into_iter().sum()
}

/// Two threads launch without a pause while the model is learnt and switched over.
fn launches_during_the_switch_over() -> Told {
    let mut scene = Scene::set(COUNT, PAGES, MAY_STREAM)?;
    // What the threads see does not change; only the main thread needs the scene for itself.
    let (weights, counter) = (scene.weights.clone(), scene.counter);
    let gpu =
        std::sync::Arc::new(harness::gpu::Gpu::open().and_then(|mut gpu| gpu.load_kernels().map(|()| gpu))?);
    let stop = std::sync::Arc::new(AtomicBool::new(false));
    let launching = |thread: usize| {
        let (gpu, stop, weights) =
            (std::sync::Arc::clone(&gpu), std::sync::Arc::clone(&stop), weights.clone());
        std::thread::spawn(move || -> Result<(), Failure> {
            gpu.enter()?;
            let stream = gpu.stream()?;
            for at in (thread..).step_by(3) {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                let weight = weights[at % weights.len()];
                let arguments = [weight.address, weight.bytes, weight.seed, counter];
                gpu.launch("check", stream, &arguments.map(Word))?;
                // Few are under way at any time, so that the switch-over need not wait for long.
                harness::driver::check("cuStreamSynchronize", gpu.driver.stream_synchronize(stream))?;
            }
            Ok(())
        })
    };
    let threads: Vec<_> = (0..2).map(launching).collect();
    scene.learn()?;
    scene.pass()?;
    scene.pass()?;
    stop.store(true, Ordering::Relaxed);
    threads.into_iter().try_for_each(|thread| thread.join().expect("a thread ends"))?;
    scene.finish()
}

/// A child that never saw the driver starts on its own; so does the parent.
fn fork_before() -> Told {
    // SAFETY: no thread of this process runs yet.
    let child = unsafe { libc::fork() };
    let scene = Scene::learnt(COUNT, PAGES)?;
    scene.pass()?;
    let wrong = scene.finish()?;
    if child == 0 {
        std::process::exit(i32::from(wrong != 0));
    }
    Ok(wrong + status_of(child))
}

/// A child of a process that streams: what it calls of us says that it is a child, it allocates nothing, and it exits as any other.
fn fork_after() -> Told {
    let scene = Scene::learnt(COUNT, PAGES)?;
    // SAFETY: the child only asks us for our state, and exits.
    let child = unsafe { libc::fork() };
    if child == 0 {
        let phase = scene.phase();
        std::process::exit(if phase == -1 { 0 } else { 7 });
    }
    let failed = status_of(child);
    say("child", failed);
    scene.pass()?;
    Ok(failed + scene.finish()?)
}

/// 0 if the child ended well.
fn status_of(child: i32) -> u64 {
    let mut status = 0;
    // SAFETY: the pointer is to a local.
    unsafe { libc::waitpid(child, &mut status, 0) };
    status.unsigned_abs().into()
}

/// The process ends while two threads launch.
fn ends_while_busy(end: impl FnOnce() + Send) -> Told {
    let scene = Scene::set(COUNT, PAGES, MAY_STREAM)?;
    let mut scene = scene;
    scene.learn()?;
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let launch = |at: usize| {
                    let weight = scene.weights[at];
                    let arguments = [weight.address, weight.bytes, weight.seed, scene.counter];
                    scene.gpu.launch("check", scene.main, &arguments.map(Word))
                };
                let _ = scene.gpu.enter();
                let mut at = 0;
                while !stop.load(Ordering::Relaxed) && launch(at % COUNT as usize).is_ok() {
                    at += 1;
                }
            });
        }
        scope.spawn(|| {
            std::thread::sleep(std::time::Duration::from_millis(30));
            end();
            stop.store(true, Ordering::Relaxed);
        });
    });
    Ok(99)
}
