//! Takes a unit out of the ring for good (rule 12): private pages under the same addresses, filled from its shadow.
//! Who asks, and why, is said by the callers.

#![expect(unsafe_code, reason = "copies from our pinned memory")]

use flextensor_core::plan::StayReason;
use flextensor_core::units::UnitId;

use super::arena::{Meaning, PAGE, arena};
#[cfg(feature = "seeded-faults")]
use super::check::seeds::{self, Seed};
use super::pressure::{self, Wish};
use super::streaming::{StreamedUnit, Streaming, ring_of};
use super::world::{Unit, UnitState, World, world};
use super::{gate, learn, passes, replan, rows, verify};
use crate::ffi::copy;
use crate::ffi::result::{CudaError, CudaResult};
use crate::ffi::types::CUresult;
use crate::ffi::vmm::{self, Handle};
use crate::log;

/// Why a unit leaves the ring.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// The program, or the hook for it, asked.
    Asked,
    /// Nobody names it any more.
    ModelGone,
    /// A graph shows it.
    Graph,
    /// Its address went to device memory.
    Escaped,
    /// A launch's parameters are unknown.
    Unparsed,
    /// A call in another context than the ring's uses it.
    OtherContext,
    /// Forwards write it.
    Written,
    /// A launch needs more pages at once than can be had, and cannot be redirected.
    Crowded,
}

impl Why {
    /// What a plan is told.
    fn reason(self) -> StayReason {
        match self {
            Why::Asked | Why::ModelGone => StayReason::Private,
            Why::Graph => StayReason::GraphHeld,
            Why::Escaped => StayReason::Escaped,
            Why::Unparsed => StayReason::Hidden,
            Why::Written => StayReason::Written,
            Why::OtherContext | Why::Crowded => StayReason::Shared,
        }
    }
}

impl std::fmt::Display for Why {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(match self {
            Why::Asked => "the program asked for it",
            Why::ModelGone => "its model is gone",
            Why::Graph => "a CUDA graph reads it",
            Why::Escaped => "its address went to device memory, where its uses cannot be seen",
            Why::Unparsed => "the driver does not tell what a kernel is passed, so it may be read by any",
            Why::OtherContext => "it is used in another context than the ring's",
            Why::Written => "forwards write it",
            Why::Crowded => "its pages were needed by others at the same moment",
        })
    }
}

/// The unit stays in private pages from now on: at once if it is streamed, and otherwise when a plan is made.
pub(crate) fn keep(id: UnitId, reason: StayReason, why: Why) -> CudaResult<()> {
    let streamed = {
        let mut world = world();
        let Some(unit) = world.unit_mut(id) else { return Ok(()) };
        unit.stay = Some(reason);
        unit.state == UnitState::Streamed
    };
    if streamed { for_good(id, why) } else { Ok(()) }
}

/// Gives the unit private pages. The calling thread must not be inside the gate. Where there is no memory for them, others make room; when they cannot, nothing has
/// changed.
pub(crate) fn for_good(id: UnitId, why: Why) -> CudaResult<()> {
    let Some((device, bytes)) = world().unit(id).map(|unit| (unit.device, unit.streamed * PAGE)) else {
        return Ok(());
    };
    pressure::satisfy(Wish { device, bytes, asks_again: false }, || once_for_good(id, why), || None)
}

/// The same where nobody can make room, since the calling thread switches over.
pub(super) fn once_for_good(id: UnitId, why: Why) -> CudaResult<()> {
    let closed = gate::close();
    let mut world = world();
    let left = leave(&mut world, id)?;
    // No later plan may bring it back.
    if let Some(unit) = world.unit_mut(id) {
        unit.stay.get_or_insert(why.reason());
    }
    let device = world.unit(id).map(|unit| unit.device).filter(|_| left.is_some());
    drop(world);
    drop(closed);
    announce(left, why);
    device.into_iter().for_each(replan::became_private);
    Ok(())
}

/// Gives the unit private pages and lets it go: whatever its addresses are used for next, it is no weight that we know. `still`: asked behind the closed
/// gate, so that no switch-over and no other model comes between the answer and what follows from it.
pub(crate) fn let_go(id: UnitId, why: Why, still: impl FnOnce(&Unit) -> bool) -> CudaResult<()> {
    let closed = gate::close();
    let mut world = world();
    if !world.unit(id).is_some_and(still) {
        return Ok(());
    }
    #[cfg(feature = "seeded-faults")]
    let left = if seeds::is(Seed::Aliased) { None } else { leave(&mut world, id)? };
    #[cfg(not(feature = "seeded-faults"))]
    let left = leave(&mut world, id)?;
    let comes_home = rows::come_home(&mut world, id);
    if let Some(unit) = world.unit_mut(id) {
        unit.state = UnitState::Gone;
        if let Some(arena) = arena() {
            unit.mean(arena, Meaning::Nothing);
            // Where the GPU has no room they leave the host when forwards use them.
            if !comes_home {
                arena.set_meaning(unit.own_pages(), unit.may_move(), Meaning::InHost);
            }
        }
    }
    for model in world.models.values_mut() {
        model.units.retain(|&unit| unit != id);
    }
    drop(world);
    drop(closed);
    learn::recorder(|recorder| recorder.forget_units(&[id]));
    announce(left, why);
    Ok(())
}

