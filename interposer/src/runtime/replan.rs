//! What follows when a program changes after the switch-over. A pass that did not do what was expected has the next one of its shape observed, with the
//! hook's help where there is one, and from then on that shape has its own order. Where passes take longer than expected, or another model came, a new plan
//! is made for everything on the device (`standing`, `ways`, `placing`), kept ready (`prepared`) and put in force between two forwards (`in_force`, `relay`), as tables of rows go (`tables`). Where
//! memory runs short weights make room at once (`giving`). Which passes and plans are worth it is core's `drift`; how an order is followed is the pager's.

mod giving;
mod in_force;
mod placing;
mod prepared;
mod relay;
mod standing;
mod tables;
mod target;
mod view;
mod ways;
mod worth;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};

use flextensor_config::choices::Replan;
use flextensor_core::drift::{Expected, Watch};
use flextensor_core::pager::PassTally;
use flextensor_core::phase::Phase;
use flextensor_core::plan::{Forecast, PassProfile, StayReason};
use flextensor_core::simulate::{Simulation, simulate_shapes};
use flextensor_core::units::{ModelId, UnitId};

use super::arena::{Meaning, arena};
use super::chosen;
use super::devices::bit_of;
use super::learn;
use super::models::Model;
use super::pressure;
use super::streaming::{Streaming, ring_of};
use super::trace;
use super::world::{UnitState, World, world};
use worth::Why;

pub(super) use giving::{give_way, give_what_can};
pub(super) use in_force::counts;
pub(super) use placing::settle;
pub(super) use prepared::discard_stale;

/// The pass of a model that is going on.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Current {
    shape: u64,
    /// No other pass of the model has overlapped it.
    alone: bool,
}

/// A pass that is being observed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Observation {
    /// Resident units that launches look at meanwhile.
    watched: Vec<UnitId>,
    /// What the recorder calls it.
    number: u64,
}

/// A pass that has ended, as far as the world knows of it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ended {
    shape: u64,
    alone: bool,
    /// What the recorder calls it, if it was observed.
    observed: Option<u64>,
    /// The observation counts.
    keep: bool,
    /// The shape had an order of its own before.
    known: bool,
}

/// What is expected of passes in one shape as things stand: milliseconds with all weights resident, and as they are placed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outlook {
    pub(crate) shape: u64,
    pub(crate) resident_ms: f64,
    pub(crate) predicted_ms: f64,
}

/// What is expected of every timed shape of the model that streams on a device. Nothing where several do: what is known of their turns is not told apart.
pub(crate) fn outlook(device: i32) -> Vec<Outlook> {
    // No more memory and no less: what the device has free need not be asked, which cannot be asked at the end of a process.
    let as_it_is = standing::Aim::Less { bytes: 0, leave: &BTreeSet::new() };
    let Some(asked) = standing::asked(device, as_it_is) else { return Vec::new() };
    let passes = &asked.request.passes;
    let alone = passes.windows(2).all(|two| two[0].model == two[1].model);
    let Some(cycles) = alone.then(|| simulate_shapes(&asked.request, &asked.standing, false).ok()).flatten()
    else {
        return Vec::new();
    };
    let of = |(pass, cycle): (&PassProfile, Simulation)| {
        let sum = pass.tail_ms + pass.uses.iter().map(|used| used.compute_ms).sum::<f64>();
        let resident_ms = sum.max(pass.resident_ms);
        let outlook = Outlook { shape: pass.shape, resident_ms, predicted_ms: cycle.cycle_ms };
        (resident_ms > 0.0).then_some(outlook)
    };
    passes.iter().zip(cycles).filter_map(of).collect()
}

/// Whether a plan is thought of, or waits for its moment, on any device.
pub(super) fn is_under_way() -> bool {
    prepared::any() || placing::is_thinking()
}

fn enabled() -> bool {
    super::config().replan == Replan::Auto
}

/// A pass begins in INFERENCE. If it is to be observed, its owners are wanted from now on, and launches look at resident units too.
pub(super) fn begins(world: &mut World, id: ModelId, shape: u64) {
    let Some(model) = world.models.get_mut(&id) else { return };
    // While recording is suspended nothing is watched.
    let alone = model.open == 1 && !model.phase.is_suspended();
    model.current = Current { shape, alone };
    if model.open > 1 {
        // A pass that another one overlaps shows nothing that counts.
        return stop_observing(world, id);
    }
    if !alone || ring_of(model.device).is_none() {
        return;
    }
    let anew = enabled() && model.watch.begins(shape);
    if !anew && !trace::is_due(model.measure.passes) {
        return;
    }
    let units = model.units.clone();
    let resident = |unit: UnitId| {
        let may_move = |stay| matches!(stay, None | Some(StayReason::RowsOnGpu));
        world.unit(unit).is_some_and(|unit| unit.state == UnitState::Resident && may_move(unit.stay))
    };
    let watched: Vec<UnitId> = units.into_iter().filter(|&unit| resident(unit)).collect();
    set_meanings(world, &watched, Meaning::Learning);
    // With the world's lock held: somebody who ends the pass finds it begun.
    let number = learn::recorder(|recorder| recorder.pass_begin_anew(id, shape, !anew));
    if let Some(model) = world.models.get_mut(&id) {
        model.observation = Some(Observation { watched, number });
    }
}

