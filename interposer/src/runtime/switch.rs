//! The switch-over: from learnt passes to a plan, and from private pages to a ring. Host memory is made and pinned first; until the first unmapping a failure
//! changes nothing. The ring is made of the demoted weights' own pages, so GPU memory never grows.
//! What the plan is, is core's `plan`; the ring's life is `streaming`'s.

#![expect(unsafe_code, reason = "copies between our pinned memory and mapped addresses")]

use std::collections::BTreeMap;
use std::sync::Mutex;

use flextensor_core::link::{LinkCurve, LinkPoint};
use flextensor_core::phase::Phase;
use flextensor_core::plan::{
    PassProfile, Plan, PlanNote, PlanRequest, StayReason, UnitInfo, plan, plan_increment,
};
use flextensor_core::units::{Bytes, ModelId, UnitId};

use super::arena::{Arena, Meaning, PAGE, arena};
use super::private::{self, Why};
use super::shadow::{self, Shadow, Wanted};
use super::streaming::{StreamedUnit, Streaming, ring_of};
use super::touched::{self, Touched};
use super::world::{UnitState, World, world};
use super::{gate, learn, saved, verify};
use crate::ffi::result::CudaResult;
use crate::ffi::vmm::{self, Handle};
use crate::ffi::{context, copy, device, stream};
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
static SWITCHING: Mutex<()> = Mutex::new(());

