//! Models as the program names them: owners, weights, phase, and the units that come of the weights.
//! Passes are `passes`' matter, placement `switch`'s.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use flextensor_core::drift::Watch;
use flextensor_core::phase::{Phase, PhaseEvent, PhaseSettings, PhaseState, step};
use flextensor_core::plan::StayReason;
use flextensor_core::units::{ModelId, UnitId};

use super::arena::{Meaning, PAGE, arena};
use super::learn::{self, Holder};
use super::measure::Measure;
use super::replan::{Current, Observation};
use super::streaming::ring_of;
use super::world::{Member, Unit, UnitState, World, world};
use super::{evidence, hosted, shadow, touched};
use crate::ffi::context::{self, Context};
use crate::ffi::device;
use crate::ffi::stream::Stream;

/// The weight may be streamed.
pub(crate) const MAY_STREAM: u32 = 1;
/// The weight may be read through pointers in memory.
pub(crate) const INDIRECT: u32 = 2;

/// Part of a unit's pages that its weights must cover; the rest may hold anything, and every hit of it costs a copy.
const MIN_COVER: f64 = 0.9;

/// An innermost module that holds weights.
#[derive(Clone, Debug)]
pub(crate) struct Owner {
    pub(crate) path: String,
    pub(crate) class: String,
    /// The enclosing trap, or -1.
    pub(crate) trap: i32,
}

/// A weight as it was named.
#[derive(Clone, Debug)]
pub(crate) struct Named {
    pub(crate) name: String,
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    pub(crate) owner: u32,
    pub(crate) flags: u32,
}

/// Where a model's profile comes from.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) enum ProfileSource {
    /// The folder of the configuration, if there is one; what is learnt is saved there too.
    #[default]
    Configured,
    /// None: it is learnt, and saved on request only.
    Nowhere,
    /// This folder; saved on request only.
    Folder(PathBuf),
}

/// One model.
pub(crate) struct Model {
    pub(crate) name: String,
    pub(crate) device: i32,
    pub(crate) context: Context,
    pub(crate) owners: BTreeMap<u32, Owner>,
    pub(crate) named: Vec<Named>,
    pub(crate) phase: PhaseState,
    pub(crate) profile: ProfileSource,
    pub(crate) units: Vec<UnitId>,
    /// Bytes of weights that are in no unit.
    pub(crate) fixed_bytes: u64,
    pub(crate) measure: Measure,
    /// Where its passes run.
    pub(crate) stream: Option<Stream>,
    /// Units of each owner that are held for its whole forward.
    pub(crate) held: BTreeMap<u32, Vec<UnitId>>,
    /// Units that are held for another model's owners: its own passes hold them too, and no owner of its own lets go of them.
    pub(crate) lent: Vec<UnitId>,
    /// Forwards of such owners that have been entered, on all threads.
    pub(crate) inside: BTreeMap<u32, u32>,
    /// Passes that have begun and not ended.
    pub(crate) open: u32,
    /// Captures were under way when its current pass began.
    pub(crate) capturing: bool,
    /// Passes in INFERENCE in which its owners still report, because an earlier run learnt it.
    pub(crate) guided: u32,
    /// How its passes compare with what was learnt of them.
    pub(crate) watch: Watch,
    /// The pass that is going on, in INFERENCE.
    pub(crate) current: Current,
    /// The pass that is going on is being observed.
    pub(crate) observation: Option<Observation>,
    /// Units that had been added to the ring when its orders were last set there.
    pub(crate) caught_up: Option<u64>,
}

impl Model {
    /// All is named: nothing may be added.
    pub(crate) fn is_ended(&self) -> bool {
        self.phase.phase() != Phase::NotInitialized
    }
}

/// A new model; nothing is decided before [`end`].
pub(crate) fn begin(name: &str, settings: PhaseSettings) -> ModelId {
    let mut world = world();
    world.models_made += 1;
    let id = ModelId(world.models_made);
    let model = Model {
        name: name.to_owned(),
        device: context::device().unwrap_or(0),
        context: context::current().unwrap_or(Context::NONE),
        owners: BTreeMap::new(),
        named: Vec::new(),
        phase: PhaseState::new(settings),
        profile: ProfileSource::default(),
        units: Vec::new(),
        fixed_bytes: 0,
        measure: Measure::default(),
        stream: None,
        held: BTreeMap::new(),
        lent: Vec::new(),
        inside: BTreeMap::new(),
        open: 0,
        capturing: false,
        guided: 0,
        watch: Watch::default(),
        current: Current::default(),
        observation: None,
        caught_up: None,
    };
    world.models.insert(id, model);
    id
}

