//! Models as the program names them: owners, weights, phase. Which units come of the weights is `grouping`'s matter, passes are `passes`', placement is `switch`'s.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use flextensor_core::drift::Watch;
use flextensor_core::phase::{Phase, PhaseEvent, PhaseSettings, PhaseState, step};
use flextensor_core::units::{ModelId, UnitId};

use super::arena::PAGE;
use super::grouping::{self, Grouped};
use super::measure::Measure;
use super::regions::Region;
use super::replan::{Current, Observation};
use super::streaming::RingState;
use super::world::{Member, Unit, UnitState, World, world};
use super::{evidence, host_memory, hosted, learn, outside, overflow, pinning, pressure, switch, touched};
use crate::ffi::context::{self, Context};
use crate::ffi::device;
use crate::ffi::stream::Stream;
use crate::log;

/// The weight may be streamed.
pub(crate) const MAY_STREAM: u32 = 1;
/// The weight may be read through pointers in memory.
pub(crate) const INDIRECT: u32 = 2;
/// Its owner's forward reads single rows of the weight, and nobody else reads it.
pub(crate) const ROWS: u32 = 4;

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
    /// The ring that its orders were last set in, as it was then.
    pub(crate) caught_up: Option<RingState>,
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

/// All weights are named: units are made, and DISCOVERY begins. Weights that stream already leave the newcomer its share of the budget. False for an unknown or
/// finished model.
pub(crate) fn end(id: ModelId) -> bool {
    let named = end_naming(id);
    let device = world().models.get(&id).map(|model| model.device);
    if let Some(device) = device.filter(|_| named) {
        pressure::hold_budget(device);
    }
    named
}

fn end_naming(id: ModelId) -> bool {
    let mut world = world();
    let Some(model) = world.models.get_mut(&id) else { return false };
    let (phase, commands) = step(model.phase, PhaseEvent::ModelReady { owners_known: true });
    if commands.iter().any(|command| matches!(command, flextensor_core::phase::PhaseCommand::Refuse(_))) {
        return false;
    }
    model.phase = phase;
    let named = std::mem::take(&mut model.named);
    let Grouped { units, fixed_bytes } = grouping::group(&mut world, id, &named);
    let place = place_of(&world, id, &units);
    let units = place.map_or(BTreeSet::new(), |(device, _)| leave_other_devices(&mut world, units, device));
    let held = held_units(&world, id, &units, &named);
    if let Some(model) = world.models.get_mut(&id) {
        model.units = units.into_iter().collect();
        model.fixed_bytes = fixed_bytes;
        model.held = held;
        model.named = named;
        if let Some((device, context)) = place {
            (model.device, model.context) = (device, context);
        }
    }
    note_lent(&mut world, id);
    prepare_host_memory(&world, id);
    learn::recorder(|recorder| recorder.begin_learning(id));
    if let Some(model) = world.models.get(&id) {
        let total = device::total_memory(model.device).map_or(0, |bytes| bytes as u64);
        outside::say(model.device, total, &model.named);
    }
    true
}

/// Where the model is placed: the device on which it was begun, if it has weights there, else that of its first ones.
fn place_of(world: &World, id: ModelId, units: &BTreeSet<UnitId>) -> Option<(i32, Context)> {
    let begun_on = world.models.get(&id)?.device;
    let places = || units.iter().filter_map(|&unit| world.unit(unit)).map(|unit| (unit.device, unit.context));
    places().find(|&(device, _)| device == begun_on).or_else(|| places().next())
}

/// A model is placed on one device: those of its units that lie on others stay as they are, unless another model places them. Returns its own.
fn leave_other_devices(world: &mut World, units: BTreeSet<UnitId>, device: i32) -> BTreeSet<UnitId> {
    let is_here = |id: &UnitId| world.unit(*id).is_some_and(|unit| unit.device == device);
    let (here, elsewhere): (BTreeSet<_>, BTreeSet<_>) = units.into_iter().partition(is_here);
    let mine = |members: &[Member]| members.windows(2).all(|pair| pair[0].model == pair[1].model);
    let left: Vec<UnitId> =
        elsewhere.into_iter().filter(|&id| world.unit(id).is_some_and(|unit| mine(&unit.members))).collect();
    if !left.is_empty() {
        log::warning!(
            "weights of one model lie on several GPUs: those that are not on GPU {device} stay; name a model for each GPU"
        );
        switch::settle_units(world, &left);
    }
    here
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
    let in_regions: u64 = world.regions.values().map(Region::host_bytes).sum();
    let taken = pinning::taken_bytes() + in_regions;
    let limited = overflow::host_limit().is_some_and(|limit| limit < wanted + taken);
    if wanted > 0 && !limited && host_memory::available().is_some_and(|available| wanted < available.bytes) {
        touched::prepare(wanted);
        evidence::begin(world, id);
    }
}

/// Bytes of a ring, before there is a plan.
const RING_GUESS: u64 = 512 << 20;

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
