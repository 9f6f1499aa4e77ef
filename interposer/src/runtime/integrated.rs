//! GPUs that work in the host's memory. What is streamed would lie in the same memory twice, so their allocations are the driver's: nothing is managed, and the program
//! runs as without us, but for `gpu_limit`, which counts there as anywhere.

use std::sync::atomic::{AtomicU64, Ordering};

use flextensor_core::units::Bytes;

use super::config;
use super::devices::bit_of;
use crate::ffi::device;
use crate::log;

/// Bit n: the driver was asked of device n.
static ASKED: AtomicU64 = AtomicU64::new(0);

/// Bit n: device n is integrated. Set before its bit in [`ASKED`].
static INTEGRATED: AtomicU64 = AtomicU64::new(0);

/// Bit n: of device n it was said.
static SAID: AtomicU64 = AtomicU64::new(0);

/// Whether the device has no memory of its own. Where the driver does not tell, it has.
pub(super) fn is(device: i32) -> bool {
    let bit = bit_of(device);
    if ASKED.load(Ordering::Acquire) & bit == 0 {
        let Ok(integrated) = device::is_integrated(device) else { return false };
        if integrated {
            INTEGRATED.fetch_or(bit, Ordering::Relaxed);
        }
        ASKED.fetch_or(bit, Ordering::Release);
    }
    INTEGRATED.load(Ordering::Relaxed) & bit != 0
}

/// Says once of an integrated device what becomes of the program's memory there.
pub(super) fn say(device: i32) {
    let bit = bit_of(device);
    if SAID.load(Ordering::Relaxed) & bit != 0 || SAID.fetch_or(bit, Ordering::Relaxed) & bit != 0 {
        return;
    }
    let total = device::total_memory(device).map_or(0, |bytes| bytes as u64);
    match config().max_gpu_mem_for(device.unsigned_abs(), total) {
        Some(budget) => log::warning!(
            "GPU {device} is integrated and has no memory but the host's: nothing is streamed there, so the budget of {} is not held",
            Bytes(budget)
        ),
        None => log::info!(
            "GPU {device} is integrated and has no memory but the host's: nothing is streamed there"
        ),
    }
}
