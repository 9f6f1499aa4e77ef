//! How things stand on a device, and what a new plan for it is asked for: the units that may move, the passes of all models, and how much memory they may take.
//! What becomes of the answer is `placing`'s matter, and `giving`'s where memory runs short.

use std::collections::BTreeSet;

use flextensor_core::plan::{PassProfile, Placement, Plan, PlanRequest, RingRun};
use flextensor_core::units::UnitId;

use super::super::arena::PAGE;
use super::super::planned;
use super::super::streaming::{RingState, Streaming, ring_of};
use super::super::switch;
use super::super::world::{Unit, UnitState, World, world};
use super::super::{hosted, learn, overflow, passes, views};
use crate::ffi::context::Context;
use crate::ffi::device;

/// How much GPU memory a plan may take.
#[derive(Clone, Copy)]
pub(super) enum Aim<'a> {
    /// What the options, and the device, allow.
    Limit,
    /// So many bytes less than weights take now. These units are to stay where they are.
    Less { bytes: u64, leave: &'a BTreeSet<UnitId> },
}

impl Aim<'_> {
    fn leaves(&self, unit: UnitId) -> bool {
        matches!(self, Aim::Less { leave, .. } if leave.contains(&unit))
    }
}

/// What a plan is asked for, and how things stand.
#[derive(Clone)]
pub(super) struct Asked {
    pub(super) device: i32,
    pub(super) context: Context,
    pub(super) request: PlanRequest,
    /// The plan as it stands, for the same request.
    pub(super) standing: Plan,
    pub(super) over_budget: bool,
    pub(super) stands_on: RingState,
    /// Bytes that the device has.
    pub(super) total_bytes: u64,
}

impl Asked {
    /// GPU bytes of all weights as things stand, ring included.
    pub(super) fn peak(&self) -> u64 {
        let streamed: u64 = self.standing.placements.iter().map(|p| p.streamed_pages).sum();
        self.request.total_bytes() - streamed * PAGE + self.standing.ring_pages * PAGE
    }
}

/// None where nothing was planned yet; and where nothing is streamed, unless weights are to make room.
pub(super) fn asked(device: i32, aim: Aim<'_>) -> Option<Asked> {
    let world = world();
    let link = world.decided.get(&device)?.link.clone();
    let profiles = profiles(&world, device);
    let used: BTreeSet<UnitId> =
        profiles.iter().flat_map(|profile| &profile.uses).map(|used| used.unit).collect();
    let ring = ring_of(device);
    let ring = match (ring.as_deref(), aim) {
        (None, Aim::Limit) => return None,
        (ring, _) => ring,
    };
    let resident = |unit: &&Unit| {
        let fits = match aim {
            Aim::Limit => used.contains(&unit.id),
            Aim::Less { .. } => used.contains(&unit.id) || is_idle(unit),
        };
        unit.device == device && unit.state == UnitState::Resident && fits && may_stream(&world, unit)
    };
    let context = match ring {
        Some(ring) => ring.context,
        None => world.units.iter().find(resident)?.context,
    };
    let movable = |unit: &&Unit| {
        let streamed = unit.device == device && ring.is_some_and(|ring| ring.unit(unit.id).is_some());
        let may_leave = |unit: &&Unit| resident(unit) && unit.context == context && !aim.leaves(unit.id);
        (streamed && unit.state == UnitState::Streamed) || may_leave(unit)
    };
    let splittable = views::are_possible();
    let units: Vec<_> = world.units.iter().filter(movable).collect();
    let ids: Vec<UnitId> = units.iter().map(|unit| unit.id).collect();
    let small = world.small(device);
    let private: u64 = units.iter().map(|unit| (unit.pages - unit.streamed) * PAGE).sum();
    let standing = as_it_stands(&units, ring);
    let ring_bytes = ring.map_or(0, |ring| ring.ring_bytes());
    let total_bytes = device::total_memory(device).map_or(0, |bytes| bytes as u64);
    let budget = super::super::config().max_gpu_mem_for(device.unsigned_abs(), total_bytes);
    let weights = world.private_weight_bytes(device) - world.bytes_kept_in_host(device);
    let budget = match aim {
        Aim::Limit => passes::in_context(context, || overflow::limit(&world, ring_bytes, device, budget))?,
        Aim::Less { bytes, .. } => {
            let less = (weights + ring_bytes).saturating_sub(bytes);
            Some(budget.map_or(less, |budget| budget.min(less)))
        }
    };
    let request = PlanRequest {
        budget,
        objective: planned::objective(),
        fixed_bytes: weights.saturating_sub(private),
        units: units.iter().map(|unit| unit.info(splittable, small, None)).collect(),
        passes: profiles.into_iter().map(|profile| switch::only(profile, &ids)).collect(),
        link,
        ring_override: super::super::config().ring_bytes,
        ..PlanRequest::default()
    };
    let over_budget = budget.is_some_and(|budget| weights + ring_bytes > budget);
    let stands_on = ring.map_or_else(RingState::default, Streaming::state);
    Some(Asked { device, context, request, standing, over_budget, stands_on, total_bytes })
}

/// The plan that the units follow now.
fn as_it_stands(units: &[&Unit], ring: Option<&Streaming>) -> Plan {
    let layout = units.iter().filter_map(|unit| {
        let run = ring?.unit(unit.id)?;
        Some(RingRun { unit: unit.id, start: run.ring_start, pages: run.pages })
    });
    Plan {
        placements: units.iter().map(|u| Placement { unit: u.id, streamed_pages: u.streamed }).collect(),
        layout: layout.collect(),
        ring_pages: ring.map_or(0, |ring| ring.ring.len() as u64),
        chunk_pages: ring.map_or(0, |ring| u64::from(ring.pager.chunk_pages())),
        ..Plan::default()
    }
}

/// Whether a unit with private pages may come to the ring.
pub(super) fn may_stream(world: &World, unit: &Unit) -> bool {
    unit.stay.is_none() && hosted::pages_at(world, unit.base, unit.pages).is_empty()
}

/// Whether no model that holds the unit uses it.
fn is_idle(unit: &Unit) -> bool {
    let idle = |recorder: &mut learn::Recorder| {
        unit.members.iter().all(|member| recorder.is_idle(unit.id, member.model))
    };
    !unit.members.is_empty() && learn::recorder(idle)
}

/// Every shape of every model on the device, the most frequent one of each model first.
fn profiles(world: &World, device: i32) -> Vec<PassProfile> {
    let here = world.models.iter().filter(|(_, model)| model.device == device && !model.units.is_empty());
    let ids: Vec<_> = here.map(|(&id, _)| id).collect();
    learn::recorder(|recorder| {
        let of = |id| {
            let first = recorder.collector.profile(id);
            let rest = recorder.collector.profiles(id).into_iter();
            let shape = first.as_ref().map(|first| first.shape);
            first.into_iter().chain(rest.filter(move |other| Some(other.shape) != shape))
        };
        ids.into_iter().flat_map(of).collect()
    })
}
