//! Bytes of device memory, reached as a kernel or a copy engine reaches them: each stretch is checked and used while the
//! address space cannot change, so misuse is reported and never crashes the process.
#![expect(unsafe_code, reason = "device memory is reached through raw addresses")]

use super::space::{self, Denied};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering::Relaxed};

/// Bytes handled before the address space may change again.
const STRETCH: u64 = 256 << 10;

/// Calls `body(address, bytes)` for consecutive checked stretches of a range.
fn stretches(
    device: usize,
    address: u64,
    bytes: u64,
    writes: bool,
    mut body: impl FnMut(u64, u64),
) -> Result<(), Denied> {
    let mut done = 0;
    while done < bytes {
        let length = STRETCH.min(bytes - done);
        let view = space::view();
        view.allowed(device, address + done, length, writes)?;
        body(address + done, length);
        done += length;
    }
    Ok(())
}

/// The word at an aligned address. Only called on a stretch that `stretches` has checked.
fn word(address: u64) -> &'static AtomicU64 {
    // SAFETY: the callers run inside `stretches`, so the address is mapped with access while the space is locked, and it
    // is a multiple of 8. Other threads may change the word, which an atomic allows.
    unsafe { AtomicU64::from_ptr(address as *mut u64) }
}

fn half(address: u64) -> &'static AtomicU32 {
    // SAFETY: as for `word`, with a multiple of 4.
    unsafe { AtomicU32::from_ptr(address as *mut u32) }
}

fn aligned(address: u64, unit: u64) -> Result<(), Denied> {
    if address.is_multiple_of(unit) { Ok(()) } else { Err(Denied::Unmapped(address)) }
}

/// Reads `words` 64-bit words in order.
pub(crate) fn read_words(
    device: usize,
    address: u64,
    words: u64,
    mut each: impl FnMut(u64, u64),
) -> Result<(), Denied> {
    aligned(address, 8)?;
    stretches(device, address, words * 8, false, |at, bytes| {
        let first = (at - address) / 8;
        for index in 0..bytes / 8 {
            each(first + index, word(at + index * 8).load(Relaxed));
        }
    })
}

/// Writes `words` 64-bit words in order; `each` gets the index and the old value.
pub(crate) fn write_words(
    device: usize,
    address: u64,
    words: u64,
    mut each: impl FnMut(u64, u64) -> u64,
) -> Result<(), Denied> {
    aligned(address, 8)?;
    stretches(device, address, words * 8, true, |at, bytes| {
        let first = (at - address) / 8;
        for index in 0..bytes / 8 {
            let place = word(at + index * 8);
            place.store(each(first + index, place.load(Relaxed)), Relaxed);
        }
    })
}

/// Adds to one word, as an atomic of a kernel does.
pub(crate) fn add(device: usize, address: u64, value: u64) -> Result<(), Denied> {
    aligned(address, 8)?;
    stretches(device, address, 8, true, |at, _| {
        word(at).fetch_add(value, Relaxed);
    })
}

/// Reads `count` 32-bit values.
pub(crate) fn load(device: usize, address: u64, count: u64) -> Result<Vec<u32>, Denied> {
    aligned(address, 4)?;
    let mut values = Vec::with_capacity(count as usize);
    stretches(device, address, count * 4, false, |at, bytes| {
        values.extend((0..bytes / 4).map(|index| half(at + index * 4).load(Relaxed)));
    })?;
    Ok(values)
}

/// Writes 32-bit values.
pub(crate) fn store(device: usize, address: u64, values: &[u32]) -> Result<(), Denied> {
    aligned(address, 4)?;
    stretches(device, address, values.len() as u64 * 4, true, |at, bytes| {
        let first = ((at - address) / 4) as usize;
        for index in 0..bytes / 4 {
            half(at + index * 4).store(values[first + index as usize], Relaxed);
        }
    })
}

/// One end of a copy.
#[derive(Clone, Copy, Debug)]
pub(crate) enum End {
    /// An address that the device reaches; checked.
    Mapped(u64),
    /// Pageable memory of the program, or a staging buffer; the caller of the driver answers for it.
    Pageable(u64),
}

impl End {
    pub(crate) fn address(self) -> u64 {
        match self {
            Self::Mapped(address) | Self::Pageable(address) => address,
        }
    }

    fn check(
        self,
        view: &space::View,
        (device, by_owners): (usize, bool),
        at: u64,
        bytes: u64,
        writes: bool,
    ) -> Result<(), Denied> {
        match self {
            Self::Mapped(address) => {
                view.allowed(view.copier(device, address, by_owners), address + at, bytes, writes)
            }
            Self::Pageable(_) => Ok(()),
        }
    }
}

/// Copies `bytes` from `source` to `target`, starting `at` bytes into both. `who`: the device that copies, and whether each end is reached by its owner.
pub(crate) fn copy(who: (usize, bool), target: End, source: End, at: u64, bytes: u64) -> Result<(), Denied> {
    let mut done = at;
    while done < at + bytes {
        let length = STRETCH.min(at + bytes - done);
        let view = space::view();
        source.check(&view, who, done, length, false)?;
        target.check(&view, who, done, length, true)?;
        let from = (source.address() + done) as *const u8;
        let to = (target.address() + done) as *mut u8;
        // SAFETY: both ends are mapped with access while `view` lives, or are host memory that the caller of the driver
        // keeps valid until the copy is done. A racing writer is the very mistake that tests look for: bytes may tear.
        unsafe { std::ptr::copy(from, to, length as usize) };
        done += length;
    }
    Ok(())
}

/// Fills `count` elements of `unit` bytes (1, 2 or 4) with the low bytes of `value`.
pub(crate) fn set(device: usize, address: u64, value: u32, unit: u64, count: u64) -> Result<(), Denied> {
    let pattern = value.to_le_bytes();
    stretches(device, address, count * unit, true, |at, bytes| {
        for index in 0..bytes {
            let byte = pattern[((at - address + index) % unit) as usize];
            // SAFETY: `stretches` has checked the range and keeps the address space as it is.
            unsafe { ((at + index) as *mut u8).write_volatile(byte) };
        }
    })
}

/// Reads host memory of the program now, for a copy whose source may change right after the call.
pub(crate) fn snapshot(address: u64, bytes: u64) -> Vec<u8> {
    let mut copy = vec![0u8; bytes as usize];
    // SAFETY: the caller of the driver promises that many readable bytes, and `copy` has just as many.
    unsafe { std::ptr::copy_nonoverlapping(address as *const u8, copy.as_mut_ptr(), bytes as usize) };
    copy
}
