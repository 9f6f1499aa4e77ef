//! Stories of a table of which forwards read single rows, beside weights that stream.

use super::pages::device_bytes;
use super::pressure::cache::Cache;
use super::scene::{Done, MAY_STREAM, Scene, Weight};
use super::{Told, say};
use harness::driver::Failure;
use harness::gpu::{Gpu, PAGE};
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};

const ROWS: u32 = 4;
/// Weights of two pages each; the first is the table.
const COUNT: u64 = 6;
const BYTES: u64 = 2 * PAGE as u64;

pub(crate) fn tell(story: &str) -> Option<Told> {
    Some(match story {
        "a table of rows" => table(),
        "a table in long forwards" => in_long_forwards(Then::Short),
        "a table in long forwards only" => in_long_forwards(Then::Nothing),
        "a table in long forwards, and a cache" => in_long_forwards(Then::Cache),
        "a table amid streams that wait for each other" => amid_streams(),
        "a table that stayed is private" => private_later(),
        "a table that others read" => read_by_others(),
        "a table that others hold" => held_by_others(),
        "a table is let go" => let_go(),
        "a table is freed" => freed(),
        "a table is replaced" => replaced(),
        "a table that a second model holds" => held_later(),
        _ => return None,
    })
}

/// Six weights on a device; the first of them is a table.
fn with_a_table() -> Result<Scene, Failure> {
    let mut gpu = Gpu::open()?;
    gpu.load_kernels()?;
    let mut scene = Scene::on(gpu, 0, 2, MAY_STREAM)?;
    for seed in 1..=COUNT {
        let address = scene.gpu.alloc(BYTES as usize)?;
        scene.launch("fill", &[address, BYTES, seed])?;
        let flags = if seed == 1 { MAY_STREAM | ROWS } else { MAY_STREAM };
        scene.weights.push(Weight { address, bytes: BYTES, seed, flags });
    }
    scene.synchronize()?;
    Ok(scene)
}

/// The same, learnt.
fn learnt() -> Result<Scene, Failure> {
    let mut scene = with_a_table()?;
    scene.name();
    scene.learn()?;
    say_host("learnt");
    Ok(scene)
}

fn say_host(when: &str) {
    say(&format!("{when} in the host"), device_bytes("host_located_bytes"));
}

/// GPU bytes of weights by the report, and by the driver.
fn say_gpu(scene: &Scene) {
    let report = scene.ft.as_ref().and_then(|ft| ft.report()).unwrap_or_default();
    say("weights_gpu_bytes", report["memory"]["weights_gpu_bytes"].as_u64().unwrap_or(0));
    say("device_bytes", device_bytes("device_bytes"));
}

/// It is read, and written by a kernel and by a copy, like any other weight.
fn table() -> Told {
    let mut scene = learnt()?;
    say_gpu(&scene);
    scene.pass()?;
    scene.weights[0].seed = 77;
    let table = scene.weights[0];
    scene.launch("fill", &[table.address, table.bytes, table.seed])?;
    scene.pass()?;
    scene.weights[0].seed = 78;
    scene.synchronize()?;
    scene.gpu.upload(table.address, &harness::pattern::filled(78, table.bytes as usize))?;
    scene.pass()?;
    scene.pass()?;
    say_host("ran");
    scene.finish()
}

/// What comes after forwards that compute so long that all copies are hidden.
#[derive(Clone, Copy)]
enum Then {
    Nothing,
    /// Short ones, of another shape.
    Short,
    /// Memory that does not fit beside all weights.
    Cache,
}

fn in_long_forwards(then: Then) -> Told {
    let mut scene = with_a_table()?;
    scene.name();
    scene.learn_by(|scene| scene.pass_with(slowly))?;
    say_host("learnt");
    scene.pass_with(slowly)?;
    say_gpu(&scene);
    let mut cache = Cache::default();
    match then {
        Then::Nothing => {}
        Then::Short => until_the_plan_changes(&scene)?,
        Then::Cache => say("grew", u64::from(cache.grow(&scene, 24 * PAGE as u64)?)),
    }
    say_host("ran");
    say("then", device_bytes("device_bytes"));
    scene.pass()?;
    cache.check(&scene)?;
    scene.finish()
}

/// Short forwards, until a plan for them is in force, or for a minute.
fn until_the_plan_changes(scene: &Scene) -> Done {
    short_forwards(scene, |_| Ok(()), 60)
}

/// The same for so many seconds, with something else behind each.
fn short_forwards(scene: &Scene, behind: impl Fn(&Scene) -> Done, seconds: u64) -> Done {
    let begun = std::time::Instant::now();
    let mut passes = 0;
    let moves = || device_bytes("host_located_bytes") == 0 || scene.counted("replans") == 0;
    let went = device_bytes("host_located_bytes") > 0;
    while !went && moves() && begun.elapsed() < std::time::Duration::from_secs(seconds) {
        passes += 1;
        scene.begin_shape(2);
        for at in 0..scene.weights.len() {
            let Weight { address, seed, .. } = scene.weights[at];
            scene.owner(at, || scene.launch("check", &[address, 4096, seed, scene.counter]))?;
        }
        scene.end();
        behind(scene)?;
        scene.synchronize()?;
        std::thread::sleep(std::time::Duration::from_millis(2));
    }
    say("replans", scene.counted("replans"));
    say("short passes", passes);
    Ok(())
}

