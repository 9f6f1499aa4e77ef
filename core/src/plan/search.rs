//! Finds the plan: tries rings of several lengths and several ways to fill them, and keeps the best. What they
//! are worth is said in `judge`, how pages are spread over units in `fill`, what a plan says about the choice
//! in `assemble`.

use crate::error::CoreError;
use crate::plan::assemble::{self, Choice};
use crate::plan::fill::{Limits, Stock};
use crate::plan::idle::Idle;
use crate::plan::judge::{SAME_TIME, pick};
use crate::plan::{Objective, Plan, PlanNote, PlanRequest, latency};
use crate::simulate::{Course, Scenario};

/// Rings to try, by how much of the groups' leads they leave room for.
const LEADS: [f64; 6] = [0.0, 0.5, 0.8, 1.0, 1.25, 2.0];
/// Rings to try beyond the shortest possible one, in MiB.
const MORE_MIB: [u64; 7] = [4, 8, 16, 32, 64, 192, 512];
/// Times that the rings between the best one and its neighbours are tried.
const REFINEMENTS: usize = 4;
/// Leads to fill one ring with.
const LEADS_OF_A_RING: [f64; 3] = [1.0, 0.5, 0.0];
/// Paces to try, as multiples of the slowest one that streams enough.
const PACES: [f64; 5] = [1.0, 1.1, 1.3, 1.7, 2.5];
/// Few long copies are tried where short ones cost more than this part of the time.
const SHORT_COPIES: f64 = 1.012;
/// Lengths of the ring that are tried to find the one that saves most.
const BREAKPOINTS: usize = 64;
/// Halvings of the interval in which the slowest pace is looked for.
const PACE_HALVINGS: usize = 20;
/// A bound that counts as one, in milliseconds: ratios to nothing are no measure.
const LEAST_BOUND_MS: f64 = 1e-3;

/// Units that would collide in the ring and should stay resident.
pub(super) type Colliding = Vec<usize>;

/// See [`crate::plan::plan`].
pub(super) fn plan(request: &PlanRequest) -> Result<Plan, CoreError> {
    let course = Course::new(request)?;
    let choice = choose(request, &course, None);
    Ok(assemble::plan(request, &course, choice))
}

/// The choice that the request's objective asks for.
pub(super) fn choose(request: &PlanRequest, course: &Course, shared: Option<SharedRing>) -> Choice {
    let over = over_budget(request);
    let search = Search::new(request, course, shared);
    match request.objective {
        Objective::LeastMemory { slowdown } => {
            latency::least_memory(&search, course, request, over, slowdown)
        }
        Objective::LeastTime => search.best(over),
    }
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
    /// Longest single copy, in pages; 0 = as the request says.
    pub(super) chunk_pages: u64,
}

/// One search over one request.
#[derive(Debug)]
pub(super) struct Search<'a> {
    pub(super) request: &'a PlanRequest,
    pub(super) course: &'a Course,
    pub(super) shared: Option<SharedRing>,
    idle: Idle,
    /// By position of a unit: whether it is never held behind another one of its group.
    pub(super) leaders: Vec<bool>,
    /// The bound of every scenario.
    pub(super) bounds_ms: Vec<f64>,
}

impl<'a> Search<'a> {
    pub(super) fn new(request: &'a PlanRequest, course: &'a Course, shared: Option<SharedRing>) -> Self {
        let mut leaders = vec![true; request.units.len()];
        for group in course.groups() {
            for &unit in group.units.iter().filter(|unit| **unit != group.first) {
                if let Some(leads) = leaders.get_mut(unit) {
                    *leads = false;
                }
            }
        }
        let scenarios = course.scenarios().iter();
        let bounds_ms = scenarios.map(|scenario| assemble::bound_ms(request, scenario).max(LEAST_BOUND_MS));
        let idle = Idle::new(request, course);
        Search { request, course, shared, idle, leaders, bounds_ms: bounds_ms.collect() }
    }

    /// The best way to save this many pages; where that cannot be done, the way that saves most.
    pub(super) fn best(&self, over: u64) -> Choice {
        if over == 0 {
            return Choice::resident(self.request, self.course);
        }
        let repeated = Stock::new(self.request, self.course, &[]).repeated_units();
        let mut found: Vec<Choice> = Vec::new();
        if !repeated.is_empty() {
            found.extend(self.unrepeated(&repeated, over));
        }
        let enough = self.enough(over);
        if !found.iter().any(|choice| choice.missing == 0 && choice.score <= enough) {
            found.extend(self.relieved(over, enough));
        }
        let least_missing = found.iter().map(|choice| choice.missing).min();
        found.retain(|choice| Some(choice.missing) == least_missing);
        pick(found.into_iter().map(|choice| self.rechunked(choice)).collect())
            .unwrap_or_else(|| Choice { missing: over, ..Choice::resident(self.request, self.course) })
    }

