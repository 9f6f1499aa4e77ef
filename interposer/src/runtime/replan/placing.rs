//! A new plan for everything on a device, thought of and prepared by a thread of its own while the program runs: which units change their place, whether
//! that is worth it, and the host memory that they will need. What the plan is asked for is `standing`'s matter, how pages move `relay`'s; when a plan is wanted
//! is said by the parent.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard};

use flextensor_core::drift::repays;
use flextensor_core::plan::{Placement, Plan, PlanRequest};
use flextensor_core::simulate::simulate_shapes;
use flextensor_core::units::{Bytes, GIB, UnitId};

use super::super::arena::PAGE;
use super::super::planned::planned;
use super::super::shadow::{self, Shadow, Wanted};
use super::super::streaming::{Streaming, ring_of};
use super::super::switch;
use super::super::touched::Touched;
use super::super::world::{UnitState, World, world};
use super::super::{gate, graphs, passes, pressure, saved, verify};
use super::relay::{self, Relayed};
use super::standing::{Aim, Asked, asked, may_stream};
use crate::ffi::context::{self, Context};
use crate::ffi::device;
use crate::ffi::stream::Stream;
use crate::log;

/// Milliseconds that the gate may be closed for each GiB that is mapped anew; what a change is reckoned to cost.
const REMAP_MS_PER_GIB: f64 = 50.0;

/// Why a new plan is thought of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in super::super) enum Why {
    /// A model came when the ring was there already.
    Model,
    /// Passes take longer, or far shorter, than the plan says.
    Drift,
    /// An allocation has no room.
    Pressure,
    /// Memory that weights had to make free is not needed any more.
    Room,
    /// The program chose a strategy, or weights.
    Chosen,
    /// The program asked for it.
    Asked,
}

/// Where a unit stands, and where it is to stand.
#[derive(Clone, Debug)]
pub(super) struct Target {
    pub(super) id: UnitId,
    pub(super) base: u64,
    /// Pages of the whole unit.
    pub(super) pages: u64,
    /// Pages at its end that are streamed, now and then.
    pub(super) before: u64,
    pub(super) after: u64,
    /// First page of its run in the new ring.
    pub(super) ring_start: u64,
    pub(super) hold: bool,
    /// Bytes of its last weight on the page behind.
    pub(super) overhang: u64,
    /// Where its streamed bytes will lie, if another part of it is streamed then.
    pub(super) shadow: Option<Shadow>,
    /// What is in that shadow already was copied when the old one had seen so many writes.
    pub(super) copied_at: Option<u64>,
}

impl Target {
    /// Address of the part that is streamed before or after.
    pub(super) fn tail(&self) -> u64 {
        self.base + (self.pages - self.tail_pages()) * PAGE
    }

    pub(super) fn tail_pages(&self) -> u64 {
        self.before.max(self.after)
    }

    /// Pages that go from private memory to the ring, and the other way.
    pub(super) fn demoted(&self) -> u64 {
        self.after.saturating_sub(self.before)
    }

    pub(super) fn promoted(&self) -> u64 {
        self.before.saturating_sub(self.after)
    }
}

/// A plan that only needs a moment between two forwards.
pub(super) struct Prepared {
    pub(super) device: i32,
    pub(super) context: Context,
    pub(super) ring_before: u64,
    pub(super) targets: Vec<Target>,
    /// The new ring without units and pages; goes when it is put in force.
    pub(super) fresh: Option<Streaming>,
    pub(super) ring_after: u64,
    /// A copy stream of the new ring.
    pub(super) on: Stream,
    plan: Plan,
    request: PlanRequest,
    pub(super) why: Why,
    /// GPU bytes of all weights now, ring included.
    peak_before: u64,
    /// The decision that it stands on.
    stands_on: u64,
}

/// Prepared plans, by device at most one each.
static READY: Mutex<Vec<Prepared>> = Mutex::new(Vec::new());
static ANY_READY: AtomicBool = AtomicBool::new(false);

/// Plans that were put in force.
static DONE: AtomicU64 = AtomicU64::new(0);

/// Plans that were worth it and could not be put in force.
static GIVEN_UP: AtomicU64 = AtomicU64::new(0);

/// New plans that were put in force so far, and that could not be.
pub(in super::super) fn counts() -> (u64, u64) {
    (DONE.load(Ordering::Relaxed), GIVEN_UP.load(Ordering::Relaxed))
}

