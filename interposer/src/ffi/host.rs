//! Pinning of host memory that we own. Where the memory comes from, and in what chunks, is the caller's.

#![expect(unsafe_code, reason = "typed calls into the driver")]

use super::capture;
use super::real::driver;
use super::result::CudaResult;
use super::types::*;

/// `CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP`: usable from every context, and by kernels.
const PORTABLE_MAPPED: c_uint = 1 | 2;

/// Pins `bytes` at `start`. A copy must not cross two registrations. The time goes with the number of pages.
///
/// # Safety
/// The range is mapped, writable memory that stays mapped until `unregister`.
pub(crate) unsafe fn register(start: *mut u8, bytes: usize) -> CudaResult<()> {
    // SAFETY: the caller keeps the range mapped while it is registered.
    capture::relaxed(|| unsafe { driver().cuMemHostRegister_v2(start.cast(), bytes, PORTABLE_MAPPED) }).ok()
}

/// Undoes `register` of a range that began at `start`. No copy may be using it.
pub(crate) fn unregister(start: *mut u8) -> CudaResult<()> {
    // SAFETY: the driver checks that a registration begins here.
    capture::relaxed(|| unsafe { driver().cuMemHostUnregister(start.cast()) }).ok()
}
