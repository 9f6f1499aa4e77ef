//! Memory of every kind that a program can take of a GPU, until nothing is left.

use super::super::scene::Scene;
use super::super::{Told, say};
use super::cache::{COUNT, Cache, PAGES, grow_between_passes, say_moves, until_all_are_back};
use harness::driver::{Failure, check};
use harness::gpu::{PAGE, device_memory};

/// Everything that a program can take of a GPU, until nothing is left; then all of it is given back.
pub(crate) fn memory_of_every_kind() -> Told {
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
