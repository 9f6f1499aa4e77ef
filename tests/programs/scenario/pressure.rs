//! Stories of GPU memory that runs short after everything was placed, or while it is learnt: a cache grows until it meets the weights, and shrinks again.

use super::pages::device_bytes;
use super::scene::{Done, INDIRECT, MAY_STREAM, Scene};
use super::{Told, say};
use harness::driver::{Failure, check};
use harness::gpu::Argument::Word;
use harness::gpu::{PAGE, device_memory};
use std::sync::atomic::{AtomicBool, Ordering};

/// Weights of two pages each: 24 MiB.
const COUNT: u64 = 6;
const PAGES: u64 = 2;

/// Passes in which weights come back, if they do.
const PASSES: usize = 400;

pub(crate) fn tell(story: &str) -> Option<Told> {
    Some(match story {
        "a cache that grows and shrinks" => grows_and_shrinks(),
        "a cache that grows inside forwards" => grows_inside_forwards(),
        "a cache that grows under four threads" => grows_under_four_threads(),
        "a cache that grows while a graph is captured" => grows_in_a_capture(),
        "a cache that grows beside a graph" => grows_beside_a_graph(),
        "a cache that grows while weights are learnt" => grows_while_learning(),
        "a cache that grows while pointers are read" => grows_while_pointers_are_read(),
        "a cache that grows once" => grows_once(),
        "a cache that comes and goes" => comes_and_goes(),
        "memory of every kind" => memory_of_every_kind(),
        "random growth" => random_growth(),
        _ => return None,
    })
}

/// Memory that forwards write and read beside their weights.
#[derive(Default)]
struct Cache {
    blocks: Vec<(u64, u64, u64)>,
    made: u64,
    /// Allocations that were refused at first, and for good.
    refused: u64,
    failed: u64,
}

impl Cache {
    /// One more block, as an allocator that keeps freed memory gets it: what is refused is asked for once more. False if that is refused too.
    fn grow(&mut self, scene: &Scene, bytes: u64) -> Result<bool, Failure> {
        let first = scene.gpu.alloc(bytes as usize);
        let address = match first {
            Err(Failure { code: 2, .. }) => {
                self.refused += 1;
                scene.gpu.alloc(bytes as usize)
            }
            first => first,
        };
        match address {
            Err(Failure { code: 2, .. }) => {
                self.failed += 1;
                Ok(false)
            }
            Err(failure) => Err(failure),
            Ok(address) => {
                self.made += 1;
                let seed = 1000 + self.made;
                scene.launch("fill", &[address, bytes, seed])?;
                self.blocks.push((address, bytes, seed));
                Ok(true)
            }
        }
    }

    fn check(&self, scene: &Scene) -> Done {
        let each = |&(address, bytes, seed): &(u64, u64, u64)| {
            scene.launch("check", &[address, bytes, seed, scene.counter])
        };
        self.blocks.iter().try_for_each(each)
    }

    /// Only so many blocks stay.
    fn shrink(&mut self, scene: &Scene, blocks: usize) -> Done {
        let gone = self.blocks.split_off(blocks.min(self.blocks.len()));
        gone.into_iter().try_for_each(|(address, ..)| scene.gpu.free(address))
    }

    fn say(&self) {
        say("refused", self.refused);
        say("failed", self.failed);
    }
}

fn counted(scene: &Scene, key: &str) -> u64 {
    let report = scene.ft.as_ref().and_then(harness::ft::Ft::report);
    report.and_then(|report| report["counters"][key].as_u64()).unwrap_or(0)
}

/// What the library says that weights did.
fn say_moves(scene: &Scene) {
    let keys = [
        "demotions",
        "demoted_bytes",
        "promotions",
        "promoted_bytes",
        "shortages_refused",
        "shortages_unanswered",
    ];
    keys.into_iter().for_each(|key| say(key, counted(scene, key)));
    say("device peak", device_bytes("device_bytes_peak"));
}

/// Passes until nothing is streamed any more, or for long.
fn until_all_are_back(scene: &Scene) -> Done {
    let streamed = || counted(scene, "streamed_units");
    for pass in 0..PASSES {
        scene.pass()?;
        scene.synchronize()?;
        if streamed() == 0 {
            say("back after", pass as u64);
            return Ok(());
        }
        // The plan is made by a thread of its own.
        std::thread::yield_now();
    }
    say("back after", PASSES as u64);
    Ok(())
}

