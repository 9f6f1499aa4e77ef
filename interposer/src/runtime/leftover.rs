//! What the driver refused to take back: mappings, addresses on which something is still mapped, whole regions, pinned memory. All of it is tried again whenever more is let go, so that
//! one refused call keeps no memory for good. Until then nobody gets these addresses.

#![expect(unsafe_code, reason = "gives memory of ours back to the system")]

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard};

use super::arena::Arena;
use super::pinning;
use super::regions::Region;
use crate::ffi::{host, vmm};

/// In the order in which they have to go: addresses are free when nothing is mapped there.
#[derive(Default)]
struct Left {
    regions: Vec<Region>,
    pinned: Vec<Pinned>,
    mapped: Vec<(u64, u64)>,
    reserved: Vec<(u64, u64)>,
}

static LEFT: Mutex<Left> =
    Mutex::new(Left { regions: Vec::new(), pinned: Vec::new(), mapped: Vec::new(), reserved: Vec::new() });
static ANY: AtomicBool = AtomicBool::new(false);

fn left() -> MutexGuard<'static, Left> {
    LEFT.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

fn keep(what: impl FnOnce(&mut Left)) {
    what(&mut left());
    ANY.store(true, Ordering::Release);
}

/// Unmaps a range that is mapped, now or later. Nobody uses it any more.
pub(super) fn unmap(address: u64, bytes: u64) {
    if vmm::unmap(address, bytes as usize).is_err() {
        keep(|left| left.mapped.push((address, bytes)));
    }
}

/// Gives a whole reservation back, now or when nothing is mapped there any more.
pub(super) fn unreserve(address: u64, bytes: u64) {
    if vmm::unreserve(address, bytes as usize).is_err() {
        keep(|left| left.reserved.push((address, bytes)));
    }
}

/// A region that could not be unmapped: its memory and addresses stay taken until it can be.
pub(super) fn keep_region(region: Region) {
    keep(|left| left.regions.push(region));
}

/// Host memory of ours, with what is registered of it.
pub(super) struct Pinned {
    /// Address and bytes.
    pub(super) memory: (usize, u64),
    /// The registrations in it.
    pub(super) pieces: Vec<(usize, u64)>,
}

/// Unpins memory and gives it back to the system, now or later: while the driver takes it for pinned, nobody else may get its addresses.
pub(super) fn unpin(mut pinned: Pinned) {
    pinned.pieces.retain(|&(start, bytes)| {
        let gone = host::unregister(std::ptr::with_exposed_provenance_mut(start)).is_ok();
        if gone {
            pinning::count_gone(bytes);
        }
        !gone
    });
    if !pinned.pieces.is_empty() {
        return keep(|left| left.pinned.push(pinned));
    }
    let (start, bytes) = pinned.memory;
    // SAFETY: the memory is ours, and nobody uses it any more.
    let _ = unsafe { libc::munmap(std::ptr::with_exposed_provenance_mut(start), bytes as usize) };
}

/// Tries everything again. The calling thread holds no lock but the world's, and a context is current.
pub(super) fn try_again(arena: Option<&Arena>) {
    if !ANY.swap(false, Ordering::AcqRel) {
        return;
    }
    let Left { regions, pinned, mapped, reserved } = std::mem::take(&mut *left());
    for region in regions {
        match arena {
            Some(arena) => region.let_go(arena),
            None => keep_region(region),
        }
    }
    pinned.into_iter().for_each(unpin);
    mapped.into_iter().for_each(|(address, bytes)| unmap(address, bytes));
    reserved.into_iter().for_each(|(address, bytes)| unreserve(address, bytes));
}
