//! Stories of weights that are freed, asked to be private, dropped, or named too late.

use super::Told;
use super::scene::Scene;
use harness::driver::check;

const COUNT: u64 = 6;
const PAGES: u64 = 2;

pub(crate) fn tell(story: &str) -> Option<Told> {
    Some(match story {
        "freed and allocated" => freed_and_allocated(),
        "freed while it is read" => freed_while_it_is_read(),
        "frees that make no sense" => frees_that_make_no_sense(),
        "a handle for another process" => a_handle_for_another_process(),
        "asked to be private" => asked_to_be_private(),
        "private memory that is refused" => private_memory_that_is_refused(),
        "named after the end" => named_after_the_end(),
        "dropped and named again" => dropped_and_named_again(),
        _ => return None,
    })
}

/// Memory is freed directly behind a launch that reads it for long: the free waits, as the driver's does, whether the weight is streamed or stays.
fn freed_while_it_is_read() -> Told {
    let mut scene = Scene::learnt(COUNT, PAGES)?;
    for _ in 0..COUNT {
        let weight = scene.weights[0];
        let arguments = [weight.address, weight.bytes, weight.seed, scene.counter, 20_000];
        scene.launch("check_slow", &arguments)?;
        check("cuMemFree", scene.gpu.driver.mem_free(weight.address))?;
        scene.weights.remove(0);
    }
    scene.finish()
}

/// Says what the driver answers to frees of an inner address, of nothing, of something unknown, and of the same twice.
fn frees_that_make_no_sense() -> Told {
    let mut scene = Scene::learnt(COUNT, PAGES)?;
    let weight = scene.weights.remove(0);
    let free = |address| u64::from(scene.gpu.driver.mem_free(address));
    let inner = [weight.address + 4096, weight.address + weight.bytes / 2, weight.address + weight.bytes];
    for address in inner {
        super::say("inner", free(address));
    }
    super::say("nothing", free(0));
    super::say("unknown", free(0x1234_0000_0000));
    super::say("once", free(weight.address));
    super::say("twice", free(weight.address));
    scene.finish()
}

/// Says what the driver answers to a legacy handle of a weight's memory.
fn a_handle_for_another_process() -> Told {
    let scene = Scene::learnt(COUNT, PAGES)?;
    let mut exported = [0; 64];
    super::say("handle", u64::from(scene.gpu.driver.ipc_handle(&mut exported, scene.weights[1].address)));
    scene.pass()?;
    scene.finish()
}

/// Weights are freed while others are streamed; new memory at their addresses is nobody's weight.
fn freed_and_allocated() -> Told {
    let mut scene = Scene::learnt(COUNT, PAGES)?;
    for at in [1, 4] {
        let weight = scene.weights[at];
        scene.check(scene.main, at)?;
        scene.gpu.free(weight.address)?;
        scene.weights[at].address = scene.gpu.alloc(weight.bytes as usize)?;
        scene.weights[at].seed = 50 + at as u64;
        let weight = scene.weights[at];
        scene.launch("fill", &[weight.address, weight.bytes, weight.seed])?;
        scene.pass()?;
        scene.pass()?;
    }
    let wrong = scene.finish()?;
    for weight in scene.weights.drain(..) {
        scene.gpu.free(weight.address)?;
    }
    super::say("left", super::pages::device_bytes("device_bytes"));
    Ok(wrong)
}

fn asked_to_be_private() -> Told {
    let scene = Scene::learnt(COUNT, PAGES)?;
    for at in [2, 0, 5] {
        let code = scene.ft.as_ref().map_or(0, |ft| ft.weight_private(scene.weights[at].address));
        assert_eq!(code, 0, "weight {at}");
        scene.pass()?;
    }
    scene.finish()
}

/// Says how often the calls were made that give a weight private pages, before one is asked for, and whether it was refused.
fn private_memory_that_is_refused() -> Told {
    let scene = Scene::learnt(COUNT, PAGES)?;
    scene.pass()?;
    scene.synchronize()?;
    super::pages::mark("private");
    let code = scene.ft.as_ref().map_or(0, |ft| ft.weight_private(scene.weights[2].address));
    super::say("refused", u64::from(code == -3));
    for _ in 0..3 {
        scene.pass()?;
    }
    scene.finish()
}

/// Says whether owners and weights that come too late were refused.
fn named_after_the_end() -> Told {
    let scene = Scene::learnt(COUNT, PAGES)?;
    let (weight, ft) = (scene.weights[0], scene.ft.as_ref());
    let owner = ft.map_or(0, |ft| ft.model_owner(scene.model, 9, "late", "Linear", -1));
    let named =
        ft.map_or(0, |ft| ft.model_weight(scene.model, "late.weight", weight.address, weight.bytes, 9, 1));
    super::say("refused", u64::from((owner, named) == (-1, -1)));
    scene.finish()
}

fn dropped_and_named_again() -> Told {
    let mut scene = Scene::learnt(COUNT, PAGES)?;
    for _ in 0..2 {
        scene.drop_name();
        scene.pass()?;
        scene.name();
        scene.learn()?;
        scene.pass()?;
    }
    scene.finish()
}
