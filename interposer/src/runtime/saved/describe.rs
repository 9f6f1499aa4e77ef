//! A model as the profile says it: weights and owners by their names, units by the weights in them, passes by positions.

use std::collections::{BTreeMap, BTreeSet};

use flextensor_core::plan::{PassProfile, StayReason};
use flextensor_core::saved::{SavedModel, SavedOwner, SavedPass, SavedUnit, SavedUse, SavedWeight};
use flextensor_core::units::{ModelId, UnitId};

use crate::runtime::arena::PAGE;
use crate::runtime::models::{Model, Named};
use crate::runtime::world::{Unit, UnitState, World, world};
use crate::runtime::{learn, views};

/// Shapes that are saved; rarer ones are left out.
const MOST_SHAPES: usize = 64;

/// A model before its first pass: with its units in order, and the bytes of weights on its GPU that are in none of them.
pub(super) fn learning(id: ModelId) -> Option<(SavedModel, Vec<UnitId>, u64)> {
    let splittable = views::are_possible();
    let world = world();
    let model = world.models.get(&id)?;
    let learnt = |unit: &&Unit| unit.device == model.device && unit.state == UnitState::Learning;
    let units = world.units.iter().filter(learnt).filter(|unit| model.units.contains(&unit.id));
    let ids: Vec<UnitId> = units.map(|unit| unit.id).collect();
    let placed: u64 = ids.iter().filter_map(|&id| world.unit(id)).map(|unit| unit.pages * PAGE).sum();
    let mut saved = outline(&world, model, &ids)?;
    saved.units.iter_mut().for_each(|unit| unit.splittable = splittable);
    let in_host = world.bytes_kept_in_host(model.device);
    let fixed = world.private_weight_bytes(model.device).saturating_sub(placed + in_host);
    Some((saved, ids, fixed))
}

/// Those of the model's units that lie in host memory for good.
pub(super) fn in_host(id: ModelId) -> Vec<UnitId> {
    let world = world();
    let units = world.models.get(&id).map(|model| model.units.as_slice()).unwrap_or_default();
    units.iter().filter_map(|&id| world.unit(id)).filter(|unit| unit.in_host).map(|unit| unit.id).collect()
}

/// A model whose units have been placed, with what was learnt of it.
pub(super) fn placed(id: ModelId, ids: &[UnitId]) -> Option<SavedModel> {
    let saved = {
        let world = world();
        let model = world.models.get(&id)?;
        outline(&world, model, ids)?
    };
    Some(learnt(id, saved, ids))
}

/// The same model as it stands now, and its units: more passes may have been seen, and units may have left the ring for good. None if it is gone.
pub(super) fn refreshed(id: ModelId, mut saved: SavedModel) -> Option<(SavedModel, Vec<UnitId>)> {
    let ids = {
        let world = world();
        let ids = ids_of(&world, world.models.get(&id)?, &saved)?;
        for (unit, &id) in saved.units.iter_mut().zip(&ids) {
            // A table may have gone to host memory since.
            let lasting = unit.stay.filter(|&reason| reason != StayReason::RowsOnGpu);
            unit.stay = lasting.or(world.unit(id).and_then(|unit| unit.stay));
        }
        ids
    };
    Some((learnt(id, saved, &ids), ids))
}

/// A plan that streams what has to stay by now is none to start from.
pub(super) fn without_stale_plan(mut saved: SavedModel) -> SavedModel {
    let stays = |unit: u32| saved.units.get(unit as usize).is_some_and(|unit| unit.stay.is_some());
    if saved.plan.as_ref().is_some_and(|plan| plan.runs.iter().any(|run| stays(run.unit))) {
        saved.plan = None;
    }
    saved
}

/// Which of the model's units each saved one is.
fn ids_of(world: &World, model: &Model, saved: &SavedModel) -> Option<Vec<UnitId>> {
    let places = Places::of(world, &model.units);
    let unit_at = |address: u64| places.unit_at(address);
    let first = |unit: &SavedUnit| Some(model.named.get(*unit.weights.first()? as usize)?.address);
    saved.units.iter().map(|unit| first(unit).and_then(unit_at)).collect()
}

/// Where units lie: by first address, the address behind them and their id.
struct Places(BTreeMap<u64, (u64, UnitId)>);

impl Places {
    fn of(world: &World, ids: &[UnitId]) -> Places {
        let living = ids.iter().filter_map(|&id| world.unit(id)).filter(|unit| unit.state != UnitState::Gone);
        Places(living.map(|unit| (unit.from, (unit.end(), unit.id))).collect())
    }

    fn unit_at(&self, address: u64) -> Option<UnitId> {
        let (_, &(end, id)) = self.0.range(..=address).next_back()?;
        (address < end).then_some(id)
    }
}

