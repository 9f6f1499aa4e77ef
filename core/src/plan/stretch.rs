//! How near to the bound the order of uses lets any plan come: stretches of a cycle that use more than memory
//! holds. What the ring takes besides is reckoned in `limit`.
//!
//! A *stretch* lasts from the end of one use to the start of a later one. The units of both and of all uses between
//! them are in memory at some time of it; what memory did not hold when it began, the link carries meanwhile, whatever
//! a plan keeps and however it streams. So it lasts at least (pages of its units - pages of memory) / link, and the
//! other uses of the cycle compute besides. Where the uses between compute less than that, the cycle takes so much
//! longer; that the link had nothing to do before, because memory was full, does not help.

use crate::plan::PlanRequest;
use crate::simulate::Scenario;

/// The least milliseconds of a cycle in this scenario where so many pages are `over` what memory holds.
pub(super) fn least_ms(request: &PlanRequest, scenario: &Scenario, over: u64) -> f64 {
    let page_ms = request.page_bytes as f64 / request.link.peak_bytes_per_ms();
    let movable = request.units.iter().filter(|unit| unit.stay.is_none()).map(|unit| unit.pages);
    let held = movable.fold(0, u64::saturating_add).saturating_sub(over);
    let copy_ms = |at: usize| {
        let unit = request.units.get(at).filter(|unit| unit.stay.is_none());
        unit.map_or(0.0, |unit| unit.pages as f64 * page_ms)
    };
    let uses = scenario.uses_and_tails().map(|(unit, compute_ms, tail_ms)| Use {
        unit,
        copy_ms: copy_ms(unit),
        compute_ms,
        tail_ms,
    });
    let cycle = Cycle { uses: uses.collect(), units: request.units.len(), held_ms: held as f64 * page_ms };
    scenario.resident_ms + cycle.lost_ms(cycle.densest())
}

#[derive(Debug, Clone, Copy)]
struct Use {
    unit: usize,
    /// Milliseconds in which the link carries all of the unit.
    copy_ms: f64,
    compute_ms: f64,
    /// Milliseconds after it until its pass ends.
    tail_ms: f64,
}

struct Cycle {
    uses: Vec<Use>,
    units: usize,
    /// Milliseconds in which the link fills all memory.
    held_ms: f64,
}

impl Cycle {
    /// Where the stretch begins that copies longest beyond its computing, for a memory that holds nothing: the
    /// stretches that lose most are looked for from there on, so that none of them goes on past the end.
    fn densest(&self) -> usize {
        let length = self.uses.len();
        let mut stretch = Stretch::new(self.units);
        let mut most = (0.0, 0);
        for (at, used) in self.uses.iter().chain(&self.uses).enumerate() {
            stretch.reach(at, used);
            if stretch.ms > most.0 {
                most = (stretch.ms, stretch.began);
            }
            if at - stretch.began >= length {
                // A cycle is as long as a stretch can be.
                stretch.ms = f64::NEG_INFINITY;
            }
            stretch.pass(at, used, 0.0);
        }
        most.1 % length.max(1)
    }

    /// Milliseconds that stretches of the cycle that begins with use `from` last longer than they compute. Of all
    /// ways to cut stretches out of it one that loses much: each is spared what memory holds when it begins.
    fn lost_ms(&self, from: usize) -> f64 {
        let (before, after) = self.uses.split_at(from.min(self.uses.len()));
        let mut stretch = Stretch::new(self.units);
        stretch.ms = f64::NEG_INFINITY;
        let mut lost = 0.0_f64;
        for (at, used) in after.iter().chain(before).enumerate() {
            stretch.reach(at, used);
            lost = lost.max(stretch.ms);
            stretch.pass(at, used, lost - self.held_ms);
        }
        lost
    }
}

/// A stretch that goes on.
struct Stretch {
    /// The use at whose end it begins.
    began: usize,
    /// Milliseconds that it copies, less those that it computes.
    ms: f64,
    /// By position of a unit: one more than its last use so far.
    seen: Vec<usize>,
}

impl Stretch {
    fn new(units: usize) -> Self {
        Stretch { began: 0, ms: 0.0, seen: vec![0; units] }
    }

    /// Goes on to the start of a use, whose unit it copies unless it has used it already.
    fn reach(&mut self, at: usize, used: &Use) {
        if let Some(seen) = self.seen.get_mut(used.unit) {
            if *seen <= self.began {
                self.ms += used.copy_ms;
            }
            *seen = at + 1;
        }
    }

    /// Goes on past a use, or begins at its end with `ms` where that copies longer.
    fn pass(&mut self, at: usize, used: &Use, ms: f64) {
        let anew = ms + used.copy_ms;
        self.ms -= used.compute_ms;
        if anew > self.ms {
            (self.began, self.ms) = (at, anew);
        }
        self.ms -= used.tail_ms;
    }
}
