//! What the ring holds while a cycle is walked, page by page, without times.

use crate::layout::Run;

/// Who was shown last on every ring page. Short numbers, because planning walks over them more than over anything else: a request has fewer
/// units and uses than they can say.
#[derive(Debug)]
pub(super) struct RingPages {
    occupant: Vec<u32>,
    /// One more than the number of the last use; 0 = none.
    last_use: Vec<u32>,
    /// Pages on which nothing was shown.
    bare: usize,
}

/// No unit.
const NOBODY: u32 = u32::MAX;

impl RingPages {
    pub(super) fn new(ring_pages: u64) -> Self {
        let pages = ring_pages as usize;
        RingPages { occupant: vec![NOBODY; pages], last_use: vec![0; pages], bare: pages }
    }

    fn pages(&self) -> u64 {
        self.occupant.len() as u64
    }

    /// Whether all of the unit's pages are still its own.
    pub(super) fn holds(&self, unit: usize, run: Run) -> bool {
        let unit = unit as u32;
        run.pieces(self.pages()).into_iter().all(|piece| {
            self.occupant.get(piece).is_none_or(|pages| pages.iter().all(|occupant| *occupant == unit))
        })
    }

    /// The last use of anything on these pages.
    pub(super) fn last_use(&self, part: Run) -> Option<usize> {
        let pieces = part.pieces(self.pages()).into_iter().filter_map(|piece| self.last_use.get(piece));
        let last = pieces.flatten().fold(0, |last: u32, &used| last.max(used));
        last.checked_sub(1).map(|last| last as usize)
    }

    pub(super) fn show(&mut self, unit: usize, run: Run, now: usize) {
        for piece in run.pieces(self.pages()) {
            if let Some(pages) = self.occupant.get_mut(piece.clone()) {
                pages.fill(unit as u32);
            }
            if let Some(pages) = self.last_use.get_mut(piece) {
                pages.fill(now as u32 + 1);
            }
        }
    }

    /// Leaves the ring as these uses (unit, run, number) do that come in reverse order: of every page the first one
    /// counts.
    pub(super) fn settle(&mut self, reversed: impl Iterator<Item = (usize, Run, usize)>) {
        for (unit, run, number) in reversed {
            if self.bare == 0 {
                break;
            }
            for piece in run.pieces(self.pages()) {
                let Some(last_uses) = self.last_use.get_mut(piece.clone()) else { continue };
                let occupants = self.occupant.get_mut(piece).unwrap_or_default();
                for (last_use, occupant) in
                    last_uses.iter_mut().zip(occupants).filter(|(last, _)| **last == 0)
                {
                    (*last_use, *occupant) = (number as u32 + 1, unit as u32);
                    self.bare -= 1;
                }
            }
        }
    }
}
