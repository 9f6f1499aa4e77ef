//! Which pages of a large allocation that holds many weights can be streamed together. An allocator that was asked for all the memory of a model at
//! once hands out weights that lie side by side, with their ends on pages that they share. What lies where is the caller's matter, and so are
//! allocations that are one piece as a whole.
//!
//! A *piece* is a run of weights, with the pages that only they cover behind its first page. The first page is shared with the weights before it
//! unless the piece begins there: it stays as it is, but addresses from the piece's first byte on speak of the piece. The page that holds the
//! last bytes is none of its pages: it belongs to the next piece, or to nobody, and the bytes on it *hang over*.

/// Bytes that allocators round to: what lies between two weights that are closer than this is nobody's.
pub const ROUNDING: u64 = 512;

/// Pages from which on a piece is large enough: 32 MiB in pages of 2 MiB, the longest copy. Smaller weights are put together until there are so many. The shared
/// page of each piece stays, a sixteenth then.
const ENOUGH: u64 = 16;

/// Pages from which on a piece may end because the next weight is used in another block. Waiting for both costs less than more shared pages.
const ENOUGH_OF_A_BLOCK: u64 = 4;

/// Fewer pages are not worth a copy and an event of their own.
const LEAST: u64 = 2;

/// One weight as it lies in the allocation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extent {
    /// Address of its first byte.
    pub start: u64,
    /// Address behind its last byte.
    pub end: u64,
    /// The block of the model that it is used in; others are used at other times.
    pub block: i32,
    /// It may be streamed.
    pub streamable: bool,
    /// It may be read through pointers in memory.
    pub indirect: bool,
}

/// Weights that are streamed together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Piece {
    /// Address of its first weight: what lies before it on the first page is not its own.
    pub from: u64,
    /// Address of its first page, at most one page before `from`.
    pub base: u64,
    /// Its pages, the first one included.
    pub pages: u64,
    /// Pages at its beginning that others have bytes on: 0 or 1. They can never be streamed.
    pub shared: u64,
    /// Bytes of its last weight on the page behind its last one, less than a page: they stay where they are.
    pub overhang: u64,
}

impl Piece {
    /// Address behind its last page.
    #[must_use]
    pub fn end(&self, page: u64) -> u64 {
        self.base + self.pages * page
    }
}

/// Pieces of an allocation that was asked for up to the address `asked`: where its last weight ends there, within [`ROUNDING`], the rest of the last page is nobody's, and the
/// page belongs to the last piece. `page`: bytes of a page. Extents may come in any order and overlap.
#[must_use]
pub fn pieces(extents: &[Extent], asked: u64, page: u64) -> Vec<Piece> {
    let mut made = Vec::new();
    let mut open: Option<Extent> = None;
    let close = |run: Extent, made: &mut Vec<Piece>| {
        if let Some(piece) = piece(run, asked, page) {
            made.push(piece);
        }
    };
    for next in islands(extents) {
        match &mut open {
            Some(run) if belongs(run, &next, page) => (run.end, run.block) = (next.end, next.block),
            _ => {
                if let Some(run) = open.replace(next) {
                    close(run, &mut made);
                }
            }
        }
    }
    if let Some(run) = open {
        close(run, &mut made);
    }
    made
}

/// Extents without overlaps, in order of their addresses: those that overlap are one, which may be streamed if all of them may.
#[must_use]
pub fn islands(extents: &[Extent]) -> Vec<Extent> {
    let mut sorted: Vec<Extent> =
        extents.iter().copied().filter(|extent| extent.start < extent.end).collect();
    sorted.sort_by_key(|extent| (extent.start, extent.end));
    let mut islands: Vec<Extent> = Vec::with_capacity(sorted.len());
    for next in sorted {
        match islands.last_mut() {
            Some(last) if next.start < last.end => {
                last.end = last.end.max(next.end);
                last.streamable &= next.streamable;
                last.indirect |= next.indirect;
            }
            _ => islands.push(next),
        }
    }
    islands
}

/// Whether the weight goes into the piece that lies before it.
fn belongs(run: &Extent, next: &Extent, page: u64) -> bool {
    let whole = whole_pages(run.start, run.end, page);
    let close = next.start - run.end < ROUNDING;
    let alike = run.streamable && next.streamable && run.indirect == next.indirect;
    let small = whole < ENOUGH && next.end - next.start < ENOUGH * page;
    close && alike && small && (run.block == next.block || whole < ENOUGH_OF_A_BLOCK)
}

/// Pages that lie in a range as a whole.
fn whole_pages(start: u64, end: u64, page: u64) -> u64 {
    (end / page).saturating_sub(start.div_ceil(page))
}

fn piece(run: Extent, asked: u64, page: u64) -> Option<Piece> {
    let base = run.start / page * page;
    let shared = u64::from(run.start > base);
    let is_last = run.end + ROUNDING > asked;
    let end = if is_last { run.end.next_multiple_of(page) } else { run.end / page * page };
    let pages = end.checked_sub(base)? / page;
    let overhang = run.end.saturating_sub(end);
    (run.streamable && pages >= shared + LEAST).then_some(Piece {
        from: run.start,
        base,
        pages,
        shared,
        overhang,
    })
}