/// Whether the thread is at work, and who waits for its end.
static THINKING: (Mutex<bool>, Condvar) = (Mutex::new(false), Condvar::new());

fn ready() -> MutexGuard<'static, Vec<Prepared>> {
    READY.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

fn thinking() -> MutexGuard<'static, bool> {
    THINKING.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// One plan is thought of at a time; dropped when that has ended.
pub(super) struct Thinking;

impl Thinking {
    /// Waits until nobody thinks of a plan, also not of what it would stand on, and keeps others from it.
    pub(super) fn wait() -> Self {
        let mut busy = thinking();
        while *busy {
            busy = THINKING.1.wait(busy).unwrap_or_else(|poisoned| poisoned.into_inner());
        }
        *busy = true;
        Thinking
    }
}

impl Drop for Thinking {
    fn drop(&mut self) {
        *thinking() = false;
        THINKING.1.notify_all();
    }
}

/// Begins to think of a new plan for a device, unless that is under way. False if it is.
pub(super) fn think(device: i32, why: Why) -> bool {
    let only = {
        let mut thinking = thinking();
        if *thinking || ready().iter().any(|prepared| prepared.device == device) {
            return false;
        }
        *thinking = true;
        Thinking
    };
    let work = move || {
        let _only = only;
        let _inside = crate::guard::enter();
        let done = std::panic::catch_unwind(|| prepare(device, why));
        if done.is_err() {
            log::warning!("a new plan for GPU {device} was given up: internal error");
        }
    };
    if let Err(error) = std::thread::Builder::new().name("ft-replan".into()).spawn(work) {
        log::info!("no thread to think of a new plan: {error}");
    }
    true
}

/// What was prepared for a device is given up: something else is about to happen. Nobody thinks of a plan.
pub(super) fn discard(device: i32) {
    for prepared in take_ready(device) {
        passes::in_context(prepared.context, || give_up(prepared));
    }
}

/// Weights of a device have gone: what was prepared with them is given up. The calling thread holds no lock.
pub(in super::super) fn discard_stale(device: i32) {
    if !ANY_READY.load(Ordering::Acquire) {
        return;
    }
    for prepared in take_ready(device) {
        let stands = {
            let world = world();
            ring_of(device).as_ref().is_some_and(|ring| prepared.is_current(&world, ring))
        };
        if stands {
            put_off(prepared);
        } else {
            passes::in_context(prepared.context, || give_up(prepared));
        }
    }
}

fn take_ready(device: i32) -> Vec<Prepared> {
    let mut ready = ready();
    let (of_it, others) = std::mem::take(&mut *ready).into_iter().partition(|p| p.device == device);
    *ready = others;
    of_it
}

/// Makes the plan and all that can be made while the program runs.
fn prepare(device: i32, why: Why) {
    let Some(asked) = asked(device, Aim::Limit) else { return };
    let made = match planned(&asked.request) {
        Ok(made) => made,
        Err(error) => return log::info!("no new plan for GPU {device}: {error}"),
    };
    let targets = targets(&asked, &made);
    if !is_worth_it(&asked, &made, &targets, why) {
        if why == Why::Room {
            pressure::nothing_to_gain(device);
        }
        return log::info!("GPU {device}: the plan stays ({why:?})");
    }
    let prepared = passes::in_context(asked.context, || make_ready(asked, made, targets, why));
    match prepared {
        Some(Ok(prepared)) => {
            ready().push(prepared);
            ANY_READY.store(true, Ordering::Release);
            // Whoever has freed weights meanwhile did not find it.
            discard_stale(device);
        }
        Some(Err(error)) => {
            log::info!("the plan for GPU {device} stays: {error}");
            GIVEN_UP.fetch_add(1, Ordering::Relaxed);
        }
        None => {}
    }
}

/// Units that are streamed before or after; none if nothing would change.
pub(super) fn targets(asked: &Asked, made: &Plan) -> Vec<Target> {
    let world = world();
    let same_ring = made.ring_pages == asked.standing.ring_pages;
    let mut changed = !same_ring;
    let of = |placement: &Placement| {
        let unit = world.unit(placement.unit)?;
        let run = made.run(placement.unit);
        let after = run.map_or(0, |run| run.pages);
        changed |= unit.streamed != after || asked.standing.run(unit.id) != run;
        let target = Target {
            id: unit.id,
            base: unit.base,
            pages: unit.pages,
            before: unit.streamed,
            after,
            ring_start: run.map_or(0, |run| run.start),
            hold: unit.hold,
            overhang: unit.overhang,
            shadow: None,
            copied_at: None,
        };
        (target.tail_pages() > 0).then_some(target)
    };
    let targets = made.placements.iter().filter_map(of).collect();
    if changed { targets } else { Vec::new() }
}

