//! Allocation and release: large allocations become regions, and go when their users have ended; others are the driver's, and counted.
//! What becomes of weights in them is decided elsewhere.

use super::arena::{Meaning, arena, arena_or_reserve};
use super::pressure::{self, Wish};
use super::regions::Region;
use super::streaming::{StreamedUnit, ring_of};
use super::world::{UnitState, World, world};
use super::{gate, graphs, integrated, learn, limit, open, overflow, peers, pools, replan, switch, verify};
use flextensor_core::units::UnitId;
use std::sync::{Mutex, MutexGuard};

use crate::account::{self, blocks, handles};
use crate::ffi::context;
use crate::ffi::result::{CudaError, CudaResult};
use crate::ffi::types::CUresult;
use crate::log;

/// Makes a region of `bytes` on the current device and returns its first address. Not supported where the driver has no regions, or nothing would come of them.
pub(crate) fn alloc(bytes: u64) -> CudaResult<u64> {
    let (device, context) = (context::device()?, context::current()?);
    if integrated::is(device) {
        integrated::say(device);
        return Err(CudaError(CUresult::CUDA_ERROR_NOT_SUPPORTED));
    }
    let arena = arena_or_reserve()?;
    limit::look(device, context);
    let base = pressure::satisfy(
        Wish::of_allocator(device, bytes),
        || overflow::make_region(arena, bytes, device, context),
        || overflow::stand_in(arena, bytes, device, context),
    )?;
    // What a forward of a known model allocates is no new model, and looking for one slows down the forwards that follow.
    if !open::is_here() {
        super::python::look_around();
    }
    Ok(base)
}

/// Lets the driver make an allocation of `bytes` on the current device that is no region. `make` returns the driver's code, and the address.
pub(crate) fn alloc_elsewhere(bytes: u64, mut make: impl FnMut() -> (CUresult, u64)) -> CUresult {
    let (Ok(device), Ok(context)) = (context::device(), context::current()) else { return make().0 };
    limit::look(device, context);
    let counted = blocks::counted(bytes);
    let attempt = || {
        taken(device, counted, || {
            let (code, address) = make();
            code.ok().map(|()| address)
        })
    };
    match pressure::satisfy(Wish::of_allocator(device, bytes), attempt, || None) {
        Ok(address) => {
            blocks::keep(address, device, context, counted);
            CUresult::CUDA_SUCCESS
        }
        Err(error) => error.into(),
    }
}

/// Lets the driver make physical memory of `bytes` on a device, for the program to map. `make` returns the driver's code, and the handle.
pub(crate) fn create_elsewhere(
    device: i32,
    bytes: u64,
    mut make: impl FnMut() -> (CUresult, u64),
) -> CUresult {
    limit::know(device);
    let attempt = || {
        taken(device, bytes, || {
            let (code, handle) = make();
            code.ok().map(|()| handle)
        })
    };
    match pressure::satisfy(Wish::of_allocator(device, bytes), attempt, || None) {
        Ok(handle) => {
            handles::created(handle, device, bytes);
            CUresult::CUDA_SUCCESS
        }
        Err(error) => error.into(),
    }
}

/// Makes what takes so many bytes of a device, as far as the process may have them.
pub(super) fn taken<T>(device: i32, bytes: u64, make: impl FnOnce() -> CudaResult<T>) -> CudaResult<T> {
    if !account::take(device, bytes) {
        return Err(CudaError(CUresult::CUDA_ERROR_OUT_OF_MEMORY));
    }
    make().inspect_err(|_| account::give_back(device, bytes))
}

/// What the program is told of the current device's memory, as (free, total), where the driver says these.
pub(crate) fn told(free: u64, total: u64) -> (u64, u64) {
    match (context::device(), context::current()) {
        (Ok(device), Ok(context)) => {
            limit::look(device, context);
            pools::look_at_all();
            limit::told(device, free, total)
        }
        _ => (free, total),
    }
}

/// Regions that were freed while a stream captured: they go when none does.
static PUT_OFF: Mutex<Vec<u64>> = Mutex::new(Vec::new());

