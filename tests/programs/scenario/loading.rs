//! Stories of models that are larger than what they may take of the GPU, or than the GPU: built, cast, run, freed and built again.

use super::pages::device_bytes;
use super::scene::{MAY_STREAM, Scene, Weight};
use super::{Told, say};
use harness::driver::{Failure, check};
use harness::gpu::{Gpu, PAGE};
use harness::sim::Sim;

/// Weights of two pages each: 24 MiB.
const COUNT: u64 = 6;
const PAGES: u64 = 2;

pub(crate) fn tell(story: &str) -> Option<Told> {
    Some(match story {
        "built beyond the budget" => built(),
        "cast beyond the budget" => cast(),
        "freed and built again" => built_again(),
        "built by threads" => built_by_threads(),
        "a second model beyond the GPU" => second_model(),
        "memory for a forward" => memory_for_a_forward(),
        "memory that an allocator kept" => kept_by_an_allocator(),
        "memory that an allocator kept, and a capture" => kept_while_a_stream_captures(),
        "first forwards in a capture" => first_forwards_in_a_capture(),
        "a weight that no launch of the first pass shows" => shown_late(),
        _ => return None,
    })
}

/// What the driver has given at most, and where weights lie now.
fn say_memory(when: &str) {
    say(&format!("{when} peak"), device_bytes("device_bytes_peak"));
    say(&format!("{when} on the GPU"), device_bytes("device_bytes"));
    say(&format!("{when} in the host"), device_bytes("host_located_bytes"));
}

fn built() -> Told {
    let mut scene = Scene::set(COUNT, PAGES, MAY_STREAM)?;
    say_memory("built");
    // Faults that are meant for what comes now count from here.
    if let Some(sim) = Sim::find() {
        sim.set("mark:learning", 0);
    }
    scene.learn()?;
    for _ in 0..3 {
        scene.pass()?;
    }
    scene.synchronize()?;
    say_memory("ran");
    scene.finish()
}

/// Each weight is made twice as large, cast into one of its size by a kernel, and let go, as `model.half()` does.
fn cast() -> Told {
    let mut gpu = Gpu::open()?;
    gpu.load_kernels()?;
    let mut scene = Scene::on(gpu, 0, PAGES, MAY_STREAM)?;
    let bytes = PAGES * PAGE as u64;
    let mut wide = Vec::new();
    for seed in 1..=COUNT {
        let address = scene.gpu.alloc(2 * bytes as usize)?;
        scene.launch("fill", &[address, 2 * bytes, seed])?;
        wide.push((address, seed));
    }
    for (source, seed) in wide {
        let address = scene.gpu.alloc(bytes as usize)?;
        scene.launch("copy_words", &[address, source, bytes / 8])?;
        scene.gpu.free(source)?;
        scene.weights.push(Weight { address, bytes, seed, flags: MAY_STREAM });
    }
    say_memory("built");
    scene.name();
    scene.learn()?;
    scene.pass()?;
    scene.finish()
}

fn built_again() -> Told {
    let mut wrong = 0;
    for _ in 0..2 {
        let mut scene = Scene::set(COUNT, PAGES, MAY_STREAM)?;
        say_memory("built");
        scene.learn()?;
        wrong += scene.finish()?;
        for weight in &scene.weights {
            scene.gpu.free(weight.address)?;
        }
        scene.drop_name();
    }
    // Weights that are freed before they are named.
    let scene = Scene::set(COUNT, PAGES, MAY_STREAM)?;
    for weight in &scene.weights {
        scene.gpu.free(weight.address)?;
    }
    say_memory("freed");
    Ok(wrong)
}

/// Several threads allocate at once; together they may not take more than the budget.
fn built_by_threads() -> Told {
    let mut gpu = Gpu::open()?;
    gpu.load_kernels()?;
    let mut scene = Scene::on(gpu, 0, PAGES, MAY_STREAM)?;
    let bytes = PAGES * PAGE as u64;
    let addresses: Result<Vec<u64>, Failure> = std::thread::scope(|scope| {
        let gpu = &scene.gpu;
        let allocate = move |_| {
            scope.spawn(move || {
                gpu.enter()?;
                gpu.alloc(bytes as usize)
            })
        };
        let threads: Vec<_> = (0..COUNT).map(allocate).collect();
        threads.into_iter().map(|thread| thread.join().expect("a thread ends")).collect()
    });
    for (seed, address) in (1..).zip(addresses?) {
        scene.launch("fill", &[address, bytes, seed])?;
        scene.weights.push(Weight { address, bytes, seed, flags: MAY_STREAM });
    }
    say_memory("built");
    scene.name();
    scene.learn()?;
    scene.pass()?;
    scene.finish()
}

