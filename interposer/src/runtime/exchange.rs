//! Weights on their way from private pages into the ring, behind the closed gate: bytes go out to the shadows, pages are unmapped as their bytes arrive, the ring's
//! pages come under the addresses. The ring is made of the weights' own pages; until the first unmapping a failure changes nothing, after it the private pages come back.
//! What moves is `switch`'s matter, and so is host memory.

#![expect(unsafe_code, reason = "copies from mapped addresses to our pinned memory")]

use std::sync::{Condvar, Mutex};

use flextensor_core::plan::Plan;
use flextensor_core::units::UnitId;

use super::arena::{Arena, Meaning, PAGE, arena};
use super::overflow::release;
use super::shadow::Shadow;
use super::streaming::{StreamedUnit, Streaming, ring_of};
use super::switch::{Request, settle_units};
use super::verify::Ledger;
use super::world::{UnitState, World, world};
use super::{gate, home, hosted, passes, peers, readout, sums, views};
use crate::ffi::event::{self, Event};
use crate::ffi::result::CudaResult;
use crate::ffi::stream::{self, Stream};
use crate::ffi::vmm::{self, Handle};
use crate::ffi::{context, copy};
use crate::log;

/// One unit on its way into the ring.
pub(super) struct Move {
    pub(super) id: UnitId,
    /// Address of the whole unit, and of its streamed part.
    pub(super) base: u64,
    pub(super) address: u64,
    pub(super) pages: u64,
    pub(super) ring_start: u64,
    pub(super) hold: bool,
    /// Bytes of its last weight on the page behind.
    pub(super) overhang: u64,
    /// Runs of its pages, as (first, count), that do not lie in host memory: their bytes have to go there.
    pub(super) outside: Vec<(u64, u64)>,
}

impl Move {
    /// Pages in front of the streamed part.
    pub(super) fn prefix(&self) -> u64 {
        (self.address - self.base) / PAGE
    }

    /// Pages that do not lie in host memory.
    pub(super) fn outside_pages(&self) -> u64 {
        self.outside.iter().map(|(_, pages)| pages).sum()
    }
}

/// What the exchange leaves.
pub(super) struct Exchanged {
    /// Milliseconds with the gate closed.
    pub(super) closed_ms: f64,
    /// Checksum of each move's shadow.
    pub(super) sums: Vec<u64>,
    /// Private pages that nobody needs any more. Giving thousands back takes long, so that waits until the gate is open.
    pub(super) spare: Vec<Handle>,
}

/// Behind the closed gate: copies out and remaps.
///
/// # Errors
/// A sentence. Weights have their private pages then, unless an error line said otherwise; `fresh` keeps a ring that was begun.
pub(super) fn exchange(
    request: &Request,
    plan: &Plan,
    moves: &[Move],
    shadows: &[Shadow],
    fresh: &mut Option<Streaming>,
) -> Result<Exchanged, String> {
    let arena = arena().ok_or("no region exists")?;
    *fresh = fresh_ring(request, plan).map_err(|error| format!("no copy streams: {error}"))?;
    let closed = close_the_gate(&request.mine)?;
    let since = std::time::Instant::now();
    // Memory is freed behind the closed gate only, so what is there now stays.
    if moves.iter().any(|m| !is_learnt(&world(), m.id)) {
        return Err("weights were freed meanwhile".to_owned());
    }
    peers::wait_to_move(request.device).map_err(|error| format!("waiting for the GPU failed: {error}"))?;
    let outgoing = Outgoing::begin(moves, shadows)
        .map_err(|error| format!("copying weights to host memory failed: {error}"))?;
    let arrivals = Arrivals::default();
    let mut world = world();
    let brought = match fresh_pages(request, plan, moves) {
        Ok(brought) => brought,
        Err(error) => {
            outgoing.end();
            return Err(format!("the ring was refused GPU memory: {error}"));
        }
    };
    let (sums, remapped) = std::thread::scope(|scope| {
        let sums = scope.spawn(|| sums::of_shadows(shadows, |at| arrivals.wait_for(at)));
        let remapped = remap(&mut world, request, plan, (moves, shadows), brought, |at| {
            outgoing.wait_for(at)?;
            arrivals.tell(at + 1);
            Ok(())
        });
        arrivals.end();
        (sums.join().unwrap_or_default(), remapped)
    });
    outgoing.end();
    let (ring, mut spare) = remapped.map_err(|error| format!("remapping failed: {error}"))?;
    let fresh = fresh.take().zip(ring).map(|(fresh, handles)| fresh.with_pages(handles));
    // What is resident by plan leaves host memory, on pages that others left; prefixes before views are made of them.
    for m in moves {
        home::bring_home(&mut world, request.device, m.base, m.prefix(), &mut spare);
    }
    install(&mut world, request, fresh, moves, shadows, &sums);
    mark(&mut world, arena, request, moves);
    home::settle(&mut world, request, &mut spare);
    drop(world);
    drop(closed);
    Ok(Exchanged { closed_ms: since.elapsed().as_secs_f64() * 1e3, sums, spare })
}