/// The program's word counts; then the budget comes first; then what is gained must repay what the change costs.
fn is_worth_it(asked: &Asked, made: &Plan, targets: &[Target], why: Why) -> bool {
    if why == Why::Room {
        // Less than what stays free is not worth moving for, unless it is the rest.
        let gained = made.peak_bytes.saturating_sub(asked.peak());
        return !targets.is_empty() && (made.ring_pages == 0 || gained >= pressure::room(asked.total_bytes));
    }
    // A ring of nothing is the end of streaming, which is left to those who let weights go.
    if targets.is_empty() || made.ring_pages == 0 {
        return false;
    }
    if why == Why::Chosen {
        return true;
    }
    let fits = asked.request.budget.is_none_or(|budget| made.peak_bytes <= budget);
    if asked.over_budget && fits {
        return true;
    }
    let fits_better = made.peak_bytes <= asked.request.budget.unwrap_or(u64::MAX).max(asked.peak());
    if why == Why::Asked {
        return fits_better;
    }
    let then_ms = mean(made.forecasts.iter().map(|forecast| forecast.predicted_ms));
    let now_ms = match simulate_shapes(&asked.request, &asked.standing, false) {
        Ok(cycles) => mean(cycles.iter().map(|cycle| cycle.cycle_ms)),
        // Uses that are held together share pages as things stand: nothing could be worse.
        Err(_) => return fits_better,
    };
    let gib = |pages: u64| (pages * PAGE) as f64 / GIB as f64;
    let remapped: u64 = targets.iter().map(Target::tail_pages).sum();
    let moved: u64 = targets.iter().map(|target| target.demoted() + target.promoted()).sum();
    let cost_ms =
        gib(remapped) * REMAP_MS_PER_GIB + (moved * PAGE) as f64 / asked.request.link.peak_bytes_per_ms();
    log::debug!(
        "a new plan for GPU {}: {now_ms:.1} ms now, {then_ms:.1} ms then, {cost_ms:.1} ms to get there",
        asked.device
    );
    fits_better && repays(now_ms, then_ms, cost_ms)
}

