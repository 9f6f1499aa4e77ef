//! Stories of what users reported of other libraries, as far as no other file has them.

use super::scene::{MAY_STREAM, Scene, Weight};
use super::{Told, say};
use harness::driver::{Failure, check};
use harness::gpu::{PAGE, host_memory};
use harness::sim::Sim;

const COUNT: u64 = 6;
const PAGES: u64 = 2;
const BYTES: u64 = PAGES * PAGE as u64;

pub(crate) fn tell(story: &str) -> Option<Told> {
    Some(match story {
        "host memory of the program's own" => own_host_memory(),
        "freed when the driver has gone" => freed_too_late(),
        "two models share weights" => shared_weights(),
        _ => return None,
    })
}

/// Host memory that the program makes and maps itself, at node 0: as much as would exceed any limit if the node were taken for GPU 0.
fn own_host_memory() -> Told {
    const BLOCKS: u64 = 16;
    let scene = Scene::learnt(COUNT, PAGES)?;
    let free = || -> Result<u64, Failure> {
        let (mut free, mut total) = (0, 0);
        check("cuMemGetInfo", scene.gpu.driver.mem_info(&mut free, &mut total))?;
        Ok(free as u64)
    };
    let before = free()?;
    for block in 0..BLOCKS {
        let handle = scene.gpu.create(BYTES as usize, &host_memory())?;
        let place = scene.gpu.reserve(BYTES as usize)?;
        scene.gpu.map(place, BYTES as usize, handle)?;
        scene.launch("fill", &[place, BYTES, 500 + block])?;
        scene.launch("check", &[place, BYTES, 500 + block, scene.counter])?;
        scene.pass()?;
    }
    say("taken of the GPU", before.saturating_sub(free()?));
    scene.finish()
}

/// Destructors run when the driver has shut down: each call of it fails (4), as faults say that count from the mark.
fn freed_too_late() -> Told {
    let scene = Scene::learnt(COUNT, PAGES)?;
    for _ in 0..3 {
        scene.pass()?;
    }
    Sim::find().expect("the driver that goes is simcuda").set("mark:gone", 0);
    let code = |done: Result<(), Failure>| done.map_or_else(|failure| u64::from(failure.code), |()| 0);
    for weight in &scene.weights {
        say("freed", code(scene.gpu.free(weight.address)));
    }
    say("launched", code(scene.check(scene.main, 0)));
    scene.drop_name();
    Ok(0)
}

/// The second model has half of the first one's weights, and two of its own; they are learnt together and run in turns.
fn shared_weights() -> Told {
    let mut scene = Scene::set(COUNT, PAGES, MAY_STREAM)?;
    let (first, all) = (scene.model, scene.weights.clone());
    let mut some = all[..COUNT as usize / 2].to_vec();
    for seed in [71, 72] {
        let address = scene.gpu.alloc(BYTES as usize)?;
        scene.launch("fill", &[address, BYTES, seed])?;
        some.push(Weight { address, bytes: BYTES, seed, flags: MAY_STREAM });
    }
    scene.synchronize()?;
    scene.weights.clone_from(&some);
    scene.name();
    let models = [(first, all.clone()), (scene.model, some.clone())];
    for round in 0..24 {
        for (model, weights) in &models {
            scene.model = *model;
            scene.weights.clone_from(weights);
            scene.pass()?;
        }
        // What both have is written by the one and read by the other.
        if round % 6 == 5 {
            scene.launch("fill", &[all[1].address, BYTES, all[1].seed])?;
        }
    }
    scene.synchronize()?;
    say("phase", u64::try_from(scene.phase()).unwrap_or(99));
    scene.weights = all.into_iter().chain(some.into_iter().skip(COUNT as usize / 2)).collect();
    scene.finish()
}