/// Closes the gate at a moment when no forward reads one of the weights through pointers. Forwards that begin later show them first, and wait.
pub(super) fn close_the_gate(units: &[UnitId]) -> Result<gate::Closed, String> {
    const TRIES: u32 = 500;
    for _ in 0..TRIES {
        let closed = gate::close();
        if !passes::are_read_through_pointers(&world(), units) {
            return Ok(closed);
        }
        drop(closed);
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    Err("forwards that read weights through pointers went on all the time".to_owned())
}

fn is_learnt(world: &World, id: UnitId) -> bool {
    world.unit(id).is_some_and(|unit| unit.state == UnitState::Learning)
}

/// Copies to the shadows, one after the other on a stream of their own, each with an event behind it.
struct Outgoing {
    on: Stream,
    arrived: Vec<Event>,
}

impl Outgoing {
    fn begin(moves: &[Move], shadows: &[Shadow]) -> CudaResult<Self> {
        let mut outgoing = Outgoing { on: stream::create_nonblocking()?, arrived: Vec::new() };
        match moves.iter().zip(shadows).try_for_each(|(m, shadow)| outgoing.submit(m, shadow)) {
            Ok(()) => Ok(outgoing),
            Err(error) => {
                outgoing.end();
                Err(error)
            }
        }
    }

    fn submit(&mut self, m: &Move, shadow: &Shadow) -> CudaResult<()> {
        let pieces = m.outside.iter().flat_map(|(first, pages)| shadow.pieces(first * PAGE, pages * PAGE));
        for (offset, bytes, host) in pieces.chain(shadow.overhang(m.overhang)) {
            // SAFETY: the shadow was made for exactly these bytes, and nobody else knows it yet.
            unsafe { copy::to_host_async(host.cast_mut(), m.address + offset, bytes as usize, self.on) }?;
        }
        let arrived = event::create(false)?;
        self.arrived.push(arrived);
        event::record(arrived, self.on)
    }

    /// Waits until the bytes of the move `at` are in host memory.
    fn wait_for(&self, at: usize) -> CudaResult<()> {
        self.arrived.get(at).map_or(Ok(()), |&arrived| event::synchronize(arrived))
    }

    /// Waits for what is under way: nobody may let go of a shadow, or of a page, before.
    fn end(self) {
        let _ = stream::drain(self.on);
        for arrived in self.arrived {
            let _ = event::destroy(arrived);
        }
        let _ = stream::destroy(self.on);
    }
}

/// How many shadows are complete, for the threads that add them up.
#[derive(Default)]
struct Arrivals {
    state: Mutex<(usize, bool)>,
    changed: Condvar,
}

impl Arrivals {
    fn tell(&self, arrived: usize) {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).0 = arrived;
        self.changed.notify_all();
    }

    /// No more will come.
    fn end(&self) {
        self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).1 = true;
        self.changed.notify_all();
    }

    /// Waits until shadow `at` is complete; false when it never will be.
    fn wait_for(&self, at: usize) -> bool {
        let state = self.state.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let waits = |state: &mut (usize, bool)| state.0 <= at && !state.1;
        let state = self.changed.wait_while(state, waits).unwrap_or_else(|poisoned| poisoned.into_inner());
        state.0 > at
    }
}