    /// The best choice without these units; where not all of them can stay, without as many as can. What is used
    /// again soon is copied once by a ring that is long enough; where that is dear, this beats what `relieve` finds.
    fn unrepeated(&self, repeated: &[usize], over: u64) -> Option<Choice> {
        let kept = repeated.get(..self.most_kept(repeated, over)).unwrap_or(repeated);
        self.over_rings(&Stock::new(self.request, self.course, kept), over).ok()
    }

    /// How many of these units, from the first one on, can stay where so many pages are to be saved. All of them where none could.
    pub(super) fn most_kept(&self, units: &[usize], over: u64) -> usize {
        let saves = |kept: usize| {
            let kept = units.get(..kept).unwrap_or(units);
            self.most_saved(&Stock::new(self.request, self.course, kept)).1 >= over
        };
        if units.is_empty() || saves(units.len()) || !saves(0) {
            return units.len();
        }
        let (mut can, mut cannot) = (0, units.len());
        while can + 1 < cannot {
            let middle = can.midpoint(cannot);
            if saves(middle) { can = middle } else { cannot = middle }
        }
        can
    }

    /// The ring with which most pages are saved when as much as possible is streamed, and how many these are.
    fn most_saved(&self, stock: &Stock) -> (u64, u64) {
        let mut widest = (0, 0);
        for ring in stock.breakpoints(self.idle.sizes(), BREAKPOINTS) {
            let saved = total(&self.level(stock, ring)).saturating_sub(ring);
            if saved > widest.1 {
                widest = (ring, saved);
            }
        }
        widest
    }

    /// The best choice for this stock; units that collide in the ring where there is none.
    pub(super) fn over_rings(&self, stock: &Stock, over: u64) -> Result<Choice, Colliding> {
        if let Some(shared) = self.shared {
            return self.over_fillings(stock, over, shared.ring_pages, f64::INFINITY);
        }
        // Pages that a ring of this length saves when as much as possible is streamed.
        let saves = |ring: u64| total(&self.level(stock, ring)).saturating_sub(ring);
        let (widest, saved) = self.most_saved(stock);
        if saved < over {
            let mut choice = match widest {
                0 => Choice::resident(self.request, self.course),
                _ => self.judge(stock, widest, self.level(stock, widest))?,
            };
            choice.missing = over - saved;
            return Ok(choice);
        }
        let Some(asked) = self.request.ring_override else {
            return self.over_lengths(stock, over, widest);
        };
        let ring = asked / self.request.page_bytes;
        if ring > 0 && saves(ring) >= over {
            return self.over_fillings(stock, over + ring, ring, f64::INFINITY);
        }
        let mut choice = self.over_lengths(stock, over, widest)?;
        choice
            .notes
            .push(PlanNote::RingOverrideChanged { asked, used: choice.ring_pages * self.request.page_bytes });
        Ok(choice)
    }

    /// Tries rings from the shortest possible one on, unless idle units alone save enough.
    fn over_lengths(&self, stock: &Stock, over: u64, widest: u64) -> Result<Choice, Colliding> {
        if let Some(ring) = self.idle.shortest_alone(over) {
            return self.over_fillings(stock, over + ring, ring, f64::INFINITY);
        }
        let mut found: Vec<Choice> = Vec::new();
        let mut lengths = self.lengths(stock, over, widest);
        for &ring in &lengths {
            self.try_ring(stock, over, ring, &mut found);
        }
        for _ in 0..REFINEMENTS {
            let Some(best) = pick(found.clone()).map(|choice| choice.ring_pages) else { break };
            let below = lengths.iter().rev().find(|&&ring| ring < best).copied();
            let above = lengths.iter().find(|&&ring| ring > best).copied();
            let between =
                below.into_iter().chain(above).map(|other| self.whole_laps(over, best.midpoint(other)));
            let mut fresh: Vec<u64> = between.filter(|ring| !lengths.contains(ring)).collect();
            fresh.dedup();
            for &ring in &fresh {
                self.try_ring(stock, over, ring, &mut found);
            }
            lengths.append(&mut fresh);
            lengths.sort_unstable();
        }
        // The ring that saves most is the last resort, and the one whose collisions tell what to keep apart:
        // so a budget that was named as the smallest one is always met.
        pick(found).map_or_else(|| self.judge(stock, widest, self.level(stock, widest)), Ok)
    }

    /// Lengths of the ring to begin with, ascending.
    fn lengths(&self, stock: &Stock, over: u64, widest: u64) -> Vec<u64> {
        let page = self.request.page_bytes;
        let with_lead = |lead: f64| {
            let saves = |ring: u64| {
                let mut streamed = stock.level(Limits::led(ring, lead));
                self.idle.stream(u64::MAX, ring, &mut streamed);
                total(&streamed).saturating_sub(ring)
            };
            (saves(widest) >= over).then(|| shortest(widest, over, saves))
        };
        let least = with_lead(0.0).unwrap_or(widest);
        let more = MORE_MIB.map(|lead| least + (lead << 20).div_ceil(page));
        let led = LEADS.into_iter().filter_map(with_lead);
        // A chunk that spans what is free and what is not yet has to wait.
        let slack = [0, self.request.chunk_pages.min(least / 2)];
        let led = led.flat_map(|ring| slack.map(|slack| ring + slack));
        let mut lengths: Vec<u64> = Vec::new();
        for ring in led.chain(more).chain(self.idle.rings(over)) {
            let laps = self.whole_laps(over, ring);
            // Far from a whole number of laps, the other length may be the better one.
            let other = (laps > ring + ring / 16).then_some(ring);
            lengths.extend(other.into_iter().chain([laps]));
        }
        lengths.sort_unstable();
        lengths.dedup();
        lengths
    }

