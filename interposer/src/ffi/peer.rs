//! Which devices reach whose memory, as the program enabled it: the driver's peer access covers its own allocations only, mappings are opened to each device by
//! itself (`vmm`). What follows for memory that is mapped already is said by `runtime::peers`. And copies between two devices, which need no such access.

#![expect(unsafe_code, reason = "typed calls into the driver")]

use std::sync::atomic::{AtomicU64, Ordering};

use super::capture;
use super::context::Context;
use super::real::driver;
use super::result::CudaResult;
use super::stream::Stream;
use super::types::*;

/// Devices that are told apart.
const DEVICES: usize = 64;

/// For each owner: bit n = device n reaches its memory.
static REACHED_BY: [AtomicU64; DEVICES] = [const { AtomicU64::new(0) }; DEVICES];

fn slot(device: i32) -> usize {
    usize::try_from(device).unwrap_or(0).min(DEVICES - 1)
}

/// `reader` reaches memory of `owner` from now on, or no more. Returns whether that is new.
pub(crate) fn set(reader: i32, owner: i32, reaches: bool) -> bool {
    let bit = 1 << slot(reader);
    let before = if reaches {
        REACHED_BY[slot(owner)].fetch_or(bit, Ordering::AcqRel)
    } else {
        REACHED_BY[slot(owner)].fetch_and(!bit, Ordering::AcqRel)
    };
    (before & bit != 0) != reaches
}

/// The current context no longer reaches memory of `peer`'s device.
pub(crate) fn disable(peer: Context) -> CudaResult<()> {
    // SAFETY: the driver checks the handle, and whether access was enabled.
    capture::relaxed(|| unsafe { driver().cuCtxDisablePeerAccess(peer.raw()) }).ok()
}

/// The other devices that reach memory of `owner`, as bits.
pub(crate) fn reached_by(owner: i32) -> u64 {
    REACHED_BY[slot(owner)].load(Ordering::Acquire)
}

/// Ordinals of these bits.
pub(crate) fn devices(bits: u64) -> impl Iterator<Item = i32> {
    (0..DEVICES as i32).filter(move |device| bits >> device & 1 != 0)
}

/// Copies between the memory of two contexts, in order on `stream`; neither device need reach the other's memory.
///
/// # Safety
/// Both contexts are alive.
pub(crate) unsafe fn copy_async(
    (dst, dst_context): (u64, Context),
    (src, src_context): (u64, Context),
    bytes: usize,
    stream: Stream,
) -> CUresult {
    // SAFETY: the caller's promise; the driver checks both ranges.
    capture::relaxed(|| unsafe {
        driver().cuMemcpyPeerAsync(dst, dst_context.raw(), src, src_context.raw(), bytes, stream.raw())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_reaches_whom_is_said_for_each_direction() {
        assert!(set(41, 40, true) && !set(41, 40, true) && set(42, 40, true));
        assert_eq!(devices(reached_by(40)).collect::<Vec<_>>(), [41, 42]);
        assert_eq!(reached_by(41), 0);
        assert!(set(41, 40, false) && !set(41, 40, false));
        assert_eq!(devices(reached_by(40)).collect::<Vec<_>>(), [42]);
    }
}