fn stop_observing(world: &mut World, id: ModelId) {
    let Some(observation) = world.models.get_mut(&id).and_then(|model| model.observation.take()) else {
        return;
    };
    set_meanings(world, &observation.watched, |_| Meaning::Nothing);
    learn::recorder(|recorder| recorder.pass_end_anew(observation.number, false));
}

/// A pass has ended, or its model is about to go. `void`: nothing that it showed counts.
pub(super) fn ends(world: &mut World, id: ModelId, void: bool) -> Ended {
    let nothing = Ended { shape: 0, alone: false, observed: None, keep: false, known: false };
    let Some(model) = world.models.get_mut(&id) else { return nothing };
    let Current { shape, alone } = model.current;
    let known = model.watch.known().any(|known| known == shape);
    let Some(observation) = model.observation.take() else {
        return Ended { shape, alone: alone && !void, observed: None, keep: false, known };
    };
    set_meanings(world, &observation.watched, |_| Meaning::Nothing);
    Ended { shape, alone, observed: Some(observation.number), keep: alone && !void, known }
}

/// Only of units that still are what they were: somebody else may have moved them meanwhile.
fn set_meanings(world: &World, units: &[UnitId], meaning: impl Fn(UnitId) -> Meaning) {
    let Some(arena) = arena() else { return };
    let resident =
        units.iter().filter_map(|&id| world.unit(id)).filter(|unit| unit.state == UnitState::Resident);
    resident.for_each(|unit| unit.mean(arena, meaning(unit.id)));
}

/// The pass shows nothing that counts.
pub(super) fn give_up(ended: &Ended) {
    if let Some(number) = ended.observed {
        learn::recorder(|recorder| recorder.pass_end_anew(number, false));
    }
}

impl Ended {
    /// What the observed pass used, in turn.
    pub(super) fn observed_order(&self) -> Option<Vec<(UnitId, u32)>> {
        let number = self.observed?;
        learn::recorder(|recorder| recorder.pass_end_anew(number, self.keep))
    }

    /// The observed order is the shape's from now on. Shapes that are new may never come again: what one of them does, others are expected to do.
    /// True if that is new.
    pub(super) fn follow(&self, id: ModelId, ring: &mut Streaming, order: Option<&[(UnitId, u32)]>) -> bool {
        let Some(order) = order else { return false };
        let new = set_shape_order(ring, id, self.shape, order);
        if !self.known {
            set_usual_order(ring, id, order);
        }
        new
    }
}

/// What a pass was like goes to the watch. `changed`: it was observed, and its shape has another order now.
pub(super) fn ended(id: ModelId, ended: &Ended, tally: Option<PassTally>, observed: bool, changed: bool) {
    if !ended.alone {
        return;
    }
    let mut world = world();
    let Some(model) = world.models.get_mut(&id) else { return };
    if observed {
        model.watch.observed(ended.shape);
        if changed {
            // The plan was made for something else.
            model.watch.expect(ended.shape, Expected::default());
        }
        let shapes: Vec<u64> = model.watch.known().collect();
        learn::recorder(|recorder| recorder.collector.keep_shapes(id, &shapes));
    } else if let Some(tally) = tally.filter(|_| ended.observed.is_none()) {
        model.watch.ended(ended.shape, tally);
    }
    let recent = model.measure.take_recent();
    recent.iter().for_each(|&(shape, ms)| model.watch.measured(shape, ms));
    learn::recorder(|recorder| {
        recorder.collect();
        recent.iter().for_each(|&(shape, ms)| recorder.collector.add_whole(id, shape, ms, 0.0));
    });
    if enabled() {
        look_at_times(id, model);
        // The plan stands on what was observed.
        let is_read = learn::recorder(|recorder| !recorder.is_reading(id));
        if is_read && model.watch.take_asked() && !placing::think(model.device, Why::Asked) {
            model.watch.keep_asked();
        }
    }
}

/// Passes that take longer than expected are understood first, then a new plan is thought of.
fn look_at_times(id: ModelId, model: &mut Model) {
    let drifted: Vec<u64> = model.watch.drifted().collect();
    if drifted.is_empty() {
        return;
    }
    let untimed = |&shape: &u64| learn::recorder(|recorder| recorder.collector.timed_passes(id, shape) == 0);
    let unknown: Vec<u64> = drifted.iter().copied().filter(untimed).collect();
    let all_unknown = unknown.len() == drifted.len();
    // All of them, so that the next pass of each is observed.
    let looked = unknown.iter().filter(|&&shape| model.watch.look_at(shape)).count();
    // One that is awaited may never come again: those that are known do not wait for it.
    let awaited = all_unknown && unknown.iter().any(|&shape| model.watch.awaits(shape));
    // What was observed may not have been read yet: a plan that knows nothing of the shape would be thought of in vain, and not again soon.
    let is_read = learn::recorder(|recorder| !recorder.is_reading(id));
    if looked == 0 && !awaited && is_read && placing::think(model.device, Why::Drift) {
        model.watch.settled();
    }
}

