//! Copies and fills that we issue ourselves, in relaxed capture mode. Order and events are the caller's.

#![expect(unsafe_code, reason = "typed calls into the driver")]

use super::capture;
use super::real::driver;
use super::result::CudaResult;
use super::stream::Stream;

/// Copies `bytes` from host memory to the device address `dst`, in order on `stream`.
///
/// # Safety
/// `src` stays valid for reads of `bytes` until the copy has ended.
pub(crate) unsafe fn to_device_async(
    dst: u64,
    src: *const u8,
    bytes: usize,
    stream: Stream,
) -> CudaResult<()> {
    // SAFETY: the caller keeps the source alive; the driver checks the device range.
    capture::relaxed(|| unsafe { driver().cuMemcpyHtoDAsync_v2(dst, src.cast(), bytes, stream.raw()) }).ok()
}

/// Copies `bytes` from the device address `src` to host memory, in order on `stream`.
///
/// # Safety
/// `dst` stays valid for writes of `bytes`, and unused, until the copy has ended.
pub(crate) unsafe fn to_host_async(dst: *mut u8, src: u64, bytes: usize, stream: Stream) -> CudaResult<()> {
    // SAFETY: the caller keeps the target alive; the driver checks the device range.
    capture::relaxed(|| unsafe { driver().cuMemcpyDtoHAsync_v2(dst.cast(), src, bytes, stream.raw()) }).ok()
}

/// Fills `bytes` from the device address `dst` on with a byte, in order on `stream`.
pub(crate) fn fill_async(dst: u64, value: u8, bytes: usize, stream: Stream) -> CudaResult<()> {
    // SAFETY: the driver checks the device range; that nobody needs its bytes is the caller's promise to the program, not to memory.
    capture::relaxed(|| unsafe { driver().cuMemsetD8Async(dst, value, bytes, stream.raw()) }).ok()
}
