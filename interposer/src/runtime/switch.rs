//! The switch-over: from learnt passes to a plan, and from private pages to a ring. Host memory is made and pinned first; until then a failure changes nothing.
//! What the plan is, is core's `plan`; how pages move is `exchange`'s matter; the ring's life is `streaming`'s.

use std::collections::BTreeMap;
use std::sync::Mutex;

use flextensor_core::link::{LinkCurve, LinkPoint};
use flextensor_core::phase::Phase;
use flextensor_core::plan::{PassProfile, Plan, PlanNote, PlanRequest, StayReason, plan_increment};
use flextensor_core::units::{Bytes, ModelId, UnitId};

use super::arena::{Meaning, PAGE, arena};
use super::evidence::{self, Baseline, Rest};
use super::exchange::{self, Move};
use super::planned::{self, planned};
use super::private::{self, Why};
use super::shadow::{self, Shadow, Wanted};
use super::streaming::{Streaming, ring_of};
use super::touched::{self, Touched};
use super::world::{UnitState, World, world};
use super::{early, gate, home, host_memory, hosted, learn, overflow, peers, rows, saved, views};
use crate::ffi::device;
use crate::log;

/// What was decided for a device, for the report.
#[derive(Clone, Debug)]
pub(crate) struct Decided {
    pub(crate) plan: Plan,
    pub(crate) budget: Option<u64>,
    pub(crate) link: LinkCurve,
    /// Bytes of weights that are in no unit of the plan.
    pub(crate) fixed_bytes: u64,
    pub(crate) total_bytes: u64,
    pub(crate) resident_ms: f64,
    /// Milliseconds from the plan to the opening of the gate: all, and with the gate closed.
    pub(crate) took_ms: f64,
    pub(crate) closed_ms: f64,
    /// Why nothing was switched, if so.
    pub(crate) refused: Option<String>,
    /// Its ring is gone, with all that was in it.
    pub(crate) retired: bool,
}

/// One switch-over at a time: a plan stands on what the one before made.
pub(super) static SWITCHING: Mutex<()> = Mutex::new(());

/// The model's learning has ended: makes the plan and puts it in force. The model's context is current.
pub(crate) fn switch_over(id: ModelId) {
    let _only = SWITCHING.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    early::dissolve(id);
    place(id, false);
}

/// The same for a model that is learnt on: its order of use is known, its times are not.
pub(super) fn switch_early(id: ModelId) {
    let _only = SWITCHING.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    place(id, true);
}

fn place(id: ModelId, early: bool) {
    let begun = std::time::Instant::now();
    // From here on nobody touches memory ahead, also so that the link is measured alone.
    let ahead = touched::take();
    let looked_at = evidence::take(id);
    learn::recorder(learn::Recorder::settle);
    let curve = saved::link_curve(id);
    let Some(mut request) = request_for(id, curve, early) else { return };
    let mut made = plan_for(&request);
    // What is read by rows need not be streamed: the plan is for the others.
    let mut gone = Vec::new();
    if made.as_ref().is_ok_and(|plan| request.streams(plan)) {
        gone = rows::go_to_host(&request);
    }
    if !gone.is_empty() {
        let Some(rest) = request_for(id, request.plan.link, early) else { return rows::bring_back(&gone) };
        request = rest;
        made = plan_for(&request);
    }
    let plan = match made {
        Ok(plan) => plan,
        Err(error) => {
            rows::bring_back(&gone);
            return keep_all(&request, Plan::default(), &format!("no plan could be made: {error}"));
        }
    };
    let streams = request.streams(&plan);
    if !streams {
        return settle_resident(&request, plan);
    }
    match put_in_force(&request, &plan, ahead, looked_at.filter(|_| !early)) {
        Ok(closed_ms) => {
            let took_ms = begun.elapsed().as_secs_f64() * 1e3;
            announce(&request, &plan);
            remember(&request, plan, took_ms, closed_ms, None);
        }
        Err(why) => {
            rows::bring_back(&gone);
            keep_all(&request, plan, &why);
        }
    }
}