/// From the ring to private pages, behind the closed gate. Returns the name of a unit that was streamed.
fn leave(world: &mut World, id: UnitId) -> CudaResult<Option<String>> {
    let Some(unit) = world.unit(id).filter(|unit| unit.state == UnitState::Streamed) else { return Ok(None) };
    let (device, context, name) = (unit.device, unit.context, unit.name());
    let done = passes::in_context(context, || {
        let left = match ring_of(device).as_mut() {
            Some(ring) => take_out(ring, id, world)?,
            None => None,
        };
        verify::let_go(left.into_iter().map(|unit| unit.shadow).collect());
        Ok(())
    });
    done.unwrap_or(Err(CudaError(CUresult::CUDA_ERROR_INVALID_CONTEXT)))?;
    Ok(Some(name))
}

fn announce(left: Option<String>, why: Why) {
    match (left, why) {
        (None, _) => {}
        (Some(name), Why::Asked | Why::ModelGone) => {
            log::info!("{name} has private GPU memory from now on: {why}");
        }
        (Some(name), _) => log::notice!("{name} has private GPU memory from now on: {why}"),
    }
}

/// Gives everything that streams private pages.
pub(crate) fn everything(why: Why) -> CudaResult<()> {
    let streamed = |unit: &&Unit| unit.state == UnitState::Streamed;
    let all: Vec<UnitId> = world().units.iter().filter(streamed).map(|unit| unit.id).collect();
    all.into_iter().try_for_each(|id| for_good(id, why))
}

/// Returns what the unit was in the ring.
fn take_out(ring: &mut Streaming, id: UnitId, world: &mut World) -> CudaResult<Option<StreamedUnit>> {
    ring.usable()?;
    // A unit that is marked as streamed and is in no ring has bytes nowhere: whoever asks must not ask again for ever.
    let unit = ring.unit(id).map(|unit| (unit.address, unit.pages));
    let (address, pages) = unit.ok_or(CudaError(CUresult::CUDA_ERROR_UNKNOWN))?;
    let handles = create(ring.device, pages)?;
    // Nobody is between check and enqueue while the gate is closed, so nothing is pinned.
    if !ring.evict(id)? {
        release(&handles);
        return Err(CudaError(CUresult::CUDA_ERROR_NOT_READY));
    }
    // What could not be written back, or not waited for, must not be taken for the truth. The ring stays mapped.
    if let Err(error) = ring.usable().and_then(|()| ring.drain()) {
        release(&handles);
        return Err(error);
    }
    if let Err(error) = vmm::unmap(address, (pages * PAGE) as usize) {
        release(&handles);
        return Err(error);
    }
    let mut mapped = 0;
    let moved = map_private(ring.device, address, &handles, &mut mapped).and_then(|()| fill(ring, id));
    if let Err(error) = moved {
        put_back(ring, id, mapped);
        release(&handles);
        return Err(error);
    }
    let left = ring.remove(id);
    hand_over(world, id, address, handles);
    Ok(left)
}

fn fill(ring: &Streaming, id: UnitId) -> CudaResult<()> {
    let Some(unit) = ring.unit(id) else { return Ok(()) };
    for (offset, bytes, host) in unit.shadow.pieces(0, unit.pages * PAGE) {
        // SAFETY: the unit is in the ring, and so is its shadow.
        unsafe { copy::to_device_async(unit.address + offset, host, bytes as usize, ring.demand_stream()) }?;
    }
    ring.drain()
}

/// Private pages: given back whole if one is refused.
fn create(device: i32, pages: u64) -> CudaResult<Vec<Handle>> {
    let mut handles = Vec::with_capacity(pages as usize);
    for _ in 0..pages {
        match vmm::create(device, PAGE as u32) {
            Ok(handle) => handles.push(handle),
            Err(error) => {
                release(&handles);
                return Err(error);
            }
        }
    }
    Ok(handles)
}

fn release(handles: &[Handle]) {
    for &handle in handles {
        let _ = vmm::release(handle);
    }
}

/// Where nothing is mapped. `mapped` says how many pages are then, also after an error.
fn map_private(device: i32, address: u64, handles: &[Handle], mapped: &mut u64) -> CudaResult<()> {
    for &handle in handles {
        vmm::map(address + *mapped * PAGE, PAGE as usize, handle)?;
        *mapped += 1;
    }
    vmm::allow(address, handles.len() * PAGE as usize, device)
}

/// The unit's pages of the ring come back under its addresses; they hold what they held. If that fails, no launch may use the ring any more: an error is
/// better than addresses with nothing behind them.
fn put_back(ring: &mut Streaming, id: UnitId, mapped: u64) {
    let again = ring.drain().and_then(|()| {
        let Some(unit) = ring.unit(id) else { return Ok(()) };
        if mapped > 0 {
            vmm::unmap(unit.address, (mapped * PAGE) as usize)?;
        }
        for page in 0..unit.pages {
            let handle = ring.ring[((unit.ring_start + page) % ring.ring.len() as u64) as usize];
            vmm::map(unit.address + page * PAGE, PAGE as usize, handle)?;
        }
        vmm::allow(unit.address, (unit.pages * PAGE) as usize, ring.device)
    });
    if let Err(error) = again {
        ring.fail(error, "the pages of a weight that should have become private could not be put back");
    }
}

/// The region owns the new pages; launches need not look at the unit any more.
fn hand_over(world: &mut World, id: UnitId, address: u64, handles: Vec<Handle>) {
    if let Some(arena) = arena()
        && let Some(unit) = world.unit_mut(id)
    {
        unit.state = UnitState::Resident;
        unit.streamed = 0;
        unit.mean(arena, Meaning::Nothing);
    }
    if let Some(region) = world.region_of_mut(address) {
        for (slot, handle) in region.handles_from_mut(address).zip(handles) {
            *slot = Some(handle);
        }
    }
}
