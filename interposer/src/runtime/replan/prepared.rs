//! Plans that are made ready while the program runs, with the host memory and the ring that they need, until they are put in force or given up.
//! Which plan is prepared is said by `placing` and `giving`, when it comes into force by `in_force`.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};

use flextensor_core::plan::{Plan, PlanRequest};

use super::super::shadow::{self, Wanted};
use super::super::streaming::{RingState, Streaming, ring_of};
use super::super::switch;
use super::super::touched::Touched;
use super::super::world::{UnitState, World, world};
use super::super::{passes, verify};
use super::standing::{Asked, may_stream};
use super::target::Target;
use super::worth::Why;
use crate::ffi::context::Context;
use crate::ffi::device;
use crate::ffi::stream::Stream;

/// A plan that only needs a moment between two forwards.
pub(super) struct Prepared {
    pub(super) device: i32,
    pub(super) context: Context,
    pub(super) targets: Vec<Target>,
    /// The new ring without units and pages; goes when it is put in force.
    pub(super) fresh: Option<Streaming>,
    pub(super) ring_after: u64,
    /// A copy stream of the new ring.
    pub(super) on: Stream,
    pub(super) plan: Plan,
    pub(super) request: PlanRequest,
    pub(super) why: Why,
    /// GPU bytes of all weights now, ring included.
    pub(super) peak_before: u64,
    /// The ring that it was made for.
    stands_on: RingState,
}

/// Prepared plans, by device at most one each.
static READY: Mutex<Vec<Prepared>> = Mutex::new(Vec::new());
static ANY_READY: AtomicBool = AtomicBool::new(false);

fn ready() -> MutexGuard<'static, Vec<Prepared>> {
    READY.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Whether a plan may be prepared, for any device.
pub(super) fn any() -> bool {
    ANY_READY.load(Ordering::Acquire)
}

/// Whether a plan is prepared for the device.
pub(super) fn is_ready(device: i32) -> bool {
    ready().iter().any(|prepared| prepared.device == device)
}

/// The plan waits for a moment at which it can be put in force.
pub(super) fn keep(prepared: Prepared) {
    ready().push(prepared);
    ANY_READY.store(true, Ordering::Release);
}

/// The plan of a device, to be put in force.
pub(super) fn take(device: i32) -> Option<Prepared> {
    let mut ready = ready();
    let at = ready.iter().position(|prepared| prepared.device == device)?;
    let prepared = ready.remove(at);
    ANY_READY.store(!ready.is_empty(), Ordering::Release);
    Some(prepared)
}

fn take_all(which: impl Fn(&Prepared) -> bool) -> Vec<Prepared> {
    let mut ready = ready();
    let (of_it, others) = std::mem::take(&mut *ready).into_iter().partition(which);
    *ready = others;
    of_it
}

/// What was prepared for a device is given up: something else is about to happen. Nobody thinks of a plan.
pub(super) fn discard(device: i32) {
    give_up_all(|prepared| prepared.device == device);
}

/// The same for all that belongs to a context.
pub(super) fn discard_of(context: Context) {
    give_up_all(|prepared| prepared.context == context);
}

fn give_up_all(which: impl Fn(&Prepared) -> bool) {
    for prepared in take_all(which) {
        passes::in_context(prepared.context, || give_up(prepared));
    }
}

/// Weights of a device have gone: what was prepared with them is given up. The calling thread holds no lock.
pub(in super::super) fn discard_stale(device: i32) {
    if !any() {
        return;
    }
    let stale = {
        // Held until those are taken out: whoever frees a weight of a plan afterwards still finds it.
        let world = world();
        let ring = ring_of(device);
        let stands =
            |prepared: &Prepared| ring.as_ref().is_some_and(|ring| prepared.is_current(&world, ring));
        take_all(|prepared| prepared.device == device && !stands(prepared))
    };
    for prepared in stale {
        passes::in_context(prepared.context, || give_up(prepared));
    }
}

/// Host memory, copy streams, and the bytes that can be brought along already. The ring's context is current.
pub(super) fn make_ready(
    asked: Asked,
    made: Plan,
    mut targets: Vec<Target>,
    why: Why,
) -> Result<Prepared, String> {
    let changes = |target: &&mut Target| target.after > 0 && target.after != target.before;
    let wanted: Vec<Wanted> = targets
        .iter_mut()
        .filter(changes)
        .map(|target| Wanted {
            prefix: target.pages - target.after,
            pages: target.after,
            hangs_over: target.overhang > 0,
        })
        .collect();
    switch::check_host_memory(wanted.iter().map(Wanted::all).sum(), 0)?;
    let shadows = shadow::make(&wanted, Touched::default())?;
    let chunk = if made.chunk_pages > 0 { made.chunk_pages } else { asked.request.chunk_pages };
    let fresh = match Streaming::new(asked.device, asked.context, made.ring_pages as u32, chunk as u32) {
        Ok(fresh) => fresh,
        Err(error) => {
            shadow::give_back(shadows);
            return Err(format!("no copy streams: {error}"));
        }
    };
    for (target, shadow) in targets.iter_mut().filter(changes).zip(shadows) {
        target.shadow = Some(shadow);
        target.copied_at =
            verify::bring_along(asked.device, target.id, &shadow, target.before.min(target.after));
    }
    Ok(Prepared {
        device: asked.device,
        context: asked.context,
        targets,
        ring_after: made.ring_pages,
        on: fresh.demand_stream(),
        fresh: Some(fresh),
        plan: made,
        peak_before: asked.peak(),
        request: asked.request,
        why,
        stands_on: asked.stands_on,
    })
}

/// Gives back what was prepared. Its context is current.
pub(super) fn give_up(prepared: Prepared) {
    verify::let_go(prepared.targets.iter().filter_map(|target| target.shadow).collect());
    if let Some(fresh) = prepared.fresh {
        fresh.close();
    }
}

impl Prepared {
    /// Whether the plan has all that the options allow: no shortage holds it back.
    pub(super) fn is_within_options(&self) -> bool {
        let total = device::total_memory(self.device).map_or(0, |bytes| bytes as u64);
        let budget = super::super::config().max_gpu_mem_for(self.device.unsigned_abs(), total);
        budget.is_some() && self.request.budget == budget
    }

    /// Whether there was no ring when it was made.
    pub(super) fn begins_without_ring(&self) -> bool {
        self.stands_on == RingState::default()
    }

    /// Whether everything still stands where it stood.
    pub(super) fn is_current(&self, world: &World, ring: &Streaming) -> bool {
        let stands = |target: &Target| {
            world.unit(target.id).is_some_and(|unit| {
                let there = match unit.state {
                    UnitState::Streamed => ring.unit(target.id).is_some_and(|run| run.pages == target.before),
                    UnitState::Resident => target.before == 0 && may_stream(world, unit),
                    UnitState::Learning | UnitState::Gone => false,
                };
                // One that streams, and should not, is on its way out: others may move meanwhile.
                let may = target.before > 0 || unit.stay.is_none();
                there && unit.streamed == target.before && may && unit.hold == target.hold
            })
        };
        let known = self.targets.iter().filter(|target| target.before > 0).count();
        ring.state() == self.stands_on && ring.streamed().count() == known && self.targets.iter().all(stands)
    }
}
