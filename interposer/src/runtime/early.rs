//! Weights that lie in host memory are streamed from the second pass of their model on, while it is still learnt: kernels that read a weight often are far slower
//! on host pages. When all is learnt, what was streamed goes back to its host pages, and the switch-over places it anew, by its times.

use std::collections::BTreeSet;
use std::sync::{Mutex, MutexGuard};

use flextensor_core::units::{ModelId, UnitId};

use super::arena::{Meaning, arena};
use super::streaming::{Streaming, ring_of};
use super::world::{UnitState, World, world};
use super::{gate, hosted, leftover, passes, peers, switch, verify};
use crate::ffi::context;
use crate::ffi::result::{CudaError, CudaResult};
use crate::ffi::stream::Stream;
use crate::ffi::types::CUresult;
use crate::ffi::vmm::Handle;
use crate::log;

/// Models whose weights were placed, and that are learnt on.
fn models() -> MutexGuard<'static, BTreeSet<ModelId>> {
    static EARLY: Mutex<BTreeSet<ModelId>> = Mutex::new(BTreeSet::new());
    EARLY.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// A pass of a model that is being learnt has ended: its order of use is known well enough to stream what lies in host memory. The model's context is current.
pub(super) fn stream(id: ModelId) {
    let in_host = {
        let world = world();
        let units = world.models.get(&id).map(|model| model.units.as_slice()).unwrap_or_default();
        let learnt = |unit: &&super::world::Unit| unit.state == UnitState::Learning;
        let in_host = |unit: &super::world::Unit| !hosted::pages_at(&world, unit.base, unit.pages).is_empty();
        units.iter().filter_map(|&unit| world.unit(unit)).filter(learnt).any(in_host)
    };
    if in_host && models().insert(id) {
        switch::switch_early(id);
    }
}

/// Whether weights of models that are learnt are streamed on the device.
pub(super) fn is_streaming(device: i32) -> bool {
    let world = world();
    models().iter().filter_map(|id| world.models.get(id)).any(|model| model.device == device)
}

/// A pass of a model begins that is being learnt.
pub(super) fn pass_begins(id: ModelId, device: i32, shape: u64, stream: Option<Stream>) {
    if models().contains(&id)
        && let Some(ring) = ring_of(device).as_mut()
    {
        ring.pager.pass_begin(id, shape);
        ring.prefetch(stream.unwrap_or(Stream::LEGACY));
    }
}

/// It has ended.
pub(super) fn pass_ends(id: ModelId, device: i32, lent: Vec<UnitId>, stream: Option<Stream>) {
    if models().contains(&id)
        && let Some(ring) = ring_of(device).as_mut()
    {
        ring.end_uses(lent.into_iter());
        ring.pager.pass_end(id);
        ring.prefetch(stream.unwrap_or(Stream::LEGACY));
    }
}

/// All of the model is learnt. If its ring holds nothing that was placed for good, all units in it lie in their host pages again, and are being learnt; what
/// cannot be brought there stays in the ring as it is.
pub(super) fn dissolve(id: ModelId) {
    if !models().remove(&id) {
        return;
    }
    let Some(device) = world().models.get(&id).map(|model| model.device) else { return };
    let Some((units, others, context)) = all_early(device, id) else { return };
    let closed = gate::close();
    if passes::are_read_through_pointers(&world(), &units) {
        return log::info!(
            "weights stay where they were put while they were learnt: a forward reads some of them through pointers"
        );
    }
    let done = passes::in_context(context, || {
        peers::wait_to_move(device)?;
        units.iter().try_for_each(|&unit| back_to_host(device, unit))
    });
    drop(closed);
    if let Err(error) = done.unwrap_or(Err(CudaError(CUresult::CUDA_ERROR_INVALID_CONTEXT))) {
        return log::info!("weights stay where they were put while they were learnt: {error}");
    }
    // They are placed again after their next pass.
    models().retain(|model| !others.contains(model));
    switch::let_ring_go(device);
}

/// The streamed units of a device, the models besides this one that hold them, and their context; none unless all of these are being learnt.
fn all_early(device: i32, id: ModelId) -> Option<(Vec<UnitId>, BTreeSet<ModelId>, context::Context)> {
    let world = world();
    let streamed = |unit: &&super::world::Unit| unit.device == device && unit.state == UnitState::Streamed;
    let units: Vec<_> = world.units.iter().filter(streamed).collect();
    let context = units.first()?.context;
    let holders: BTreeSet<ModelId> = units
        .iter()
        .flat_map(|unit| &unit.members)
        .map(|member| member.model)
        .filter(|&model| model != id)
        .collect();
    let early = models();
    let all =
        holders.iter().all(|model| early.contains(model)) && units.iter().all(|unit| unit.context == context);
    all.then(|| (units.iter().map(|unit| unit.id).collect(), holders, context))
}

/// From the ring to the host pages that are the unit's shadow. The gate is closed, and the GPU drained.
fn back_to_host(device: i32, id: UnitId) -> CudaResult<()> {
    let mut world = world();
    let left = {
        let mut ring = ring_of(device);
        let Some(ring) = ring.as_mut() else { return Ok(()) };
        ring.usable()?;
        let Some(shadow) = ring.unit(id).map(|unit| unit.shadow) else { return Ok(()) };
        if !ring.evict(id)? {
            return Err(CudaError(CUresult::CUDA_ERROR_NOT_READY));
        }
        ring.drain()?;
        let pages = shadow.take_pages().ok_or(CudaError(CUresult::CUDA_ERROR_NOT_SUPPORTED))?;
        if let Err(error) = remap(ring, id, &pages) {
            shadow.keep_pages(pages);
            return Err(error);
        }
        settle(&mut world, ring, id, pages);
        ring.remove(id)
    };
    drop(world);
    verify::let_go(left.into_iter().map(|unit| unit.shadow).collect());
    Ok(())
}

/// The host pages come under the unit's addresses, or those of the ring stay.
fn remap(ring: &mut Streaming, id: UnitId, pages: &[Handle]) -> CudaResult<()> {
    let Some(unit) = ring.unit(id) else { return Ok(()) };
    let address = unit.address;
    let of_ring: Vec<Handle> = (unit.ring_start..unit.ring_start + unit.pages)
        .map(|page| ring.ring[(page % ring.ring.len() as u64) as usize])
        .collect();
    hosted::replace(ring.device, address, &of_ring, pages).map_err(|(error, hosted::Lost(lost))| {
        // An error is better than addresses with nothing behind them.
        if lost {
            ring.fail(error, "the pages of a weight that was being learnt could not be put back");
        }
        error
    })
}

/// The region owns the pages, and the unit is learnt on. Its view ends.
fn settle(world: &mut World, ring: &Streaming, id: UnitId, pages: Vec<Handle>) {
    let Some((address, view)) = ring.unit(id).map(|unit| (unit.address, unit.shadow.prefix_of_view())) else {
        return;
    };
    if let Some(unit) = world.unit_mut(id) {
        unit.state = UnitState::Learning;
        unit.streamed = 0;
        if let Some(arena) = arena() {
            unit.mean(arena, Meaning::Learning(id));
        }
    }
    let Some(region) = world.region_of_mut(address) else { return };
    for (slot, page) in region.handles_from_mut(address).zip(pages) {
        *slot = Some(page);
    }
    if let Some((view, bytes)) = view {
        let known = region.views.iter().position(|&(known, _)| known == view);
        if let Some(at) = known {
            region.views.swap_remove(at);
            leftover::unmap(view, bytes);
        }
    }
}