/// The model's learning has ended: makes the plan and puts it in force. The model's context is current.
pub(crate) fn switch_over(id: ModelId) {
    let _only = SWITCHING.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let begun = std::time::Instant::now();
    // From here on nobody touches memory ahead, also so that the link is measured alone.
    let ahead = touched::take();
    learn::recorder(learn::Recorder::settle);
    let curve = saved::link_curve(id);
    let Some(request) = request_for(id, curve) else { return };
    // The lock goes before the plan is made: the world is asked for it, and comes first in the order of locks.
    let turns = ring_of(request.device).is_some();
    let made = match saved::plan(id, &request.plan) {
        Some(plan) => Ok(plan),
        None if turns => increment(&request),
        None => plan(&request.plan),
    };
    let plan = match made {
        Ok(plan) => plan,
        Err(error) => return keep_all(&request, Plan::default(), &format!("no plan could be made: {error}")),
    };
    let streams = plan.layout.iter().any(|run| request.mine.contains(&run.unit));
    if !streams {
        return settle_resident(&request, plan);
    }
    match put_in_force(&request, &plan, ahead) {
        Ok(closed_ms) => {
            let took_ms = begun.elapsed().as_secs_f64() * 1e3;
            announce(&request, &plan);
            remember(&request, plan, took_ms, closed_ms, None);
        }
        Err(why) => keep_all(&request, plan, &why),
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
    let _closed = gate::close();
    let mut world = world();
    let mut ring = ring_of(device);
    if !empty(&ring) {
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
struct Request {
    id: ModelId,
    /// Pages of the ring that turns already; 0 = none.
    ring_before: u64,
    device: i32,
    plan: PlanRequest,
    /// The units to be placed now.
    mine: Vec<UnitId>,
    resident_ms: f64,
}

fn request_for(id: ModelId, link: LinkCurve) -> Option<Request> {
    let config = super::config();
    let profile = learn::recorder(|recorder| recorder.collector.profile(id));
    let hidden = hidden_units(id, profile.as_ref());
    let splittable = shadow::views_are_possible();
    let world = world();
    let model = world.models.get(&id)?;
    let device = model.device;
    let total = device::total_memory(device).map_or(0, |bytes| bytes as u64);
    let learnt = |unit: &&super::world::Unit| unit.device == device && unit.state == UnitState::Learning;
    let mine: Vec<_> =
        world.units.iter().filter(learnt).filter(|unit| model.units.contains(&unit.id)).collect();
    let ids: Vec<UnitId> = mine.iter().map(|unit| unit.id).collect();
    let units = mine
        .iter()
        .map(|unit| UnitInfo {
            id: unit.id,
            name: unit.name(),
            bytes: unit.bytes().min(unit.pages * PAGE),
            pages: unit.pages,
            splittable,
            stay: unit.stay.or_else(|| hidden.contains(&unit.id).then_some(StayReason::Hidden)),
        })
        .collect();
    let placed: u64 = mine.iter().map(|unit| unit.pages * PAGE).sum();
    let resident_ms = profile.as_ref().map_or(0.0, |profile| profile.resident_ms);
    let passes = profile.map(|profile| only(profile, &ids)).into_iter().collect();
    let ring_before = ring_of(device).as_ref().map_or(0, |ring| ring.ring.len() as u64);
    Some(Request {
        id,
        ring_before,
        device,
        plan: PlanRequest {
            budget: config.max_gpu_mem_for(device.unsigned_abs(), total),
            fixed_bytes: world.private_weight_bytes(device).saturating_sub(placed),
            units,
            passes,
            link,
            ring_override: config.ring_bytes,
            ..PlanRequest::default()
        },
        mine: ids,
        resident_ms,
    })
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
fn only(mut profile: PassProfile, units: &[UnitId]) -> PassProfile {
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
    settle_units(&mut world(), &request.mine);
    announce(request, &plan);
    remember(request, plan, 0.0, 0.0, None);
}

fn keep_all(request: &Request, plan: Plan, why: &str) {
    settle_units(&mut world(), &request.mine);
    let budget =
        request.plan.budget.map_or("no budget".to_owned(), |bytes| format!("the budget of {}", Bytes(bytes)));
    log::warning!("all weights stay in GPU memory, so {budget} is not held: {why}");
    remember(request, plan, 0.0, 0.0, Some(why.to_owned()));
}

fn settle_units(world: &mut World, units: &[UnitId]) {
    for &id in units {
        let Some(unit) = world.unit_mut(id).filter(|unit| unit.state == UnitState::Learning) else {
            continue;
        };
        unit.state = UnitState::Resident;
        if let Some(arena) = arena() {
            arena.set_meaning(unit.base, unit.pages, Meaning::Nothing);
        }
    }
}

/// One unit on its way into the ring.
struct Move {
    id: UnitId,
    /// Address of the whole unit, and of its streamed part.
    base: u64,
    address: u64,
    pages: u64,
    ring_start: u64,
    hold: bool,
}

/// Pins, copies out, remaps. Returns the milliseconds with the gate closed.
fn put_in_force(request: &Request, plan: &Plan, ahead: Touched) -> Result<f64, String> {
    let moves = moves_of(request, plan);
    let wanted: Vec<Wanted> =
        moves.iter().map(|m| Wanted { prefix: (m.address - m.base) / PAGE, pages: m.pages }).collect();
    check_host_memory(moves.iter().map(|m| m.pages * PAGE).sum(), ahead.left())?;
    let shadows = shadow::make(&wanted, ahead)?;
    let mut fresh = None;
    let done = exchange(request, plan, &moves, &shadows, &mut fresh);
    if done.is_err() {
        shadow::give_back(shadows);
        if let Some(ring) = fresh {
            ring.close();
        }
    }
    let closed_ms = done?;
    take_back(&moves);
    Ok(closed_ms)
}

/// Behind the closed gate: copies out, remaps. Returns the milliseconds that took.
fn exchange(
    request: &Request,
    plan: &Plan,
    moves: &[Move],
    shadows: &[Shadow],
    fresh: &mut Option<Streaming>,
) -> Result<f64, String> {
    let arena = arena().ok_or("no region exists")?;
    *fresh = fresh_ring(request, plan).map_err(|error| format!("no copy streams: {error}"))?;
    let closed = gate::close();
    let since = std::time::Instant::now();
    // Memory is freed behind the closed gate only, so what is there now stays.
    if moves.iter().any(|m| !is_learnt(&world(), m.id)) {
        return Err("weights were freed meanwhile".to_owned());
    }
    context::synchronize().map_err(|error| format!("waiting for the GPU failed: {error}"))?;
    copy_out(moves, shadows).map_err(|error| format!("copying weights to host memory failed: {error}"))?;
    let mut world = world();
    let sums = std::thread::scope(|scope| {
        let sums = scope.spawn(|| verify::checksums(shadows));
        let remapped = remap(&mut world, request, plan, moves);
        let sums = sums.join().unwrap_or_default();
        remapped.map(|ring| (sums, ring))
    });
    let (sums, ring) = sums.map_err(|error| format!("remapping failed: {error}"))?;
    let fresh = fresh.take().zip(ring).map(|(fresh, handles)| fresh.with_pages(handles));
    install(&mut world, request, fresh, moves, shadows, &sums);
    mark(&mut world, arena, request, moves);
    drop(world);
    drop(closed);
    Ok(since.elapsed().as_secs_f64() * 1e3)
}

fn is_learnt(world: &World, id: UnitId) -> bool {
    world.unit(id).is_some_and(|unit| unit.state == UnitState::Learning)
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
        if let Err(error) = private::for_good(m.id, why) {
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
        })
    };
    plan.layout.iter().filter(|run| request.mine.contains(&run.unit)).filter_map(of).collect()
}

/// `ahead`: bytes that were taken for shadows before.
fn check_host_memory(bytes: u64, ahead: u64) -> Result<(), String> {
    let config = super::config();
    let available = shadow::available_bytes().map(|available| available.saturating_add(ahead));
    if let Some(available) = available.filter(|&available| available < bytes) {
        return Err(format!(
            "shadows need {} of host memory, and {} are available",
            Bytes(bytes),
            Bytes(available)
        ));
    }
    let limit = config.host_mem_limit_for(available.unwrap_or(u64::MAX));
    match limit.filter(|&limit| limit < bytes + shadow::pinned_bytes()) {
        Some(limit) => Err(format!(
            "shadows need {} of host memory, and host_mem_limit allows {}",
            Bytes(bytes),
            Bytes(limit)
        )),
        None => Ok(()),
    }
}

fn copy_out(moves: &[Move], shadows: &[Shadow]) -> CudaResult<()> {
    let on = stream::create_nonblocking()?;
    for (m, shadow) in moves.iter().zip(shadows) {
        for (offset, bytes, host) in shadow.pieces(0, m.pages * PAGE) {
            // SAFETY: the shadow was made for exactly these bytes, and nobody else knows it yet.
            unsafe { copy::to_host_async(host.cast_mut(), m.address + offset, bytes as usize, on) }?;
        }
    }
    stream::synchronize(on)?;
    stream::destroy(on)
}

/// From private pages to the ring: new handles where there is no ring yet. After an error everything is as it was, or without memory.
fn remap(
    world: &mut World,
    request: &Request,
    plan: &Plan,
    moves: &[Move],
) -> CudaResult<Option<Vec<Handle>>> {
    let existing = ring_of(request.device).as_ref().map(|ring| ring.ring.clone());
    let mut own: Vec<Vec<Handle>> = Vec::with_capacity(moves.len());
    match onto_ring(world, request, plan, moves, existing.as_deref(), &mut own) {
        Ok(ring) => {
            // The rest of the demoted pages goes back to the driver.
            let kept = if existing.is_none() { ring.len() } else { 0 };
            for handle in own.into_iter().flatten().skip(kept) {
                let _ = vmm::release(handle);
            }
            Ok(existing.is_none().then_some(ring))
        }
        Err(error) => {
            if let Err(again) = put_back(world, request.device, moves, own) {
                log::error!(
                    "weights have lost their memory, launches that read them fail: {error}, then {again}"
                );
            }
            Err(error)
        }
    }
}

/// Unmaps, then maps to the ring. The handles that the moves had are in `own`, also after an error; those of a new ring are the first of them.
fn onto_ring(
    world: &mut World,
    request: &Request,
    plan: &Plan,
    moves: &[Move],
    existing: Option<&[Handle]>,
    own: &mut Vec<Vec<Handle>>,
) -> CudaResult<Vec<Handle>> {
    for m in moves {
        vmm::unmap(m.address, (m.pages * PAGE) as usize)?;
        own.push(handles_of(world, m).into_iter().filter_map(Option::take).collect());
    }
    let ring: Vec<Handle> = match existing {
        Some(ring) => ring.to_vec(),
        None => own.iter().flatten().take(plan.ring_pages as usize).copied().collect(),
    };
    for m in moves {
        for page in 0..m.pages {
            let handle = ring[((m.ring_start + page) % ring.len() as u64) as usize];
            vmm::map(m.address + page * PAGE, PAGE as usize, handle)?;
        }
        vmm::allow(m.address, (m.pages * PAGE) as usize, request.device)?;
    }
    Ok(ring)
}

/// What backs the move's pages as the region knows it.
fn handles_of<'a>(world: &'a mut World, m: &Move) -> Vec<&'a mut Option<Handle>> {
    let Some(region) = world.region_of_mut(m.address) else { return Vec::new() };
    let first = ((m.address - region.base) / PAGE) as usize;
    region.handles.iter_mut().skip(first).take(m.pages as usize).collect()
}