/// Two pages at a time: 20 MiB beside weights of 24.
fn grow_between_passes(scene: &Scene, cache: &mut Cache, blocks: usize) -> Done {
    for _ in 0..blocks {
        cache.grow(scene, 2 * PAGE as u64)?;
        scene.pass()?;
        cache.check(scene)?;
    }
    scene.synchronize()
}

fn grows_and_shrinks() -> Told {
    let scene = Scene::learnt(COUNT, PAGES)?;
    let mut cache = Cache::default();
    grow_between_passes(&scene, &mut cache, 5)?;
    say("streamed when full", counted(&scene, "streamed_units"));
    (0..4).try_for_each(|_| scene.pass())?;
    cache.check(&scene)?;
    cache.shrink(&scene, 0)?;
    until_all_are_back(&scene)?;
    cache.say();
    say_moves(&scene);
    scene.finish()
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
    cache.say();
    say_moves(&scene);
    scene.finish()
}

/// Two threads run forwards without a pause, and one launches without any, while a fourth one grows and shrinks a cache.
fn grows_under_four_threads() -> Told {
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
    cache.say();
    say_moves(&scene);
    scene.finish()
}

/// While a stream captures, no weight moves, and what does not fit is refused; the capture lives on.
fn grows_in_a_capture() -> Told {
    let scene = Scene::learnt(COUNT, PAGES)?;
    let mut cache = Cache::default();
    grow_between_passes(&scene, &mut cache, 2)?;
    let driver = &scene.gpu.driver;
    let (mut graph, mut executable) = (0, 0);
    // Relaxed, so that the program may allocate meanwhile.
    check("cuStreamBeginCapture", driver.begin_capture(scene.other, 2))?;
    let mut mode = 2;
    check("cuThreadExchangeStreamCaptureMode", driver.exchange_capture_mode(&mut mode))?;
    scene.check(scene.other, 3)?;
    let grew = cache.grow_quietly(&scene, 8 * PAGE as u64);
    check("cuThreadExchangeStreamCaptureMode", driver.exchange_capture_mode(&mut mode))?;
    check("cuStreamEndCapture", driver.end_capture(scene.other, &mut graph))?;
    say("grew in the capture", u64::from(grew?));
    check("cuGraphInstantiate", driver.graph_instantiate(&mut executable, graph, 0))?;
    // Afterwards weights give way as before, but not the one in the graph.
    grow_between_passes(&scene, &mut cache, 3)?;
    for _ in 0..3 {
        check("cuGraphLaunch", driver.graph_launch(executable, scene.main))?;
        scene.pass()?;
    }
    cache.check(&scene)?;
    cache.say();
    say_moves(&scene);
    scene.finish()
}

impl Cache {
    /// As [`Cache::grow`], without touching what came of it: the thread may be capturing.
    fn grow_quietly(&mut self, scene: &Scene, bytes: u64) -> Result<bool, Failure> {
        for _ in 0..2 {
            match scene.gpu.alloc(bytes as usize) {
                Ok(address) => return scene.gpu.free(address).map(|()| true),
                Err(Failure { code: 2, .. }) => {}
                Err(failure) => return Err(failure),
            }
        }
        Ok(false)
    }
}

/// A graph that reads two weights runs on while others give way.
fn grows_beside_a_graph() -> Told {
    let scene = Scene::learnt(COUNT, PAGES)?;
    let mut cache = Cache::default();
    let driver = &scene.gpu.driver;
    let (mut graph, mut executable) = (0, 0);
    check("cuStreamBeginCapture", driver.begin_capture(scene.main, 0))?;
    scene.check(scene.main, 0)?;
    scene.check(scene.main, 5)?;
    check("cuStreamEndCapture", driver.end_capture(scene.main, &mut graph))?;
    check("cuGraphInstantiate", driver.graph_instantiate(&mut executable, graph, 0))?;
    for _ in 0..5 {
        check("cuGraphLaunch", driver.graph_launch(executable, scene.main))?;
        cache.grow(&scene, 2 * PAGE as u64)?;
        check("cuGraphLaunch", driver.graph_launch(executable, scene.main))?;
        scene.pass()?;
        cache.check(&scene)?;
    }
    cache.say();
    say_moves(&scene);
    scene.finish()
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
    cache.say();
    say_moves(&scene);
    scene.finish()
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
    cache.say();
    say_moves(&scene);
    scene.finish()
}

