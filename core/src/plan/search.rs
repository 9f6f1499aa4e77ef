//! Finds the plan: tries rings of several lengths and several ways to fill them, lets the simulator judge,
//! and keeps the best. How pages are spread over units is in `fill`, what a plan says about the choice in
//! `assemble`.

use crate::error::CoreError;
use crate::layout;
use crate::plan::assemble::{self, Choice};
use crate::plan::fill::{Limits, Stock};
use crate::plan::idle::Idle;
use crate::plan::{Plan, PlanNote, PlanRequest};
use crate::simulate::{Course, Track};

/// Lead that a ring should have beyond what is held at once, so that the link never idles between two uses.
const LEAST_LEAD_BYTES: u64 = 16 << 20;
/// Leads to try beyond the least one, in MiB.
const MORE_LEADS_MIB: [u64; 14] = [0, 4, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512];
/// Paces to try, as multiples of the slowest one that streams enough.
const PACES: [f64; 5] = [1.0, 1.1, 1.3, 1.7, 2.5];
/// Predictions this close to the best count as equal; then fewer streamed bytes win.
const SAME_TIME: f64 = 1.001;
/// Rounds in which colliding units are made resident, before all that could collide are.
const SEPARATING_ROUNDS: usize = 6;
/// Lengths of the ring that are tried to find the one that saves most.
const BREAKPOINTS: usize = 64;
/// Halvings of the interval in which the slowest pace is looked for.
const PACE_HALVINGS: usize = 20;

/// Units that would collide in the ring and should stay resident.
type Colliding = Vec<usize>;

/// See [`crate::plan::plan`].
pub(super) fn plan(request: &PlanRequest) -> Result<Plan, CoreError> {
    let course = Course::new(request)?;
    let over = over_budget(request);
    let choice = if over == 0 {
        Choice::resident(request, &course)
    } else {
        Search::new(request, &course, None).best(over)
    };
    Ok(assemble::plan(request, &course, choice))
}

/// Pages by which the weights exceed the budget.
pub(super) fn over_budget(request: &PlanRequest) -> u64 {
    let budget = request.budget.unwrap_or(u64::MAX);
    request.total_bytes().saturating_sub(budget).div_ceil(request.page_bytes)
}

/// A ring that other models already use: new runs follow at its cursor, and it costs nothing more.
#[derive(Debug, Clone, Copy)]
pub(super) struct SharedRing {
    pub(super) ring_pages: u64,
    pub(super) cursor: u64,
}

/// One search over one request.
#[derive(Debug)]
pub(super) struct Search<'a> {
    request: &'a PlanRequest,
    course: &'a Course,
    shared: Option<SharedRing>,
    idle: Idle,
}

impl<'a> Search<'a> {
    pub(super) fn new(request: &'a PlanRequest, course: &'a Course, shared: Option<SharedRing>) -> Self {
        Search { request, course, shared, idle: Idle::new(request, course) }
    }

    /// The best way to save this many pages; where that cannot be done, the way that saves most.
    pub(super) fn best(&self, over: u64) -> Choice {
        let shared_units = Stock::new(self.request, self.course, &[]).shared_units();
        // Units of several groups are copied several times a pass for the same gain, so plans without them
        // compete.
        let plain = Stock::new(self.request, self.course, &shared_units);
        let mut found: Vec<Choice> = self.over_rings(&plain, over).into_iter().collect();
        if !shared_units.is_empty() {
            found.extend(self.separated(over));
        }
        let least_missing = found.iter().map(|choice| choice.missing).min();
        found.retain(|choice| Some(choice.missing) == least_missing);
        pick(found).unwrap_or_else(|| Choice { missing: over, ..Choice::resident(self.request, self.course) })
    }

    /// The best choice in which units of several groups may be streamed as well, unless they collide.
    fn separated(&self, over: u64) -> Option<Choice> {
        let mut kept = Vec::new();
        for _ in 0..SEPARATING_ROUNDS {
            match self.over_rings(&Stock::new(self.request, self.course, &kept), over) {
                Ok(mut choice) => {
                    let apart = |&unit: &usize| PlanNote::KeptApart { unit: self.course.id(unit) };
                    choice.notes.extend(kept.iter().map(apart));
                    return Some(choice);
                }
                Err(colliding) => kept.extend(colliding),
            }
        }
        None
    }

