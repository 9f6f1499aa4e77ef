//! Units of one launch that cannot be in the ring together: which of them give way to the others (rule 6). How a hit is served is the parent's matter.

use super::slot::Slot;
use super::{Access, Certainty, Hit, Pager};

/// What speaks for a hit's place in the ring, what counts most first.
type Claim = (bool, Certainty, bool);

impl Pager {
    /// Whether the ring cannot hold all of these: two of them share pages. Costs next to nothing where all are in place.
    #[must_use]
    pub fn collide(&self, hits: &[Hit]) -> bool {
        // What is in place shares no page with others that are.
        let all_in_place = || self.shown(hits).all(|(_, slot, _)| self.slots[slot].in_place());
        hits.len() > 1 && !all_in_place() && {
            let mut shown = self.shown(hits);
            shown.any(|(at, slot, _)| self.shown(&hits[..at]).any(|(_, other, _)| self.share(slot, other)))
        }
    }

    /// Marks the hits that give way: they can be pointed at their shadow, and share pages with one that cannot or has the better claim. False if there are none.
    /// Decided before anything is emitted, so that the order of hits means nothing and no verdict has to be taken back.
    pub(super) fn let_some_give_way(&mut self, hits: &[Hit]) -> bool {
        if !self.collide(hits) {
            return false;
        }
        let mut any = false;
        for (at, hit) in hits.iter().enumerate() {
            let Some(slot) = self.slot(hit.unit) else { continue };
            let claim = self.claim(slot, hit);
            let is_better = |(other_at, other, hit): (usize, usize, &Hit)| {
                let others = self.claim(other, hit);
                self.share(slot, other) && (others > claim || (others == claim && other_at < at))
            };
            let (stays, ..) = claim;
            if !stays && self.shown(hits).any(is_better) {
                self.slots[slot].gives_way_in = self.launch;
                any = true;
            }
        }
        any
    }

    /// Whether the launch being checked has this unit give way.
    pub(super) fn gives_way(&self, slot: usize) -> bool {
        self.slots[slot].gives_way_in == self.launch
    }

    /// Places, slots and hits of what is streamed.
    fn shown<'a>(&'a self, hits: &'a [Hit]) -> impl Iterator<Item = (usize, usize, &'a Hit)> {
        hits.iter().enumerate().filter_map(|(at, hit)| Some((at, self.slot(hit.unit)?, hit)))
    }

    /// First of all whether it must stay: launches that do not show what is held for its owner's forward read it in place, and one that may write the shadow
    /// makes the ring's pages stale. Whether others keep pages is seen when they are asked for: what gave way for nothing is served in place.
    fn claim(&self, slot: usize, hit: &Hit) -> Claim {
        let can_go = hit.can_redirect && hit.access == Access::Read && !hit.hold;
        (!can_go, hit.certainty, self.slots[slot].in_place())
    }

    /// Whether two units own a page both.
    fn share(&self, first: usize, second: usize) -> bool {
        let ring = self.pages.len() as u32;
        let covers = |run: &Slot, page: u32| (page + ring - run.start) % ring < run.pages;
        let (a, b) = (&self.slots[first], &self.slots[second]);
        first != second && (covers(a, b.start) || covers(b, a.start))
    }
}