fn put_off() -> MutexGuard<'static, Vec<u64>> {
    PUT_OFF.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

fn is_put_off(address: u64) -> bool {
    put_off().contains(&address)
}

/// Whether anything is to be freed when no stream captures.
pub(super) fn any_put_off() -> bool {
    !put_off().is_empty()
}

/// Frees what was to be freed while a stream captured, if none does any more. The calling thread holds no lock and is not inside the gate.
pub(crate) fn free_what_was_put_off() {
    if graphs::any_capture() {
        return;
    }
    let freed = std::mem::take(&mut *put_off());
    for address in freed {
        if let Some(code) = free(address)
            && !code.is_success()
        {
            log::warning!(
                "memory at {address:#x} that was freed during a capture stays: {}",
                CudaError(code)
            );
        }
    }
}

/// Frees the region at `address`. None if the address is not in the arena at all.
pub(crate) fn free(address: u64) -> Option<CUresult> {
    let arena = arena().filter(|arena| arena.contains(address))?;
    let closed = gate::close();
    let mut world = world();
    let known = world.regions.contains_key(&address) && !is_put_off(address);
    if known && graphs::any_capture() {
        // The driver's own free ends no capture of another thread; waiting for the context would.
        put_off().push(address);
        return Some(CUresult::CUDA_SUCCESS);
    }
    let Some(region) = world.regions.get(&address).filter(|_| known) else {
        return Some(CUresult::CUDA_ERROR_INVALID_VALUE);
    };
    // The driver's own free waits for work that may use the memory; programs rely on it. What cannot be waited for stays mapped: in a capture, after a
    // fault of the GPU, or when the driver has gone, the program gets the error that the driver's own free would give.
    if let Err(error) = context::with_current(region.context, || peers::wait_for_users(region.device)) {
        log::debug!("waiting for the users of {:#x} failed: {error}", region.base);
        return Some(error.into());
    }
    let region = world.regions.remove(&address)?;
    let device = region.device;
    let gone = forget_units(&mut world, &region);
    arena.set_meaning(region.base, region.pages(), Meaning::Nothing);
    drop(world);
    learn::recorder(|recorder| recorder.forget_units(&gone));
    region.unback(arena);
    drop(closed);
    if !gone.is_empty() {
        replan::discard_stale(device);
        switch::retire_empty_ring(device);
    }
    Some(CUresult::CUDA_SUCCESS)
}

fn forget_units(world: &mut World, region: &Region) -> Vec<UnitId> {
    let gone = world.units_in(region.base, region.pages());
    for &id in &gone {
        let Some(unit) = world.unit_mut(id) else { continue };
        if unit.state == UnitState::Streamed {
            let _ = context::with_current(unit.context, || {
                let left = leave_ring(unit.device, id)?;
                verify::let_go(left.into_iter().map(|unit| unit.shadow).collect());
                Ok(())
            });
            // Also where the context could not be had.
            if let Some(ring) = ring_of(unit.device).as_mut() {
                ring.remove(id);
            }
        }
        unit.state = UnitState::Gone;
        unit.streamed = 0;
    }
    for model in world.models.values_mut() {
        model.units.retain(|unit| !gone.contains(unit));
    }
    gone
}

/// What the unit was in its ring, where nobody uses its pages or its shadow any more.
fn leave_ring(device: i32, id: UnitId) -> CudaResult<Option<StreamedUnit>> {
    let mut ring = ring_of(device);
    let Some(ring) = ring.as_mut() else { return Ok(None) };
    let drained = ring.evict(id).and_then(|_| ring.drain());
    // Gone it is in any case; what could not be waited for keeps its host memory.
    let left = ring.remove(id);
    drained.map(|()| left)
}

/// First address and requested bytes of the region that holds the address.
pub(crate) fn range(address: u64) -> Option<(u64, u64)> {
    arena().filter(|arena| arena.contains(address))?;
    let world = world();
    let region = world.region_of(address)?;
    Some((region.base, region.bytes))
}

/// GPU bytes that regions hold on all devices, rings not included.
pub(crate) fn region_bytes() -> u64 {
    world().regions.values().map(Region::private_bytes).sum()
}
