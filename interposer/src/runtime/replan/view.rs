//! The views of units that change their places: what launches are pointed at instead begins with the unit's private pages, which are mapped there a second time.
//! Where views lie, and what follows behind these pages, is `shadow`'s matter.

use super::super::arena::PAGE;
use super::super::world::World;
use super::super::{leftover, views};
use super::target::Target;
use crate::ffi::result::{CudaError, CudaResult};
use crate::ffi::types::CUresult;
use crate::ffi::vmm::Handle;

/// The view of a split unit begins with its private pages under a second address.
pub(super) fn begin_view(world: &mut World, target: &Target, view: u64, device: i32) -> CudaResult<()> {
    let pages = target.pages - target.after;
    let Some(region) = world.region_of_mut(target.base).filter(|_| pages > 0) else { return Ok(()) };
    let prefix: Option<Vec<Handle>> =
        region.handles_from(target.base).take(pages as usize).copied().collect();
    // A page without memory would have all behind it lie at the wrong place.
    let prefix = prefix.ok_or(CudaError(CUresult::CUDA_ERROR_UNKNOWN))?;
    views::map(view, &prefix, device)?;
    region.views.push((view, pages * PAGE));
    Ok(())
}

/// The old view lets go of private pages, some of which are somebody else's now.
pub(super) fn end_view(world: &mut World, target: &Target, view: u64) {
    let Some(region) = world.region_of_mut(target.base) else { return };
    if let Some(at) = region.views.iter().position(|&(address, _)| address == view) {
        let (view, bytes) = region.views.swap_remove(at);
        // A view that stays mapped holds its pages; nobody is pointed there any more.
        leftover::unmap(view, bytes);
    }
}
