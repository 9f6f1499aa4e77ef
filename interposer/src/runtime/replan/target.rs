//! Which units a new plan moves: where each stands, and where it is to stand. How they get there is `relay`'s matter.

use flextensor_core::plan::{Placement, Plan};
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
        changed |= unit.streamed != after || asked.standing.run(unit.id) != run;
        let target = Target {
            id: unit.id,
            base: unit.base,
            pages: unit.pages,
            before: unit.streamed,
            after,
            ring_start: run.map_or(0, |run| run.start),
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