/// The first model has run; the second one does not fit what the GPU has left. The program gives an allocation that is refused a second try, as torch does.
fn second_model() -> Told {
    let mut first = Scene::set(2, PAGES, MAY_STREAM)?;
    first.learn()?;
    let mut gpu = Gpu::open()?;
    gpu.load_kernels()?;
    let mut second = Scene::on(gpu, 0, PAGES, MAY_STREAM)?;
    let bytes = PAGES * PAGE as u64;
    let mut refused = 0;
    for seed in 1..=COUNT {
        let address = second.gpu.alloc(bytes as usize).or_else(|_| {
            refused += 1;
            second.gpu.alloc(bytes as usize)
        })?;
        second.launch("fill", &[address, bytes, seed])?;
        second.weights.push(Weight { address, bytes, seed, flags: MAY_STREAM });
    }
    say("refused", refused);
    say_memory("built");
    second.name();
    second.learn()?;
    first.pass()?;
    second.pass()?;
    Ok(first.finish()? + second.finish()?)
}

/// What is allocated in a forward is no weight: it never lies in host memory.
fn memory_for_a_forward() -> Told {
    let mut scene = Scene::set(COUNT, PAGES, MAY_STREAM)?;
    let before = device_bytes("host_located_bytes");
    scene.begin();
    let address = scene.gpu.alloc(2 * PAGE)?;
    say("more in the host", device_bytes("host_located_bytes") - before);
    scene.gpu.free(address)?;
    scene.end();
    scene.learn()?;
    scene.finish()
}

/// Runs `meanwhile` while a stream of the scene captures a check of a weight, and launches what came of it: a capture that did not survive is an error.
fn while_captured(scene: &Scene, meanwhile: impl FnOnce() -> Result<(), Failure>) -> Result<(), Failure> {
    // Relaxed: what other threads do is none of its business, as with graphs of torch's that share a process with others' work.
    let executable = scene.captured((scene.other, 2), || {
        scene.check(scene.other, 3)?;
        meanwhile()
    })?;
    check("cuGraphLaunch", scene.gpu.driver.graph_launch(executable, scene.main))
}

/// The GPU is full of weights, and some have to leave it before the first forward; in the first two a stream captures.
fn first_forwards_in_a_capture() -> Told {
    let mut scene = Scene::set(COUNT, PAGES, MAY_STREAM)?;
    let host = || device_bytes("host_located_bytes");
    say("in the host", host());
    while_captured(&scene, || (0..2).try_for_each(|_| scene.pass()))?;
    say("in the host after the capture", host());
    scene.begin();
    say("in the host in the next forward", host());
    scene.end();
    scene.learn()?;
    scene.pass()?;
    scene.finish()
}

/// The order of use that the first pass shows is not the whole truth.
fn shown_late() -> Told {
    let mut scene = Scene::set(COUNT, PAGES, MAY_STREAM)?;
    scene.pass_with(|scene, at| if at == 3 { Ok(()) } else { scene.check(scene.main, at) })?;
    scene.learn()?;
    scene.pass()?;
    scene.finish()
}

/// A block that was made while the model was loaded is used by forwards: it leaves host memory. One that no forward uses stays.
fn kept_by_an_allocator() -> Told {
    keep_a_block(|_| Ok(()))
}

/// The same, where it cannot leave before the second forward, in which a stream captures.
fn kept_while_a_stream_captures() -> Told {
    keep_a_block(|scene| while_captured(scene, || scene.pass()))
}

fn keep_a_block(after: impl FnOnce(&Scene) -> Result<(), Failure>) -> Told {
    let mut scene = Scene::set(COUNT, PAGES, MAY_STREAM)?;
    // The budget has room for one page more.
    scene.gpu.alloc(PAGE)?;
    let (used, unused) = (scene.gpu.alloc(PAGE)?, scene.gpu.alloc(PAGE)?);
    scene.launch("fill", &[used, PAGE as u64, 77])?;
    scene.launch("fill", &[unused, PAGE as u64, 78])?;
    scene.pass_with(|scene, at| {
        scene.launch("check", &[used, PAGE as u64, 77, scene.counter])?;
        scene.check(scene.main, at)
    })?;
    after(&scene)?;
    scene.learn()?;
    scene.launch("check", &[used, PAGE as u64, 77, scene.counter])?;
    scene.launch("check", &[unused, PAGE as u64, 78, scene.counter])?;
    say_memory("ran");
    scene.finish()
}
