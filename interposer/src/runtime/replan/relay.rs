//! From one ring to another behind the closed gate: units change their places, the ring its length, and no address its bytes. Everything that can be
//! refused is asked for before the first unmapping; until then a failure changes nothing, and after it all pages come back where they were.
//! What goes where is `target`'s matter, views are `view`'s.

#![expect(unsafe_code, reason = "copies between our pinned memory and mapped addresses")]

use super::super::arena::{Arena, Meaning, PAGE, arena};
use super::super::readout;
use super::super::shadow::Shadow;
use super::super::streaming::{StreamedUnit, Streaming, ring_of};
use super::super::verify::Ledger;
use super::super::world::{UnitState, World, world};
use super::super::{check, graphs, passes, peers};
use super::prepared::Prepared;
use super::target::Target;
use super::view::{begin_view, end_view};
use super::worth::Why;
use crate::ffi::copy;
use crate::ffi::result::{CudaError, CudaResult};
use crate::ffi::stream::{self, Stream};
use crate::ffi::types::CUresult;
use crate::ffi::vmm::{self, Handle};
use crate::log;

/// What came of it.
pub(super) enum Relayed {
    /// Not at this moment; nothing has changed.
    Busy,
    /// Done. This is the ring that was, with what nobody needs any more.
    Done(Box<Streaming>),
}

/// Moves everything to where the plan wants it. The gate is closed by the caller, and the ring's context is current.
///
/// # Errors
/// A sentence. Everything is as it was then, unless an error line said otherwise; what was prepared is still the caller's to give back.
pub(super) fn relay(prepared: &mut Prepared) -> Result<Relayed, String> {
    let arena = arena().ok_or("no region exists")?;
    let mut world = world();
    if !may_move(&world, prepared) {
        return Ok(Relayed::Busy);
    }
    // Private pages in front of streamed ones change their places, too.
    let reading = readout::hold();
    let mut guard = ring_of(prepared.device);
    let was_none = guard.is_none();
    if was_none && prepared.begins_without_ring() {
        let none = Streaming::of_nothing(prepared.device, prepared.context);
        *guard = Some(Box::new(none.map_err(|error| format!("no copy streams: {error}"))?));
    }
    let relayed = to_new_ring(&mut world, &mut guard, arena, prepared);
    // Nobody has seen a ring of nothing, and nobody shall.
    if was_none
        && relayed.is_err()
        && let Some(none) = guard.take()
    {
        drop((guard, reading, world));
        none.close();
    }
    relayed.map(Relayed::Done)
}

/// From the ring that there is to the one that was prepared; returns what is left.
fn to_new_ring(
    world: &mut World,
    guard: &mut Option<Box<Streaming>>,
    arena: &Arena,
    prepared: &mut Prepared,
) -> Result<Box<Streaming>, String> {
    let ring = guard.as_mut().filter(|ring| prepared.is_current(world, ring));
    let ring = ring.ok_or("the weights have changed their places since it was made")?;
    settle(ring, prepared).map_err(|error| format!("waiting for the GPU failed: {error}"))?;
    let brought = bring_bytes(ring, prepared);
    // Whatever came of it: nobody may let go of a shadow that copies are on their way to.
    let brought = stream::drain(prepared.on).and(brought);
    brought.map_err(|error| format!("copying weights to host memory failed: {error}"))?;
    let extra = create(ring, prepared).map_err(|error| format!("no GPU memory: {error}"))?;
    let mut exchange = Exchange { taken: Vec::new(), pool: extra, ring_after: Vec::new(), filled: false };
    match exchange.run(world, ring, prepared) {
        Ok(promoted) => {
            let before = install(world, guard, arena, prepared, exchange, promoted);
            before.ok_or_else(|| "the ring is gone".to_owned())
        }
        Err(error) => {
            exchange.put_back(world, ring, prepared);
            Err(format!("moving weights failed: {error}"))
        }
    }
}

/// Between forwards weights move when all is calm. Where an allocation waits for room they move at any time, but none that a forward reads through pointers now.
fn may_move(world: &World, prepared: &Prepared) -> bool {
    if prepared.why != Why::Pressure {
        return is_calm(world, prepared.device);
    }
    let read = passes::read_through_pointers(world);
    !graphs::any_capture() && prepared.targets.iter().all(|target| !read.contains(&target.id))
}