/// From private pages to the ring: the handles of a new one where there is none yet, and those that nobody needs any more. After an error everything is as it
/// was, or without memory. `arrived` waits until the bytes of a move are in host memory.
fn remap(
    world: &mut World,
    request: &Request,
    plan: &Plan,
    (moves, shadows): (&[Move], &[Shadow]),
    brought: Vec<Handle>,
    arrived: impl Fn(usize) -> CudaResult<()>,
) -> CudaResult<(Option<Vec<Handle>>, Vec<Handle>)> {
    let existing = ring_of(request.device).as_ref().map(|ring| ring.ring.clone());
    let is_new = existing.is_none();
    let mut own: Vec<Vec<Handle>> = Vec::with_capacity(moves.len());
    let ring = Ring { existing, brought: &brought, pages: plan.ring_pages as usize };
    // Another model that has some of these weights may be looking at them.
    moves.iter().for_each(|m| readout::leave(m.address, m.pages));
    match onto_ring(world, request.device, ring, moves, &mut own, arrived) {
        Ok(ring) => {
            let kept = if is_new { ring.len() } else { 0 };
            let mut gpu = brought;
            for (handles, shadow) in own.into_iter().zip(shadows) {
                let (host, own): (Vec<_>, Vec<_>) = handles.into_iter().partition(|page| page.is_in_host());
                release(shadow.keep_pages(host));
                gpu.extend(own);
            }
            let spare = gpu.into_iter().skip(kept).collect();
            Ok((is_new.then_some(ring), spare))
        }
        Err(error) => {
            if let Err(again) = put_back(world, request.device, moves, own) {
                log::error!(
                    "weights have lost their memory, launches that read them fail: {error}, then {again}"
                );
            }
            release(brought);
            Err(error)
        }
    }
}

/// Into which ring weights go.
struct Ring<'a> {
    existing: Option<Vec<Handle>>,
    /// The first pages of a new one, where weights bring too few along.
    brought: &'a [Handle],
    /// How many it has.
    pages: usize,
}

/// Unmaps each move when its bytes have arrived; when all are, maps them to the ring. No page of the ring lies under a weight before the last unmapping has succeeded:
/// where it is refused, the private pages can come back without another one. The handles that the moves had are in `own`, also after an error; those of a new
/// ring are the first of them, behind those that were brought.
fn onto_ring(
    world: &mut World,
    device: i32,
    ring: Ring<'_>,
    moves: &[Move],
    own: &mut Vec<Vec<Handle>>,
    arrived: impl Fn(usize) -> CudaResult<()>,
) -> CudaResult<Vec<Handle>> {
    for (at, m) in moves.iter().enumerate() {
        arrived(at)?;
        vmm::unmap(m.address, (m.pages * PAGE) as usize)?;
        own.push(handles_of(world, m).into_iter().filter_map(Option::take).collect());
    }
    let ring = ring.existing.unwrap_or_else(|| {
        let own = own.iter().flatten().filter(|page| !page.is_in_host());
        ring.brought.iter().chain(own).take(ring.pages).copied().collect()
    });
    for m in moves {
        for page in 0..m.pages {
            let handle = ring[((m.ring_start + page) % ring.len() as u64) as usize];
            vmm::map(m.address + page * PAGE, PAGE as usize, handle)?;
        }
        vmm::allow(m.address, (m.pages * PAGE) as usize, device)?;
    }
    Ok(ring)
}

/// What backs the move's pages as the region knows it.
fn handles_of<'a>(world: &'a mut World, m: &Move) -> Vec<&'a mut Option<Handle>> {
    let Some(region) = world.region_of_mut(m.address) else { return Vec::new() };
    region.handles_from_mut(m.address).take(m.pages as usize).collect()
}

