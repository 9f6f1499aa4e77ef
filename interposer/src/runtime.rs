//! The live state of the process: what is managed, what is learnt, what is streamed. Handlers in `hooks` and the C interface in `api` come here;
//! decisions are core's.
//!
//! - `memory`, `regions`, `arena`, `overflow`: large allocations as regions of 2 MiB pages in one address range, in host memory where the GPU may hold no more.
//! - `limit`, `pools`, `pressure`: how much the process may take of a GPU, and who gives way when that, or the GPU, runs short.
//! - `peers`: memory that several GPUs reach.
//! - `models`, `world`, `passes`, `learn`: models as they are named, and their passes while they are observed.
//! - `switch`, `planned`, `early`, `exchange`, `link`, `touched`, `shadow`, `views`, `hosted`, `home`, `private`: from private pages to the ring and back.
//! - `saved`: what an earlier run learnt, and what the next one need not.
//! - `launch`, `scan`, `layouts`, `words`, `copies`, `escapes`, `graphs`, `gate`: the way of one call.
//! - `check`: what is verified while running, if that was asked for.
//! - `open`, `evidence`, `verify`, `readout`, `sums`: what is proven of kernels, and where it holds.
//! - `stillness`: when nothing of all this has to be looked at.
//! - `streaming`, `measure`: the ring in operation; `replan`: what follows when the program changes.
//!
//! Lock order: gate, world, the reading of weights (`readout`, never with a ring's lock held), a device's ring, the recorder of `learn`, words.

pub(crate) mod arena;
pub(crate) mod check;
pub(crate) mod chosen;
pub(crate) mod contexts;
pub(crate) mod copies;
mod devices;
mod early;
pub(crate) mod escapes;
mod evidence;
mod exchange;
mod gate;
pub(crate) mod graphs;
mod grouping;
mod home;
mod host_memory;
mod hosted;
mod integrated;
pub(crate) mod launch;
pub(crate) mod layouts;
mod learn;
mod leftover;
pub(crate) mod limit;
mod link;
mod measure;
pub(crate) mod memory;
pub(crate) mod models;
mod open;
mod outside;
mod overflow;
pub(crate) mod passes;
pub(crate) mod peers;
mod pinning;
mod planned;
pub(crate) mod pools;
pub(crate) mod pressure;
pub(crate) mod private;
mod python;
mod readout;
mod regions;
pub(crate) mod replan;
mod rows;
pub(crate) mod saved;
mod scan;
mod shadow;
pub(crate) mod snapshot;
mod stillness;
pub(crate) mod streaming;
pub(crate) mod streams;
mod sums;
mod switch;
mod touched;
mod trace;
mod verify;
mod views;
pub(crate) mod words;
pub(crate) mod world;

use std::sync::{PoisonError, RwLock};

use flextensor_config::Config;
use flextensor_core::phase::{Phase, PhaseCommand, PhaseEvent, PhaseSettings, step};
use flextensor_core::plan::StayReason;
use flextensor_core::units::{ModelId, UnitId};

use crate::ffi::result::CudaResult;
use crate::quiet;
use arena::Meaning;
use private::Why;
use world::{Unit, UnitState, world as lock_world};

/// The configuration in force. Older ones stay, because somebody may be reading them: they are few.
static CONFIG: RwLock<Option<&'static Config>> = RwLock::new(None);

/// Takes over the configuration; nothing else happens before the first allocation.
pub(crate) fn start(config: Config) -> Result<(), String> {
    if config.report.is_some() {
        snapshot::write_at_exit();
    }
    // Behind the report's: handlers run in the opposite order, and the last look belongs into the report.
    check::start(config.check);
    if CONFIG.read().unwrap_or_else(PoisonError::into_inner).is_some() {
        return Err("started twice".to_owned());
    }
    put_in_force(config);
    python::look_around();
    Ok(())
}

/// The configuration of this run.
pub(crate) fn config() -> &'static Config {
    // A handler runs only after `start`; a caller of the C interface that is earlier gets the defaults.
    let known = *CONFIG.read().unwrap_or_else(PoisonError::into_inner);
    known.unwrap_or_else(|| {
        put_in_force(
            flextensor_config::preload(std::iter::empty(), None)
                .unwrap_or_else(|_| unreachable!("the defaults are valid")),
        )
    })
}

fn put_in_force(config: Config) -> &'static Config {
    let config: &'static Config = Box::leak(Box::new(config));
    *CONFIG.write().unwrap_or_else(PoisonError::into_inner) = Some(config);
    config
}

/// The program changes options while it runs: `json` is an object of keys and values. What is decided already stays as it is; later decisions follow
/// the new values. A process that is on stays on.
///
/// # Errors
/// What is wrong with it; nothing changed then.
pub(crate) fn configure(json: &str) -> Result<(), String> {
    let before = config();
    let mut now = flextensor_config::changed(before, json).map_err(|error| error.to_string())?;
    (now.enabled, now.warnings) = (before.enabled, before.warnings.clone());
    if now == *before {
        return Ok(());
    }
    if now.report.is_some() && before.report.is_none() {
        snapshot::write_at_exit();
    }
    crate::init::set_level(now.log);
    put_in_force(now);
    Ok(())
}