    fn over_rings(&self, stock: &Stock, over: u64) -> Result<Choice, Colliding> {
        if let Some(shared) = self.shared {
            return self.over_fillings(stock, over, shared.ring_pages);
        }
        // Pages that a ring of this length saves when as much as possible is streamed.
        let saves = |ring: u64| total(&self.level(stock, ring)).saturating_sub(ring);
        let mut widest = (0, 0);
        for ring in stock.breakpoints(self.idle.sizes(), BREAKPOINTS) {
            let saved = saves(ring);
            if saved > widest.1 {
                widest = (ring, saved);
            }
        }
        let (widest, saved) = widest;
        if saved < over {
            let mut choice = match widest {
                0 => Choice::resident(self.request, self.course),
                _ => self.judge(stock, widest, self.level(stock, widest))?,
            };
            choice.missing = over - saved;
            return Ok(choice);
        }
        let Some(asked) = self.request.ring_override else {
            return self.over_lengths(stock, over, widest, shortest(widest, over, saves));
        };
        let ring = asked / self.request.page_bytes;
        if ring > 0 && saves(ring) >= over {
            return self.over_fillings(stock, over + ring, ring);
        }
        let mut choice = self.over_lengths(stock, over, widest, shortest(widest, over, saves))?;
        choice
            .notes
            .push(PlanNote::RingOverrideChanged { asked, used: choice.ring_pages * self.request.page_bytes });
        Ok(choice)
    }

    /// Tries rings from the shortest possible one on, unless idle units alone save enough.
    fn over_lengths(
        &self,
        stock: &Stock,
        over: u64,
        widest: u64,
        shortest: u64,
    ) -> Result<Choice, Colliding> {
        let page = self.request.page_bytes;
        if let Some(ring) = self.idle.shortest_alone(over) {
            return self.over_fillings(stock, over + ring, ring);
        }
        let least = LEAST_LEAD_BYTES.div_ceil(page);
        let leads = MORE_LEADS_MIB.map(|lead| shortest + least + (lead << 20).div_ceil(page));
        let mut lengths = Vec::new();
        for ring in leads.into_iter().chain(self.idle.rings(over)) {
            lengths.extend([ring, whole_laps(over.saturating_sub(self.idle.most(ring)), ring)]);
        }
        lengths.sort_unstable();
        lengths.dedup();
        // Where memory is too short for a lead, a ring without one is better than none.
        let without_lead = [shortest + least / 2, shortest + least / 4, shortest];
        let mut found = Vec::new();
        for (at, ring) in lengths.iter().chain(&without_lead).copied().enumerate() {
            if at >= lengths.len() && !found.is_empty() {
                break;
            }
            let choice = self.over_fillings(stock, over + ring, ring).ok();
            found.extend(choice.filter(|choice| choice.missing == 0));
        }
        // The ring that saves most is the last resort, and the one whose collisions tell what to keep apart:
        // so a budget that was named as the smallest one is always met.
        pick(found).map_or_else(|| self.judge(stock, widest, self.level(stock, widest)), Ok)
    }

    /// All that a ring of this length can stream.
    fn level(&self, stock: &Stock, ring: u64) -> Vec<u64> {
        let mut streamed = stock.level(Limits::cap(ring));
        self.idle.stream(u64::MAX, ring, &mut streamed);
        streamed
    }

