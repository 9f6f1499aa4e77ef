//! Stories of numbers that look like addresses of weights, and are none: kernels must get the very numbers that the program passed.

use super::scene::{Done, MAY_STREAM, Scene, Weight};
use super::{Told, say};
use harness::gpu::Argument::{Struct, Word};
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
        "a number that looks like an address beside a reader" => beside_a_reader(),
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

/// A kernel that is known for a reader shows its weight, and in words that it never follows a number that looks like an address amid another one.
fn beside_a_reader() -> Told {
    let scene = Scene::learnt(COUNT as u64, PAGES)?;
    say("passes until proven", until_proven(&scene)?);
    say("streamed before", scene.counted("streamed_units"));
    for round in 0..4 {
        scene.pass_with(|scene, at| {
            // For every second weight the use has begun already.
            if at % 2 == 1 {
                check_beside(scene, at, 0)?;
            }
            check_beside(scene, at, scene.weights[(at + 1 + round) % COUNT].address + 4096)
        })?;
    }
    scene.finish()
}

/// Passes without the number, until nothing is written back any more in several of them.
fn until_proven(scene: &Scene) -> Result<u64, harness::driver::Failure> {
    let (mut passes, mut calm, mut back) = (0, 0, 0);
    while calm < 4 && passes < 200 {
        scene.pass_with(|scene, at| check_beside(scene, at, 0))?;
        scene.synchronize()?;
        // What was written back is looked at beside the program.
        std::thread::sleep(std::time::Duration::from_millis(5));
        let now = scene.counted("pages_back");
        calm = if now == back { calm + 1 } else { 0 };
        back = now;
        passes += 1;
    }
    Ok(passes)
}

fn check_beside(scene: &Scene, at: usize, number: u64) -> Done {
    let Weight { address, bytes, seed, .. } = scene.weights[at];
    let words = vec![number, address, bytes, seed, scene.counter, number, 0, 0];
    scene.gpu.launch("check_struct", scene.main, &[Struct(words)])
}
