//! Virtual memory management: physical handles, address ranges, mappings, access. Every call is relaxed towards captures.
//! None of them waits for the GPU, `unmap` neither: draining the users of a range first is the caller's job.

#![expect(unsafe_code, reason = "typed calls into the driver")]

use super::real::driver;
use super::result::{CudaError, CudaResult};
use super::types::*;
use super::{capture, context, peer};
use crate::account::{self, blocks};
use crate::log;

/// One physical allocation; it lives until it is released *and* unmapped everywhere.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Handle {
    raw: CUmemGenericAllocationHandle,
    /// Where the memory is; none = pinned host memory instead of a GPU's.
    device: Option<i32>,
    bytes: u32,
}

/// The identity of physical memory, whoever holds it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Memory(CUmemGenericAllocationHandle);

impl Handle {
    /// Host memory that no driver knows.
    #[cfg(test)]
    pub(crate) fn in_host_of_nobody(raw: u64) -> Self {
        Self { raw, device: None, bytes: 2 << 20 }
    }

    /// Which memory it is.
    pub(crate) fn memory(self) -> Memory {
        Memory(self.raw)
    }

    /// Whether it is host memory, which kernels read over the link.
    pub(crate) fn is_in_host(self) -> bool {
        self.device.is_none()
    }
}

fn location(device: i32) -> CUmemLocation {
    CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: device }
}

/// Host memory of the first NUMA node, which the driver takes on every machine that was measured; "the current node" it refuses.
fn host_location() -> CUmemLocation {
    CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST_NUMA, id: 0 }
}

/// Takes `bytes` (a multiple of the granularity, below 4 GiB) of GPU memory of `device`, as far as the process may have so much.
pub(crate) fn create(device: i32, bytes: u32) -> CudaResult<Handle> {
    if !account::take(device, bytes.into()) {
        return Err(CudaError(CUresult::CUDA_ERROR_OUT_OF_MEMORY));
    }
    let made = create_at(location(device), bytes as usize);
    made.map(|raw| Handle { raw, device: Some(device), bytes })
        .inspect_err(|_| account::give_back(device, bytes.into()))
}

/// Takes `bytes` (a multiple of the granularity) of pinned host memory that can be mapped like a GPU's. About 5 GB/s, however many threads ask.
pub(crate) fn create_in_host(bytes: u32) -> CudaResult<Handle> {
    create_at(host_location(), bytes as usize).map(|raw| Handle { raw, device: None, bytes })
}

fn create_at(location: CUmemLocation, bytes: usize) -> CudaResult<CUmemGenericAllocationHandle> {
    let mut handle = 0;
    // SAFETY: a plain C struct whose all-zero value is valid: no sharing, no compression, no Win32 data.
    let mut prop: CUmemAllocationProp = unsafe { std::mem::zeroed() };
    prop.type_ = CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location = location;
    // SAFETY: both pointers are to locals that live through the call.
    capture::relaxed(|| unsafe { driver().cuMemCreate(&mut handle, bytes, &prop, 0) }).ok()?;
    Ok(handle)
}

/// Gives up our hold on the memory; mappings of it keep it alive, but it does not count as ours any more.
pub(crate) fn release(handle: Handle) -> CudaResult<()> {
    // SAFETY: the handle came from `create`; a double release is an error code, no fault.
    capture::relaxed(|| unsafe { driver().cuMemRelease(handle.raw) }).ok()?;
    if let Some(device) = handle.device {
        account::give_back(device, handle.bytes.into());
    }
    Ok(())
}

/// Reserves `bytes` of addresses, aligned to `align` (0 = the driver's choice), at `hint` if that is free (0 = anywhere).
pub(crate) fn reserve(bytes: usize, align: usize, hint: u64) -> CudaResult<u64> {
    let mut address = 0;
    // SAFETY: the pointer is to a local that lives through the call.
    capture::relaxed(|| unsafe { driver().cuMemAddressReserve(&mut address, bytes, align, hint, 0) }).ok()?;
    Ok(address)
}

/// Gives back a whole reservation; nothing may be mapped in it.
pub(crate) fn unreserve(address: u64, bytes: usize) -> CudaResult<()> {
    // SAFETY: the driver checks that the range is a whole reservation.
    capture::relaxed(|| unsafe { driver().cuMemAddressFree(address, bytes) }).ok()
}

/// Maps the whole of `handle`, of `bytes`, at `address` in a reservation. Nobody can use it before `allow`.
pub(crate) fn map(address: u64, bytes: usize, handle: Handle) -> CudaResult<()> {
    // SAFETY: the driver checks that the range is reserved and free, and the handle alive.
    capture::relaxed(|| unsafe { driver().cuMemMap(address, bytes, 0, handle.raw, 0) }).ok()
}

