//! Stories of numbers that look like addresses of weights, and are none: kernels must get the very numbers that the program passed.

use super::Told;
use super::scene::{MAY_STREAM, Scene, Weight};
use harness::gpu::Argument::Word;
use harness::gpu::{Gpu, Handle, PAGE, Style};

const COUNT: usize = 6;
const PAGES: u64 = 2;
const PASSES: usize = 8;

pub(crate) fn tell(story: &str) -> Option<Told> {
    Some(match story {
        "a number that looks like an address" => {
            looks_like(|addresses, at| addresses[(at + 3) % COUNT] + 65536)
        }
        // The upper half of the bytes, which is 0, and the lower half of the number are the address of the first weight.
        "two numbers that look like an address" => looks_like(|addresses, _| {
            assert_eq!(addresses[0] as u32, 0, "the first weight begins at {:#x}", addresses[0]);
            addresses[0] >> 32
        }),
        _ => return None,
    })
}

/// Each weight holds what a number says that its kernel is passed, and that looks like the address of another one.
fn looks_like(number: impl Fn(&[u64], usize) -> u64) -> Told {
    let mut gpu = Gpu::open()?;
    gpu.load_kernels()?;
    let bytes = PAGES * PAGE as u64;
    let addresses = (0..COUNT).map(|_| gpu.alloc(bytes as usize)).collect::<Result<Vec<u64>, _>>()?;
    let weight =
        |at: usize| Weight { address: addresses[at], bytes, seed: number(&addresses, at), flags: MAY_STREAM };
    let mut scene = Scene::of(gpu, (0..COUNT).map(weight).collect())?;
    scene.learn()?;
    for _ in 0..PASSES {
        scene.pass_with(|scene, at| {
            let Weight { address, bytes, seed, .. } = scene.weights[at];
            let arguments = [address, bytes, seed, scene.counter].map(Word);
            scene.gpu.launch_as("check", Handle::Kernel, Style::Packed, scene.main, &arguments)
        })?;
        scene.pass()?;
    }
    scene.finish()
}
