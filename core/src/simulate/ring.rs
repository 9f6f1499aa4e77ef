//! What the ring holds while a cycle is walked, page by page, without times.

use crate::layout::Run;

/// Who was shown last on every ring page.
#[derive(Debug)]
pub(super) struct RingPages {
    pub(super) occupant: Vec<usize>,
    last_use: Vec<usize>,
}

/// No unit, no use.
pub(super) const NOBODY: usize = usize::MAX;

impl RingPages {
    pub(super) fn new(ring_pages: u64) -> Self {
        RingPages { occupant: vec![NOBODY; ring_pages as usize], last_use: vec![NOBODY; ring_pages as usize] }
    }

    pub(super) fn pages(&self) -> u64 {
        self.occupant.len() as u64
    }

    /// Whether all of the unit's pages are still its own.
    pub(super) fn holds(&self, unit: usize, run: Run) -> bool {
        run.pieces(self.pages()).into_iter().all(|piece| {
            self.occupant.get(piece).is_none_or(|pages| pages.iter().all(|occupant| *occupant == unit))
        })
    }

    /// The last use of anything on these pages.
    pub(super) fn last_use(&self, part: Run) -> Option<usize> {
        part.pieces(self.pages())
            .into_iter()
            .filter_map(|piece| self.last_use.get(piece))
            .flatten()
            .copied()
            .filter(|last| *last != NOBODY)
            .max()
    }

    pub(super) fn show(&mut self, unit: usize, run: Run, now: usize) {
        for piece in run.pieces(self.pages()) {
            if let Some(pages) = self.occupant.get_mut(piece.clone()) {
                pages.fill(unit);
            }
            if let Some(pages) = self.last_use.get_mut(piece) {
                pages.fill(now);
            }
        }
    }
}
