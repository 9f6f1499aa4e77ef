//! Addresses in front of shadows, where the views of split units begin: a view is the unit's private prefix, mapped a second time, directly followed by its shadow. The
//! driver must be ready to reserve addresses that end where host memory begins. Mapping prefixes is `exchange`'s matter, host memory is `shadow`'s.

#![expect(unsafe_code, reason = "maps and unmaps address ranges of ours")]

use std::sync::{Mutex, OnceLock};

use super::arena::PAGE;
use super::leftover::{self, Pinned};
use super::{pinning, shadow};
use crate::ffi::host;
use crate::ffi::result::CudaResult;
use crate::ffi::vmm::{self, Handle};
use crate::log;

/// Prefixes begin at multiples of this, and are filled up to multiples of it. The driver reserves smaller ranges inside larger ones of its own, wherever these lie: in a
/// bare process 64 MiB are already reserved where they are asked for, in one with torch they never are, and 1 GiB always is (measured on driver 580).
const STRIDE: u64 = 1 << 30;

/// Places that are tried for one prefix.
const TRIES: usize = 3;

/// Reserved addresses whose end host memory can follow.
pub(super) struct Opened {
    start: u64,
    /// Where they end and the shadow begins.
    pub(super) end: usize,
}

impl Opened {
    pub(super) fn give_back(self) {
        leftover::unreserve(self.start, self.end as u64 - self.start);
    }
}

/// Maps a unit's private prefix at the beginning of its view, wholly or not at all.
pub(super) fn map(view: u64, prefix: &[Handle], device: i32) -> CudaResult<()> {
    let mut mapped = 0;
    let mut all = || -> CudaResult<()> {
        for &handle in prefix {
            vmm::map(view + mapped, PAGE as usize, handle)?;
            mapped += PAGE;
        }
        vmm::allow(view, mapped as usize, device)
    };
    let done = all();
    if done.is_err() && mapped > 0 {
        leftover::unmap(view, mapped);
    }
    done
}

/// Bytes of addresses that are reserved in front of a shadow for a prefix of so many.
pub(super) fn reserved_for(prefix: u64) -> u64 {
    prefix.next_multiple_of(STRIDE)
}

/// Addresses for `prefix` bytes in front of a shadow of `bytes`. None for no prefix, and where the driver does not give them.
pub(super) fn open(prefix: u64, bytes: u64) -> Option<Opened> {
    if prefix == 0 {
        return None;
    }
    let filled = reserved_for(prefix);
    let in_zone = || (0..TRIES).find_map(|_| open_at(slot(filled + bytes)?, filled));
    in_zone().or_else(|| where_the_driver_likes(filled, bytes))
}

/// Asks the driver where it has room for both, and takes that place apart: the first part is reserved again, the second one kept for host memory.
fn where_the_driver_likes(filled: u64, bytes: u64) -> Option<Opened> {
    let both = (filled + bytes).next_multiple_of(STRIDE) as usize;
    let at = vmm::reserve(both, PAGE as usize, 0).ok()?;
    vmm::unreserve(at, both).ok()?;
    let behind = keep_free(at as usize + filled as usize, bytes as usize)?;
    match reserve_exactly(at, filled) {
        Some(opened) => Some(opened),
        None => {
            // SAFETY: the range was taken above, and nobody else knows it.
            let _ = unsafe { libc::munmap(std::ptr::with_exposed_provenance_mut(behind), bytes as usize) };
            None
        }
    }
}

/// Takes addresses from the kernel that are free, or none.
fn keep_free(at: usize, bytes: usize) -> Option<usize> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
    let wanted = std::ptr::with_exposed_provenance_mut(at);
    // SAFETY: nothing that exists is replaced.
    let got = unsafe { libc::mmap(wanted, bytes, libc::PROT_NONE, flags, -1, 0) };
    if got == wanted {
        return Some(at);
    }
    if got != libc::MAP_FAILED {
        // SAFETY: an old kernel put it elsewhere; nobody knows it.
        let _ = unsafe { libc::munmap(got, bytes) };
    }
    log::debug!("no host memory can lie at {at:#x}");
    None
}