/// The private pages come back under their addresses; nothing has been copied over them.
fn put_back(world: &mut World, device: i32, moves: &[Move], own: Vec<Vec<Handle>>) -> CudaResult<()> {
    let taken = || moves.iter().zip(&own);
    // First all pages of the ring leave: a weight without memory is an error that everybody sees, another weight's bytes are none.
    for (m, _) in taken() {
        // Where nothing is mapped there is nothing to unmap; where something stays, the mapping below is refused.
        let _ = vmm::unmap(m.address, (m.pages * PAGE) as usize);
    }
    for (m, handles) in taken() {
        for (page, &handle) in (0..).zip(handles) {
            vmm::map(m.address + page * PAGE, PAGE as usize, handle)?;
        }
        vmm::allow(m.address, (m.pages * PAGE) as usize, device)?;
        for (slot, &handle) in handles_of(world, m).into_iter().zip(handles) {
            *slot = Some(handle);
        }
    }
    Ok(())
}

/// A ring that has its streams, and no pages yet, where there is none: all that can be refused is asked for before anything is unmapped.
fn fresh_ring(request: &Request, plan: &Plan) -> CudaResult<Option<Streaming>> {
    if ring_of(request.device).is_some() {
        return Ok(None);
    }
    let chunk = request.plan.chunk_pages as u32;
    Streaming::new(request.device, context::current()?, plan.ring_pages as u32, chunk).map(Some)
}

