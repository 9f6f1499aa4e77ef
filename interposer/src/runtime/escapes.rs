//! Addresses of weights that leave for device memory in small copies from host memory: no launch shows the weights then, so they stay in private pages.
//! What else a copy does is `copies`' matter.

#![expect(unsafe_code, reason = "reads the source of small copies")]

use flextensor_core::plan::StayReason;

use super::arena::{Arena, Meaning, arena};
use super::private;
use super::private::Why;
use super::world::world;
use crate::ffi::pointer::{self, Place};
use crate::ffi::types::CUresult;

/// Copies up to this many bytes are searched: pointer arrays are small.
const SEARCHED_BYTES: usize = 64 << 10;

/// Words that are read at a time where the memory may not be there.
const BLOCK: usize = 128;

/// The source of a copy: `slices` of `rows` of `bytes` bytes each.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Source {
    pub(crate) address: u64,
    pub(crate) bytes: usize,
    pub(crate) pitch: usize,
    pub(crate) rows: usize,
    pub(crate) slice_pitch: usize,
    pub(crate) slices: usize,
}

impl Source {
    /// Bytes in one piece.
    pub(crate) fn flat(address: u64, bytes: usize) -> Self {
        Self { address, bytes, pitch: bytes, rows: 1, slice_pitch: bytes, slices: 1 }
    }

    fn is_small(&self) -> bool {
        let total = self.bytes.checked_mul(self.rows).and_then(|bytes| bytes.checked_mul(self.slices));
        total.is_some_and(|total| (8..=SEARCHED_BYTES).contains(&total))
    }

    fn starts(self) -> impl Iterator<Item = u64> {
        let slice = move |z: usize| self.address.wrapping_add(self.slice_pitch.wrapping_mul(z) as u64);
        let row = move |y: usize| self.pitch.wrapping_mul(y) as u64;
        (0..self.slices).flat_map(move |z| (0..self.rows).map(move |y| slice(z).wrapping_add(row(y))))
    }
}

/// Searches a source that the program says is host memory.
///
/// # Safety
/// The source is what the program passes as host memory in this very call.
pub(crate) unsafe fn search_host(source: Source) -> Result<(), CUresult> {
    let Some(arena) = arena().filter(|_| source.address != 0 && source.is_small()) else { return Ok(()) };
    // SAFETY: the caller's promise.
    source.starts().try_for_each(|start| unsafe { search_row(arena, start, source.bytes) })
}

/// Searches a source that may be memory of any kind: only host memory is read.
pub(crate) fn search_any(source: Source) -> Result<(), CUresult> {
    let small = |arena: &&Arena| source.is_small() && !arena.contains(source.address);
    let Some(arena) = arena().filter(small) else { return Ok(()) };
    match pointer::place(source.address) {
        Place::Device => Ok(()),
        // SAFETY: the driver knows it as host memory, and the program passes it to be read.
        Place::Pinned => unsafe { search_host(source) },
        Place::Unknown => {
            source.starts().try_for_each(|start| search_row_if_mapped(arena, start, source.bytes))
        }
    }
}

/// # Safety
/// The row is host memory of `bytes` bytes.
unsafe fn search_row(arena: &Arena, start: u64, bytes: usize) -> Result<(), CUresult> {
    let start: *const u8 = std::ptr::with_exposed_provenance(start as usize);
    for offset in (0..bytes / 8 * 8).step_by(8) {
        // SAFETY: the word lies within the bytes that the caller vouches for.
        let word = unsafe { start.add(offset) };
        // SAFETY: as above; the read needs no alignment.
        escapes(arena, unsafe { word.cast::<u64>().read_unaligned() })?;
    }
    Ok(())
}

fn search_row_if_mapped(arena: &Arena, start: u64, bytes: usize) -> Result<(), CUresult> {
    let mut block = [0_u64; BLOCK];
    let words = bytes / 8;
    for first in (0..words).step_by(BLOCK) {
        let block = &mut block[..BLOCK.min(words - first)];
        let read = pointer::read_if_mapped(start + first as u64 * 8, block);
        for &address in &block[..read] {
            escapes(arena, address)?;
        }
    }
    Ok(())
}

/// The word goes where no launch shows it.
fn escapes(arena: &Arena, address: u64) -> Result<(), CUresult> {
    loop {
        match arena.meaning(address) {
            // It may be named a weight later.
            meaning @ (Meaning::Nothing | Meaning::InHost) if arena.contains(address) => {
                if world().keep(arena, address, meaning, StayReason::Escaped) {
                    return Ok(());
                }
            }
            Meaning::Nothing | Meaning::InHost => return Ok(()),
            Meaning::Learning(unit) | Meaning::Streamed(unit) => {
                return private::keep(unit, StayReason::Escaped, Why::Escaped).map_err(CUresult::from);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_small_copies_are_searched_and_each_row_begins_a_pitch_further() {
        assert!(Source::flat(4096, SEARCHED_BYTES).is_small());
        assert!(!Source::flat(4096, SEARCHED_BYTES + 1).is_small());
        let rows = Source { address: 4096, bytes: 8, pitch: 64, rows: 2, slice_pitch: 1024, slices: 2 };
        assert!(rows.is_small());
        assert_eq!(rows.starts().collect::<Vec<_>>(), [4096, 4160, 5120, 5184]);
        assert!(!Source { rows: usize::MAX, ..rows }.is_small());
    }
}