/// Launches that stand on the queue of one stream until the host has launched on another one, as kernels of collectives on two GPUs do. How many it has, and how often that took seconds.
static LAUNCHED: AtomicU64 = AtomicU64::new(0);
static GIVEN_UP: AtomicU64 = AtomicU64::new(0);

extern "C" fn until_launched(number: *mut std::ffi::c_void) {
    let begun = std::time::Instant::now();
    while LAUNCHED.load(SeqCst) < number.addr() as u64 {
        if begun.elapsed() > std::time::Duration::from_secs(3) {
            GIVEN_UP.fetch_add(1, SeqCst);
            return;
        }
        std::thread::yield_now();
    }
}

/// Such launches between forwards, with time enough between the two for any thread of ours.
fn amid_streams() -> Told {
    let mut scene = with_a_table()?;
    scene.name();
    scene.learn_by(|scene| scene.pass_with(slowly))?;
    say_host("learnt");
    let behind = |scene: &Scene| {
        let number = LAUNCHED.load(SeqCst) + 1;
        let data = std::ptr::without_provenance_mut(number as usize);
        let queued = scene.gpu.driver.host_function(scene.other, until_launched, data);
        harness::driver::check("cuLaunchHostFunc", queued)?;
        std::thread::sleep(std::time::Duration::from_millis(20));
        scene.check(scene.main, 0)?;
        LAUNCHED.store(number, SeqCst);
        Ok(())
    };
    short_forwards(&scene, behind, 60)?;
    say("given up", GIVEN_UP.load(SeqCst));
    say_host("ran");
    scene.finish()
}

/// The program asks for private pages for the table, which stays where it is whatever comes.
fn private_later() -> Told {
    let mut scene = with_a_table()?;
    scene.name();
    scene.learn_by(|scene| scene.pass_with(slowly))?;
    let asked = scene.ft.as_ref().map(|ft| ft.weight_private(scene.weights[0].address));
    say("asked", asked.is_some_and(|done| done == 0).into());
    short_forwards(&scene, |_| Ok(()), 2)?;
    say_host("ran");
    scene.finish()
}

fn slowly(scene: &Scene, at: usize) -> Done {
    let Weight { address, bytes, seed, .. } = scene.weights[at];
    scene.launch("check_slow", &[address, bytes, seed, scene.counter, 30_000])
}

/// Another owner's forward reads it whole.
fn read_by_others() -> Told {
    let mut scene = with_a_table()?;
    scene.name();
    for _ in 0..12 {
        with_a_reader(&scene)?;
        if scene.phase() == 3 {
            break;
        }
    }
    scene.synchronize()?;
    say("phase", u64::try_from(scene.phase()).unwrap_or(99));
    with_a_reader(&scene)?;
    say_host("learnt");
    scene.finish()
}

fn with_a_reader(scene: &Scene) -> Done {
    scene.pass_with(|scene, at| {
        scene.check(scene.main, at)?;
        if at == 3 { scene.check(scene.main, 0) } else { Ok(()) }
    })
}

/// A second owner, that reads whole weights, holds the same memory.
fn held_by_others() -> Told {
    let mut scene = with_a_table()?;
    let tied = Weight { flags: MAY_STREAM, ..scene.weights[0] };
    scene.weights.push(tied);
    scene.name();
    scene.learn()?;
    say_host("learnt");
    scene.pass()?;
    scene.finish()
}

/// Its model is let go, and what its memory is used for in another model's forwards is no weight.
fn let_go() -> Told {
    let mut scene = learnt()?;
    scene.drop_name();
    say_host("let go");
    let block = scene.weights.remove(0);
    scene.name();
    for _ in 0..4 {
        scene.begin();
        scene.launch("fill", &[block.address, block.bytes, 99])?;
        scene.launch("check", &[block.address, block.bytes, 99, scene.counter])?;
        for at in 0..scene.weights.len() {
            scene.owner(at, || scene.check(scene.main, at))?;
        }
        scene.end();
    }
    scene.synchronize()?;
    say_host("ran");
    scene.finish()
}

/// The program has another table instead, and its allocator the memory of the old one.
fn replaced() -> Told {
    let mut scene = learnt()?;
    let block = scene.weights.remove(0);
    if let Some(ft) = &scene.ft {
        say("refused", u64::from(ft.weight_private(block.address).unsigned_abs()));
    }
    say_host("replaced");
    scene.launch("check", &[block.address, block.bytes, block.seed, scene.counter])?;
    scene.finish()
}

/// A model that comes later reads it whole.
fn held_later() -> Told {
    let mut scene = learnt()?;
    scene.weights.truncate(1);
    scene.weights[0].flags = MAY_STREAM;
    scene.name();
    for _ in 0..6 {
        scene.pass()?;
    }
    let report = scene.ft.as_ref().and_then(|ft| ft.report()).unwrap_or_default();
    let placed = report["placements"].as_array().map_or(&[][..], Vec::as_slice);
    say("tables left there", placed.iter().filter(|unit| unit["in_host"] == true).count() as u64);
    say("phase", u64::try_from(scene.phase()).unwrap_or(99));
    scene.finish()
}

/// Its memory is freed, and allocated again for something else.
fn freed() -> Told {
    let mut scene = learnt()?;
    let table = scene.weights.remove(0);
    scene.gpu.free(table.address)?;
    say_host("freed");
    let block = scene.gpu.alloc(BYTES as usize)?;
    scene.launch("fill", &[block, BYTES, 99])?;
    scene.launch("check", &[block, BYTES, 99, scene.counter])?;
    scene.finish()
}