    /// Tries fillings of one ring with this many streamed pages.
    fn over_fillings(&self, stock: &Stock, pages: u64, ring: u64) -> Result<Choice, Colliding> {
        let mut idle = vec![0; self.request.units.len()];
        let used_pages = pages.saturating_sub(self.idle.stream(pages, ring, &mut idle));
        let fill = |limits| {
            let used = stock.fill(used_pages, limits)?;
            Some(used.iter().zip(&idle).map(|(used, idle)| used + idle).collect())
        };
        let Some(level) = fill(Limits::cap(ring)) else {
            let streamed = self.level(stock, ring);
            let missing = pages - total(&streamed);
            return Ok(Choice { missing, ..self.judge(stock, ring, streamed)? });
        };
        let level = self.judge(stock, ring, level)?;
        let link_ms = level.streamed_bytes as f64 / self.request.link.peak_bytes_per_ms();
        let could_be_faster = level.predicted_ms > SAME_TIME * link_ms.max(self.course.resident_ms);
        let mut found = vec![level];
        if let Some(slowest) = slowest_pace(stock, used_pages, ring).filter(|_| could_be_faster) {
            for pace in PACES {
                if let Some(streamed) = fill(Limits { cap: ring, pace: slowest * pace }) {
                    found.extend(self.judge(stock, ring, streamed));
                }
            }
        }
        pick(found).ok_or_else(Vec::new)
    }

    /// Lays a filling around the ring and times it.
    fn judge(&self, stock: &Stock, ring_pages: u64, streamed: Vec<u64>) -> Result<Choice, Colliding> {
        let cursor = self.shared.map_or(0, |shared| shared.cursor);
        let runs = layout::lay_runs(self.course, &streamed, ring_pages, cursor);
        let colliding: Colliding = layout::conflicts(self.course, &runs, ring_pages)
            .into_iter()
            .map(|(first, second)| if stock.is_shared(second) { second } else { first })
            .collect();
        if !colliding.is_empty() {
            return Err(colliding);
        }
        let track = Track {
            link: &self.request.link,
            page_bytes: self.request.page_bytes,
            chunk_pages: self.request.chunk_pages.max(1),
            ring_pages,
        };
        let simulation = self.course.run(&track, &runs, false);
        Ok(Choice {
            ring_pages,
            streamed,
            runs,
            predicted_ms: simulation.cycle_ms,
            streamed_bytes: simulation.copied_bytes,
            missing: 0,
            notes: Vec::new(),
        })
    }
}

/// The fastest choice; of those that are as fast the one that streams least, then the one with the shortest
/// ring.
fn pick(mut found: Vec<Choice>) -> Option<Choice> {
    let fastest = found.iter().map(|choice| choice.predicted_ms).fold(f64::INFINITY, f64::min);
    found.retain(|choice| choice.predicted_ms <= fastest * SAME_TIME);
    found.into_iter().min_by(|a, b| {
        let bytes = a.streamed_bytes.cmp(&b.streamed_bytes).then(a.ring_pages.cmp(&b.ring_pages));
        bytes.then(a.predicted_ms.total_cmp(&b.predicted_ms))
    })
}

fn total(streamed: &[u64]) -> u64 {
    streamed.iter().sum()
}

/// The shortest ring that saves enough, given that `widest` does.
fn shortest(widest: u64, over: u64, saves: impl Fn(u64) -> u64) -> u64 {
    let (mut too_short, mut enough) = (0, widest);
    while enough - too_short > 1 {
        let middle = too_short + (enough - too_short) / 2;
        if saves(middle) >= over { enough = middle } else { too_short = middle }
    }
    enough
}

/// The shortest ring of at least this length around which a pass goes a whole number of times: it streams
/// what is over the budget and once more its own length.
fn whole_laps(over: u64, ring: u64) -> u64 {
    match over / ring.max(1) {
        0 => ring,
        laps => over.div_ceil(laps),
    }
}

/// The slowest pace at which a filling reaches this many pages; none if no finite pace does.
fn slowest_pace(stock: &Stock, pages: u64, ring: u64) -> Option<f64> {
    let reaches = |pace| total(&stock.level(Limits { cap: ring, pace })) >= pages;
    let (mut slow, mut fast) = (0.0, stock.fastest_pace());
    if !reaches(fast) {
        return None;
    }
    for _ in 0..PACE_HALVINGS {
        let middle = (slow + fast) / 2.0;
        if reaches(middle) { fast = middle } else { slow = middle }
    }
    Some(fast)
}
