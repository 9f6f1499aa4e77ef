//! What the plan of a switch-over is asked for: a model's units and the passes that were learnt of it. The answer is core's `plan`'s, a strategy's or a profile's.

use flextensor_core::error::CoreError;
use flextensor_core::link::LinkCurve;
use flextensor_core::plan::{PassProfile, Plan, PlanRequest, StayReason, plan_increment};
use flextensor_core::units::{ModelId, UnitId};

use super::super::arena::PAGE;
use super::super::planned::{self, planned};
use super::super::streaming::ring_of;
use super::super::world::{Unit, UnitState, world};
use super::super::{config, integrated, learn, overflow, saved, views};
use crate::ffi::device;

/// What a plan is asked for, and for whom.
pub(in super::super) struct Request {
    pub(super) id: ModelId,
    /// Pages of the ring that turns already; 0 = none.
    pub(super) ring_before: u64,
    pub(in super::super) device: i32,
    pub(in super::super) plan: PlanRequest,
    /// The units to be placed now.
    pub(in super::super) mine: Vec<UnitId>,
    /// They are learnt on, and placed again when that has ended.
    pub(in super::super) early: bool,
    pub(super) resident_ms: f64,
}

impl Request {
    /// Whether the plan streams any of its units.
    pub(super) fn streams(&self, plan: &Plan) -> bool {
        plan.layout.iter().any(|run| self.mine.contains(&run.unit))
    }
}

pub(super) fn request_for(id: ModelId, link: LinkCurve, early: bool) -> Option<Request> {
    let config = config();
    let profile = learn::recorder(|recorder| recorder.collector.profile(id));
    let hidden = hidden_units(id, profile.as_ref());
    let splittable = views::are_possible();
    let world = world();
    let model = world.models.get(&id)?;
    let device = model.device;
    let total = device::total_memory(device).map_or(0, |bytes| bytes as u64);
    let learnt = |unit: &&Unit| unit.device == device && unit.state == UnitState::Learning;
    let mine: Vec<_> =
        world.units.iter().filter(learnt).filter(|unit| model.units.contains(&unit.id)).collect();
    let ids: Vec<UnitId> = mine.iter().map(|unit| unit.id).collect();
    let small = world.small(device);
    let units = mine
        .iter()
        .map(|unit| {
            let stay = unit.stay.or_else(|| hidden.contains(&unit.id).then_some(StayReason::Hidden));
            unit.info(splittable, small, stay)
        })
        .collect();
    let placed: u64 = mine.iter().map(|unit| unit.pages * PAGE).sum();
    let in_host = world.bytes_kept_in_host(device);
    let resident_ms = profile.as_ref().map_or(0.0, |profile| profile.resident_ms);
    let passes = passes_of(id, profile, &ids);
    let ring_before = ring_of(device).as_ref().map_or(0, |ring| ring.ring.len() as u64);
    // Of an integrated GPU it was said that the budget is not held.
    let held = !integrated::is(device);
    let budget = config.max_gpu_mem_for(device.unsigned_abs(), total).filter(|_| held);
    Some(Request {
        id,
        ring_before,
        device,
        plan: PlanRequest {
            budget: overflow::limit(&world, ring_before * PAGE, device, budget),
            fixed_bytes: world.private_weight_bytes(device).saturating_sub(placed + in_host),
            units,
            passes,
            link,
            ring_override: config.ring_bytes,
            objective: planned::objective(),
            ..PlanRequest::default()
        },
        mine: ids,
        early,
        resident_ms,
    })
}

/// Passes in the usual shape, then in the others that were measured.
fn passes_of(id: ModelId, usual: Option<PassProfile>, units: &[UnitId]) -> Vec<PassProfile> {
    let Some(usual) = usual else { return Vec::new() };
    let others = learn::recorder(|recorder| {
        let mut all = recorder.collector.profiles(id);
        all.retain(|pass| pass.shape != usual.shape && recorder.collector.timed_passes(id, pass.shape) > 0);
        all
    });
    std::iter::once(usual).chain(others).map(|pass| only(pass, units)).collect()
}

/// Units that no launch of the usual pass showed, though their owners ran.
fn hidden_units(id: ModelId, profile: Option<&PassProfile>) -> Vec<UnitId> {
    let units = world().models.get(&id).map(|model| model.units.clone()).unwrap_or_default();
    let shown =
        |unit: UnitId| profile.is_some_and(|profile| profile.uses.iter().any(|used| used.unit == unit));
    learn::recorder(|recorder| {
        units.into_iter().filter(|&unit| !shown(unit) && !recorder.is_idle(unit, id)).collect()
    })
}

/// The profile without uses of units that are not to be placed; their time goes to the next use.
pub(in super::super) fn only(mut profile: PassProfile, units: &[UnitId]) -> PassProfile {
    let mut carried = 0.0;
    profile.uses.retain_mut(|used| {
        used.compute_ms += std::mem::take(&mut carried);
        let keep = units.contains(&used.unit);
        if !keep {
            carried = used.compute_ms;
        }
        keep
    });
    profile.tail_ms += carried;
    profile
}

/// By an earlier run, for a ring that turns already, or made now.
pub(super) fn plan_for(request: &Request) -> Result<Plan, String> {
    // The lock goes before the plan is made: the world is asked for it, and comes first in the order of locks.
    let turns = ring_of(request.device).is_some();
    let saved =
        if request.early { None } else { saved::plan(request.id, &request.plan, request.ring_before) };
    match saved {
        Some(plan) => Ok(plan),
        None if turns => increment(request).map_err(|error| error.to_string()),
        None => planned(&request.plan),
    }
}

/// A plan for a model that comes when a ring is already turning: the ring stays as it is, and the model gets what the budget has left.
fn increment(request: &Request) -> Result<Plan, CoreError> {
    let before = world().decided.get(&request.device).map(|decided| decided.plan.clone()).unwrap_or_default();
    let mut rest = request.plan.clone();
    rest.budget = rest.budget.map(|budget| budget.saturating_sub(before.ring_bytes));
    plan_increment(&before, &rest)
}
