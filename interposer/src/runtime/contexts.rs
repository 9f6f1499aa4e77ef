//! What ends with a context: its regions, its ring, its events. The driver takes the memory; only our bookkeeping is left to be dropped.

use flextensor_core::units::UnitId;

use super::arena::{Meaning, arena};
use super::devices::MAX_DEVICES;
use super::private::{self, Why};
use super::regions::Region;
use super::streaming::ring_of;
use super::world::{UnitState, World, world};
use super::{evidence, gate, learn, peers, replan, snapshot, streams, verify};
use crate::account;
use crate::ffi::context::{self, Context};
use crate::log;

/// The context is about to be destroyed.
pub(crate) fn gone(context: Context) {
    prepare(context);
    forget(context, true);
}

/// The context may be about to be destroyed: what others need of it is saved. Changes nothing if it lives on.
pub(crate) fn prepare(context: Context) {
    replan::settle(context);
    evidence::leave_context(context);
    verify::settle();
    // At the end of a program this is the last moment that there is something to be told.
    let has_models = world().models.values().any(|model| model.context == context);
    if has_models {
        snapshot::remember();
    }
    rescue_others(context);
}

/// The context has been destroyed, after [`prepare`].
pub(crate) fn ended(context: Context) {
    forget(context, false);
}

/// Units of other contexts in a ring that ends get private pages while the ring still turns.
fn rescue_others(context: Context) {
    for device in 0..MAX_DEVICES as i32 {
        if ring_of(device).as_ref().is_none_or(|ring| ring.context != context) {
            continue;
        }
        let others: Vec<UnitId> = {
            let world = world();
            let streamed =
                world.units.iter().filter(|unit| unit.state == UnitState::Streamed && unit.device == device);
            streamed
                .filter(|unit| world.region_of(unit.base).is_some_and(|region| region.context != context))
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

/// `alive`: it still is, so that its work can be waited for.
fn forget(context: Context, alive: bool) {
    peers::forget_context(context);
    streams::forget_context(context);
    let _closed = gate::close();
    let mut world = world();
    forget_models(&mut world, context);
    let here = |region: &&Region| region.context == context;
    let bases: Vec<u64> = world.regions.values().filter(here).map(|region| region.base).collect();
    let Some(arena) = arena() else { return account::forget_context(context) };
    let mut gone = Vec::new();
    for base in bases {
        let Some(region) = world.regions.remove(&base) else { continue };
        // The driver would wait for the context's work; what is unmapped before must not be in use.
        if alive && let Err(error) = context::with_current(context, context::synchronize) {
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
        let ends = ring.as_ref().is_some_and(|ring| ring.context == context);
        let gone = if ends { ring.take() } else { None };
        drop(ring);
        if let Some(ring) = gone {
            world.decided.remove(&device);
            if alive { ring.close() } else { ring.close_without_context() }
        }
    }
    for model in world.models.values_mut() {
        model.units.retain(|unit| !gone.contains(unit));
    }
    drop(world);
    account::forget_context(context);
    log::debug!("a context ended with {} units", gone.len());
    learn::recorder(|recorder| recorder.forget_units(&gone));
}

/// Nothing may be recorded in the context any more, by whatever name: handles come back.
fn forget_models(world: &mut World, context: Context) {
    for model in world.models.values_mut().filter(|model| model.context == context) {
        model.context = Context::NONE;
        model.stream = None;
        model.measure.forget_events();
    }
    learn::recorder(|recorder| recorder.forget_context(context));
}
