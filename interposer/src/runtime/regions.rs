//! Managed regions: the program's large allocations, made of pages of 2 MiB at addresses of the arena.
//! What lies in them, and whether some of their pages belong to the ring, is `world`'s and `switch`'s matter.

use std::collections::BTreeMap;

use crate::ffi::context::Context;
use crate::ffi::peer;
use crate::ffi::result::{CudaError, CudaResult};
use crate::ffi::types::CUresult;
use crate::ffi::vmm::{self, Handle};

use super::arena::{Arena, PAGE};
use super::{leftover, overflow, readout};
use flextensor_core::plan::StayReason;

/// One allocation of the program.
pub(crate) struct Region {
    /// First address.
    pub(crate) base: u64,
    /// Bytes the program asked for.
    pub(crate) bytes: u64,
    /// The GPU.
    pub(crate) device: i32,
    /// The context that was current.
    pub(crate) context: Context,
    /// What backs each page; none where the page's memory belongs to the ring.
    pub(crate) handles: Vec<Option<Handle>>,
    /// Second mappings of its pages, as (address, bytes): the beginnings of views.
    pub(crate) views: Vec<(u64, u64)>,
    /// Addresses of pages on which something must stay, whatever unit comes to lie there, with the reason.
    pub(crate) kept: BTreeMap<u64, StayReason>,
    /// Other devices that it was opened to when it was made, as bits.
    pub(crate) open_to: u64,
    /// A launch in a forward showed it while it lay in host memory, and nobody had named it.
    pub(crate) shown: bool,
}

impl Region {
    /// Makes a region of GPU memory, or leaves nothing behind.
    pub(crate) fn make(arena: &Arena, bytes: u64, device: i32, context: Context) -> CudaResult<Region> {
        Self::back(arena, bytes, device, context, || vmm::create(device, PAGE as u32))
    }

    /// Makes a region of these pages, one for each 2 MiB that are begun. Takes them over, also when it fails.
    pub(crate) fn of_pages(
        arena: &Arena,
        bytes: u64,
        device: i32,
        context: Context,
        pages: Vec<Handle>,
    ) -> CudaResult<Region> {
        let mut pages = pages.into_iter();
        let next = || pages.next().ok_or(CudaError(CUresult::CUDA_ERROR_INVALID_VALUE));
        let made = Self::back(arena, bytes, device, context, next);
        overflow::release(pages);
        made
    }

    fn back(
        arena: &Arena,
        bytes: u64,
        device: i32,
        context: Context,
        next: impl FnMut() -> CudaResult<Handle>,
    ) -> CudaResult<Region> {
        let count = bytes.div_ceil(PAGE);
        let Some(base) = arena.take(count) else {
            return Err(CudaError(CUresult::CUDA_ERROR_OUT_OF_MEMORY));
        };
        let handles = Vec::with_capacity(count as usize);
        let mut region = Region {
            base,
            bytes,
            device,
            context,
            handles,
            views: Vec::new(),
            kept: BTreeMap::new(),
            open_to: peer::reached_by(device),
            shown: false,
        };
        match region.map_all(count, next) {
            Ok(()) => Ok(region),
            Err(error) => {
                region.unback(arena);
                Err(error)
            }
        }
    }

    fn map_all(&mut self, count: u64, mut next: impl FnMut() -> CudaResult<Handle>) -> CudaResult<()> {
        for page in 0..count {
            let handle = next()?;
            if let Err(error) = vmm::map(self.base + page * PAGE, PAGE as usize, handle) {
                let _ = vmm::release(handle);
                return Err(error);
            }
            self.handles.push(Some(handle));
        }
        vmm::allow(self.base, (count * PAGE) as usize, self.device)
    }

    /// Pages of the region.
    pub(crate) fn pages(&self) -> u64 {
        self.handles.len() as u64
    }

    /// What backs the pages from `address` on, to the region's end. The address is one of the region's.
    pub(crate) fn handles_from(&self, address: u64) -> impl Iterator<Item = &Option<Handle>> {
        self.handles.iter().skip(((address - self.base) / PAGE) as usize)
    }

    /// The same, to be changed.
    pub(crate) fn handles_from_mut(&mut self, address: u64) -> impl Iterator<Item = &mut Option<Handle>> {
        self.handles.iter_mut().skip(((address - self.base) / PAGE) as usize)
    }

    /// Bytes of GPU memory that only this region holds.
    pub(crate) fn private_bytes(&self) -> u64 {
        self.handles.iter().flatten().filter(|handle| !handle.is_in_host()).count() as u64 * PAGE
    }

    /// Bytes of host memory that stand in for GPU memory.
    pub(crate) fn host_bytes(&self) -> u64 {
        self.handles.iter().flatten().filter(|handle| handle.is_in_host()).count() as u64 * PAGE
    }

    /// Unmaps everything, lets go of its memory and its addresses. Its users must have been waited for.
    pub(crate) fn unback(self, arena: &Arena) {
        readout::leave(self.base, self.pages());
        self.let_go(arena);
        leftover::try_again(Some(arena));
    }

    /// The same where nobody looks at it any more. What the driver refuses is left for later.
    pub(super) fn let_go(mut self, arena: &Arena) {
        let mapped = self.pages() * PAGE;
        if mapped > 0 && vmm::unmap(self.base, mapped as usize).is_err() {
            // Addresses that stay mapped cannot be handed out again.
            crate::log::info!(
                "could not unmap {} MiB at {:#x}; they stay taken until that is done",
                mapped >> 20,
                self.base
            );
            return leftover::keep_region(self);
        }
        for (view, bytes) in std::mem::take(&mut self.views) {
            // A view that stays mapped holds its pages; nothing else can go wrong by it.
            leftover::unmap(view, bytes);
        }
        for handle in self.handles.into_iter().flatten() {
            let _ = vmm::release(handle);
        }
        arena.give_back(self.base, self.bytes.div_ceil(PAGE));
    }
}
