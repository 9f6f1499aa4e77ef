//! Idle units: units that may be streamed and that no pass uses (an expert never chosen, a skipped layer, a
//! second head). Streaming them costs no pass anything, so they go first, whole where the ring is long enough.
//! What the units in use stream on top of that is `fill`'s matter.

use crate::plan::PlanRequest;
use crate::simulate::Course;

/// The idle units of a request.
#[derive(Debug, Clone, Default)]
pub(super) struct Idle {
    /// In the order of the request.
    units: Vec<IdleUnit>,
}

#[derive(Debug, Clone, Copy)]
struct IdleUnit {
    at: usize,
    pages: u64,
    splittable: bool,
}

impl IdleUnit {
    /// Pages that it can stream through a ring of this length.
    fn allowed(self, ring: u64) -> u64 {
        match self.pages <= ring {
            true => self.pages,
            false if self.splittable => ring,
            false => 0,
        }
    }
}

impl Idle {
    pub(super) fn new(request: &PlanRequest, course: &Course) -> Self {
        let units = course.unused().iter().filter_map(|&at| {
            let unit = request.units.get(at).filter(|unit| unit.stay.is_none() && unit.pages > 0)?;
            Some(IdleUnit { at, pages: unit.pages, splittable: unit.splittable })
        });
        Idle { units: units.collect() }
    }

    /// Pages that they stream through a ring of this length at most.
    pub(super) fn most(&self, ring: u64) -> u64 {
        self.units.iter().map(|unit| unit.allowed(ring)).sum()
    }

    /// Their sizes in pages.
    pub(super) fn sizes(&self) -> impl Iterator<Item = u64> {
        self.units.iter().map(|unit| unit.pages)
    }

    /// The shortest ring through which they alone save this many pages beyond the ring's own.
    pub(super) fn shortest_alone(&self, over: u64) -> Option<u64> {
        let mut units = self.units.clone();
        units.sort_unstable_by_key(|unit| unit.pages);
        let divisible = |units: &[IdleUnit]| units.iter().filter(|unit| unit.splittable).count() as u64;
        // Between two sizes a further page of ring saves one page of every longer divisible unit.
        let (mut whole, mut longer) = (0, divisible(&units));
        for group in units.chunk_by(|a, b| a.pages == b.pages) {
            let pages = group.first().map_or(0, |unit| unit.pages);
            if longer > 1 {
                let ring = over.saturating_sub(whole).div_ceil(longer - 1);
                if ring < pages {
                    return Some(ring);
                }
            }
            whole += pages * group.len() as u64;
            longer -= divisible(group);
            if whole + longer * pages >= over + pages {
                return Some(pages);
            }
        }
        None
    }

    /// Lengths of the ring, without lead, that suit them: the shortest one at which they save this many pages
    /// if units in use fill the ring itself, and the one from which a longer ring gains nothing.
    pub(super) fn rings(&self, over: u64) -> Vec<u64> {
        let longest = self.sizes().max().unwrap_or(0);
        let (mut short, mut enough) = (0, longest);
        while enough - short > 1 {
            let middle = short + (enough - short) / 2;
            if self.most(middle) >= over { enough = middle } else { short = middle }
        }
        let gain = |ring: &u64| self.most(*ring) as i128 - i128::from(*ring);
        let mut sizes: Vec<u64> = self.sizes().collect();
        sizes.sort_unstable_by(|a, b| b.cmp(a));
        sizes.dedup();
        sizes.truncate(MOST_SIZES);
        let widest = sizes.into_iter().max_by_key(gain);
        widest.into_iter().chain((self.most(enough) >= over && enough > 0).then_some(enough)).collect()
    }

    /// Streams `pages` pages of them through a ring of this length, as few more as indivisible units allow, or
    /// the most that they can; returns how many. What need not be streamed stays of the first ones, because
    /// what follows a place where passes end early is the least likely to run.
    pub(super) fn stream(&self, pages: u64, ring: u64, streamed: &mut [u64]) -> u64 {
        let mut total = self.most(ring);
        for unit in &self.units {
            let Some(slot) = streamed.get_mut(unit.at) else { continue };
            let excess = total.saturating_sub(pages);
            let allowed = unit.allowed(ring);
            let spared = if unit.splittable || allowed <= excess { allowed.min(excess) } else { 0 };
            *slot = allowed - spared;
            total -= spared;
        }
        total
    }
}

/// Sizes of idle units that are looked at, from the largest on.
const MOST_SIZES: usize = 64;
