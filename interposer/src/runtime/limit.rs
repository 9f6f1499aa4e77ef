//! The limit of the whole process (`gpu_limit`): how much it is on each device, and what the program is told of free memory. What counts is `account`'s matter,
//! what gives way when the limit is reached, `pressure`'s.

use std::sync::atomic::{AtomicU64, Ordering};

use super::devices::bit_of;
use super::{config, pools};
use crate::account;
use crate::ffi::context::Context;
use crate::ffi::device;
use crate::ffi::result::CudaResult;

/// Bit n: the limit of device n is known to `account`.
static KNOWN: AtomicU64 = AtomicU64::new(0);

/// The program is about to take memory of a device.
pub(crate) fn know(device: i32) {
    let bit = bit_of(device);
    if KNOWN.load(Ordering::Relaxed) & bit != 0 {
        return;
    }
    let Ok(total) = device::total_memory(device) else { return };
    if let Some(most) = config().gpu_limit_for(device.unsigned_abs(), total as u64) {
        account::limit(device, most);
    }
    KNOWN.fetch_or(bit, Ordering::Relaxed);
}

/// The program is about to allocate in this context of a device: it counts from now on.
pub(crate) fn look(device: i32, context: Context) {
    know(device);
    if context.is_none() || account::knows(context) {
        return;
    }
    if let Ok(total) = device::total_memory(device) {
        account::count_context(context, device, total as u64);
    }
}

/// What the program is told of a device's memory, as (free, total), where the driver says these.
pub(crate) fn told(device: i32, free: u64, total: u64) -> (u64, u64) {
    match account::most(device) {
        Some(most) => (free.min(most.saturating_sub(account::held(device))), total.min(most)),
        None => (free, total),
    }
}

/// Bytes that the process may still take on a device, and that it could have at all. The device's context is current.
pub(super) fn free_and_total(device: i32) -> CudaResult<(u64, u64)> {
    let (free, total) = device::free_and_total_memory()?;
    pools::look_at_all();
    Ok(told(device, free as u64, total as u64))
}
