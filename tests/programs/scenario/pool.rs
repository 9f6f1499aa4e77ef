//! Stories of models whose weights lie side by side in one allocation, with what the program keeps between and behind them: a loader that asks for all the
//! memory of a model at once leaves them so.

use super::Told;
use super::scene::{MAY_STREAM, Scene, Weight};
use harness::driver::Failure;
use harness::gpu::{Gpu, PAGE};

/// Bytes of the large weights: no whole number of pages.
const LARGE: u64 = 5 * PAGE as u64 / 2 + 512;
/// Bytes of the small ones, of which one lies before each of them.
const SMALL: u64 = 8192;
const COUNT: u64 = 30;

pub(crate) fn tell(story: &str) -> Option<Told> {
    Some(match story {
        "weights of one allocation" => read_in_order(),
        "weights of one allocation, the small ones last" => small_ones_last(),
        "weights of one allocation beside what changes" => beside_what_changes(),
        "weights of one allocation that are written" => written(),
        _ => return None,
    })
}

/// Weights so large that each is streamed by itself.
const LARGER: u64 = 17 * PAGE as u64 + 512;

/// Large weights with small ones between them, and room for other things at the end.
fn pool(count: u64, large: u64) -> Result<(Scene, Weight), Failure> {
    let mut gpu = Gpu::open()?;
    gpu.load_kernels()?;
    let total = count * (large + SMALL) + 3 * PAGE as u64;
    let base = gpu.alloc(total as usize)?;
    let mut weights = Vec::new();
    let mut address = base;
    for seed in 1..=count {
        for (bytes, seed) in [(SMALL, 100 + seed), (large, seed)] {
            weights.push(Weight { address, bytes, seed, flags: MAY_STREAM });
            address += bytes;
        }
    }
    let rest = Weight { address, bytes: base + total - address, seed: 1000, flags: 0 };
    Ok((Scene::of(gpu, weights)?, rest))
}

fn learnt() -> Result<(Scene, Weight), Failure> {
    let (mut scene, rest) = pool(COUNT, LARGE)?;
    scene.learn()?;
    Ok((scene, rest))
}

fn read_in_order() -> Told {
    let (scene, _) = learnt()?;
    for _ in 0..4 {
        scene.pass()?;
    }
    scene.finish()
}

/// The small weights lie on pages of the large ones, and are used when these are long gone.
fn small_ones_last() -> Told {
    let (mut scene, _) = pool(5, LARGER)?;
    scene.drop_name();
    scene.weights.sort_by_key(|weight| weight.bytes == SMALL);
    scene.name();
    scene.learn()?;
    for _ in 0..4 {
        scene.pass()?;
    }
    let before = scene.counted("uses");
    scene.pass()?;
    super::say("uses of a pass", scene.counted("uses") - before);
    scene.finish()
}

/// What lies behind the last weight changes in every pass, and is read back.
fn beside_what_changes() -> Told {
    let (scene, rest) = learnt()?;
    for round in 0..12 {
        if round == 6 {
            super::say("pages_back at first", scene.counted("pages_back"));
        }
        let seed = rest.seed + round;
        scene.begin();
        scene.launch("fill", &[rest.address, rest.bytes, seed])?;
        for at in 0..scene.weights.len() {
            scene.owner(at, || scene.check(scene.main, at))?;
        }
        scene.launch("check", &[rest.address, rest.bytes, seed, scene.counter])?;
        scene.end();
        scene.synchronize()?;
    }
    scene.finish()
}

/// Every weight gets other bytes, by a copy or by a kernel, between passes and inside of them; its neighbours keep theirs.
fn written() -> Told {
    let (mut scene, _) = learnt()?;
    for round in 1..=3_u64 {
        for at in 0..scene.weights.len() {
            let seed = 10_000 * round + at as u64;
            let Weight { address, bytes, .. } = scene.weights[at];
            if (at as u64 + round).is_multiple_of(2) {
                scene.synchronize()?;
                scene.gpu.upload(address, &harness::pattern::filled(seed, bytes as usize))?;
            } else {
                scene.launch("write_words", &[address, bytes, seed])?;
            }
            scene.weights[at].seed = seed;
            if at % 7 == 3 {
                scene.pass()?;
            }
        }
        scene.pass()?;
    }
    scene.finish()
}
