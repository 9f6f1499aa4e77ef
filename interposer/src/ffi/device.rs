//! What the driver says about its devices. What follows from it is the caller's.

#![expect(unsafe_code, reason = "typed calls into the driver")]

use super::real::driver;
use super::result::CudaResult;

/// Bytes of memory that the device has.
pub(crate) fn total_memory(device: i32) -> CudaResult<usize> {
    let mut bytes = 0;
    // SAFETY: the pointer is to a local that lives through the call.
    unsafe { driver().cuDeviceTotalMem_v2(&mut bytes, device) }.ok()?;
    Ok(bytes)
}
