//! What ends with a context: its regions, its ring, its events. The driver takes the memory; only our bookkeeping is left to be dropped.

use flextensor_core::units::UnitId;

use super::arena::{Meaning, arena};
use super::private::{self, Why};
use super::regions::Region;
use super::streaming::{MAX_DEVICES, Streaming, ring_of};
use super::world::{UnitState, world};
use super::{gate, learn, verify};
use crate::ffi::context::{self, Context};
use crate::log;

/// The context is about to be destroyed.
pub(crate) fn gone(context: Context) {
    verify::settle();
    let here = |region: &Region| region.context == context;
    rescue_others(|ring| ring.context == context, here);
    forget(here, |ring| ring.context == context);
}

/// The device's primary context is about to be reset.
pub(crate) fn device_reset(device: i32) {
    verify::settle();
    forget(|region| region.device == device, |ring| ring.device == device);
}

/// Units of other contexts in a ring that ends get private pages while the ring still turns.
fn rescue_others(ends: impl Fn(&Streaming) -> bool, goes: impl Fn(&Region) -> bool) {
    for device in 0..MAX_DEVICES as i32 {
        if !ring_of(device).as_ref().is_some_and(|ring| ends(ring)) {
            continue;
        }
        let others: Vec<UnitId> = {
            let world = world();
            let streamed =
                world.units.iter().filter(|unit| unit.state == UnitState::Streamed && unit.device == device);
            streamed
                .filter(|unit| world.region_of(unit.base).is_some_and(|region| !goes(region)))
                .map(|unit| unit.id)
                .collect()
        };
        for unit in others {
            if let Err(error) = private::for_good(unit, Why::Asked) {
                log::error!("no private memory for a weight whose ring ends with a context: {error}");
            }
        }
    }
}

fn forget(goes: impl Fn(&Region) -> bool, ends: impl Fn(&Streaming) -> bool) {
    let _closed = gate::close();
    let mut world = world();
    let bases: Vec<u64> =
        world.regions.values().filter(|region| goes(region)).map(|region| region.base).collect();
    let Some(arena) = arena().filter(|_| !bases.is_empty()) else { return };
    let mut gone = Vec::new();
    for base in bases {
        let Some(region) = world.regions.remove(&base) else { continue };
        // The driver would wait for the context's work; what is unmapped before must not be in use.
        if let Err(error) = context::with_current(region.context, context::synchronize) {
            log::debug!("waiting for the users of {:#x} failed: {error}", region.base);
        }
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
    for device in 0..MAX_DEVICES as i32 {
        let mut ring = ring_of(device);
        let gone = if ring.as_ref().is_some_and(|ring| ends(ring)) { ring.take() } else { None };
        drop(ring);
        if let Some(ring) = gone {
            world.decided.remove(&device);
            ring.close();
        }
    }
    drop(world);
    log::debug!("a context ended with {} units", gone.len());
    learn::recorder(|recorder| recorder.forget_units(&gone));
}
