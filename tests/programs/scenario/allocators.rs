//! Stories of weights whose memory an allocator got in another way than by `cuMemAlloc`.

use super::Told;
use super::scene::{MAY_STREAM, Scene, Weight};
use harness::driver::{Failure, check};
use harness::gpu::{self, Gpu, PAGE};

const COUNT: u64 = 6;
const BYTES: u64 = 2 * PAGE as u64;

pub(crate) fn tell(story: &str) -> Option<Told> {
    Some(match story {
        "weights in mappings of the program's own" => weights(|gpu, _| {
            let place = gpu.reserve(BYTES as usize)?;
            let handle = gpu.create(BYTES as usize, &gpu::device_memory())?;
            gpu.map(place, BYTES as usize, handle)?;
            Ok(place)
        }),
        "weights in a pool" => weights(|gpu, _| from_pool(gpu)),
        "every other weight in a pool" => {
            weights(|gpu, at| if at % 2 == 0 { gpu.alloc(BYTES as usize) } else { from_pool(gpu) })
        }
        _ => return None,
    })
}

fn from_pool(gpu: &Gpu) -> Result<u64, Failure> {
    let mut address = 0;
    check("cuMemAllocAsync", gpu.driver.mem_alloc_async(&mut address, BYTES as usize, 0))?;
    Ok(address)
}

/// A model of such weights, learnt and run.
fn weights(allocate: impl Fn(&Gpu, u64) -> Result<u64, Failure>) -> Told {
    let mut gpu = Gpu::open()?;
    gpu.load_kernels()?;
    let mut weights = Vec::new();
    for seed in 1..=COUNT {
        let address = allocate(&gpu, seed)?;
        weights.push(Weight { address, bytes: BYTES, seed, flags: MAY_STREAM });
    }
    let mut scene = Scene::of(gpu, weights)?;
    scene.learn()?;
    for _ in 0..3 {
        scene.pass()?;
    }
    scene.finish()
}
