//! Spreads a number of streamed pages over the units: water-filling.
//! Which numbers are worth trying, and on which ring, is decided in `search`.
//!
//! Every group of uses that are held together streams at most `cap` pages, because the ring must hold the
//! largest group at once: filling all groups to one level keeps the ring smallest and spreads the copying
//! over the pass. While the last use of a group computes, the group's pages are held and the link goes on
//! copying into the rest of the ring: what it carries in that time is the group's *lead*. A link that is never
//! to stop needs a ring of the streamed pages and the lead of every group, so groups with long uses stream
//! less (`Limits::lead`). A third limit follows time: a unit streams at most `pace` times the pages that the
//! link carries while the unit computes, which keeps the link from falling behind in stretches of the pass
//! that compute little.

use crate::plan::PlanRequest;
use crate::simulate::{Course, Scenario};

/// What could be streamed at all.
#[derive(Debug, Clone)]
pub(super) struct Stock {
    units: Vec<StockUnit>,
    /// Units in order of first use.
    order: Vec<usize>,
    /// Groups that hold anything streamable; those of several shapes that hold the same are one.
    groups: Vec<StockGroup>,
}

#[derive(Debug, Clone)]
struct StockGroup {
    /// Streamable units, without repetition, ascending.
    units: Vec<usize>,
    /// Pages that the link carries while its last use computes, in the shape that computes longest.
    lead: f64,
}

#[derive(Debug, Clone, Copy, Default)]
struct StockUnit {
    pages: u64,
    splittable: bool,
    /// Pages that the link carries while this unit computes.
    window: f64,
    /// Groups of one pass that it belongs to.
    repeats: usize,
    /// Different groups of all shapes that it belongs to.
    groups: usize,
}

/// The limits of one filling.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Limits {
    /// Most streamed pages of a group.
    pub(super) cap: u64,
    /// Most streamed pages of a divisible unit, as a multiple of its window.
    pub(super) pace: f64,
    /// How much of its lead every group leaves free below the cap: 0 = nothing, 1 = all.
    pub(super) lead: f64,
    /// Whether few units stream all that the limits allow, instead of all units a little: fewer and longer copies.
    pub(super) few: bool,
}

impl Limits {
    /// Only a cap.
    pub(super) fn cap(cap: u64) -> Self {
        Limits { cap, pace: f64::INFINITY, lead: 0.0, few: false }
    }

    /// The cap, less each group's lead.
    pub(super) fn led(cap: u64, lead: f64) -> Self {
        Limits { lead, ..Limits::cap(cap) }
    }
}

impl Stock {
    /// What the request allows to be streamed, without the units that `kept` names.
    pub(super) fn new(request: &PlanRequest, course: &Course, kept: &[usize]) -> Self {
        let mut units: Vec<StockUnit> = request
            .units
            .iter()
            .map(|unit| StockUnit {
                pages: if unit.stay.is_none() { unit.pages } else { 0 },
                splittable: unit.splittable,
                ..StockUnit::default()
            })
            .collect();
        for &unit in kept {
            if let Some(unit) = units.get_mut(unit) {
                unit.pages = 0;
            }
        }
        let mut stock = Stock { units, order: course.first_uses().to_vec(), groups: Vec::new() };
        let pages_per_ms = request.link.peak_bytes_per_ms() / request.page_bytes as f64;
        for scenario in course.scenarios() {
            stock.add(scenario, pages_per_ms);
        }
        stock.groups.sort_by(|a, b| a.units.cmp(&b.units).then(b.lead.total_cmp(&a.lead)));
        stock.groups.dedup_by(|a, b| a.units == b.units);
        for &unit in stock.groups.iter().flat_map(|group| &group.units) {
            if let Some(unit) = stock.units.get_mut(unit) {
                unit.groups += 1;
            }
        }
        stock
    }

