//! GPU bytes that this process holds, by device, and the most that it may hold (`gpu_limit`). Whoever takes physical memory says so here: our own pages in
//! `ffi::vmm`, the program's allocations in their hooks. How much the limit is said by `runtime::limit`, what follows from a refusal by `runtime::pressure`.
//!
//! - `blocks`: allocations by address, of which the driver says no more when they are freed.
//! - `handles`: physical memory of the program's own, which lives as long as a handle or a mapping of it.
//! - `pools`: stream-ordered memory, as the driver says how much pools hold.

pub(crate) mod blocks;
pub(crate) mod handles;
pub(crate) mod pools;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

use crate::ffi::context::Context;

/// Devices that are told apart.
const DEVICES: usize = 64;

/// Part of a GPU that a context counts as, and the most bytes of it. What contexts really take is the driver's secret: it depends on GPU and driver, and
/// other processes' memory cannot be told from it.
const CONTEXT_PART: u64 = 64;
const CONTEXT_MOST: u64 = 512 << 20;

static HELD: [AtomicU64; DEVICES] = [const { AtomicU64::new(0) }; DEVICES];
static MOST: [AtomicU64; DEVICES] = [const { AtomicU64::new(u64::MAX) }; DEVICES];

fn slot(device: i32) -> usize {
    usize::try_from(device).unwrap_or(0).min(DEVICES - 1)
}

/// Takes bytes of a device's memory. False where the limit does not allow them: nothing is taken then.
pub(crate) fn take(device: i32, bytes: u64) -> bool {
    let most = MOST[slot(device)].load(Ordering::Relaxed);
    let fits = |held: u64| held.checked_add(bytes).filter(|&sum| sum <= most);
    HELD[slot(device)].fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits).is_ok()
}

/// Gives back what was taken.
pub(crate) fn give_back(device: i32, bytes: u64) {
    let less = |held: u64| Some(held.saturating_sub(bytes));
    let _ = HELD[slot(device)].fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
}

/// Bytes that the process holds on a device.
pub(crate) fn held(device: i32) -> u64 {
    HELD[slot(device)].load(Ordering::Relaxed)
}

/// The most that it may hold there, if that is limited.
pub(crate) fn most(device: i32) -> Option<u64> {
    Some(MOST[slot(device)].load(Ordering::Relaxed)).filter(|&most| most != u64::MAX)
}

/// From now on the process may hold no more than this on a device.
pub(crate) fn limit(device: i32, bytes: u64) {
    MOST[slot(device)].store(bytes, Ordering::Relaxed);
}

/// Contexts that are counted, with what they count.
static CONTEXTS: Mutex<BTreeSet<(Context, i32, u64)>> = Mutex::new(BTreeSet::new());

fn contexts() -> MutexGuard<'static, BTreeSet<(Context, i32, u64)>> {
    CONTEXTS.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Bit n: the process has had a context of device n.
static DEVICES_SEEN: AtomicU64 = AtomicU64::new(0);

/// Whether the process works on one device only.
pub(crate) fn has_one_device() -> bool {
    DEVICES_SEEN.load(Ordering::Relaxed).count_ones() < 2
}

/// Whether the context is counted already.
pub(crate) fn knows(context: Context) -> bool {
    contexts().iter().any(|&(known, ..)| known == context)
}

/// A context of the device, if one is counted.
pub(crate) fn context_of(device: i32) -> Option<Context> {
    contexts().iter().find(|&&(_, known, _)| known == device).map(|&(context, ..)| context)
}

/// The program works in this context of a device with `total` bytes: it counts from now on, whatever the limit says.
pub(crate) fn count_context(context: Context, device: i32, total: u64) {
    let bytes = (total / CONTEXT_PART).min(CONTEXT_MOST);
    let mut contexts = contexts();
    if contexts.iter().all(|&(known, ..)| known != context) {
        contexts.insert((context, device, bytes));
        DEVICES_SEEN.fetch_or(1 << slot(device), Ordering::Relaxed);
        HELD[slot(device)].fetch_add(bytes, Ordering::Relaxed);
    }
}

/// The context is gone, and what was allocated in it.
pub(crate) fn forget_context(context: Context) {
    contexts().retain(|&(known, device, bytes)| {
        if known == context {
            give_back(device, bytes);
        }
        known != context
    });
    blocks::forget_context(context);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_the_limit_does_not_allow_is_not_taken() {
        let device = 40;
        limit(device, 100);
        assert!(take(device, 60) && !take(device, 41) && take(device, 40));
        give_back(device, 60);
        assert_eq!((held(device), most(device)), (40, Some(100)));
        assert!(!take(device, u64::MAX), "a sum that does not fit is no sum");
    }

    #[test]
    fn without_a_limit_everything_is_counted_and_nothing_refused() {
        assert!(take(41, 1 << 60));
        assert_eq!((held(41), most(41)), (1 << 60, None));
    }

    #[test]
    fn a_context_counts_once_and_no_longer_than_it_lives() {
        let context = Context::from(std::ptr::without_provenance_mut(0x4040));
        count_context(context, 42, 64 << 30);
        count_context(context, 42, 64 << 30);
        assert_eq!(held(42), 512 << 20);
        assert!(knows(context));
        forget_context(context);
        assert_eq!((held(42), knows(context)), (0, false));
    }
}