/// By an earlier run, for a ring that turns already, or made now.
fn plan_for(request: &Request) -> Result<Plan, String> {
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

/// Lets the ring of a device go when nothing is streamed there any more. The calling thread holds no lock.
pub(crate) fn retire_empty_ring(device: i32) {
    let empty = |ring: &Option<Box<Streaming>>| ring.as_ref().is_some_and(|ring| ring.is_empty());
    if !empty(&ring_of(device)) {
        return;
    }
    // Whoever switches over now counts on the ring.
    let Ok(_only) = SWITCHING.try_lock() else { return };
    let_ring_go(device);
}

/// Lets the ring go if nothing is streamed in it. Nobody switches over, or the caller does.
pub(super) fn let_ring_go(device: i32) {
    let _closed = gate::close();
    let mut world = world();
    let mut ring = ring_of(device);
    if ring.as_ref().is_none_or(|ring| !ring.is_empty()) {
        return;
    }
    let gone = ring.take();
    drop(ring);
    if let Some(ring) = gone {
        ring.close();
    }
    if let Some(decided) = world.decided.get_mut(&device) {
        decided.retired = true;
    }
}

/// What a plan is asked for, and for whom.
pub(super) struct Request {
    id: ModelId,
    /// Pages of the ring that turns already; 0 = none.
    ring_before: u64,
    pub(super) device: i32,
    pub(super) plan: PlanRequest,
    /// The units to be placed now.
    pub(super) mine: Vec<UnitId>,
    /// They are learnt on, and placed again when that has ended.
    pub(super) early: bool,
    resident_ms: f64,
}

impl Request {
    /// Whether the plan streams any of its units.
    fn streams(&self, plan: &Plan) -> bool {
        plan.layout.iter().any(|run| self.mine.contains(&run.unit))
    }
}

fn request_for(id: ModelId, link: LinkCurve, early: bool) -> Option<Request> {
    let config = super::config();
    let profile = learn::recorder(|recorder| recorder.collector.profile(id));
    let hidden = hidden_units(id, profile.as_ref());
    let splittable = views::are_possible();
    let world = world();
    let model = world.models.get(&id)?;
    let device = model.device;
    let total = device::total_memory(device).map_or(0, |bytes| bytes as u64);
    let learnt = |unit: &&super::world::Unit| unit.device == device && unit.state == UnitState::Learning;
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
    let budget = config.max_gpu_mem_for(device.unsigned_abs(), total);
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
pub(super) fn only(mut profile: PassProfile, units: &[UnitId]) -> PassProfile {
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

/// A plan for a model that comes when a ring is already turning: the ring stays as it is, and the model gets what the budget has left.
fn increment(request: &Request) -> Result<Plan, flextensor_core::error::CoreError> {
    let before = world().decided.get(&request.device).map(|decided| decided.plan.clone()).unwrap_or_default();
    let mut rest = request.plan.clone();
    rest.budget = rest.budget.map(|budget| budget.saturating_sub(before.ring_bytes));
    plan_increment(&before, &rest)
}

/// Everything fits, or nothing may move: launches need not look at these weights any more.
fn settle_resident(request: &Request, plan: Plan) {
    if !request.early {
        settle_units(&mut world(), &request.mine);
    }
    leave_host_memory(request);
    announce(request, &plan);
    remember(request, plan, 0.0, 0.0, None);
}

/// Resident weights that lie in host memory get GPU pages.
fn leave_host_memory(request: &Request) {
    if overflow::host_bytes() == 0 {
        return;
    }
    let _closed = match exchange::close_the_gate(&request.mine) {
        Ok(closed) => closed,
        Err(why) => return log::info!("weights stay in host memory: {why}"),
    };
    let mut none_left = Vec::new();
    match peers::wait_for_users(request.device) {
        Ok(()) => home::settle(&mut world(), request, &mut none_left),
        Err(error) => log::info!("weights stay in host memory: waiting for the GPU failed: {error}"),
    }
}

fn keep_all(request: &Request, plan: Plan, why: &str) {
    if request.early {
        return log::info!("weights stay where they are until all is learnt: {why}");
    }
    settle_units(&mut world(), &request.mine);
    let budget =
        request.plan.budget.map_or("no budget".to_owned(), |bytes| format!("the budget of {}", Bytes(bytes)));
    let in_host = overflow::host_bytes();
    if in_host > 0 {
        log::warning!("all weights stay where they are, {} of them in host memory: {why}", Bytes(in_host));
    } else {
        log::warning!("all weights stay in GPU memory, so {budget} is not held: {why}");
    }
    remember(request, plan, 0.0, 0.0, Some(why.to_owned()));
}

pub(super) fn settle_units(world: &mut World, units: &[UnitId]) {
    for &id in units {
        let Some(unit) = world.unit_mut(id).filter(|unit| unit.state == UnitState::Learning) else {
            continue;
        };
        unit.state = UnitState::Resident;
        if let Some(arena) = arena() {
            unit.mean(arena, Meaning::Nothing);
        }
    }
}

/// Pins, copies out, remaps. Returns the milliseconds with the gate closed.
fn put_in_force(
    request: &Request,
    plan: &Plan,
    ahead: Touched,
    looked_at: Option<Baseline>,
) -> Result<f64, String> {
    let moves = moves_of(request, plan);
    let behind = |m: &exchange::Move| if m.overhang > 0 { PAGE } else { 0 };
    check_host_memory(moves.iter().map(|m| m.outside_pages() * PAGE + behind(m)).sum(), ahead.left())?;
    // Beside the pinning, which takes longer.
    let rest = looked_at.and_then(|before| before.read_rest(&moves));
    let shadows = make_shadows(request, &moves, ahead)?;
    let looked_at = rest.map(Rest::wait);
    let mut fresh = None;
    let done = exchange::exchange(request, plan, &moves, &shadows, &mut fresh);
    if done.is_err() {
        shadow::give_back(shadows);
        if let Some(ring) = fresh {
            ring.close();
        }
    }
    let done = done?;
    if let Some(looked_at) = looked_at {
        looked_at.conclude(request.device, &moves, &done.sums);
    }
    overflow::release(done.spare);
    take_back(&moves);
    Ok(done.closed_ms)
}

/// Pinned memory for what lies in GPU memory; what lies in host memory is its own shadow, filled up with host pages where it lies there in part. What is placed
/// early has host pages throughout: they can become its only memory again.
fn make_shadows(request: &Request, moves: &[Move], ahead: Touched) -> Result<Vec<Shadow>, String> {
    let of_pages = |m: &Move| request.early || m.outside_pages() < m.pages;
    let to_pin = moves.iter().filter(|m| !of_pages(m));
    let wanted: Vec<Wanted> =
        to_pin.map(|m| Wanted { prefix: m.prefix(), pages: m.pages, hangs_over: m.overhang > 0 }).collect();
    let mut pinned = shadow::make(&wanted, ahead)?.into_iter();
    let mut shadows = Vec::with_capacity(moves.len());
    for m in moves {
        let shadow =
            if of_pages(m) { hosted::shadow_of(request.device, m).map(Some) } else { Ok(pinned.next()) };
        match shadow {
            Ok(shadow) => shadows.extend(shadow),
            Err(error) => {
                shadow::give_back(shadows.into_iter().chain(pinned).collect());
                return Err(format!("host pages were refused, or their second mapping was: {error}"));
            }
        }
    }
    Ok(shadows)
}

/// What turned out, while the plan was put in force, to be of no use in the ring.
fn take_back(moves: &[Move]) {
    for m in moves {
        let stay = world().unit(m.id).and_then(|unit| unit.stay);
        let why = match stay {
            Some(StayReason::Escaped) => Why::Escaped,
            Some(StayReason::GraphHeld) => Why::Graph,
            _ => continue,
        };
        if let Err(error) = private::once_for_good(m.id, why) {
            log::error!("no private memory for a weight that needs it ({why}): {error}");
        }
    }
}

fn moves_of(request: &Request, plan: &Plan) -> Vec<Move> {
    let world = world();
    let of = |run: &flextensor_core::plan::RingRun| {
        let unit = world.unit(run.unit)?;
        let address = unit.base + (unit.pages - run.pages) * PAGE;
        Some(Move {
            id: run.unit,
            base: unit.base,
            address,
            pages: run.pages,
            ring_start: run.start,
            hold: unit.hold,
            overhang: unit.overhang,
            outside: hosted::runs(&world, address, run.pages, false),
        })
    };
    plan.layout.iter().filter(|run| request.mine.contains(&run.unit)).filter_map(of).collect()
}

/// `ahead`: bytes that were taken for shadows before.
pub(super) fn check_host_memory(bytes: u64, ahead: u64) -> Result<(), String> {
    let mut available = host_memory::available();
    if let Some(available) = &mut available {
        available.bytes = available.bytes.saturating_add(ahead);
    }
    if let Some(available) = available.as_ref().filter(|available| available.bytes < bytes) {
        return Err(format!("shadows need {} of host memory, and there are {available}", Bytes(bytes)));
    }
    match overflow::host_limit().filter(|&limit| limit < bytes + overflow::host_bytes_taken()) {
        Some(limit) => Err(format!(
            "shadows need {} of host memory, and host_mem_limit allows {}",
            Bytes(bytes),
            Bytes(limit)
        )),
        None => Ok(()),
    }
}

fn announce(request: &Request, plan: &Plan) {
    if request.early {
        return log::info!("{} are streamed while the model is learnt", Bytes(plan.streamed_bytes));
    }
    let budget = request.plan.budget.map_or("none".to_owned(), |bytes| Bytes(bytes).to_string());
    log::notice!(
        "INFERENCE on GPU {}: budget {budget}, resident {}, ring {}, streamed {} a pass, expected {:.1} ms, bound {:.1} ms",
        request.device,
        Bytes(plan.resident_bytes + request.plan.fixed_bytes),
        Bytes(plan.ring_bytes),
        Bytes(plan.streamed_bytes),
        plan.predicted_ms,
        plan.bound_ms
    );
    for note in &plan.notes {
        match note {
            PlanNote::BudgetMissed { smallest_budget, asked } => log::warning!(
                "the budget of {} cannot be met; the smallest that can is {} (weights below {} each, and weights in shared pages, stay resident)",
                Bytes(*asked),
                Bytes(*smallest_budget),
                Bytes(super::config().managed_min_bytes)
            ),
            other => log::info!("plan: {other:?}"),
        }
    }
}

fn remember(request: &Request, plan: Plan, took_ms: f64, closed_ms: f64, refused: Option<String>) {
    if !request.early {
        saved::decided(request.id, &request.plan, refused.is_none().then_some(&plan), request.ring_before);
    }
    let mut world = world();
    let before = world.decided.remove(&request.device);
    let before = before.filter(|before| before.plan.ring_pages > 0 && !before.retired);
    let decided = Decided {
        plan: match before {
            Some(before) => before.plan.with_increment(plan),
            None => plan,
        },
        budget: request.plan.budget,
        link: request.plan.link.clone(),
        fixed_bytes: request.plan.fixed_bytes,
        total_bytes: request.plan.total_bytes(),
        resident_ms: request.resident_ms,
        took_ms,
        closed_ms,
        refused,
        retired: false,
    };
    world.decided.insert(request.device, decided);
}

/// The phase of the model that has come furthest.
pub(crate) fn furthest_phase(world: &World) -> Phase {
    world.models.values().map(|model| model.phase.phase()).max().unwrap_or(Phase::NotInitialized)
}

/// The curve's best speed, in GB/s.
pub(crate) fn peak_gb_per_s(curve: &LinkCurve) -> f64 {
    curve.points().iter().map(|LinkPoint { gb_per_s, .. }| *gb_per_s).fold(0.0, f64::max)
}

/// Plans by device.
pub(crate) type Decisions = BTreeMap<i32, Decided>;
