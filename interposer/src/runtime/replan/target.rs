//! Which units a new plan moves: where each stands, and where it is to stand. How they get there is `relay`'s matter.

use flextensor_core::plan::{Placement, Plan, RingRun};
use flextensor_core::units::UnitId;

use super::super::arena::PAGE;
use super::super::shadow::Shadow;
use super::super::world::world;
use super::standing::Asked;

/// Where a unit stands, and where it is to stand.
#[derive(Clone, Debug)]
pub(super) struct Target {
    pub(super) id: UnitId,
    pub(super) base: u64,
    /// Pages of the whole unit.
    pub(super) pages: u64,
    /// Pages at its end that are streamed, now and then.
    pub(super) before: u64,
    pub(super) after: u64,
    /// First page of its run in the new ring.
    pub(super) ring_start: u64,
    /// Pages at its end that are streamed now and then, and lie behind the same addresses.
    pub(super) kept: u64,
    pub(super) hold: bool,
    /// Bytes of its last weight on the page behind.
    pub(super) overhang: u64,
    /// Where its streamed bytes will lie, if another part of it is streamed then.
    pub(super) shadow: Option<Shadow>,
    /// What is in that shadow already was copied when the old one had seen so many writes.
    pub(super) copied_at: Option<u64>,
}

impl Target {
    /// Address of the part that is streamed before or after.
    pub(super) fn tail(&self) -> u64 {
        self.base + (self.pages - self.tail_pages()) * PAGE
    }

    pub(super) fn tail_pages(&self) -> u64 {
        self.before.max(self.after)
    }

    /// Pages from the front of the tail on that are mapped anew.
    pub(super) fn remapped(&self) -> u64 {
        self.tail_pages() - self.kept
    }

    /// Pages that go from private memory to the ring, and the other way.
    pub(super) fn demoted(&self) -> u64 {
        self.after.saturating_sub(self.before)
    }

    pub(super) fn promoted(&self) -> u64 {
        self.before.saturating_sub(self.after)
    }
}

/// Units that are streamed before or after; none if nothing would change.
pub(super) fn targets(asked: &Asked, made: &Plan) -> Vec<Target> {
    let world = world();
    let same_ring = made.ring_pages == asked.standing.ring_pages;
    let mut changed = !same_ring;
    let of = |placement: &Placement| {
        let unit = world.unit(placement.unit)?;
        let run = made.run(placement.unit);
        let after = run.map_or(0, |run| run.pages);
        let before = asked.standing.run(unit.id);
        changed |= unit.streamed != after || before != run;
        let kept = match (before, run) {
            (Some(before), Some(run)) => kept((&before, asked.standing.ring_pages), (&run, made.ring_pages)),
            _ => 0,
        };
        let target = Target {
            id: unit.id,
            base: unit.base,
            pages: unit.pages,
            before: unit.streamed,
            after,
            ring_start: run.map_or(0, |run| run.start),
            kept,
            hold: unit.hold,
            overhang: unit.overhang,
            shadow: None,
            copied_at: None,
        };
        (target.tail_pages() > 0).then_some(target)
    };
    let targets = made.placements.iter().filter_map(of).collect();
    if changed { targets } else { Vec::new() }
}

/// Pages at the end of both runs that are the same pages of the ring: a ring that changes its length keeps its first pages.
fn kept((before, ring_before): (&RingRun, u64), (after, ring_after): (&RingRun, u64)) -> u64 {
    let common = before.pages.min(after.pages);
    let page = |run: &RingRun, ring: u64, from_end: u64| (run.start + run.pages - 1 - from_end) % ring;
    let same = |at: &u64| page(before, ring_before, *at) == page(after, ring_after, *at);
    (0..common).take_while(same).count() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(start: u64, pages: u64) -> RingRun {
        RingRun { unit: UnitId(1), start, pages }
    }

    #[test]
    fn pages_that_lie_behind_the_same_addresses_are_those_at_the_end_that_keep_their_place() {
        for (before, after, same) in [
            // As it was; shorter and longer at its front; round the end of the ring.
            ((run(3, 4), 10), (run(3, 4), 10), 4),
            ((run(3, 4), 10), (run(5, 2), 10), 2),
            ((run(3, 4), 10), (run(1, 6), 10), 4),
            ((run(8, 4), 10), (run(9, 3), 10), 3),
            // Elsewhere; not at its end; in a ring of another length, of which it does not see the end, and of which it does.
            ((run(3, 4), 10), (run(4, 4), 10), 0),
            ((run(3, 4), 10), (run(3, 3), 10), 0),
            ((run(3, 4), 10), (run(3, 4), 20), 4),
            ((run(8, 4), 10), (run(8, 4), 20), 0),
            ((run(6, 4), 20), (run(8, 2), 10), 2),
            ((run(8, 4), 20), (run(0, 2), 10), 0),
        ] {
            assert_eq!(kept((&before.0, before.1), (&after.0, after.1)), same, "{before:?} {after:?}");
        }
    }
}