/// What a caller of the C interface may do to the times that are recorded of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Profiling {
    /// Record no times, and count no timed passes, until the matching `Resume`.
    Suspend,
    /// Undo one `Suspend`.
    Resume,
    /// Forget the times recorded so far.
    Clear,
}

/// Carries it out; false if the model is unknown, or the event is not allowed now.
pub(crate) fn profiling(id: ModelId, what: Profiling) -> bool {
    let event = match what {
        Profiling::Suspend => PhaseEvent::Suspend,
        Profiling::Resume => PhaseEvent::Resume,
        Profiling::Clear => PhaseEvent::ClearDurations,
    };
    let mut world = lock_world();
    let Some(model) = world.models.get_mut(&id) else { return false };
    let (phase, commands) = step(model.phase, event);
    model.phase = phase;
    drop(world);
    if commands.contains(&PhaseCommand::ClearDurations) {
        learn::recorder(|recorder| recorder.clear_durations(id));
    }
    !commands.iter().any(|command| matches!(command, PhaseCommand::Refuse(_)))
}

/// Phase counts as configured.
pub(crate) fn phase_settings() -> PhaseSettings {
    let config = config();
    PhaseSettings {
        discovery_iters: config.discovery_iters,
        profiling_iters: config.profiling_iters,
        skip_discovery: config.skip_discovery,
        ..PhaseSettings::default()
    }
}

/// The phase of the model that has come furthest.
pub(crate) fn phase() -> Phase {
    let world = lock_world();
    world.models.values().map(|model| model.phase.phase()).max().unwrap_or(Phase::NotInitialized)
}

/// The device of the first streamed unit among what a launch shows.
fn device_of(found: &[scan::Found]) -> i32 {
    found.iter().find_map(|found| device_of_meaning(found.meaning)).unwrap_or(0)
}

fn device_of_meaning(meaning: Meaning) -> Option<i32> {
    match meaning {
        Meaning::Streamed(unit) => device_of_unit(unit),
        _ => None,
    }
}

/// Rings are few and know their units; asking them needs no world lock.
fn device_of_unit(unit: UnitId) -> Option<i32> {
    (0..devices::MAX_DEVICES as i32)
        .find(|&device| streaming::ring_of(device).as_ref().is_some_and(|ring| ring.unit(unit).is_some()))
}

/// The program let the model go: its units that no other model holds become private, and are forgotten.
pub(crate) fn drop_model(id: ModelId) {
    // Before anything changes: it may be the last that is heard of the process.
    snapshot::remember();
    let _loud = quiet::loud();
    let removed = {
        let mut world = lock_world();
        // What its pass is observed by goes with it.
        replan::ends(&mut world, id, true);
        world.models.remove(&id)
    };
    let Some(mut model) = removed else { return };
    if !model.context.is_none() {
        passes::in_context(model.context, || model.measure.end_events());
    }
    learn::recorder(|recorder| recorder.forget(id));
    saved::forget(id);
    open::forget(id);
    evidence::discard(id);
    for unit in model.units {
        let alone = {
            let mut world = lock_world();
            let Some(known) = world.unit_mut(unit) else { continue };
            known.members.retain(|member| member.model != id);
            known.members.is_empty()
        };
        let unnamed = |unit: &Unit| unit.members.is_empty();
        if alone && let Err(error) = private::let_go(unit, Why::ModelGone, unnamed) {
            crate::log::warning!(
                "a weight of a model that is gone could not get private memory ({error}); it stays in the ring"
            );
        }
    }
    // Frees of memory that is no weight any more find no plan.
    replan::discard_stale(model.device);
    switch::retire_empty_ring(model.device);
}

/// A forward wrote the weight at this address: it stays in private pages from now on, and nothing is proven by it. False if no unit lies there.
pub(crate) fn weight_written(address: u64) -> CudaResult<bool> {
    let (id, device) = {
        let world = lock_world();
        let here = |unit: &&Unit| unit.state != UnitState::Gone && unit.owns(address);
        let Some(unit) = world.units.iter().find(here) else { return Ok(false) };
        (unit.id, unit.device)
    };
    if let Some(unit) = streaming::ring_of(device).as_mut().and_then(|ring| ring.unit_mut(id)) {
        unit.ledger.written = true;
    }
    words::words().retract(id);
    let kept = private::keep(id, StayReason::Written, Why::Written);
    // Again: a check that was under way may have ended between the two.
    words::words().retract(id);
    kept.map(|()| true)
}

/// The weight at this address gets private pages, and is watched no longer. False if no unit lies there.
pub(crate) fn make_private(address: u64) -> CudaResult<bool> {
    let Some(arena) = arena::arena() else { return Ok(false) };
    match arena.meaning(address) {
        Meaning::Nothing | Meaning::InHost => {
            let table = lock_world().table_at(address);
            if let Some(unit) = table {
                private::let_go(unit, Why::Asked, |_| true)?;
            }
            Ok(lock_world().region_of(address).is_some())
        }
        Meaning::Learning(unit) | Meaning::Streamed(unit) => {
            private::let_go(unit, Why::Asked, |_| true)?;
            Ok(true)
        }
    }
}
