//! Virtual memory management: physical handles, address ranges, mappings, access. Every call is relaxed towards captures.
//! None of them waits for the GPU, `unmap` neither: draining the users of a range first is the caller's job.

#![expect(unsafe_code, reason = "typed calls into the driver")]

use super::capture;
use super::real::driver;
use super::result::CudaResult;
use super::types::*;

/// One physical allocation; it lives until it is released *and* unmapped everywhere.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Handle(CUmemGenericAllocationHandle);

fn location(device: i32) -> CUmemLocation {
    CUmemLocation { type_: CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE, id: device }
}

fn properties(device: i32) -> CUmemAllocationProp {
    // SAFETY: a plain C struct whose all-zero value is valid: no sharing, no compression, no Win32 data.
    let mut prop: CUmemAllocationProp = unsafe { std::mem::zeroed() };
    prop.type_ = CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location = location(device);
    prop
}

/// Takes `bytes` (a multiple of the granularity) of GPU memory of `device`.
pub(crate) fn create(device: i32, bytes: usize) -> CudaResult<Handle> {
    let mut handle = 0;
    let prop = properties(device);
    // SAFETY: both pointers are to locals that live through the call.
    capture::relaxed(|| unsafe { driver().cuMemCreate(&mut handle, bytes, &prop, 0) }).ok()?;
    Ok(Handle(handle))
}

/// Gives up our hold on the memory; mappings of it keep it alive.
pub(crate) fn release(handle: Handle) -> CudaResult<()> {
    // SAFETY: the handle came from `create`; a double release is an error code, no fault.
    capture::relaxed(|| unsafe { driver().cuMemRelease(handle.0) }).ok()
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
    capture::relaxed(|| unsafe { driver().cuMemMap(address, bytes, 0, handle.0, 0) }).ok()
}

/// Unmaps whole mappings in the range. Does not wait for their users.
pub(crate) fn unmap(address: u64, bytes: usize) -> CudaResult<()> {
    // SAFETY: the driver checks that the range holds whole mappings; that nobody uses them is the caller's promise.
    capture::relaxed(|| unsafe { driver().cuMemUnmap(address, bytes) }).ok()
}

/// Lets `device` read and write the mapped range. Costs about 28 us for each handle in it.
pub(crate) fn allow(address: u64, bytes: usize, device: i32) -> CudaResult<()> {
    let flags = CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    let desc = CUmemAccessDesc { location: location(device), flags };
    // SAFETY: the descriptor is a local that lives through the call; the driver checks the range.
    capture::relaxed(|| unsafe { driver().cuMemSetAccess(address, bytes, &desc, 1) }).ok()
}

/// The driver's own allocation, for memory that no page of ours has to move under.
pub(crate) fn plain_alloc(bytes: usize) -> CudaResult<u64> {
    let mut address = 0;
    // SAFETY: the pointer is to a local that lives through the call.
    capture::relaxed(|| unsafe { driver().cuMemAlloc_v2(&mut address, bytes) }).ok()?;
    Ok(address)
}

/// Gives back what `plain_alloc` returned.
pub(crate) fn plain_free(address: u64) -> CudaResult<()> {
    // SAFETY: the driver checks the address; that nobody uses the memory is the caller's promise.
    capture::relaxed(|| unsafe { driver().cuMemFree_v2(address) }).ok()
}