    /// Takes over the times and groups of a scenario; of several the one that computes longest counts.
    fn add(&mut self, scenario: &Scenario, pages_per_ms: f64) {
        let mut windows = vec![0.0; self.units.len()];
        for (unit, ms) in scenario.uses() {
            if let Some(window) = windows.get_mut(unit) {
                *window += ms * pages_per_ms;
            }
        }
        let mut repeats = vec![0; self.units.len()];
        for group in &scenario.groups {
            let units = group.units.iter().copied().filter(|&unit| self.unit(unit).pages > 0);
            let units: Vec<usize> = units.collect();
            for &unit in &units {
                if let Some(times) = repeats.get_mut(unit) {
                    *times += 1;
                }
            }
            if !units.is_empty() {
                self.groups.push(StockGroup { units, lead: group.last_ms * pages_per_ms });
            }
        }
        for ((unit, window), repeats) in self.units.iter_mut().zip(windows).zip(repeats) {
            unit.window = unit.window.max(window);
            unit.repeats = unit.repeats.max(repeats);
        }
    }

    /// Units that several groups of a pass use, those of most groups first: they may be copied as often.
    pub(super) fn repeated_units(&self) -> Vec<usize> {
        let mut repeated: Vec<usize> =
            (0..self.units.len()).filter(|&unit| self.unit(unit).repeats > 1).collect();
        repeated.sort_by_key(|&unit| std::cmp::Reverse(self.unit(unit).repeats));
        repeated
    }

    /// Whether a unit belongs to more than one group, in one pass or in several shapes.
    pub(super) fn is_shared(&self, unit: usize) -> bool {
        let unit = self.unit(unit);
        unit.groups > 1 || unit.repeats > 1
    }

    /// A pace that holds back no unit that computes at all.
    pub(super) fn fastest_pace(&self) -> f64 {
        let paces =
            self.units.iter().filter(|unit| unit.window > 0.0).map(|unit| unit.pages as f64 / unit.window);
        paces.filter(|pace| pace.is_finite()).fold(0.0, f64::max) * 1.001
    }

    /// Lengths of the ring at which something more fits: the sizes of groups, of what is not divisible and
    /// those of `idle` units, ascending, at most `most` of them, the largest among them.
    pub(super) fn breakpoints(&self, idle: impl Iterator<Item = u64>, most: usize) -> Vec<u64> {
        let groups =
            self.groups.iter().map(|group| group.units.iter().map(|&unit| self.unit(unit).pages).sum());
        let units = self.units.iter().filter(|unit| unit.groups > 0).map(|unit| unit.pages);
        let mut points: Vec<u64> = groups.chain(units).chain(idle).collect();
        points.sort_unstable();
        points.dedup();
        let step = points.len().div_ceil(most).max(1);
        // Counted from the largest, because the largest saves most.
        let mut points: Vec<u64> = points.into_iter().rev().step_by(step).collect();
        points.reverse();
        points
    }

    /// Streamed pages of every unit when all are filled up to the limits.
    pub(super) fn level(&self, limits: Limits) -> Vec<u64> {
        let mut streamed: Vec<u64> = self.units.iter().map(|unit| unit.wanted(limits.pace)).collect();
        for group in &self.groups {
            // An infinite or huge lead saturates: nothing is left of the cap.
            let cap = limits.cap.saturating_sub((limits.lead * group.lead).ceil() as u64);
            match group.units.as_slice() {
                [single] => {
                    if let (Some(slot), unit) = (streamed.get_mut(*single), self.unit(*single)) {
                        *slot = unit.allowed((*slot).min(unit.pages), cap);
                    }
                }
                several => self.share(several, cap, &mut streamed),
            }
        }
        for (slot, unit) in streamed.iter_mut().zip(&self.units) {
            if unit.groups == 0 {
                *slot = 0;
            }
        }
        streamed
    }

    /// Shares the cap among the units of one group: small ones get all they want, the others the same each.
    fn share(&self, group: &[usize], cap: u64, streamed: &mut [u64]) {
        let mut members: Vec<(u64, usize)> =
            group.iter().map(|&unit| (streamed.get(unit).copied().unwrap_or(0), unit)).collect();
        if members.iter().map(|(pages, _)| pages).sum::<u64>() <= cap {
            return;
        }
        members.sort_unstable();
        let mut left = cap;
        let mut to_serve = members.len() as u64;
        for (wanted, unit) in members {
            let given = self.unit(unit).allowed(wanted, left.div_ceil(to_serve));
            if let Some(slot) = streamed.get_mut(unit) {
                *slot = given;
            }
            left -= given;
            to_serve -= 1;
        }
    }