/// Unmaps whole mappings in the range. Does not wait for their users.
pub(crate) fn unmap(address: u64, bytes: usize) -> CudaResult<()> {
    // SAFETY: the driver checks that the range holds whole mappings; that nobody uses them is the caller's promise.
    capture::relaxed(|| unsafe { driver().cuMemUnmap(address, bytes) }).ok()
}

/// What is mapped at this address; an error where nothing is, or memory of the driver's own.
pub(crate) fn memory_at(address: u64) -> CudaResult<Memory> {
    let mut raw = 0;
    let at = std::ptr::with_exposed_provenance_mut(address as usize);
    // SAFETY: the pointer is to a local that lives through the call; the driver only looks at the address.
    capture::relaxed(|| unsafe { driver().cuMemRetainAllocationHandle(&mut raw, at) }).ok()?;
    // SAFETY: gives back the hold that was just taken; whose memory it is keeps its own.
    capture::relaxed(|| unsafe { driver().cuMemRelease(raw) }).ok()?;
    Ok(Memory(raw))
}

/// Lets `device`, and those that reach its memory, read the mapped range, and makes writes faults: a kernel that writes there loses the context. Costs as much as `allow`.
pub(crate) fn allow_reads(address: u64, bytes: usize, device: i32) -> CudaResult<()> {
    allow_on_devices(address, bytes, device, CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READ)
}

/// Lets `device`, and those that reach its memory, read and write the mapped range. Costs about 28 us for each handle in it.
pub(crate) fn allow(address: u64, bytes: usize, device: i32) -> CudaResult<()> {
    allow_on_devices(address, bytes, device, CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
}

/// As [`allow`], or [`allow_reads`] where it is not `writable`, for memory that is mapped and used already: where others are refused, nothing changes.
pub(crate) fn open(address: u64, bytes: usize, device: i32, writable: bool) -> CudaResult<()> {
    let flags = match writable {
        true => CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE,
        false => CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READ,
    };
    allow_at(address, bytes, &with_peers(device), flags)
}

/// The device, and those that reach its memory.
fn with_peers(device: i32) -> Vec<CUmemLocation> {
    std::iter::once(device).chain(peer::devices(peer::reached_by(device))).map(location).collect()
}

/// Where others are refused, the device itself still gets what it needs: what they can do without is the program's matter.
fn allow_on_devices(address: u64, bytes: usize, device: i32, flags: CUmemAccess_flags) -> CudaResult<()> {
    let all = with_peers(device);
    match allow_at(address, bytes, &all, flags) {
        Err(error) if all.len() > 1 => {
            allow_at(address, bytes, &all[..1], flags)?;
            log::warning!(
                "memory of GPU {device} at {address:#x} could not be opened to the GPUs that reach it ({error}): what they read there fails"
            );
            Ok(())
        }
        done => done,
    }
}

/// Lets `device` and the processor read and write the mapped range, which must be host memory.
pub(crate) fn allow_with_host(address: u64, bytes: usize, device: i32) -> CudaResult<()> {
    let both = [location(device), host_location()];
    allow_at(address, bytes, &both, CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE)
}

fn allow_at(address: u64, bytes: usize, who: &[CUmemLocation], flags: CUmemAccess_flags) -> CudaResult<()> {
    let list: Vec<CUmemAccessDesc> =
        who.iter().map(|&location| CUmemAccessDesc { location, flags }).collect();
    // SAFETY: the list lives through the call; the driver checks the range.
    capture::relaxed(|| unsafe { driver().cuMemSetAccess(address, bytes, list.as_ptr(), list.len()) }).ok()
}

/// The driver's own allocation on the current device, for memory that no page of ours has to move under.
pub(crate) fn plain_alloc(bytes: usize) -> CudaResult<u64> {
    let (device, context) = (context::device()?, context::current()?);
    let counted = blocks::counted(bytes as u64);
    if !account::take(device, counted) {
        return Err(CudaError(CUresult::CUDA_ERROR_OUT_OF_MEMORY));
    }
    let mut address = 0;
    // SAFETY: the pointer is to a local that lives through the call.
    let made = capture::relaxed(|| unsafe { driver().cuMemAlloc_v2(&mut address, bytes) }).ok();
    match made {
        Ok(()) => blocks::keep(address, device, context, counted),
        Err(_) => account::give_back(device, counted),
    }
    made.map(|()| address)
}

/// Gives back what `plain_alloc` returned.
pub(crate) fn plain_free(address: u64) -> CudaResult<()> {
    let free = || {
        // SAFETY: the driver checks the address; that nobody uses the memory is the caller's promise.
        let freed = capture::relaxed(|| unsafe { driver().cuMemFree_v2(address) }).ok();
        (freed, freed.is_ok())
    };
    blocks::free(address, free).unwrap_or(Err(CudaError(CUresult::CUDA_ERROR_INVALID_VALUE)))
}
