//! Pools of stream-ordered memory: what they hold, as the driver last said.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

use super::{HELD, give_back, slot};
use crate::ffi::pool::Pool;
use std::sync::atomic::Ordering;

struct Known {
    device: i32,
    bytes: u64,
}

static POOLS: Mutex<BTreeMap<Pool, Known>> = Mutex::new(BTreeMap::new());

fn pools() -> MutexGuard<'static, BTreeMap<Pool, Known>> {
    POOLS.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// The pool of a device holds so many bytes now, whatever the limit says.
pub(crate) fn holds(pool: Pool, device: i32, bytes: u64) {
    let mut pools = pools();
    let known = pools.entry(pool).or_insert(Known { device, bytes: 0 });
    let before = std::mem::replace(&mut known.bytes, bytes);
    HELD[slot(known.device)].fetch_add(bytes.saturating_sub(before), Ordering::Relaxed);
    give_back(known.device, before.saturating_sub(bytes));
}

/// The device of a pool that is known.
pub(crate) fn device_of(pool: Pool) -> Option<i32> {
    pools().get(&pool).map(|known| known.device)
}

/// Every pool that is known.
pub(crate) fn all() -> Vec<Pool> {
    pools().keys().copied().collect()
}

/// The pool is gone, and what it held.
pub(crate) fn gone(pool: Pool) {
    if let Some(known) = pools().remove(&pool) {
        give_back(known.device, known.bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::super::held;
    use super::*;

    #[test]
    fn a_pool_counts_as_what_it_holds_now() {
        let pool =
            Pool::from(std::ptr::without_provenance_mut::<cudarc::driver::sys::CUmemPoolHandle_st>(0x70));
        for bytes in [100, 300, 200] {
            holds(pool, 45, bytes);
            assert_eq!(held(45), bytes);
        }
        assert_eq!((device_of(pool), all().contains(&pool)), (Some(45), true));
        gone(pool);
        assert_eq!((held(45), device_of(pool)), (0, None));
    }
}