/// Gives addresses of ours to the driver. None if it takes others.
fn open_at(at: usize, bytes: u64) -> Option<Opened> {
    let ours = std::ptr::with_exposed_provenance_mut(at);
    // SAFETY: the range lies in our zone and holds nothing.
    if unsafe { libc::munmap(ours, bytes as usize) } != 0 {
        return None;
    }
    reserve_exactly(at as u64, bytes)
}

/// Reserves these addresses, or none.
fn reserve_exactly(at: u64, bytes: u64) -> Option<Opened> {
    let got = vmm::reserve(bytes as usize, PAGE as usize, at)
        .inspect_err(|error| log::debug!("no view at {at:#x}: {error}"))
        .ok()?;
    if got == at {
        return Some(Opened { start: got, end: (at + bytes) as usize });
    }
    log::debug!("no view at {at:#x}: the driver gave {got:#x}");
    let _ = vmm::unreserve(got, bytes as usize);
    None
}

/// Addresses that nobody has had yet: out of one large range that is kept free of anything else.
fn slot(bytes: u64) -> Option<usize> {
    static FREE: Mutex<Option<(usize, usize)>> = Mutex::new(None);
    let mut free = FREE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if free.is_none() {
        *free = zone();
    }
    let (next, end) = free.as_mut()?;
    let at = *next;
    // Some of it stays free, so that nothing lies directly behind pinned memory.
    let taken = (bytes + PAGE).next_multiple_of(STRIDE);
    *next = at.checked_add(taken as usize).filter(|after| after <= end)?;
    Some(at)
}

/// Takes a large range from the kernel, far from where it and the driver put things by themselves: the driver must have it free too.
fn zone() -> Option<(usize, usize)> {
    const BYTES: usize = 32 << 40;
    const BASES: [usize; 4] = [0x3000_0000_0000, 0x5000_0000_0000, 0x1000_0000_0000, 0x6000_0000_0000];
    BASES.into_iter().find_map(|base| keep_free(base, BYTES)).map(|base| (base, base + BYTES))
}

/// Whether a view can continue a prefix at all on this system: tried once, with a little pinned memory behind reserved addresses. Without views, split units would
/// have to be copied in for every doubtful launch.
pub(crate) fn are_possible() -> bool {
    static POSSIBLE: OnceLock<bool> = OnceLock::new();
    *POSSIBLE.get_or_init(|| {
        let possible = open(PAGE, PAGE).is_some_and(rehearse);
        if !possible {
            log::info!("the driver reserves no addresses in front of host memory: weights are streamed whole or not at all");
        }
        possible
    })
}

/// Whether memory behind these addresses can be pinned. Everything goes back.
fn rehearse(opened: Opened) -> bool {
    let Some(start) = shadow::map(opened.end, PAGE, libc::MAP_FIXED) else {
        opened.give_back();
        return false;
    };
    let memory: *mut u8 = std::ptr::with_exposed_provenance_mut(start);
    // SAFETY: the memory was mapped above, and is ours until the end of this function.
    let pinned = unsafe { host::register(memory, PAGE as usize) };
    let pinned = pinned.inspect_err(|error| log::debug!("memory behind a view cannot be pinned: {error}"));
    let mut pieces = Vec::new();
    if pinned.is_ok() {
        pinning::count_pinned(PAGE);
        pieces.push((start, PAGE));
    }
    leftover::unpin(Pinned { memory: (start, PAGE), pieces });
    opened.give_back();
    pinned.is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_large_and_never_given_twice() {
        let first = slot(PAGE).expect("addresses are free");
        let second = slot(3 * STRIDE).expect("addresses are free");
        let third = slot(PAGE).expect("addresses are free");
        assert!(second - first >= STRIDE as usize && third - second > 3 * STRIDE as usize);
        assert!([first, second, third].iter().all(|at| (*at as u64).is_multiple_of(STRIDE)));
    }
}