/// The private pages come back under their addresses, as many as can be, also behind one that cannot; nothing has been copied over them. Returns the last error.
fn put_back(world: &mut World, device: i32, moves: &[Move], own: Vec<Vec<Handle>>) -> CudaResult<()> {
    let taken = || moves.iter().zip(&own);
    // First all pages of the ring leave: a weight without memory is an error that everybody sees, another weight's bytes are none.
    for (m, _) in taken() {
        // Where nothing is mapped there is nothing to unmap; where something stays, the mapping below is refused.
        let _ = vmm::unmap(m.address, (m.pages * PAGE) as usize);
    }
    let mut last = Ok(());
    for (m, handles) in taken() {
        for (slot, &handle) in handles_of(world, m).into_iter().zip(handles) {
            *slot = Some(handle);
        }
        if let Err(error) = map_back(device, m, handles) {
            last = Err(error);
            if let Some(arena) = arena() {
                world.lost(arena, m.id);
            }
        }
    }
    last
}

fn map_back(device: i32, m: &Move, handles: &[Handle]) -> CudaResult<()> {
    for (page, &handle) in (0..).zip(handles) {
        vmm::map(m.address + page * PAGE, PAGE as usize, handle)?;
    }
    vmm::allow(m.address, (m.pages * PAGE) as usize, device)
}

/// A ring that has its streams, and no pages yet, where there is none: all that can be refused is asked for before anything is unmapped.
fn fresh_ring(request: &Request, plan: &Plan) -> CudaResult<Option<Streaming>> {
    if ring_of(request.device).is_some() {
        return Ok(None);
    }
    let chunk = if plan.chunk_pages == 0 { request.plan.chunk_pages } else { plan.chunk_pages } as u32;
    Streaming::new(request.device, context::current()?, plan.ring_pages as u32, chunk).map(Some)
}

/// GPU pages of a new ring that the weights which go into it do not have themselves: asked for before anything is unmapped.
fn fresh_pages(request: &Request, plan: &Plan, moves: &[Move]) -> CudaResult<Vec<Handle>> {
    if ring_of(request.device).is_some() {
        return Ok(Vec::new());
    }
    let own: u64 = moves.iter().map(Move::outside_pages).sum();
    hosted::gpu_pages(request.device, plan.ring_pages.saturating_sub(own))
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
        if m.overhang > 0 && shadow.overhang(m.overhang).is_none() {
            // Whoever reads on behind the view would find nothing there.
            shadow.view = None;
        }
        if let Some(view) = shadow.view
            && let Err(error) = map_prefix(world, m, view, request.device)
        {
            log::info!("unit {} has no view ({error}); doubtful launches wait for its copy instead", m.id.0);
            shadow.view = None;
        }
        streaming.add(
            m.id,
            world.unit(m.id),
            StreamedUnit {
                base: m.base,
                address: m.address,
                pages: m.pages,
                overhang: m.overhang,
                overhang_written: false,
                shadow,
                ring_start: m.ring_start,
                hold: m.hold,
                ledger: Ledger::new(Some(sum), 0),
            },
        );
    }
    for (at, profile) in request.plan.passes.iter().enumerate() {
        let mut uses: Vec<(UnitId, u32)> = profile.uses.iter().map(|u| (u.unit, u.owner)).collect();
        uses.retain(|(unit, _)| streaming.pager.streams(*unit));
        uses.dedup_by_key(|(unit, _)| *unit);
        match at {
            0 => streaming.pager.set_order(profile.model, &uses),
            _ => drop(streaming.pager.set_shape_order(profile.model, profile.shape, &uses)),
        }
    }
}

/// The view of a split unit begins with its private pages under a second address.
fn map_prefix(world: &mut World, m: &Move, view: u64, device: i32) -> CudaResult<()> {
    let pages = (m.address - m.base) / PAGE;
    let Some(region) = world.region_of_mut(m.base).filter(|_| pages > 0) else { return Ok(()) };
    let prefix: Vec<Handle> = region.handles_from(m.base).take(pages as usize).copied().flatten().collect();
    views::map(view, &prefix, device)?;
    region.views.push((view, pages * PAGE));
    Ok(())
}

fn mark(world: &mut World, arena: &Arena, request: &Request, moves: &[Move]) {
    for m in moves {
        let Some(unit) = world.unit_mut(m.id) else { continue };
        unit.state = UnitState::Streamed;
        unit.streamed = m.pages;
        unit.mean(arena, Meaning::Streamed(m.id));
    }
    if !request.early {
        settle_units(world, &request.mine);
    }
}