/// One block that does not fit, in a forward, where no host memory stands in, behind the mark `grow`. Says how often each driver function was called for it.
fn grows_once() -> Told {
    let scene = Scene::learnt(COUNT, PAGES)?;
    let mut cache = Cache::default();
    grow_between_passes(&scene, &mut cache, 2)?;
    let calls = || MOVING.map(|call| device_bytes(&format!("calls:{call}")));
    scene.begin();
    super::pages::mark("grow");
    let before = calls();
    let grew = cache.grow(&scene, 4 * PAGE as u64)?;
    let after = calls();
    scene.end();
    for ((call, before), after) in MOVING.iter().zip(before).zip(after) {
        say(call, after - before);
    }
    say("grew", u64::from(grew));
    (0..4).try_for_each(|_| scene.pass())?;
    cache.check(&scene)?;
    cache.say();
    say_moves(&scene);
    scene.finish()
}

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
    cache.say();
    say_moves(&scene);
    scene.finish()
}

/// Everything that a program can take of a GPU, until nothing is left; then all of it is given back.
fn memory_of_every_kind() -> Told {
    let scene = Scene::learnt(COUNT, PAGES)?;
    let driver = &scene.gpu.driver;
    let info = || -> Result<(u64, u64), Failure> {
        let (mut free, mut total) = (0, 0);
        check("cuMemGetInfo", driver.mem_info(&mut free, &mut total))?;
        Ok((free as u64, total as u64))
    };
    let start = info()?;
    say("free at first", start.0);
    say("total", start.1);
    let (mut small, mut pitched, mut made, mut pooled) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for round in 0..200 {
        let full = match round % 4 {
            0 => keep(&mut small, || scene.gpu.alloc(300_000)),
            1 => keep(&mut pitched, || pitched_memory(&scene)),
            2 => keep(&mut pooled, || pooled_memory(&scene)),
            _ => keep(&mut made, || scene.gpu.create(PAGE, &device_memory())),
        };
        if full? {
            say("rounds", round);
            break;
        }
        if round % 8 == 0 {
            scene.pass()?;
        }
    }
    say("free at last", info()?.0);
    say_moves(&scene);
    (0..3).try_for_each(|_| scene.pass())?;
    scene.synchronize()?;
    small.into_iter().chain(pitched).try_for_each(|address| scene.gpu.free(address))?;
    made.into_iter().try_for_each(|handle| check("cuMemRelease", driver.mem_release(handle)))?;
    pooled
        .into_iter()
        .try_for_each(|address| check("cuMemFreeAsync", driver.mem_free_async(address, scene.main)))?;
    // What the pool keeps goes when somebody needs it.
    let mut cache = Cache::default();
    grow_between_passes(&scene, &mut cache, 6)?;
    cache.shrink(&scene, 0)?;
    cache.say();
    until_all_are_back(&scene)?;
    say("free again", info()?.0);
    scene.finish()
}

fn pitched_memory(scene: &Scene) -> Result<u64, Failure> {
    let (mut address, mut pitch) = (0, 0);
    check("cuMemAllocPitch", scene.gpu.driver.mem_alloc_pitch(&mut address, &mut pitch, 1000, 400, 4))?;
    Ok(address)
}

fn pooled_memory(scene: &Scene) -> Result<u64, Failure> {
    let mut address = 0;
    check("cuMemAllocAsync", scene.gpu.driver.mem_alloc_async(&mut address, 700_000, scene.main))?;
    Ok(address)
}

/// What is refused is asked for once more. True when memory has run out.
fn keep(list: &mut Vec<u64>, make: impl Fn() -> Result<u64, Failure>) -> Result<bool, Failure> {
    match make().or_else(|_| make()) {
        Ok(made) => {
            list.push(made);
            Ok(false)
        }
        Err(Failure { code: 2, .. }) => Ok(true),
        Err(failure) => Err(failure),
    }
}

/// A cache of blocks of all sizes grows and shrinks by chance, while threads run forwards; at the end everything is given back.
fn random_growth() -> Told {
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