/// The model's own way through the phases, instead of the configured one. False for an unknown or finished model.
pub(crate) fn set_course(id: ModelId, settings: PhaseSettings, profile: ProfileSource) -> bool {
    match world().models.get_mut(&id) {
        Some(model) if !model.is_ended() => {
            model.phase = PhaseState::new(settings);
            model.profile = profile;
            true
        }
        _ => false,
    }
}

/// All weights are named: units are made, and DISCOVERY begins. False for an unknown or finished model.
pub(crate) fn end(id: ModelId) -> bool {
    let mut world = world();
    let Some(model) = world.models.get_mut(&id) else { return false };
    let (phase, commands) = step(model.phase, PhaseEvent::ModelReady { owners_known: true });
    if commands.iter().any(|command| matches!(command, flextensor_core::phase::PhaseCommand::Refuse(_))) {
        return false;
    }
    model.phase = phase;
    let named = std::mem::take(&mut model.named);
    let by_region = group_by_region(&world, &named);
    let mut fixed: BTreeMap<u64, u64> = BTreeMap::new();
    let mut units = BTreeSet::new();
    for (base, weights) in by_region {
        match base.and_then(|base| unit_for(&mut world, id, base, &weights)) {
            Some(unit) => {
                units.insert(unit);
            }
            None => fixed.extend(weights.iter().map(|weight| (weight.address, weight.bytes))),
        }
    }
    let held = held_units(&world, id, &units, &named);
    let place =
        units.iter().next().and_then(|&unit| world.unit(unit)).map(|unit| (unit.device, unit.context));
    if let Some(model) = world.models.get_mut(&id) {
        model.units = units.into_iter().collect();
        model.fixed_bytes = fixed.values().sum();
        model.held = held;
        model.named = named;
        if let Some((device, context)) = place {
            (model.device, model.context) = (device, context);
        }
    }
    note_lent(&mut world, id);
    prepare_host_memory(&world, id);
    true
}

/// Learning takes a few passes: time enough to fault in the host memory that the plan will want.
fn prepare_host_memory(world: &World, id: ModelId) {
    let Some(model) = world.models.get(&id) else { return };
    let total = device::total_memory(model.device).map_or(0, |bytes| bytes as u64);
    let Some(budget) = super::config().max_gpu_mem_for(model.device.unsigned_abs(), total) else { return };
    let learning = |unit: &&Unit| unit.state == UnitState::Learning && unit.device == model.device;
    let streamable: u64 = world.units.iter().filter(learning).map(|unit| unit.pages * PAGE).sum();
    let over = world.private_weight_bytes(model.device).saturating_sub(budget);
    // The ring comes on top of what exceeds the budget: half a GiB is more than most take.
    let wanted = if over == 0 { 0 } else { (over + RING_GUESS.min(budget / 4)).min(streamable) };
    // What lies in host memory needs no other.
    let wanted = wanted.saturating_sub(hosted::weight_bytes(world, model.device));
    let allowed = |available: u64| {
        let limit = super::config().host_mem_limit_for(available);
        wanted < available && limit.is_none_or(|limit| wanted + shadow::pinned_bytes() <= limit)
    };
    if wanted > 0 && shadow::available_bytes().is_some_and(allowed) {
        touched::prepare(wanted);
        evidence::begin(world, id);
    }
}

/// Bytes of a ring, before there is a plan.
const RING_GUESS: u64 = 512 << 20;

fn group_by_region(world: &World, named: &[Named]) -> BTreeMap<Option<u64>, Vec<Named>> {
    let mut groups: BTreeMap<Option<u64>, Vec<Named>> = BTreeMap::new();
    for weight in named {
        let region = world
            .region_of(weight.address)
            .filter(|region| weight.address + weight.bytes <= region.base + region.pages() * PAGE);
        groups.entry(region.map(|region| region.base)).or_default().push(weight.clone());
    }
    groups
}

