//! A cache that grows and shrinks while other threads run forwards.

use super::super::pages::device_bytes;
use super::super::scene::{Done, Scene};
use super::super::{Told, say};
use super::cache::{COUNT, Cache, PAGES, grow_between_passes, say_moves};
use harness::driver::{Failure, check};
use harness::gpu::PAGE;
use std::sync::atomic::{AtomicBool, Ordering};

/// Two threads run forwards without a pause, and one launches without any, while a fourth one grows and shrinks a cache.
pub(crate) fn grows_under_four_threads() -> Told {
    let scene = Scene::learnt(COUNT, PAGES)?;
    let mut cache = Cache::default();
    let stop = AtomicBool::new(false);
    let done: Result<(), Failure> = std::thread::scope(|scope| {
        let (scene, stop) = (&scene, &stop);
        let forwards = move |thread: usize| -> Done {
            scene.gpu.enter()?;
            let stream = scene.gpu.stream()?;
            for round in 0.. {
                if stop.load(Ordering::Relaxed) {
                    break;
                }
                let step = if thread.is_multiple_of(2) { 1 } else { 5 };
                scene.pass_with(|scene, at| scene.check(stream, (at * step + round) % COUNT as usize))?;
                check("cuStreamSynchronize", scene.gpu.driver.stream_synchronize(stream))?;
            }
            Ok(())
        };
        // Launches outside forwards, which nothing holds back but the gate.
        let launches = move || -> Done {
            scene.gpu.enter()?;
            let stream = scene.gpu.stream()?;
            while !stop.load(Ordering::Relaxed) {
                // So many at a time: whoever makes room waits for all that is enqueued.
                (0..8 * COUNT as usize).try_for_each(|at| scene.check(stream, at % COUNT as usize))?;
                check("cuStreamSynchronize", scene.gpu.driver.stream_synchronize(stream))?;
            }
            Ok(())
        };
        let mut running: Vec<_> = (0..2).map(|thread| scope.spawn(move || forwards(thread))).collect();
        running.push(scope.spawn(launches));
        let grown = (0..2).try_for_each(|_| {
            grow_between_passes(scene, &mut cache, 5)?;
            cache.shrink(scene, 1)?;
            (0..10).try_for_each(|_| scene.pass())
        });
        stop.store(true, Ordering::Relaxed);
        running.into_iter().try_for_each(|thread| thread.join().expect("a thread ends"))?;
        grown
    });
    done?;
    scene.gpu.synchronize()?;
    cache.check(&scene)?;
    cache.finish(&scene)
}

/// A cache of blocks of all sizes grows and shrinks by chance, while threads run forwards; at the end everything is given back.
pub(crate) fn random_growth() -> Told {
    let seed: u64 = std::env::args().nth(2).and_then(|text| text.parse().ok()).unwrap_or(1);
    let steps: u64 = std::env::args().nth(3).and_then(|text| text.parse().ok()).unwrap_or(60);
    let scene = Scene::learnt(COUNT, PAGES)?;
    let mut cache = Cache::default();
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut dice = move |sides: u64| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % sides
    };
    let stop = AtomicBool::new(false);
    let done: Result<(), Failure> = std::thread::scope(|scope| {
        let (scene, stop) = (&scene, &stop);
        let forwards = move || -> Done {
            scene.gpu.enter()?;
            let stream = scene.gpu.stream()?;
            while !stop.load(Ordering::Relaxed) {
                scene.pass_with(|scene, at| scene.check(stream, at))?;
                check("cuStreamSynchronize", scene.gpu.driver.stream_synchronize(stream))?;
            }
            Ok(())
        };
        let running: Vec<_> = (0..3).map(|_| scope.spawn(forwards)).collect();
        let mut walk = || -> Done {
            for _ in 0..steps {
                match dice(8) {
                    0..=3 => drop(cache.grow(scene, (1 + dice(6)) * PAGE as u64 / (1 + dice(2)))?),
                    4 => {
                        let left = dice(cache.blocks.len() as u64 + 1) as usize;
                        cache.shrink(scene, left)?;
                    }
                    _ => {
                        scene.pass()?;
                        cache.check(scene)?;
                    }
                }
            }
            Ok(())
        };
        let walked = walk();
        stop.store(true, Ordering::Relaxed);
        running.into_iter().try_for_each(|thread| thread.join().expect("a thread ends"))?;
        walked
    });
    done?;
    scene.gpu.synchronize()?;
    cache.check(&scene)?;
    cache.shrink(&scene, 0)?;
    cache.say();
    say_moves(&scene);
    let wrong = scene.finish()?;
    let weights: Vec<u64> = scene.weights.iter().map(|weight| weight.address).collect();
    scene.drop_name();
    weights.into_iter().try_for_each(|address| scene.gpu.free(address))?;
    say("left on the GPU", device_bytes("device_bytes"));
    Ok(wrong)
}