/// No launch may read a weight that no launch shows, and no capture may be disturbed.
pub(super) fn is_calm(world: &World, device: i32) -> bool {
    let holds = |model: &super::super::models::Model| !model.held.is_empty() || !model.lent.is_empty();
    let inside =
        |model: &super::super::models::Model| model.open > 0 || model.inside.values().any(|&count| count > 0);
    let mut here = world.models.values().filter(|model| model.device == device);
    !graphs::any_capture() && !here.any(|model| holds(model) && inside(model))
}

/// Afterwards nobody uses the ring, and every shadow holds the truth.
fn settle(ring: &mut Streaming, prepared: &Prepared) -> CudaResult<()> {
    ring.usable()?;
    peers::wait_to_move(ring.device)?;
    for target in prepared.targets.iter().filter(|target| target.before > 0) {
        if !ring.evict(target.id)? {
            return Err(CudaError(CUresult::CUDA_ERROR_NOT_READY));
        }
    }
    ring.drain()?;
    ring.usable()
}

/// Fills the new shadows: from GPU memory what is private now, from the old shadows what is streamed already.
fn bring_bytes(ring: &Streaming, prepared: &Prepared) -> CudaResult<()> {
    let on = prepared.on;
    for (target, shadow) in changed(prepared) {
        for (offset, bytes, host) in shadow.pieces(0, target.demoted() * PAGE) {
            // SAFETY: the shadow was made for these bytes, and nobody else knows it yet.
            unsafe { copy::to_host_async(host.cast_mut(), target.tail() + offset, bytes as usize, on) }?;
        }
        if let Some((_, bytes, host)) = shadow.overhang(target.overhang) {
            let from = target.base + target.pages * PAGE;
            // SAFETY: as above.
            unsafe { copy::to_host_async(host.cast_mut(), from, bytes as usize, on) }?;
        }
    }
    let stale = |(target, _): &(&Target, Shadow)| {
        ring.unit(target.id).is_some_and(|unit| target.copied_at != Some(unit.ledger.writes()))
    };
    let stale: Vec<_> = changed(prepared).filter(stale).collect();
    let share = stale.len().div_ceil(8).max(1);
    std::thread::scope(|scope| {
        for part in stale.chunks(share) {
            let work = || part.iter().for_each(|(target, shadow)| copy_common(ring, target, shadow));
            if std::thread::Builder::new().spawn_scoped(scope, work).is_err() {
                part.iter().for_each(|(target, shadow)| copy_common(ring, target, shadow));
            }
        }
    });
    Ok(())
}

fn changed(prepared: &Prepared) -> impl Iterator<Item = (&Target, Shadow)> {
    prepared.targets.iter().filter_map(|target| Some((target, target.shadow?)))
}

/// What is streamed before and after, from the old shadow to the new one.
fn copy_common(ring: &Streaming, target: &Target, shadow: &Shadow) {
    let Some(unit) = ring.unit(target.id) else { return };
    unit.shadow.copy_end_to(shadow, target.before.min(target.after) * PAGE);
}

/// Pages that are needed beyond those that come free.
fn create(ring: &Streaming, prepared: &Prepared) -> CudaResult<Vec<Handle>> {
    let count = |pages: fn(&Target) -> u64| -> u64 { prepared.targets.iter().map(pages).sum() };
    let free = count(Target::demoted) + ring.ring.len() as u64;
    let needed = count(Target::promoted) + prepared.ring_after;
    let mut made = Vec::new();
    for _ in free..needed {
        match vmm::create(prepared.device, PAGE as u32) {
            Ok(handle) => made.push(handle),
            Err(error) => {
                release(&made);
                return Err(error);
            }
        }
    }
    Ok(made)
}

fn release(handles: &[Handle]) {
    for &handle in handles {
        let _ = vmm::release(handle);
    }
}

/// Pages on their way.
struct Exchange {
    /// Private pages that each target gave, in turn, as far as that has come.
    taken: Vec<Vec<Handle>>,
    /// New pages; later all that nobody has yet.
    pool: Vec<Handle>,
    ring_after: Vec<Handle>,
    /// Bytes may have been written to pages that were somebody else's.
    filled: bool,
}