/// Bytes of weights that lie in none of these ranges of addresses, each given by its first one and the one behind it.
#[must_use]
pub fn bytes_outside(extents: &[Extent], ranges: &[(u64, u64)]) -> u64 {
    let outside = |island: &Extent| {
        let inside = |&(start, end): &(u64, u64)| end.min(island.end).saturating_sub(start.max(island.start));
        (island.end - island.start).saturating_sub(ranges.iter().map(inside).sum())
    };
    islands(extents).iter().map(outside).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: u64 = 1 << 21;
    const MIB: u64 = 1 << 20;

    fn extent(start: u64, bytes: u64) -> Extent {
        Extent { start, end: start + bytes, block: 0, streamable: true, indirect: false }
    }

    /// Weights of these MiB side by side from the first page on.
    fn side_by_side(sizes: &[u64]) -> Vec<Extent> {
        let mut at = 0;
        let next = |&size: &u64| {
            let made = extent(at, size * MIB);
            at = made.end;
            made
        };
        sizes.iter().map(next).collect()
    }

    fn cut(extents: &[Extent]) -> Vec<(u64, u64, u64)> {
        pieces(extents, u64::MAX, PAGE).iter().map(|p| (p.from / MIB, p.pages, p.shared)).collect()
    }

    #[test]
    fn large_weights_are_pieces_of_their_own_and_the_page_between_belongs_to_the_second() {
        assert_eq!(cut(&side_by_side(&[33, 33])), [(0, 16, 0), (33, 17, 1)]);
    }

    #[test]
    fn small_weights_are_put_together_until_there_is_enough() {
        assert_eq!(cut(&side_by_side(&[3; 22])), [(0, 16, 0), (33, 17, 1)]);
    }

    #[test]
    fn a_small_weight_between_large_ones_is_in_no_piece() {
        let extents = [extent(0, 33 * MIB), extent(33 * MIB, 8192), extent(33 * MIB + 8192, 33 * MIB)];
        let made = pieces(&extents, u64::MAX, PAGE);
        assert_eq!(
            made.iter().map(|p| (p.from, p.shared)).collect::<Vec<_>>(),
            [(0, 0), (33 * MIB + 8192, 1)]
        );
    }

    #[test]
    fn another_block_begins_another_piece_unless_the_first_would_be_too_small() {
        let blocks = |first| {
            let mut extents = side_by_side(&[first, 5, 5]);
            extents[1].block = 1;
            extents[2].block = 1;
            cut(&extents)
        };
        assert_eq!(blocks(9), [(0, 4, 0), (9, 5, 1)]);
        assert_eq!(blocks(7), [(0, 8, 0)]);
    }

    #[test]
    fn holes_and_weights_that_may_not_move_end_a_piece() {
        let mut extents = side_by_side(&[6, 6, 6]);
        extents[1].streamable = false;
        assert_eq!(cut(&extents), [(0, 3, 0), (12, 3, 0)]);
        let extents = [extent(0, 6 * MIB), extent(6 * MIB + ROUNDING, 6 * MIB)];
        assert_eq!(cut(&extents), [(0, 3, 0), (6, 3, 1)]);
    }

    #[test]
    fn the_last_page_is_a_piece_s_own_where_the_allocation_ends_with_it() {
        let extents = [extent(0, 5 * MIB)];
        let pages = |asked| pieces(&extents, asked, PAGE)[0].pages;
        assert_eq!(pages(5 * MIB + 511), 3);
        assert_eq!(pages(5 * MIB + 512), 2);
    }

    #[test]
    fn bytes_on_no_page_of_a_piece_are_counted_once() {
        let extents = [extent(0, 5 * MIB), extent(0, 5 * MIB), extent(5 * MIB, MIB)];
        assert_eq!(bytes_outside(&extents, &[(0, 4 * MIB)]), 2 * MIB);
        assert_eq!(bytes_outside(&extents, &[]), 6 * MIB);
        assert_eq!(bytes_outside(&extents, &[(0, 6 * MIB)]), 0);
    }

    proptest::proptest! {
        /// Whatever lies where: no page is in two pieces, every page of a piece but a shared first one holds nothing but weights that may be streamed.
        #[test]
        fn streamed_pages_hold_nothing_but_their_own_weights(
            weights in proptest::collection::vec((0u64..3 << 21, 1u64..20 << 21, 0i32..3, 0u8..10), 1..40),
            tail in 0u64..2 << 21,
        ) {
            let mut at = 0;
            let mut extents = Vec::new();
            for (gap, bytes, block, kind) in weights {
                // Half of them directly behind each other.
                let start = if kind % 2 == 0 { at } else { at + gap };
                extents.push(Extent { start, end: start + bytes, block, streamable: kind != 9, indirect: kind == 8 });
                at = start + bytes;
            }
            let asked = at + tail;
            let made = pieces(&extents, asked, PAGE);
            for pair in made.windows(2) {
                proptest::prop_assert!(pair[0].end(PAGE) <= pair[1].base);
            }
            for piece in &made {
                proptest::prop_assert!(piece.shared == u64::from(piece.from > piece.base));
                proptest::prop_assert!(piece.pages >= piece.shared + LEAST && piece.overhang < PAGE);
                proptest::prop_assert!(extents.iter().any(|w| w.end == piece.end(PAGE) + piece.overhang || piece.end(PAGE) >= asked));
                let start = piece.base + piece.shared * PAGE;
                let end = piece.end(PAGE).min(asked);
                let own = extents.iter().filter(|w| w.streamable && w.end > piece.from);
                let mut sure = start;
                for weight in own {
                    if weight.start < sure + ROUNDING {
                        sure = sure.max(weight.end);
                    }
                }
                proptest::prop_assert!(sure + ROUNDING > end, "{piece:?} of {extents:?}");
                for other in extents.iter().filter(|w| !w.streamable) {
                    proptest::prop_assert!(other.end <= start || other.start >= piece.end(PAGE));
                }
            }
        }
    }
}
