//! Passes and owners as they come in: learning passes are observed, later ones tell the ring where the program is. A model's last learning pass
//! leads to the switch-over. What is made of later passes is `replan`'s.

use std::collections::BTreeSet;

use flextensor_core::phase::{Phase, PhaseCommand, PhaseEvent, step};
use flextensor_core::units::{ModelId, UnitId};

use super::models::Model;
use super::streaming::ring_of;
use super::world::{World, WorldGuard, world};
use super::{early, graphs, home, learn, open, overflow, pressure, replan, saved, stillness, switch};
use crate::ffi::context::{self, Context};
use crate::ffi::stream::Stream;

/// What a caller of the C interface should report.
pub(crate) mod wants {
    /// Owner events of all owners.
    pub(crate) const OWNERS: u32 = 1;
    /// Trap events.
    pub(crate) const TRAPS: u32 = 2;
    /// Owner events of owners with weights that may be read through pointers.
    pub(crate) const HELD_OWNERS: u32 = 4;
    /// The weights that the pass wrote, before it ends.
    pub(crate) const WRITTEN: u32 = 8;
}

/// Which events are wanted for the model now.
pub(crate) fn wanted(id: ModelId) -> u32 {
    let watched = if open::is_watched(id) { wants::WRITTEN } else { 0 };
    let world = world();
    let Some(model) = world.models.get(&id) else { return 0 };
    let events = match model.phase.phase() {
        // What is read through pointers is known by its owners' forwards only, also while nothing else is observed.
        Phase::Profiling if learn::recorder(|recorder| recorder.is_whole(id)) && model.held.is_empty() => 0,
        Phase::Profiling if learn::recorder(|recorder| recorder.is_whole(id)) => wants::HELD_OWNERS,
        Phase::Discovery | Phase::Profiling => wants::OWNERS | wants::TRAPS,
        Phase::Inference if model.observation.is_some() => wants::OWNERS | wants::TRAPS,
        Phase::Inference if model.guided > 0 => wants::OWNERS,
        Phase::Inference if !model.held.is_empty() => wants::HELD_OWNERS,
        _ => 0,
    };
    events | watched
}

/// A model that an earlier run learnt goes to INFERENCE before its first pass.
pub(crate) fn start_from_profile(id: ModelId) {
    let context = match world().models.get(&id) {
        Some(model) if matches!(model.phase.phase(), Phase::Discovery | Phase::Profiling) => model.context,
        _ => return,
    };
    if graphs::any_capture() || in_context(context, || saved::take_up(id)) != Some(true) {
        return;
    }
    if let Some(model) = world().models.get_mut(&id) {
        (model.phase, _) = step(model.phase, PhaseEvent::ProfileLoaded);
    }
    learn::recorder(|recorder| recorder.end_learning(id));
    in_context(context, || switch::switch_over(id));
}

/// A pass begins.
pub(crate) fn begin(id: ModelId, shape: u64) {
    if saved::is_wanted(id) {
        start_from_profile(id);
    }
    home::bring_home_what_was_shown();
    let mut world = world();
    let Some(model) = world.models.get_mut(&id) else { return };
    model.capturing = graphs::any_capture();
    model.open += 1;
    let (phase, context, device, stream) = (model.phase, model.context, model.device, model.stream);
    let whole = stream.filter(|_| phase.times_whole() && model.open == 1 && !model.capturing);
    open::begin(id, phase.phase() != Phase::Inference);
    overflow::forward_began(device);
    if phase.phase() != Phase::Inference {
        drop(world);
        in_context(context, || {
            home::leave_room(device);
            early::pass_begins(id, device, shape, stream);
        });
        let whole = whole.filter(|_| !early::is_streaming(device));
        let begin = |stream| learn::recorder(|recorder| recorder.pass_begin_whole(id, shape, stream));
        if whole.and_then(|stream| in_context(context, || begin(stream))) != Some(true) {
            learn::recorder(|recorder| recorder.pass_begin(id, shape, phase.records_times()));
        }
        return;
    }
    if model.capturing || context.is_none() {
        return;
    }
    match stream {
        Some(stream) => {
            in_context(context, || model.measure.begin(shape, stream));
        }
        None => model.measure.passes += 1,
    }
    replan::begins(&mut world, id, shape);
    drop(world);
    in_context(context, || {
        replan::catch_up(id, device);
        if let Some(ring) = ring_of(device).as_mut() {
            ring.pager.pass_begin(id, shape);
            ring.prefetch(stream.unwrap_or(Stream::LEGACY));
        }
    });
}