/// The program asks for a new plan for what the model's passes do now. None: unknown model; false: none is made for it.
pub(crate) fn ask(id: ModelId) -> Option<bool> {
    let mut world = world();
    let model = world.models.get_mut(&id)?;
    let may = enabled() && model.phase.phase() == Phase::Inference && ring_of(model.device).is_some();
    if may {
        model.watch.ask();
    }
    Some(may)
}

/// Bit n: what became private on device n exceeds its budget.
static EXCEEDED: AtomicU64 = AtomicU64::new(0);

/// A weight of this device stays in private pages from now on: where the budget is exceeded by that, a plan that holds it follows. The calling thread holds neither the world nor a ring.
pub(super) fn became_private(device: i32) {
    if pressure::bytes_over(device).is_some() {
        EXCEEDED.fetch_or(bit_of(device), Ordering::Relaxed);
    }
}

/// Thinks of a plan that holds the budget again, if one is wanted.
fn hold_budget_again(device: i32) {
    let bit = bit_of(device);
    if EXCEEDED.load(Ordering::Relaxed) & bit == 0 {
        return;
    }
    // Where nothing is streamed any more there is nobody to make room.
    let can = enabled() && ring_of(device).is_some() && pressure::bytes_over(device).is_some();
    if !can || placing::think(device, Why::Budget) {
        EXCEEDED.fetch_and(!bit, Ordering::Relaxed);
    }
}

/// A forward on this device has ended, and the calling thread holds nothing.
pub(super) fn between_forwards(device: i32) {
    hold_budget_again(device);
    if chosen::take_news(device) && ring_of(device).is_some() && !placing::think(device, Why::Chosen) {
        chosen::add_news(device);
    }
    tables::between_forwards(device);
    in_force::between_forwards(device);
}

/// Memory that weights had to make free is not needed any more: a plan for more memory is thought of.
pub(super) fn come_back(device: i32) {
    placing::think(device, Why::Room);
}

/// Sets the orders of all shapes that are known of a model, where units have come to the ring since that was done last.
pub(super) fn catch_up(id: ModelId, device: i32) {
    let mut world = world();
    let Some(caught_up) = world.models.get(&id).map(|model| model.caught_up) else { return };
    let mut ring = ring_of(device);
    let Some(ring) = ring.as_mut().filter(|ring| caught_up != Some(ring.state())) else { return };
    let here = |model: &Model| model.device == device && !model.units.is_empty();
    let others = world.models.iter().any(|(&other, model)| other != id && here(model));
    let forecasts =
        world.decided.get(&device).map(|decided| decided.plan.forecasts.clone()).unwrap_or_default();
    let Some(model) = world.models.get_mut(&id) else { return };
    let is_new = model.caught_up.replace(ring.state()).is_none();
    set_orders(ring, id, &mut model.watch);
    expect(&mut model.watch, id, &forecasts);
    if is_new && others && enabled() {
        placing::think(device, Why::Model);
    }
}

/// What the plan says of the model's shapes. Where models take turns it speaks of all of them together, and single passes cannot be judged by it.
fn expect(watch: &mut Watch, id: ModelId, forecasts: &[Forecast]) {
    for forecast in forecasts {
        let of_it = forecast.shapes.iter().filter(|(model, _)| *model == id);
        let alone = forecast.shapes.len() == 1;
        let pass_ms = if alone { forecast.predicted_ms } else { f64::INFINITY };
        of_it.for_each(|&(_, shape)| watch.expect(shape, Expected { pass_ms, bound_ms: forecast.bound_ms }));
    }
}

fn set_orders(ring: &mut Streaming, id: ModelId, watch: &mut Watch) {
    let (usual, all) =
        learn::recorder(|recorder| (recorder.collector.profile(id), recorder.collector.profiles(id)));
    let uses = |profile: &flextensor_core::plan::PassProfile| -> Vec<(UnitId, u32)> {
        profile.uses.iter().map(|used| (used.unit, used.owner)).collect()
    };
    if let Some(usual) = usual {
        set_usual_order(ring, id, &uses(&usual));
    }
    for profile in all {
        set_shape_order(ring, id, profile.shape, &uses(&profile));
        watch.know(profile.shape);
    }
}

fn set_usual_order(ring: &mut Streaming, id: ModelId, uses: &[(UnitId, u32)]) {
    let uses = of_the_ring(ring, uses);
    ring.pager.set_order(id, &uses);
}

fn set_shape_order(ring: &mut Streaming, id: ModelId, shape: u64, uses: &[(UnitId, u32)]) -> bool {
    let uses = of_the_ring(ring, uses);
    ring.pager.set_shape_order(id, shape, &uses)
}

/// Uses of streamed units; such that follow each other by one unit are one.
fn of_the_ring(ring: &Streaming, uses: &[(UnitId, u32)]) -> Vec<(UnitId, u32)> {
    let mut uses: Vec<_> = uses.iter().copied().filter(|&(unit, _)| ring.pager.streams(unit)).collect();
    uses.dedup_by_key(|(unit, _)| *unit);
    uses
}