/// The unit of the weights of one region: an existing one, or a new one if they cover enough of their pages. None if they cannot be a unit.
fn unit_for(world: &mut World, model: ModelId, region: u64, weights: &[Named]) -> Option<UnitId> {
    let owners = &world.models.get(&model)?.owners;
    let members: Vec<Member> = weights
        .iter()
        .map(|weight| Member {
            model,
            owner: weight.owner,
            trap: owners.get(&weight.owner).map_or(-1, |owner| owner.trap),
            name: weight.name.clone(),
            address: weight.address,
            bytes: weight.bytes,
        })
        .collect();
    let holders: Vec<Holder> =
        members.iter().map(|m| Holder { model, owner: m.owner, trap: m.trap }).collect();
    let excluded = weights.iter().any(|weight| weight.flags & MAY_STREAM == 0);
    let hold = weights.iter().any(|weight| weight.flags & INDIRECT != 0);
    let first = weights.iter().map(|w| w.address).min()? / PAGE * PAGE;
    let end = weights.iter().map(|w| w.address + w.bytes).max()?.next_multiple_of(PAGE);
    let pages = world.regions.get(&region)?.pages();
    let existing = world.units_in(region, pages).into_iter().next();
    let id = match existing {
        Some(id) => {
            let unit = world.unit_mut(id)?;
            unit.members.extend(members);
            unit.hold |= hold;
            // It may be in the ring already.
            if hold
                && let Some(ring) = ring_of(unit.device).as_mut()
                && let Some(streamed) = ring.unit_mut(id)
            {
                streamed.hold = true;
            }
            id
        }
        None => {
            let region = world.regions.get(&region)?;
            let stay = region.stay.or(excluded.then_some(StayReason::Excluded));
            // What lies behind the allocation's end is nobody's.
            if covered(weights) < MIN_COVER * (end.min(region.base + region.bytes) - first) as f64 {
                return None;
            }
            let id = UnitId(world.units.len() as u32);
            let unit = Unit {
                id,
                device: region.device,
                context: region.context,
                base: first,
                pages: (end - first) / PAGE,
                members,
                hold,
                stay,
                state: UnitState::Learning,
                streamed: 0,
            };
            arena()?.set_meaning(unit.base, unit.pages, Meaning::Learning(id));
            world.units.push(unit);
            id
        }
    };
    learn::recorder(|recorder| recorder.add_holders(id, holders));
    Some(id)
}

/// Bytes that at least one of the weights covers.
fn covered(weights: &[Named]) -> f64 {
    let mut ranges: Vec<(u64, u64)> = weights.iter().map(|w| (w.address, w.address + w.bytes)).collect();
    ranges.sort_unstable();
    let mut reached = 0;
    let mut bytes = 0;
    for (start, end) in ranges {
        bytes += end.saturating_sub(start.max(reached));
        reached = reached.max(end);
    }
    bytes as f64
}

fn held_units(
    world: &World,
    model: ModelId,
    units: &BTreeSet<UnitId>,
    named: &[Named],
) -> BTreeMap<u32, Vec<UnitId>> {
    let mut held: BTreeMap<u32, Vec<UnitId>> = BTreeMap::new();
    for unit in units.iter().filter_map(|&id| world.unit(id)).filter(|unit| unit.hold) {
        for member in unit.members.iter().filter(|member| member.model == model) {
            let indirect =
                named.iter().any(|weight| weight.owner == member.owner && weight.flags & INDIRECT != 0);
            let list = held.entry(member.owner).or_default();
            if indirect && !list.contains(&unit.id) {
                list.push(unit.id);
            }
        }
    }
    held
}

/// Tells every model with a member in a held unit of this model, and with no owner that the unit is held for.
fn note_lent(world: &mut World, id: ModelId) {
    let units = world.models.get(&id).map(|model| model.units.clone()).unwrap_or_default();
    for unit in units {
        let Some(known) = world.unit(unit).filter(|unit| unit.hold) else { continue };
        let holders: BTreeSet<ModelId> = known.members.iter().map(|member| member.model).collect();
        for holder in holders {
            if let Some(model) = world.models.get_mut(&holder)
                && !model.held.values().flatten().chain(&model.lent).any(|&known| known == unit)
            {
                model.lent.push(unit);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn weight(address: u64, bytes: u64) -> Named {
        Named { name: String::new(), address, bytes, owner: 0, flags: MAY_STREAM }
    }

    #[test]
    fn tied_and_overlapping_weights_are_counted_once() {
        let weights = [weight(0, 100), weight(0, 100), weight(50, 100), weight(400, 10)];
        assert_eq!(covered(&weights), 160.0);
    }
}
