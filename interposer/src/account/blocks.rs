//! Allocations by address that are no regions: small ones, pitched ones, and our own buffers. The driver says no size when one is freed.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

use super::give_back;
use crate::ffi::context::Context;

/// The driver hands small allocations out in pieces of this many bytes.
const PIECE: u64 = 512;

struct Block {
    device: i32,
    context: Context,
    bytes: u64,
}

static BLOCKS: Mutex<BTreeMap<u64, Block>> = Mutex::new(BTreeMap::new());

fn blocks() -> MutexGuard<'static, BTreeMap<u64, Block>> {
    BLOCKS.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// What an allocation of `bytes` counts as.
pub(crate) fn counted(bytes: u64) -> u64 {
    bytes.checked_next_multiple_of(PIECE).unwrap_or(u64::MAX)
}

/// Bytes that were taken lie here from now on.
pub(crate) fn keep(address: u64, device: i32, context: Context, bytes: u64) {
    let before = blocks().insert(address, Block { device, context, bytes });
    // Whoever freed that one was not seen.
    if let Some(before) = before {
        give_back(before.device, before.bytes);
    }
}

/// Whether the address lies in an allocation that is known.
pub(crate) fn holds(address: u64) -> bool {
    blocks().range(..=address).next_back().is_some_and(|(start, block)| address - start < block.bytes)
}

/// Frees the allocation at this address by `free`, which says whether the driver did. None for one that is not known, and `free` is not called. It is forgotten
/// before it is freed: the driver may hand its address out again at once.
pub(crate) fn free<T>(address: u64, free: impl FnOnce() -> (T, bool)) -> Option<T> {
    let block = blocks().remove(&address)?;
    let (answer, done) = free();
    if done {
        give_back(block.device, block.bytes);
    } else {
        blocks().entry(address).or_insert(block);
    }
    Some(answer)
}

/// The context is gone, and its allocations with it.
pub(super) fn forget_context(context: Context) {
    blocks().retain(|_, block| {
        if block.context == context {
            give_back(block.device, block.bytes);
        }
        block.context != context
    });
}

#[cfg(test)]
mod tests {
    use super::super::{held, take};
    use super::*;

    #[test]
    fn what_lies_at_an_address_is_given_back_once() {
        let context = Context::from(std::ptr::without_provenance_mut(0x50));
        assert!(take(50, 1024));
        keep(0x5000, 50, context, 1024);
        assert_eq!(free(0x5000, || ("refused", false)), Some("refused"));
        assert_eq!(held(50), 1024);
        assert_eq!(free(0x5000, || ("done", true)), Some("done"));
        assert_eq!(free(0x5000, || ("not asked", true)), None);
        assert_eq!(held(50), 0);
    }

    #[test]
    fn a_context_takes_its_allocations_along_and_no_others() {
        let [one, other] = [0x51, 0x52].map(|at| Context::from(std::ptr::without_provenance_mut(at)));
        assert!(take(51, 3));
        keep(0x5100, 51, one, 1);
        keep(0x5200, 51, other, 2);
        forget_context(one);
        assert_eq!(held(51), 2);
        assert_eq!(free(0x5200, || ((), true)), Some(()));
    }

    #[test]
    fn small_allocations_count_as_whole_pieces() {
        assert_eq!([1, 512, 513].map(counted), [512, 512, 1024]);
    }
}
