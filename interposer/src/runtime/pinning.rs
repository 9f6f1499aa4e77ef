//! Pins host memory as far as the driver does, and the configuration wants: whole, else in small pieces, else not at all; then it is copied as the program's own pageable memory is, right and slow.

#![expect(unsafe_code, reason = "registers memory")]

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

use flextensor_core::units::Bytes;

use super::config;
use crate::ffi::host;
use crate::ffi::result::CudaError;
use crate::log;

/// Longest registration: a longer one holds the driver's locks for long, and stalls launches.
pub(super) const CHUNK: u64 = 1 << 30;

/// Where a long one is refused, by a driver that has no room for it in one piece.
const SMALL_CHUNK: u64 = 64 << 20;

static PINNED: AtomicU64 = AtomicU64::new(0);
static PAGEABLE: AtomicU64 = AtomicU64::new(0);

/// Small pieces were refused too, and nothing has been given back since: the driver has no room for any.
static EXHAUSTED: AtomicBool = AtomicBool::new(false);

/// Registrations, as (address, bytes), of memory that counts as pageable: the rest of it was refused, and undoing these was refused too.
static KEPT: Mutex<Vec<(usize, u64)>> = Mutex::new(Vec::new());

fn kept() -> MutexGuard<'static, Vec<(usize, u64)>> {
    KEPT.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Pinned host bytes of this process that are ours.
pub(crate) fn pinned_bytes() -> u64 {
    PINNED.load(Ordering::Relaxed)
}

/// Host bytes of this process that are ours, and that are not pinned: the driver refused to, or `pinned_memory` is off.
pub(crate) fn pageable_bytes() -> u64 {
    PAGEABLE.load(Ordering::Relaxed)
}

/// Host bytes of this process that are ours and stand in for GPU memory, pinned or not.
pub(super) fn taken_bytes() -> u64 {
    pinned_bytes() + pageable_bytes()
}

/// Bytes that the driver pinned by itself.
pub(super) fn count_pinned(bytes: u64) {
    PINNED.fetch_add(bytes, Ordering::Relaxed);
}

/// They are gone, and the driver has room for as many.
pub(super) fn count_gone(bytes: u64) {
    PINNED.fetch_sub(bytes, Ordering::Relaxed);
    EXHAUSTED.store(false, Ordering::Relaxed);
}

/// Whether memory is pinned at all (`pinned_memory`).
pub(super) fn is_wanted() -> bool {
    config().pinned_memory
}

/// How a range of host memory is known to the driver.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Pinning {
    /// In registrations of this many bytes: no copy crosses a multiple of it.
    Pieces(u64),
    /// Not at all, or pieces of it only.
    Pageable,
}

impl Pinning {
    /// No copy crosses a multiple of this.
    pub(super) fn chunk(self) -> u64 {
        match self {
            Pinning::Pieces(chunk) => chunk,
            // Nor the end of a piece that the driver did not let go.
            Pinning::Pageable => SMALL_CHUNK,
        }
    }
}

/// Pins `bytes` of memory at `start`, as far as the driver does; not at all with `pinned_memory` off.
///
/// # Safety
/// The range is mapped, writable memory that stays mapped until its [`registrations`] are undone.
pub(super) unsafe fn pin(start: usize, bytes: u64) -> Pinning {
    static SAID: AtomicBool = AtomicBool::new(false);
    if !is_wanted() {
        say_unwanted();
        PAGEABLE.fetch_add(bytes, Ordering::Relaxed);
        return Pinning::Pageable;
    }
    let mut refused = None;
    for chunk in [CHUNK, SMALL_CHUNK] {
        if EXHAUSTED.load(Ordering::Relaxed) {
            break;
        }
        // SAFETY: the caller's promise.
        match unsafe { pin_in(start, bytes, chunk) } {
            Ok(()) => return Pinning::Pieces(chunk),
            Err(error) => refused = Some(error),
        }
        if kept_bytes(start, bytes) > 0 {
            // What is registered cannot be registered again.
            break;
        }
    }
    EXHAUSTED.store(true, Ordering::Relaxed);
    if let Some((piece, error)) = refused
        && !SAID.swap(true, Ordering::Relaxed)
    {
        log::warning!(
            "pinning {} of host memory was refused ({error}), with {} pinned: what is streamed beyond that is copied from pageable memory, several times slower",
            Bytes(piece),
            Bytes(pinned_bytes())
        );
    }
    PAGEABLE.fetch_add(bytes - kept_bytes(start, bytes), Ordering::Relaxed);
    Pinning::Pageable
}

/// Bytes of registrations in a range that counts as pageable.
fn kept_bytes(start: usize, bytes: u64) -> u64 {
    kept().iter().filter(|piece| lies_in(piece, start, bytes)).map(|(_, bytes)| bytes).sum()
}

fn lies_in((at, _): &(usize, u64), start: usize, bytes: u64) -> bool {
    (start..start + bytes as usize).contains(at)
}

/// Says once that nothing is pinned because the configuration has it so.
fn say_unwanted() {
    static SAID: AtomicBool = AtomicBool::new(false);
    if !SAID.swap(true, Ordering::Relaxed) {
        log::warning!(
            "pinned_memory is off: what is streamed is copied from pageable memory, several times slower"
        );
    }
}

/// All pieces, or none and the bytes of the one that was refused.
///
/// # Safety
/// As [`pin`].
unsafe fn pin_in(start: usize, bytes: u64, chunk: u64) -> Result<(), (u64, CudaError)> {
    for (at, piece) in pieces(bytes, chunk) {
        let address = std::ptr::with_exposed_provenance_mut(start + at as usize);
        // SAFETY: the caller's promise.
        if let Err(error) = unsafe { host::register(address, piece as usize) } {
            for (before, bytes) in pieces(at, chunk) {
                let before = start + before as usize;
                match host::unregister(std::ptr::with_exposed_provenance_mut(before)) {
                    Ok(()) => count_gone(bytes),
                    // Tried again when the memory goes; until then it must stay.
                    Err(_) => kept().push((before, bytes)),
                }
            }
            return Err((piece, error));
        }
        count_pinned(piece);
    }
    Ok(())
}

/// The registrations of a range that was pinned so, as (address, bytes): whoever gives the memory back undoes them. It does not count as pageable any more.
pub(super) fn registrations(start: usize, bytes: u64, how: Pinning) -> Vec<(usize, u64)> {
    match how {
        Pinning::Pieces(chunk) => {
            pieces(bytes, chunk).map(|(at, piece)| (start + at as usize, piece)).collect()
        }
        Pinning::Pageable => {
            let mut kept = kept();
            let (mine, others) = kept.drain(..).partition(|piece| lies_in(piece, start, bytes));
            *kept = others;
            let mine: Vec<_> = mine;
            let pinned: u64 = mine.iter().map(|(_, bytes)| bytes).sum();
            PAGEABLE.fetch_sub(bytes - pinned, Ordering::Relaxed);
            mine
        }
    }
}

/// Offset and bytes of each registration.
fn pieces(bytes: u64, chunk: u64) -> impl Iterator<Item = (u64, u64)> {
    (0..bytes).step_by(chunk as usize).map(move |at| (at, chunk.min(bytes - at)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn registrations_cover_everything_once() {
        let all: Vec<_> = pieces(2 * SMALL_CHUNK + 5, SMALL_CHUNK).collect();
        assert_eq!(all, [(0, SMALL_CHUNK), (SMALL_CHUNK, SMALL_CHUNK), (2 * SMALL_CHUNK, 5)]);
        assert_eq!(pieces(0, CHUNK).count(), 0);
    }
}