/// Names, sizes and units, without anything learnt. None if a unit holds no weight of the model.
fn outline(world: &World, model: &Model, ids: &[UnitId]) -> Option<SavedModel> {
    let places = Places::of(world, ids);
    let mut of_unit: BTreeMap<UnitId, Vec<u32>> = BTreeMap::new();
    for (at, named) in (0..).zip(&model.named) {
        if let Some(unit) = places.unit_at(named.address) {
            of_unit.entry(unit).or_default().push(at);
        }
    }
    let unit = |id: &UnitId| {
        let weights = of_unit.remove(id)?;
        let known = world.unit(*id)?;
        let (bytes, pages, stay) = (own_bytes(model, &weights), known.may_move(), known.stay);
        Some(SavedUnit { weights, bytes, pages, splittable: false, shown: false, stay })
    };
    let units = ids.iter().map(unit).collect::<Option<Vec<SavedUnit>>>()?;
    Some(SavedModel {
        name: model.name.clone(),
        device: model.device,
        owners: owners(model),
        weights: weights(&model.named),
        units,
        fixed_bytes: model.fixed_bytes,
        passes: Vec::new(),
        plan: None,
    })
}

/// Bytes of these weights, each address once.
fn own_bytes(model: &Model, weights: &[u32]) -> u64 {
    let named = weights.iter().filter_map(|&at| model.named.get(at as usize));
    named.map(|weight| (weight.address, weight.bytes)).collect::<BTreeMap<_, _>>().values().sum()
}

/// All owners that were named, and those that only weights name.
fn owners(model: &Model) -> Vec<SavedOwner> {
    let numbers: BTreeSet<u32> =
        model.owners.keys().copied().chain(model.named.iter().map(|weight| weight.owner)).collect();
    let owner = |owner| {
        let known = model.owners.get(&owner);
        let (path, class) = known.map(|known| (known.path.clone(), known.class.clone())).unwrap_or_default();
        SavedOwner { owner, path, class, trap: known.map_or(-1, |known| known.trap), ran: false }
    };
    numbers.into_iter().map(owner).collect()
}

fn weights(named: &[Named]) -> Vec<SavedWeight> {
    let mut first: BTreeMap<(u64, u64), u32> = BTreeMap::new();
    let weight = |(at, weight): (u32, &Named)| {
        let before = *first.entry((weight.address, weight.bytes)).or_insert(at);
        SavedWeight {
            name: weight.name.clone(),
            bytes: weight.bytes,
            owner: weight.owner,
            flags: weight.flags,
            tied: (before != at).then_some(before),
        }
    };
    (0..).zip(named).map(weight).collect()
}

/// Adds what the recorder knows.
fn learnt(id: ModelId, mut saved: SavedModel, ids: &[UnitId]) -> SavedModel {
    learn::recorder(|recorder| {
        let ran = recorder.ran_of(id);
        saved.owners.iter_mut().for_each(|owner| owner.ran = ran.contains(&owner.owner));
        for (unit, &id) in saved.units.iter_mut().zip(ids) {
            unit.shown = recorder.was_shown(id);
        }
        let usual = recorder.collector.profile(id).map(|profile| profile.shape);
        let mut passes: Vec<SavedPass> = recorder
            .collector
            .profiles(id)
            .iter()
            .map(|profile| {
                let timed = recorder.collector.timed_passes(id, profile.shape) > 0;
                pass(&saved, profile, ids, recorder.collector.passes(id, profile.shape), timed)
            })
            .collect();
        let usual = usual.map(shape_text);
        passes.sort_by_key(|pass| (usual.as_ref() != Some(&pass.shape), std::cmp::Reverse(pass.passes)));
        passes.truncate(MOST_SHAPES);
        saved.passes = passes;
    });
    saved
}

fn shape_text(shape: u64) -> String {
    format!("{shape:016x}")
}

/// Uses of other models' units, and of owners that nobody named, leave their time to the next use.
fn pass(saved: &SavedModel, profile: &PassProfile, ids: &[UnitId], passes: u64, timed: bool) -> SavedPass {
    let position: BTreeMap<UnitId, u32> = ids.iter().copied().zip(0..).collect();
    let owners: BTreeSet<u32> = saved.owners.iter().map(|owner| owner.owner).collect();
    let mut carried = 0.0;
    let mut uses = Vec::with_capacity(profile.uses.len());
    for used in &profile.uses {
        carried += used.compute_ms;
        if let Some(&unit) = position.get(&used.unit).filter(|_| owners.contains(&used.owner)) {
            uses.push(SavedUse { unit, owner: used.owner, ms: std::mem::take(&mut carried) });
        }
    }
    SavedPass {
        shape: shape_text(profile.shape),
        passes,
        timed,
        uses,
        tail_ms: profile.tail_ms + carried,
        resident_ms: profile.resident_ms,
        host_ms: profile.host_ms,
    }
}