fn install(
    world: &mut World,
    request: &Request,
    fresh: Option<Streaming>,
    moves: &[Move],
    shadows: &[Shadow],
    sums: &[u64],
) {
    let mut guard = ring_of(request.device);
    if let Some(fresh) = fresh {
        *guard = Some(Box::new(fresh));
    }
    let Some(streaming) = guard.as_mut() else { return };
    for ((m, shadow), &sum) in moves.iter().zip(shadows).zip(sums) {
        let mut shadow = *shadow;
        if let Some(view) = shadow.view
            && let Err(error) = map_prefix(world, m, view, request.device)
        {
            log::info!("unit {} has no view ({error}); doubtful launches wait for its copy instead", m.id.0);
            shadow.view = None;
        }
        streaming.add(
            m.id,
            StreamedUnit {
                base: m.base,
                address: m.address,
                pages: m.pages,
                shadow,
                ring_start: m.ring_start,
                hold: m.hold,
                suspects: Vec::new(),
                checksum: Some(sum),
                shadow_writes: 0,
            },
        );
    }
    for profile in &request.plan.passes {
        let mut uses: Vec<(UnitId, u32)> = profile.uses.iter().map(|u| (u.unit, u.owner)).collect();
        uses.retain(|(unit, _)| streaming.pager.streams(*unit));
        uses.dedup_by_key(|(unit, _)| *unit);
        streaming.pager.set_order(profile.model, &uses);
    }
}

/// The view of a split unit begins with its private pages under a second address.
fn map_prefix(world: &mut World, m: &Move, view: u64, device: i32) -> CudaResult<()> {
    let pages = (m.address - m.base) / PAGE;
    let Some(region) = world.region_of_mut(m.base).filter(|_| pages > 0) else { return Ok(()) };
    let first = ((m.base - region.base) / PAGE) as usize;
    for (page, handle) in (0..pages).zip(region.handles.iter().skip(first)) {
        if let Some(handle) = handle {
            vmm::map(view + page * PAGE, PAGE as usize, *handle)?;
        }
    }
    region.views.push((view, pages * PAGE));
    vmm::allow(view, (pages * PAGE) as usize, device)
}

fn mark(world: &mut World, arena: &Arena, request: &Request, moves: &[Move]) {
    for m in moves {
        let Some(unit) = world.unit_mut(m.id) else { continue };
        unit.state = UnitState::Streamed;
        unit.streamed = m.pages;
        arena.set_meaning(unit.base, unit.pages, Meaning::Streamed(m.id));
    }
    settle_units(world, &request.mine);
}

fn announce(request: &Request, plan: &Plan) {
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
    saved::decided(request.id, &request.plan, refused.is_none().then_some(&plan), request.ring_before);
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
