//! Measures the link to the current device by copies of several sizes from pinned memory, while nothing else of ours runs. A few milliseconds.

#![expect(unsafe_code, reason = "copies from memory that we pinned")]

use flextensor_core::link::{LinkCurve, LinkPoint};

use super::shadow::{self, Wanted};
use super::touched::Touched;
use crate::ffi::result::CudaResult;
use crate::ffi::stream::Stream;
use crate::ffi::{copy, event, stream, vmm};

/// Sizes of one copy, in bytes; the last fills the buffer.
const SIZES: [u64; 4] = [1 << 20, 4 << 20, 16 << 20, 32 << 20];
/// Bytes that are copied for each size.
const TOTAL: u64 = 128 << 20;

/// Copy size against speed.
pub(crate) fn measure() -> Result<LinkCurve, String> {
    let largest = SIZES[SIZES.len() - 1];
    let host = host_buffer(largest)?;
    let target =
        vmm::plain_alloc(largest as usize).map_err(|error| format!("no buffer on the GPU: {error}"))?;
    let points = measure_into(target, host, largest).map_err(|error| error.to_string());
    let _ = vmm::plain_free(target);
    Ok(LinkCurve::new(points?))
}

/// Kept for the next measurement: pinned memory is slow to get and to give back.
fn host_buffer(bytes: u64) -> Result<usize, String> {
    static BUFFER: std::sync::OnceLock<Result<usize, String>> = std::sync::OnceLock::new();
    let make = || {
        let shadows =
            shadow::make(&[Wanted { prefix: 0, pages: bytes / super::arena::PAGE }], Touched::default())?;
        let first = shadows.first().ok_or("no buffer")?;
        Ok(first.bytes().0.expose_provenance())
    };
    BUFFER.get_or_init(make).clone()
}

fn measure_into(target: u64, host: usize, bytes: u64) -> CudaResult<Vec<LinkPoint>> {
    let on = stream::create_nonblocking()?;
    let (start, end) = (event::create(true)?, event::create(true)?);
    copies(target, host, bytes, bytes, on)?;
    let mut points = Vec::new();
    for size in SIZES {
        event::record(start, on)?;
        copies(target, host, size, TOTAL, on)?;
        event::record(end, on)?;
        event::synchronize(end)?;
        let ms = f64::from(event::elapsed_ms(start, end)?);
        points.push(LinkPoint { copy_bytes: size, gb_per_s: TOTAL as f64 / ms / 1e6 });
    }
    event::destroy(start)?;
    event::destroy(end)?;
    stream::destroy(on)?;
    Ok(points)
}

fn copies(target: u64, host: usize, size: u64, total: u64, on: Stream) -> CudaResult<()> {
    for _ in 0..total / size {
        let source = std::ptr::with_exposed_provenance(host);
        // SAFETY: the buffer is pinned, at least this long, and never given back.
        unsafe { copy::to_device_async(target, source, size as usize, on) }?;
    }
    Ok(())
}
