//! What ends with a context: its regions, its ring, its events. The driver takes the memory; only our bookkeeping is left to be dropped.

use super::arena::{Meaning, arena};
use super::gate;
use super::learn;
use super::streaming::ring_of;
use super::world::{UnitState, World, world};
use crate::ffi::context::Context;
use crate::log;

/// The context is about to be destroyed.
pub(crate) fn gone(context: Context) {
    forget(
        |world| {
            world
                .regions
                .values()
                .filter(|region| region.context == context)
                .map(|region| region.base)
                .collect()
        },
        None,
    );
}

/// The device's primary context is about to be reset.
pub(crate) fn device_reset(device: i32) {
    forget(
        |world| {
            world
                .regions
                .values()
                .filter(|region| region.device == device)
                .map(|region| region.base)
                .collect()
        },
        Some(device),
    );
}

fn forget(which: impl FnOnce(&World) -> Vec<u64>, device: Option<i32>) {
    let _closed = gate::close();
    let mut world = world();
    let bases = which(&world);
    let Some(arena) = arena().filter(|_| !bases.is_empty()) else { return };
    let mut gone = Vec::new();
    for base in bases {
        let Some(region) = world.regions.remove(&base) else { continue };
        arena.set_meaning(region.base, region.pages(), Meaning::Nothing);
        for id in world.units_in(region.base, region.pages()) {
            if let Some(unit) = world.unit_mut(id) {
                unit.state = UnitState::Gone;
                unit.streamed = 0;
            }
            gone.push(id);
        }
        // Physical memory outlives contexts: unmapping and releasing need none.
        region.unback(arena);
    }
    if let Some(device) = device {
        *ring_of(device) = None;
        world.decided.remove(&device);
    }
    drop(world);
    log::debug!("a context ended with {} units", gone.len());
    learn::recorder(|recorder| recorder.forget_units(&gone));
}