    /// Streams exactly `pages` pages within the limits, or as few more as indivisible units allow; none if
    /// the limits allow less. The level is as low as possible (with [`Limits::few`] as high), and what remains
    /// above it is spread evenly over the pass.
    pub(super) fn fill(&self, pages: u64, limits: Limits) -> Option<Vec<u64>> {
        let at = |cap| self.level(Limits { cap, ..limits });
        let total = |streamed: &[u64]| streamed.iter().sum::<u64>();
        if total(&at(limits.cap)) < pages {
            return None;
        }
        // Few units at the highest level, or all of them at the lowest.
        let (mut low, mut high) = (0, if limits.few { 0 } else { limits.cap });
        while high - low > 1 {
            let middle = low + (high - low) / 2;
            if total(&at(middle)) >= pages { high = middle } else { low = middle }
        }
        let mut streamed = at(if limits.few { limits.cap } else { high });
        let below = at(low);
        let excess = total(&streamed) - pages;
        self.lower(&mut streamed, &below, excess);
        Some(streamed)
    }

    /// Takes at most `excess` pages away again: first by stepping units down to `below`, then page by page,
    /// then by whole indivisible units; evenly over the pass.
    fn lower(&self, streamed: &mut [u64], below: &[u64], mut excess: u64) {
        let steps = streamed.iter().zip(below).map(|(high, low)| high.saturating_sub(*low));
        let steps: Vec<u64> = steps.collect();
        excess -= take_evenly(streamed, &self.order, &steps, excess);
        while excess > 0 {
            let steps = self.units.iter().zip(&*streamed);
            let steps: Vec<u64> =
                steps.map(|(unit, &pages)| u64::from(unit.splittable && pages > 0)).collect();
            let taken = take_evenly(streamed, &self.order, &steps, excess);
            if taken == 0 {
                break;
            }
            excess -= taken;
        }
        let mut whole: Vec<(u64, usize)> = self
            .order
            .iter()
            .filter_map(|&unit| streamed.get(unit).map(|pages| (*pages, unit)))
            .filter(|(pages, unit)| *pages > 0 && !self.unit(*unit).splittable)
            .collect();
        whole.sort_unstable_by(|a, b| b.cmp(a));
        for (pages, unit) in whole {
            if let Some(slot) = streamed.get_mut(unit).filter(|_| pages <= excess) {
                *slot = 0;
                excess -= pages;
            }
        }
    }

    fn unit(&self, at: usize) -> StockUnit {
        self.units.get(at).copied().unwrap_or_default()
    }
}

/// Steps units down by `steps`, as many as `most` pages allow and as evenly as possible along `order`, in which each is once; returns the pages taken.
pub(super) fn take_evenly(streamed: &mut [u64], order: &[usize], steps: &[u64], most: u64) -> u64 {
    let step_of = |unit: usize| steps.get(unit).copied().unwrap_or(0);
    let all: u64 = order.iter().map(|&unit| step_of(unit)).sum();
    if all == 0 {
        return 0;
    }
    let part = (most as f64 / all as f64).min(1.0);
    let mut due = 0.0;
    let mut left = most;
    for &unit in order {
        let step = step_of(unit);
        due += part * step as f64;
        if step > 0 && step <= left && due >= step as f64 / 2.0 {
            if let Some(slot) = streamed.get_mut(unit) {
                *slot -= step;
                left -= step;
            }
            due -= step as f64;
        }
    }
    most - left
}

impl StockUnit {
    /// What it would stream without a cap.
    fn wanted(self, pace: f64) -> u64 {
        // An infinite pace on an empty window is no number; such a unit has no limit either.
        let paced = pace * self.window;
        if self.splittable && paced < self.pages as f64 { paced as u64 } else { self.pages }
    }

    /// What of it fits below a cap.
    fn allowed(self, wanted: u64, cap: u64) -> u64 {
        if wanted <= cap {
            wanted
        } else if self.splittable {
            cap
        } else {
            0
        }
    }
}