fn mean(times: impl ExactSizeIterator<Item = f64>) -> f64 {
    let count = times.len().max(1) as f64;
    times.sum::<f64>() / count
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
        ring_before: asked.standing.ring_pages,
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

/// A forward has ended, and the calling thread holds nothing: puts a prepared plan in force, if there is one and nothing stands against it now.
pub(super) fn between_forwards(device: i32) {
    if !ANY_READY.load(Ordering::Acquire) || graphs::any_capture() {
        return;
    }
    let prepared = {
        let mut ready = ready();
        let Some(at) = ready.iter().position(|prepared| prepared.device == device) else { return };
        let prepared = ready.remove(at);
        ANY_READY.store(!ready.is_empty(), Ordering::Release);
        prepared
    };
    let Ok(_only) = switch::SWITCHING.try_lock() else { return put_off(prepared) };
    let context = prepared.context;
    passes::in_context(context, || put_in_force(prepared));
}

fn put_off(prepared: Prepared) {
    ready().push(prepared);
    ANY_READY.store(true, Ordering::Release);
}

fn put_in_force(prepared: Prepared) {
    // What the program has enqueued so far is waited for before the gate closes: other threads need not wait for it.
    let waited = context::synchronize();
    if waited.is_err() || !relay::is_calm(&world(), prepared.device) {
        return put_off(prepared);
    }
    let device = prepared.device;
    match carry_out(prepared) {
        Carried::Out(done) => announce(*done),
        Carried::Busy(prepared) => put_off(*prepared),
        Carried::Refused(why) => {
            log::info!("the plan for GPU {device} stays: {why}");
            GIVEN_UP.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// What came of a prepared plan.
pub(super) enum Carried {
    /// It is in force.
    Out(Box<InForce>),
    /// Not at this moment; nothing has changed.
    Busy(Box<Prepared>),
    /// It was given up, and everything is as it was, unless an error line said otherwise.
    Refused(String),
}

/// A plan that has come into force.
pub(super) struct InForce {
    prepared: Prepared,
    closed_ms: f64,
}

/// Closes the gate, and puts a prepared plan in force. Its context is current.
pub(super) fn carry_out(mut prepared: Prepared) -> Carried {
    let closed = gate::close();
    let begun = std::time::Instant::now();
    let relayed = relay::relay(&mut prepared);
    let closed_ms = begun.elapsed().as_secs_f64() * 1e3;
    drop(closed);
    match relayed {
        Ok(Relayed::Busy) => Carried::Busy(Box::new(prepared)),
        Ok(Relayed::Done(before)) => {
            before.close();
            Carried::Out(Box::new(InForce { prepared, closed_ms }))
        }
        Err(why) => {
            give_up(prepared);
            Carried::Refused(why)
        }
    }
}

/// Gives back what was prepared. Its context is current.
pub(super) fn give_up(prepared: Prepared) {
    verify::let_go(prepared.targets.iter().filter_map(|target| target.shadow).collect());
    if let Some(fresh) = prepared.fresh {
        fresh.close();
    }
}

fn announce(done: InForce) {
    let remapped: u64 = done.prepared.targets.iter().map(Target::tail_pages).sum();
    let (Prepared { device, plan, request, why, .. }, closed_ms) = (&done.prepared, done.closed_ms);
    let because = match why {
        Why::Model => "another model came",
        Why::Drift => "passes took other times than expected",
        Why::Chosen => "the program chose what is streamed",
        Why::Asked => "the program asked for it",
        Why::Pressure | Why::Room => return promoted(done),
    };
    log::notice!(
        "a new plan on GPU {device} ({because}): resident {}, ring {}, streamed {} a pass, expected {:.1} ms, bound {:.1} ms; {} mapped anew in {closed_ms:.0} ms",
        Bytes(plan.resident_bytes + request.fixed_bytes),
        Bytes(plan.ring_bytes),
        Bytes(plan.streamed_bytes),
        plan.predicted_ms,
        plan.bound_ms,
        Bytes(remapped * PAGE)
    );
    saved::replanned(request, plan);
    done.remember();
    DONE.fetch_add(1, Ordering::Relaxed);
}

/// Weights that had made room have come back; a ring in which nothing is left goes.
fn promoted(done: InForce) {
    let (device, ring_pages) = (done.prepared.device, done.prepared.ring_after);
    let all = ring_pages == 0 || done.prepared.is_within_options();
    let bytes = done.prepared.plan.peak_bytes.saturating_sub(done.prepared.peak_before);
    done.remember();
    if ring_pages == 0 {
        switch::let_ring_go(device);
    }
    pressure::note_promotion(device, bytes, all);
}

impl InForce {
    /// Bytes of GPU memory that have become free by it.
    pub(super) fn freed(&self) -> u64 {
        self.prepared.peak_before.saturating_sub(self.prepared.plan.peak_bytes)
    }

    /// The plan is the one that the device has from now on. A shortage's is nothing for the next run: a profile keeps the one that was made for the options.
    pub(super) fn remember(self) {
        let Prepared { device, plan, request, .. } = self.prepared;
        let mut world = world();
        if let Some(decided) = world.decided.get_mut(&device) {
            decided.fixed_bytes = request.fixed_bytes;
            decided.total_bytes = request.total_bytes();
            decided.closed_ms = self.closed_ms;
            decided.plan = plan;
        }
    }
}

impl Prepared {
    /// Whether the plan has all that the options allow: no shortage holds it back.
    fn is_within_options(&self) -> bool {
        let total = device::total_memory(self.device).map_or(0, |bytes| bytes as u64);
        let budget = super::super::config().max_gpu_mem_for(self.device.unsigned_abs(), total);
        budget.is_some() && self.request.budget == budget
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
        ring.added == self.stands_on && ring.streamed().count() == known && self.targets.iter().all(stands)
    }
}

/// The context is about to end: nothing of it may be in anybody's hands. The calling thread holds no lock.
pub(in super::super) fn settle(context: Context) {
    drop(Thinking::wait());
    let (of_it, others) =
        std::mem::take(&mut *ready()).into_iter().partition::<Vec<_>, _>(|p| p.context == context);
    ready().extend(others);
    for prepared in of_it {
        passes::in_context(context, || give_up(prepared));
    }
}
