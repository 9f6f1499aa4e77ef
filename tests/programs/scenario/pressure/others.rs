//! Stories of other processes that take memory of the GPU and give it back: simcuda does it at calls of the driver that `SIMCUDA_FAULTS` names, counted from these stories' marks.

use super::super::pages::device_bytes;
use super::super::scene::{MAY_STREAM, Scene};
use super::super::{Told, say};
use super::cache::{COUNT, Cache, PAGES, grow_between_passes, until_all_are_back};
use harness::sim::Sim;

/// Passes in which weights would come back if others did not hold the memory.
const HELD: usize = 40;

/// Calls that learning, making room and coming back are made of.
const CALLS: [&str; 7] = [
    "cuMemGetInfo_v2",
    "cuMemHostRegister_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuMemUnmap",
    "cuMemMap",
    "cuMemCreate",
    "cuMemSetAccess",
];

/// Weights are learnt, make room for a cache, and come back; meanwhile others take memory, and at last give all back.
pub(super) fn take_and_give_back() -> Told {
    let sim = Sim::find().expect("other processes are simcuda's");
    let mut scene = Scene::set(COUNT, PAGES, MAY_STREAM)?;
    let mark = |name: &str| {
        sim.set("others_bytes", 0);
        sim.set(&format!("mark:{name}"), 0);
    };
    mark("learning");
    scene.learn()?;
    let mut cache = Cache::default();
    grow_between_passes(&scene, &mut cache, 3)?;
    mark("shortage");
    grow_between_passes(&scene, &mut cache, 2)?;
    for _ in 0..4 {
        scene.pass()?;
    }
    cache.check(&scene)?;
    cache.shrink(&scene, 0)?;
    mark("back");
    for _ in 0..HELD {
        scene.pass()?;
        scene.synchronize()?;
        std::thread::yield_now();
    }
    say("streamed while others hold it", scene.counted("streamed_units"));
    sim.set("others_bytes", 0);
    until_all_are_back(&scene)?;
    for call in CALLS {
        say(call, device_bytes(&format!("calls:{call}")));
    }
    cache.finish(&scene)
}