impl Exchange {
    /// Returns the private pages of each target that gets some.
    fn run(
        &mut self,
        world: &mut World,
        ring: &Streaming,
        prepared: &Prepared,
    ) -> CudaResult<Vec<Vec<Handle>>> {
        for target in &prepared.targets {
            unmap(target)?;
            self.taken.push(take_private(world, target));
        }
        let mut pages = ring.ring.iter().chain(self.taken.iter().flatten()).chain(&self.pool).copied();
        let ring_after: Vec<Handle> = pages.by_ref().take(prepared.ring_after as usize).collect();
        let mut promoted = Vec::with_capacity(prepared.targets.len());
        for target in &prepared.targets {
            promoted.push(pages.by_ref().take(target.promoted() as usize).collect::<Vec<Handle>>());
        }
        let left: Vec<Handle> = pages.collect();
        for (target, private) in prepared.targets.iter().zip(&promoted) {
            map_private(target.tail(), private)?;
            let at = target.base + (target.pages - target.after) * PAGE;
            map_run(at, target.ring_start, target.after - target.kept, &ring_after)?;
            allow(target, prepared.device)?;
        }
        self.filled = true;
        let on = prepared.on;
        for target in prepared.targets.iter().filter(|target| target.promoted() > 0) {
            let Some(unit) = ring.unit(target.id) else { continue };
            fill(target.tail(), &unit.shadow, target.promoted() * PAGE, on)?;
        }
        stream::drain(on)?;
        (self.ring_after, self.pool) = (ring_after, left);
        Ok(promoted)
    }

    /// Everything comes back to where it was: private pages with their bytes, the old ring without any. If that fails, no launch may use the ring any more: an
    /// error is better than addresses with nothing behind them.
    fn put_back(self, world: &mut World, ring: &mut Streaming, prepared: &Prepared) {
        let on = prepared.on;
        // Of several fills some may be on their way.
        let settled = stream::drain(on);
        let moved = || prepared.targets.iter().zip(&self.taken);
        for (target, _) in moved() {
            // Where nothing is mapped there is nothing to unmap; where something stays, the mapping below is refused.
            let _ = unmap(target);
        }
        let mut one_back = |(target, private): (&Target, &Vec<Handle>)| -> CudaResult<()> {
            give_private(world, target, private);
            map_private(target.tail(), private)?;
            if let Some(unit) = ring.unit(target.id) {
                map_run(unit.address, unit.ring_start, unit.pages - target.kept, &ring.ring)?;
            }
            allow(target, prepared.device)?;
            match target.shadow.filter(|_| self.filled && !private.is_empty()) {
                Some(shadow) => fill(target.tail(), &shadow, target.demoted() * PAGE, on),
                None => Ok(()),
            }
        };
        // As many as can be, also behind one that cannot.
        let (mut again, mut lost) = (Ok(()), Vec::new());
        for one in moved() {
            let done = one_back(one);
            if done.is_err() {
                lost.push(one.0.id);
            }
            again = again.and(done);
        }
        let settled = stream::drain(on).and(settled);
        if settled.is_err() && self.filled {
            // Their bytes may not be there yet.
            lost.extend(moved().filter(|(_, private)| !private.is_empty()).map(|(target, _)| target.id));
        }
        // Also what had been resident: nothing may lie behind its addresses.
        if let Some(arena) = arena() {
            lost.into_iter().for_each(|id| world.lost(arena, id));
        }
        ring.forget_bytes();
        if let Err(error) = settled.and(again) {
            ring.fail(error, "weights that should have changed their places could not be put back");
        }
        // Those that came from elsewhere were made for this.
        release(&self.pool);
    }
}

/// The private pages of the part that is to be streamed.
fn take_private(world: &mut World, target: &Target) -> Vec<Handle> {
    let Some(region) = world.region_of_mut(target.base).filter(|_| target.demoted() > 0) else {
        return Vec::new();
    };
    region.handles_from_mut(target.tail()).take(target.demoted() as usize).filter_map(Option::take).collect()
}

/// The region owns these pages at the beginning of the part.
fn give_private(world: &mut World, target: &Target, handles: &[Handle]) {
    let Some(region) = world.region_of_mut(target.base) else { return };
    for (slot, &handle) in region.handles_from_mut(target.tail()).zip(handles) {
        *slot = Some(handle);
    }
}

