//! Reads weights in private pages out to the host, to add them up: piece by piece through a little pinned memory, on streams of its own, beside whatever the program
//! does. A piece may be torn by a write that goes on meanwhile; its checksum is that of no bytes anybody wrote then. What it is good for is `verify`'s and
//! `evidence`'s matter.

#![expect(unsafe_code, reason = "copies from mapped addresses to our pinned memory")]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};

use super::arena::PAGE;
use super::shadow::{self, Shadow, Wanted};
use super::touched::Touched;
use super::{open, sums};
use crate::ffi::context::{self, Context};
use crate::ffi::copy;
use crate::ffi::event::{self, Event};
use crate::ffi::result::CudaResult;
use crate::ffi::stream::{self, Stream};

/// Pages that are read at a time: long enough for the link, short enough for whoever wants to unmap.
const PIECE: u64 = 4;

/// Threads of a large read-out at most; each adds up what it has read while others read.
const MOST_THREADS: usize = 6;

/// What may be read: regions with weights by their first addresses, with their numbers of pages.
#[derive(Debug, Default)]
pub(super) struct Readable(BTreeMap<u64, u64>);

static READING: Mutex<Readable> = Mutex::new(Readable(BTreeMap::new()));

/// Held while a shadow or a private page is read by a thread of ours: whoever lets go of either holds it too. Taken after the world's lock and before a ring's,
/// never with one held.
pub(super) fn hold() -> MutexGuard<'static, Readable> {
    READING.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// These addresses lose their memory: nobody reads them when this returns, and nobody will.
pub(super) fn leave(base: u64, pages: u64) {
    hold().0.retain(|&start, count| start + *count * PAGE <= base || base + pages * PAGE <= start);
}

/// These may be read until they are [`leave`]d or [`forget`]ten.
pub(super) fn offer(places: impl Iterator<Item = (u64, u64)>) {
    hold().0.extend(places);
}

/// Nobody will read these any more.
pub(super) fn forget(bases: impl Iterator<Item = u64>) {
    let mut readable = hold();
    bases.for_each(|base| {
        readable.0.remove(&base);
    });
}

/// Pages of what was offered under `base`.
#[derive(Clone, Copy, Debug)]
pub(super) struct Range {
    pub(super) base: u64,
    /// First page, counted from `base`.
    pub(super) first: u64,
    pub(super) pages: u64,
}

/// What a range was.
#[derive(Clone, Debug)]
pub(super) struct Sums {
    /// Of each page.
    pub(super) pages: Vec<u64>,
    /// Passes with this number or a higher one began when all had been read.
    pub(super) before: u64,
}

/// One stream and a piece of pinned memory.
pub(super) struct Reader {
    pub(super) context: Context,
    on: Stream,
    done: Event,
    piece: Shadow,
}

impl Reader {
    /// In the current context.
    pub(super) fn open() -> Option<Reader> {
        let context = context::current().ok().filter(|context| !context.is_none())?;
        let piece =
            shadow::make(&[Wanted { prefix: 0, pages: PIECE, hangs_over: false }], Touched::default())
                .ok()?
                .pop()?;
        let made = stream::create_nonblocking().and_then(|on| Ok((on, event::create(false)?)));
        match made {
            Ok((on, done)) => Some(Reader { context, on, done, piece }),
            Err(_) => {
                shadow::give_back(vec![piece]);
                None
            }
        }
    }

    /// Gives everything back. Its context is current.
    pub(super) fn close(self) {
        let _ = stream::synchronize(self.on);
        let _ = event::destroy(self.done);
        let _ = stream::destroy(self.on);
        shadow::give_back(vec![self.piece]);
    }

    /// What is read from here on is ordered behind the event.
    fn wait(&self, behind: Event) -> CudaResult<()> {
        stream::wait(self.on, behind)
    }