/// A pass has ended; may switch over, which can take seconds.
pub(crate) fn end(id: ModelId) {
    open::end(id, !graphs::any_capture());
    let mut world = world();
    let Some(model) = world.models.get_mut(&id) else { return };
    let captured = model.capturing || graphs::any_capture();
    model.open = model.open.saturating_sub(1);
    if model.open == 0 {
        // Owners whose return was not told have returned with the pass.
        model.inside.clear();
    }
    if model.phase.phase() == Phase::Inference {
        return end_in_inference(world, id, captured);
    }
    let (context, device, stream) = (model.context, model.device, model.stream);
    let (mut phase, mut commands) = step(model.phase, PhaseEvent::PassEnd { captured });
    let before = model.phase;
    // No weight moves while a forward on another thread reads it through pointers: the next pass is the last one then.
    let disturbs = world.models.get(&id).is_some_and(|model| are_read_through_pointers(&world, &model.units));
    if disturbs && commands.contains(&PhaseCommand::StartInference) {
        (phase, commands) = step(before, PhaseEvent::PassEnd { captured: true });
    }
    if let Some(model) = world.models.get_mut(&id) {
        model.phase = phase;
    }
    let lent = lent_units(&world, id);
    drop(world);
    let all_learnt = commands.contains(&PhaseCommand::StartInference);
    in_context(context, || {
        learn::recorder(|recorder| recorder.pass_end(id, !captured));
        early::pass_ends(id, device, lent, stream);
    });
    if let Some(stream) = learn::recorder(|recorder| recorder.stream_of(id)) {
        remember_stream(id, stream);
    }
    if all_learnt {
        learn::recorder(|recorder| recorder.end_learning(id));
        in_context(context, || switch::switch_over(id));
        return;
    }
    // Not only at the switch-over, which may be put off for as long as the program likes.
    in_context(context, || learn::recorder(learn::Recorder::collect));
    if !captured && !disturbs {
        in_context(context, || early::stream(id));
    }
}

/// So many passes of the model began and ended untold, because nothing had to be looked at.
pub(crate) fn untold(id: ModelId, count: u64) {
    if let Some(model) = world().models.get_mut(&id) {
        model.measure.passes += count;
    }
}

/// The end of a pass over weights that are placed: the ring goes on to the next one, and what the pass was like is looked at.
fn end_in_inference(mut world: WorldGuard, id: ModelId, captured: bool) {
    let Some(model) = world.models.get_mut(&id) else { return };
    let (context, device, stream) = (model.context, model.device, model.stream);
    if !captured && !context.is_none() {
        model.guided = model.guided.saturating_sub(1);
    }
    if let Some(stream) = stream.filter(|_| !captured && !context.is_none()) {
        in_context(context, || model.measure.end(stream));
    } else if stream.is_none() && !captured && !context.is_none() {
        // Learning would have told where its passes run.
        let ring = ring_of(device);
        model.stream = ring.as_ref().filter(|ring| ring.context == context).and_then(|ring| ring.last_stream);
    }
    let ended = replan::ends(&mut world, id, captured || context.is_none());
    let lent = lent_units(&world, id);
    drop(world);
    if captured || context.is_none() {
        return replan::give_up(&ended);
    }
    in_context(context, || {
        let order = ended.observed_order();
        let mut changed = false;
        let tally = ring_of(device).as_mut().map(|ring| {
            ring.end_uses(lent.into_iter());
            let tally = ring.pager.pass_end(id);
            changed = ended.follow(id, ring, order.as_deref());
            ring.prefetch(stream.unwrap_or(Stream::LEGACY));
            tally
        });
        replan::ended(id, &ended, tally, order.is_some(), changed);
        pressure::pass_ended(device);
    });
    replan::between_forwards(device);
    pressure::settle_owed(device);
    stillness::settle();
}