/// Unmaps what is to be mapped anew of the tail: nothing where all of it stays.
fn unmap(target: &Target) -> CudaResult<()> {
    match target.remapped() {
        0 => Ok(()),
        pages => vmm::unmap(target.tail(), (pages * PAGE) as usize),
    }
}

/// What was mapped anew may be read and written. In check mode all of the tail: what stays mapped has the write protection of the old ring, and the new one begins without.
fn allow(target: &Target, device: i32) -> CudaResult<()> {
    match if check::is_on() { target.tail_pages() } else { target.remapped() } {
        0 => Ok(()),
        pages => vmm::allow(target.tail(), (pages * PAGE) as usize, device),
    }
}

fn map_private(address: u64, handles: &[Handle]) -> CudaResult<()> {
    (0..).zip(handles).try_for_each(|(page, &handle)| vmm::map(address + page * PAGE, PAGE as usize, handle))
}

fn map_run(address: u64, start: u64, pages: u64, ring: &[Handle]) -> CudaResult<()> {
    (0..pages).try_for_each(|page| {
        let handle = ring[((start + page) % ring.len() as u64) as usize];
        vmm::map(address + page * PAGE, PAGE as usize, handle)
    })
}

fn fill(address: u64, shadow: &Shadow, bytes: u64, on: Stream) -> CudaResult<()> {
    shadow.pieces(0, bytes).try_for_each(|(offset, bytes, host)| {
        // SAFETY: whoever holds the shadow waits for the stream before it goes.
        unsafe { copy::to_device_async(address + offset, host, bytes as usize, on) }
    })
}

/// The new ring turns from here on. Returns the old one, with the shadows and pages that nobody needs any more.
fn install(
    world: &mut World,
    guard: &mut Option<Box<Streaming>>,
    arena: &Arena,
    prepared: &mut Prepared,
    exchange: Exchange,
    promoted: Vec<Vec<Handle>>,
) -> Option<Box<Streaming>> {
    let mut before = guard.take()?;
    before.ring = exchange.pool;
    let mut fresh = prepared.fresh.take()?.with_pages(exchange.ring_after);
    for (target, private) in prepared.targets.iter_mut().zip(promoted) {
        give_private(world, target, &private);
        let view_ends = target.before != target.after;
        if view_ends && let Some(old) = before.unit(target.id).and_then(|unit| unit.shadow.view) {
            end_view(world, target, old);
        }
        let streamed = match target.shadow.take() {
            Some(shadow) => Some(placed_anew(world, target, shadow, &before, prepared.device)),
            None if target.after > 0 => before.take(target.id),
            None => None,
        };
        if let Some(unit) = streamed {
            fresh.add(
                target.id,
                world.unit(target.id),
                StreamedUnit { ring_start: target.ring_start, ..unit },
            );
        }
        note(world, arena, target);
    }
    *guard = Some(Box::new(fresh));
    Some(before)
}

fn placed_anew(
    world: &mut World,
    target: &Target,
    mut shadow: Shadow,
    before: &Streaming,
    device: i32,
) -> StreamedUnit {
    if let Some(view) = shadow.view
        && let Err(error) = begin_view(world, target, view, device)
    {
        log::info!("unit {} has no view ({error}); doubtful launches wait for its copy instead", target.id.0);
        shadow.view = None;
    }
    // A check that is under way speaks of the old shadow.
    let writes = before.unit(target.id).map_or(0, |unit| unit.ledger.writes() + 1);
    StreamedUnit {
        base: target.base,
        address: target.base + (target.pages - target.after) * PAGE,
        pages: target.after,
        overhang: target.overhang,
        overhang_written: false,
        shadow,
        ring_start: target.ring_start,
        hold: target.hold,
        ledger: Ledger::new(None, writes),
    }
}

fn note(world: &mut World, arena: &Arena, target: &Target) {
    let Some(unit) = world.unit_mut(target.id) else { return };
    unit.streamed = target.after;
    let (state, meaning) = match target.after {
        0 => (UnitState::Resident, Meaning::Nothing),
        _ => (UnitState::Streamed, Meaning::Streamed(target.id)),
    };
    unit.state = state;
    unit.mean(arena, meaning);
}
