//! A cache that grows beside weights and shrinks again, and what the library says that weights did meanwhile.

use super::super::pages::device_bytes;
use super::super::scene::{Done, Scene};
use super::super::{Told, say};
use harness::driver::Failure;
use harness::gpu::PAGE;

/// Weights of two pages each: 24 MiB.
pub(crate) const COUNT: u64 = 6;
pub(crate) const PAGES: u64 = 2;

/// Passes in which weights come back, if they do.
const PASSES: usize = 400;

/// Memory that forwards write and read beside their weights.
#[derive(Default)]
pub(crate) struct Cache {
    pub(crate) blocks: Vec<(u64, u64, u64)>,
    made: u64,
    /// Allocations that were refused at first, and for good.
    refused: u64,
    failed: u64,
}

impl Cache {
    /// One more block, as an allocator that keeps freed memory gets it: what is refused is asked for once more. False if that is refused too.
    pub(crate) fn grow(&mut self, scene: &Scene, bytes: u64) -> Result<bool, Failure> {
        let first = scene.gpu.alloc(bytes as usize);
        let address = match first {
            Err(Failure { code: 2, .. }) => {
                self.refused += 1;
                scene.gpu.alloc(bytes as usize)
            }
            first => first,
        };
        match address {
            Err(Failure { code: 2, .. }) => {
                self.failed += 1;
                Ok(false)
            }
            Err(failure) => Err(failure),
            Ok(address) => {
                self.made += 1;
                let seed = 1000 + self.made;
                scene.launch("fill", &[address, bytes, seed])?;
                self.blocks.push((address, bytes, seed));
                Ok(true)
            }
        }
    }

    pub(crate) fn check(&self, scene: &Scene) -> Done {
        let each = |&(address, bytes, seed): &(u64, u64, u64)| {
            scene.launch("check", &[address, bytes, seed, scene.counter])
        };
        self.blocks.iter().try_for_each(each)
    }

    /// Only so many blocks stay.
    pub(crate) fn shrink(&mut self, scene: &Scene, blocks: usize) -> Done {
        let gone = self.blocks.split_off(blocks.min(self.blocks.len()));
        gone.into_iter().try_for_each(|(address, ..)| scene.gpu.free(address))
    }

    /// As [`Cache::grow`], without touching what came of it: the thread may be capturing.
    pub(crate) fn grow_quietly(&mut self, scene: &Scene, bytes: u64) -> Result<bool, Failure> {
        for _ in 0..2 {
            match scene.gpu.alloc(bytes as usize) {
                Ok(address) => return scene.gpu.free(address).map(|()| true),
                Err(Failure { code: 2, .. }) => {}
                Err(failure) => return Err(failure),
            }
        }
        Ok(false)
    }

    pub(crate) fn say(&self) {
        say("refused", self.refused);
        say("failed", self.failed);
    }

    /// What came of it, and of the weights; the story ends.
    pub(crate) fn finish(&self, scene: &Scene) -> Told {
        self.say();
        say_moves(scene);
        scene.finish()
    }
}

/// What the library says that weights did.
pub(crate) fn say_moves(scene: &Scene) {
    let keys = [
        "demotions",
        "demoted_bytes",
        "promotions",
        "promoted_bytes",
        "shortages_refused",
        "shortages_unanswered",
    ];
    keys.into_iter().for_each(|key| say(key, scene.counted(key)));
    say("device peak", device_bytes("device_bytes_peak"));
}

/// Passes until nothing is streamed any more, or for long.
pub(crate) fn until_all_are_back(scene: &Scene) -> Done {
    let streamed = || scene.counted("streamed_units");
    for pass in 0..PASSES {
        scene.pass()?;
        scene.synchronize()?;
        if streamed() == 0 {
            say("back after", pass as u64);
            return Ok(());
        }
        // The plan is made by a thread of its own.
        std::thread::yield_now();
    }
    say("back after", PASSES as u64);
    Ok(())
}

/// Two pages at a time: 20 MiB beside weights of 24.
pub(crate) fn grow_between_passes(scene: &Scene, cache: &mut Cache, blocks: usize) -> Done {
    for _ in 0..blocks {
        cache.grow(scene, 2 * PAGE as u64)?;
        scene.pass()?;
        cache.check(scene)?;
    }
    scene.synchronize()
}