/// Whether a forward is going on that reads one of these through pointers: its launches need not show it, so that no gate holds them back.
pub(super) fn are_read_through_pointers(world: &World, units: &[UnitId]) -> bool {
    let holds = |model: &Model, owner: &u32| {
        model.held.get(owner).is_some_and(|held| held.iter().any(|unit| units.contains(unit)))
    };
    let inside = |model: &Model| model.inside.iter().any(|(owner, &count)| count > 0 && holds(model, owner));
    world.models.values().any(inside)
}

/// What forwards that are going on read through pointers, on all devices: a model's own held units inside their owners' forwards, those that it holds for other
/// models' sake inside its passes.
pub(super) fn read_through_pointers(world: &World) -> BTreeSet<UnitId> {
    let of = |model: &Model| {
        let inside = |owner: &u32| model.inside.get(owner).is_some_and(|&count| count > 0);
        let held = model.held.iter().filter(|(owner, _)| inside(owner)).flat_map(|(_, units)| units);
        let lent = model.lent.iter().filter(|_| model.open > 0);
        held.chain(lent).copied().collect::<Vec<_>>()
    };
    world.models.values().flat_map(of).collect()
}

/// Units that the model's passes hold for other models' sake, and that none of those is running for now.
fn lent_units(world: &World, id: ModelId) -> Vec<UnitId> {
    let Some(model) = world.models.get(&id).filter(|model| model.open == 0) else { return Vec::new() };
    let holds = |other: &Model, unit| other.held.values().flatten().any(|&held| held == unit);
    let running = |unit| world.models.values().any(|other| other.open > 0 && holds(other, unit));
    model.lent.iter().copied().filter(|&unit| !running(unit)).collect()
}

fn remember_stream(id: ModelId, stream: Stream) {
    if let Some(model) = world().models.get_mut(&id) {
        model.stream = Some(stream);
    }
}

/// The program is about to destroy the stream: nothing may be recorded there any more. Times of passes that ran there are not measured from now on.
pub(crate) fn forget_stream(stream: Stream) {
    for model in world().models.values_mut().filter(|model| model.stream == Some(stream)) {
        model.stream = None;
    }
    learn::recorder(|recorder| recorder.forget_stream(stream));
}

/// An owner's forward begins on this thread.
pub(crate) fn owner_enter(id: ModelId, owner: u32) {
    learn::owner_enter(id, owner);
    if let Some(model) = world().models.get_mut(&id).filter(|model| model.held.contains_key(&owner)) {
        *model.inside.entry(owner).or_default() += 1;
    }
}

/// An owner's forward has returned: units that were held for it are free when no other thread is in it.
pub(crate) fn owner_exit(id: ModelId, owner: u32) {
    learn::owner_exit(id, owner);
    let mut world = world();
    let Some(model) = world.models.get_mut(&id) else { return };
    if let Some(inside) = model.inside.get_mut(&owner) {
        *inside = inside.saturating_sub(1);
        if *inside > 0 {
            return;
        }
    }
    // Also while the model is learnt: another model may have brought its units into the ring.
    let Some(units) = model.held.get(&owner).cloned() else { return };
    let (context, device) = (model.context, model.device);
    drop(world);
    in_context(context, || {
        if let Some(ring) = ring_of(device).as_mut() {
            ring.end_uses(units.into_iter());
        }
    });
}

/// A trap's forward begins.
pub(crate) fn trap_enter(id: ModelId, trap: u32) {
    learn::recorder(|recorder| recorder.trap_enter(id, trap));
}

/// A trap's forward has returned.
pub(crate) fn trap_exit(id: ModelId, trap: u32) {
    learn::recorder(|recorder| recorder.trap_exit(id, trap));
}

/// Runs `work` in the model's context: a thread that only runs Python may have none.
pub(crate) fn in_context<T>(context: Context, work: impl FnOnce() -> T) -> Option<T> {
    if context.is_none() {
        return Some(work());
    }
    context::with_current(context, || Ok(work())).ok()
}
