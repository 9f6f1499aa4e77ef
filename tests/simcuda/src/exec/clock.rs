//! Vector clocks: for each stream, up to which entry its work is ordered before something.
//!
//! What had already finished when an operation was submitted counts as ordered, since the host can have seen it. So the
//! clocks never call ordered work unordered; they miss only races that the host's own timing happened to hide.

use crate::locks::{read, write};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, RwLock};

/// One stream's column. A column is used again after its stream is gone, and its count goes on.
pub(crate) struct Lane {
    pub(crate) index: usize,
    /// Entries finished, all before it included.
    pub(crate) done: AtomicU64,
    taken: AtomicBool,
}

static LANES: RwLock<Vec<Arc<Lane>>> = RwLock::new(Vec::new());

impl Lane {
    /// A column for a new stream.
    pub(crate) fn take() -> Arc<Self> {
        let mut lanes = write(&LANES);
        if let Some(free) = lanes.iter().find(|lane| !lane.taken.swap(true, Ordering::AcqRel)) {
            return Arc::clone(free);
        }
        let lane =
            Arc::new(Self { index: lanes.len(), done: AtomicU64::new(0), taken: AtomicBool::new(true) });
        lanes.push(Arc::clone(&lane));
        lane
    }

    /// Gives the column of a drained stream back.
    pub(crate) fn release(&self) {
        self.taken.store(false, Ordering::Release);
    }
}

/// How far each stream is ordered before something.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Clock(Vec<u64>);

impl Clock {
    /// What has finished by now.
    pub(crate) fn finished() -> Self {
        Self(read(&LANES).iter().map(|lane| lane.done.load(Ordering::Acquire)).collect())
    }

    /// Adds everything that is ordered before `other`.
    pub(crate) fn join(&mut self, other: &Self) {
        if self.0.len() < other.0.len() {
            self.0.resize(other.0.len(), 0);
        }
        for (mine, theirs) in self.0.iter_mut().zip(&other.0) {
            *mine = (*mine).max(*theirs);
        }
    }

    /// Orders the first `count` entries of a lane before this.
    pub(crate) fn reach(&mut self, lane: usize, count: u64) {
        if self.0.len() <= lane {
            self.0.resize(lane + 1, 0);
        }
        self.0[lane] = self.0[lane].max(count);
    }

    /// Whether entry `count` of a lane is ordered before this.
    pub(crate) fn covers(&self, lane: usize, count: u64) -> bool {
        self.0.get(lane).is_some_and(|reached| *reached >= count)
    }
}

#[cfg(test)]
mod tests {
    use super::Clock;

    #[test]
    fn joining_orders_what_either_side_had_ordered() {
        let (mut left, mut right) = (Clock::default(), Clock::default());
        left.reach(3, 5);
        right.reach(1, 7);
        left.join(&right);
        assert!(left.covers(3, 5) && left.covers(1, 7));
        assert!(!left.covers(3, 6) && !left.covers(2, 1));
    }
}