    /// Checksums of at most [`PIECE`] pages. None where `still` says no, asked when nobody can let go of them, or the driver refuses.
    fn piece(
        &self,
        address: u64,
        pages: u64,
        still: impl FnOnce(&Readable) -> bool,
    ) -> Option<impl Iterator<Item = u64>> {
        let (start, bytes) = (self.piece.bytes().0, (pages.min(PIECE) * PAGE) as usize);
        {
            let readable = hold();
            if !still(&readable) {
                return None;
            }
            // SAFETY: the piece is ours and long enough, and nobody reads it before the copy has been waited for.
            unsafe { copy::to_host_async(start.cast_mut(), address, bytes, self.on) }.ok()?;
            event::record(self.done, self.on).and_then(|()| event::synchronize(self.done)).ok()?;
        }
        // SAFETY: the copy has ended, and the next one is made by this thread.
        let read = unsafe { std::slice::from_raw_parts(start, bytes) };
        Some(sums::of_pages(read))
    }

    /// Checksum of all these pages, each piece as long as `still` says yes.
    pub(super) fn checksum(&self, address: u64, pages: u64, still: impl Fn() -> bool) -> Option<u64> {
        let mut all = Vec::with_capacity(pages as usize);
        for first in (0..pages).step_by(PIECE as usize) {
            let count = PIECE.min(pages - first);
            all.extend(self.piece(address + first * PAGE, count, |_| still())?);
        }
        Some(sums::combined(&all))
    }
}

/// Checksums of the pages of these ranges, read by several threads; none for those that were not read whole before `stop` was said, or that were left.
pub(super) fn add_up(
    context: Context,
    ranges: &[Range],
    behind: Option<Event>,
    stop: &AtomicBool,
) -> Vec<Option<Sums>> {
    let pieces =
        |(at, range): (usize, &Range)| (0..range.pages).step_by(PIECE as usize).map(move |first| (at, first));
    let pieces: Vec<(usize, u64)> = ranges.iter().enumerate().flat_map(pieces).collect();
    let made = ranges.iter().map(|range| Made { sums: vec![0; range.pages as usize], read: 0, before: 0 });
    let made: Vec<Mutex<Made>> = made.map(Mutex::new).collect();
    let next = AtomicUsize::new(0);
    let work = || -> CudaResult<()> {
        let Some(reader) = Reader::open() else { return Ok(()) };
        if behind.is_none_or(|behind| reader.wait(behind).is_ok()) {
            while !stop.load(Ordering::Relaxed)
                && let Some(&(at, first)) = pieces.get(next.fetch_add(1, Ordering::Relaxed))
            {
                read_piece(&reader, ranges[at], first, &made[at]);
            }
        }
        reader.close();
        Ok(())
    };
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| {
        for _ in 0..(cores / 3).clamp(1, MOST_THREADS) {
            let work = || context::with_current(context, work);
            // What no thread can be had for is not read.
            let _ = std::thread::Builder::new().name("ft-readout".into()).spawn_scoped(scope, work);
        }
    });
    let whole = made.into_iter().zip(ranges).map(|(made, range)| {
        let made = made.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
        (made.read == range.pages).then_some(Sums { pages: made.sums, before: made.before })
    });
    whole.collect()
}

/// A range that is being read.
struct Made {
    sums: Vec<u64>,
    read: u64,
    before: u64,
}

fn read_piece(reader: &Reader, range: Range, first: u64, made: &Mutex<Made>) {
    let count = PIECE.min(range.pages - first);
    let address = range.base + (range.first + first) * PAGE;
    let Some(sums) = reader.piece(address, count, |readable| readable.0.contains_key(&range.base)) else {
        return;
    };
    let before = open::moment();
    let sums: Vec<u64> = sums.collect();
    let mut made = made.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    made.sums[first as usize..][..sums.len()].copy_from_slice(&sums);
    made.read += count;
    made.before = made.before.max(before);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_is_not_read_any_more_and_its_neighbours_are() {
        const BASE: u64 = 1 << 50;
        offer([(BASE, 4), (BASE + 4 * PAGE, 4), (BASE + 8 * PAGE, 4)].into_iter());
        leave(BASE + 4 * PAGE, 4);
        let left: Vec<u64> = hold().0.range(BASE..).map(|(&base, _)| base).collect();
        assert_eq!(left, [BASE, BASE + 8 * PAGE]);
        forget(left.into_iter());
        assert_eq!(hold().0.range(BASE..).count(), 0);
    }
}