    /// Adds what a ring of this length gives, unless it misses the budget or cannot compete: a longer ring than
    /// one that costs no time copies more for nothing, unless idle units gain by it.
    fn try_ring(&self, stock: &Stock, over: u64, ring: u64, found: &mut Vec<Choice>) {
        let best = found.iter().map(|choice| choice.score).fold(f64::INFINITY, f64::min);
        let free = self.resident_score() * SAME_TIME;
        let gains = self.idle.most(ring) > 0;
        if !gains && found.iter().any(|choice| choice.score <= free && choice.ring_pages <= ring) {
            return;
        }
        let choice = self.over_fillings(stock, over + ring, ring, best).ok();
        found.extend(choice.filter(|choice| choice.missing == 0));
    }

    /// The shortest ring of at least this length around which a pass goes a whole number of times: it streams
    /// what is over the budget and once more its own length.
    fn whole_laps(&self, over: u64, ring: u64) -> u64 {
        let over = over.saturating_sub(self.idle.most(ring));
        match over / ring.max(1) {
            0 => ring,
            laps => over.div_ceil(laps),
        }
    }

    /// All that a ring of this length can stream.
    fn level(&self, stock: &Stock, ring: u64) -> Vec<u64> {
        let mut streamed = stock.level(Limits::cap(ring));
        self.idle.stream(u64::MAX, ring, &mut streamed);
        streamed
    }

    /// Tries fillings of one ring with this many streamed pages. Those that could not come near `best`, the
    /// least score so far, are not timed.
    fn over_fillings(&self, stock: &Stock, pages: u64, ring: u64, best: f64) -> Result<Choice, Colliding> {
        let mut idle = vec![0; self.request.units.len()];
        let used_pages = pages.saturating_sub(self.idle.stream(pages, ring, &mut idle));
        let fill = |limits| {
            let used = stock.fill(used_pages, limits)?;
            Some(used.iter().zip(&idle).map(|(used, idle)| used + idle).collect::<Vec<u64>>())
        };
        let Some(level) = fill(Limits::cap(ring)) else {
            let streamed = self.level(stock, ring);
            let missing = pages - total(&streamed);
            return Ok(Choice { missing, ..self.judge(stock, ring, streamed)? });
        };
        let endless = self.least_score(&level, ring, |_| 1.0);
        if endless > best * SAME_TIME {
            return Err(Vec::new());
        }
        let floor = self.least_score(&level, ring, self.cost_of_copies(ring));
        let mut found: Vec<Choice> = Vec::new();
        let mut collided = Vec::new();
        let reached = |found: &[Choice]| found.iter().any(|choice| choice.score <= floor * SAME_TIME);
        let mut fillings = LEADS_OF_A_RING.map(|lead| Limits::led(ring, lead)).to_vec();
        // Where short copies cost much, or the host has no time to spare, few long ones may cost less.
        if floor > endless * SHORT_COPIES || self.course.scenarios().iter().any(Scenario::is_bound_by_host) {
            let half = Limits::cap(ring.div_ceil(2));
            fillings.extend([Limits::led(ring, 1.0), half].map(|limits| Limits { few: true, ..limits }));
        }
        for limits in fillings {
            if let Some(streamed) = fill(limits).filter(|_| limits.few || !reached(&found)) {
                if found.iter().any(|choice| choice.streamed == streamed) {
                    continue;
                }
                match self.judge(stock, ring, streamed) {
                    Ok(choice) => found.push(choice),
                    Err(colliding) => collided = colliding,
                }
            }
        }
        if let Some(slowest) =
            slowest_pace(stock, used_pages, ring).filter(|_| !reached(&found) && self.computes(&level))
        {
            for pace in PACES {
                if let Some(streamed) = fill(Limits { pace: slowest * pace, ..Limits::cap(ring) }) {
                    found.extend(self.judge(stock, ring, streamed));
                }
            }
        }
        pick(found).ok_or(collided)
    }
}

pub(super) fn total(streamed: &[u64]) -> u64 {
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

/// The slowest pace at which a filling reaches this many pages; none if no finite pace does.
fn slowest_pace(stock: &Stock, pages: u64, ring: u64) -> Option<f64> {
    let reaches = |pace| total(&stock.level(Limits { pace, ..Limits::cap(ring) })) >= pages;
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
