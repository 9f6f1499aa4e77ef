//! The switch-over: from learnt passes to a plan, and from private pages to a ring. Host memory is made and pinned first; until then a failure changes nothing.
//! What the plan is, is core's `plan`; how pages move is `exchange`'s matter; the ring's life is `streaming`'s.

mod decided;
mod request;
mod shadows;

use std::sync::Mutex;

use flextensor_core::plan::{Plan, StayReason};
use flextensor_core::units::{Bytes, ModelId, UnitId};

use super::arena::{Meaning, PAGE, arena};
use super::evidence::{self, Baseline, Rest};
use super::exchange::{self, Move};
use super::private::{self, Why};
use super::shadow;
use super::streaming::{Streaming, ring_of};
use super::touched::{self, Touched};
use super::world::{UnitState, World, world};
use super::{early, gate, home, hosted, learn, overflow, peers, rows, saved};
use crate::log;
use decided::{announce, remember};
use request::{plan_for, request_for};
use shadows::make_shadows;

pub(crate) use decided::{Decided, Decisions};
pub(super) use request::{Request, only};
pub(super) use shadows::check_host_memory;

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
    let (mut gone, mut waiting) = (Vec::new(), Vec::new());
    if made.as_ref().is_ok_and(|plan| request.streams(plan)) {
        let tables = rows::tables(&request);
        let stay = !tables.is_empty() && !rows::pay(&request.plan, &tables);
        let held = stay.then(|| beside_tables(id, &request, &tables, early)).flatten();
        match held {
            Some((rest, plan)) => (request, made, waiting) = (rest, Ok(plan), tables),
            None => gone = rows::go_to_host(request.device, &tables),
        }
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
            rows::waiting::wait_no_more(&waiting);
            keep_all(&request, plan, &why);
        }
    }
}

/// The plan with these tables on the GPU, if it holds the budget; else they are free again.
fn beside_tables(id: ModelId, request: &Request, tables: &[UnitId], early: bool) -> Option<(Request, Plan)> {
    rows::waiting::wait(tables);
    let rest = request_for(id, request.plan.link.clone(), early);
    let planned = rest.and_then(|rest| {
        let plan = plan_for(&rest).ok()?;
        plan.budget_missed().is_none().then_some((rest, plan))
    });
    if planned.is_none() {
        rows::waiting::wait_no_more(tables);
    }
    planned
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
    match peers::wait_to_move(request.device) {
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
