//! The timing model: how long passes take when weights are streamed through the ring, at steady state.
//! It knows the link, the ring and the order of use, and nothing of budgets; choosing is `plan`'s job.
//!
//! Copies run one after the other on one link, in order of use, in chunks. A chunk starts when the link is
//! free and the last use of what it overwrites has ended (its whole group, if uses are held together). A use
//! starts when its copies have ended and the previous use has ended. Passes repeat; the first of the next
//! cycle is prefetched during the last of this one.

mod clock;
mod ring;

use std::collections::BTreeMap;

use crate::error::CoreError;
use crate::layout::{self, Run};
use crate::link::LinkCurve;
use crate::plan::{PassProfile, Plan, PlanRequest, UseInfo};
use crate::units::UnitId;
use clock::{Chunk, Clock, Copies, DenseUse};
use ring::RingPages;

/// Cycles after which a course that has not settled is judged by its last cycles.
const MOST_CYCLES: usize = 64;

/// What happened in one span of a timeline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub enum SpanKind {
    /// The link copied a chunk of the unit.
    Copy,
    /// The unit was used (with the computing before it that needs no streamed weight).
    Use,
}

/// One span of a timeline, in milliseconds from the start of the simulated cycle; copies made ahead of it
/// start below 0.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize, serde::Deserialize)]
pub struct Span {
    /// Copy or use.
    pub kind: SpanKind,
    /// The unit.
    pub unit: UnitId,
    /// Position of the use (also of the use that a copy is for) in the cycle.
    pub use_index: usize,
    /// Start.
    pub start_ms: f64,
    /// End.
    pub end_ms: f64,
    /// Milliseconds directly before the start that were lost: a use had no work because its copies were not
    /// in place; a copy's link had nothing to do because the pages it overwrites were still in use.
    pub wait_ms: f64,
    /// Bytes of a copy; 0 for a use.
    pub bytes: u64,
}

/// What a simulation found, for one cycle: one pass of every model.
#[derive(Debug, Clone, PartialEq, Default, serde::Serialize, serde::Deserialize)]
pub struct Simulation {
    /// Milliseconds of the cycle.
    pub cycle_ms: f64,
    /// For each pass, for each use: milliseconds it waited for its copies.
    pub waits_ms: Vec<Vec<f64>>,
    /// Part of the time in which the link copies, 0 to 1.
    pub link_busy: f64,
    /// Bytes copied.
    pub copied_bytes: u64,
    /// Every copy and use, if asked for.
    pub timeline: Vec<Span>,
}

/// Simulates the passes of a request under a plan.
///
/// # Errors
/// [`CoreError::RunExceedsRing`] and [`CoreError::HeldTogetherOverlap`] when the plan's layout could never
/// run; [`CoreError::UnknownUnit`] when a pass uses a unit that the request does not describe, and the other
/// errors of [`crate::plan::plan`].
pub fn simulate(request: &PlanRequest, plan: &Plan, with_timeline: bool) -> Result<Simulation, CoreError> {
    let course = Course::new(request)?;
    let mut runs = vec![Run::default(); request.units.len()];
    for run in &plan.layout {
        if run.pages > plan.ring_pages {
            return Err(CoreError::RunExceedsRing {
                unit: run.unit,
                pages: run.pages,
                ring_pages: plan.ring_pages,
            });
        }
        if let Some(slot) = course.position(run.unit).and_then(|at| runs.get_mut(at)) {
            *slot = Run { start: run.start % plan.ring_pages.max(1), pages: run.pages };
        }
    }
    if let Some((first, second)) = layout::conflicts(&course, &runs, plan.ring_pages).first().copied() {
        return Err(CoreError::HeldTogetherOverlap {
            first: course.id(first),
            second: course.id(second),
            ring_pages: plan.ring_pages,
        });
    }
    let track = Track {
        link: &request.link,
        page_bytes: request.page_bytes,
        chunk_pages: request.chunk_pages.max(1),
        ring_pages: plan.ring_pages,
    };
    Ok(course.run(&track, &runs, with_timeline))
}

/// The passes of a request in dense, cleaned form: what every simulated candidate has in common.
#[derive(Debug)]
pub(crate) struct Course {
    ids: Vec<UnitId>,
    positions: BTreeMap<UnitId, usize>,
    uses: Vec<DenseUse>,
    /// Uses of each pass.
    pass_lengths: Vec<usize>,
    /// Units in order of first use.
    first_uses: Vec<usize>,
    /// Units that no pass uses, in the order of the request.
    unused: Vec<usize>,
    /// Milliseconds of the cycle with all weights resident.
    pub(crate) resident_ms: f64,
    /// Times that were negative or not numbers.
    pub(crate) cleaned: u64,
}

/// What a candidate is run on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Track<'a> {
    pub(crate) link: &'a LinkCurve,
    pub(crate) page_bytes: u64,
    pub(crate) chunk_pages: u64,
    pub(crate) ring_pages: u64,
}

impl Course {
    /// Checks and cleans a request.
    pub(crate) fn new(request: &PlanRequest) -> Result<Course, CoreError> {
        if request.page_bytes == 0 {
            return Err(CoreError::ZeroPageSize);
        }
        let mut positions = BTreeMap::new();
        for (at, unit) in request.units.iter().enumerate() {
            if positions.insert(unit.id, at).is_some() {
                return Err(CoreError::DuplicateUnit { unit: unit.id });
            }
        }
        let mut course = Course {
            ids: request.units.iter().map(|unit| unit.id).collect(),
            positions,
            uses: Vec::new(),
            pass_lengths: Vec::new(),
            first_uses: Vec::new(),
            unused: Vec::new(),
            resident_ms: 0.0,
            cleaned: 0,
        };
        let mut seen = vec![false; request.units.len()];
        for pass in &request.passes {
            course.add_pass(pass, &mut seen)?;
        }
        course.unused = (0..seen.len()).filter(|&at| seen.get(at) == Some(&false)).collect();
        Ok(course)
    }

    fn add_pass(&mut self, pass: &PassProfile, seen: &mut [bool]) -> Result<(), CoreError> {
        let before = self.uses.len();
        let mut pass_ms = 0.0;
        for (at, used) in pass.uses.iter().enumerate() {
            let unit = self.position(used.unit).ok_or(CoreError::UnknownUnit { unit: used.unit })?;
            let compute_ms = self.clean(used.compute_ms);
            pass_ms += compute_ms;
            let index = before + at;
            let continues = at > 0
                && pass.uses.get(at - 1).is_some_and(|previous: &UseInfo| previous.owner == used.owner);
            let group_first = match self.uses.last() {
                Some(previous) if continues => previous.group_first,
                _ => index,
            };
            self.uses.push(DenseUse { unit, compute_ms, tail_ms: 0.0, group_first, group_last: index });
            if let Some(first) = seen.get_mut(unit).filter(|seen| !**seen) {
                *first = true;
                self.first_uses.push(unit);
            }
        }
        let tail_ms = self.clean(pass.tail_ms);
        let resident_ms = self.clean(pass.resident_ms).max(pass_ms + tail_ms);
        self.close_groups(before);
        // Time that no use accounts for passes at the end of the pass.
        if let Some(last) = self.uses.get_mut(before..).and_then(<[DenseUse]>::last_mut) {
            last.tail_ms = resident_ms - pass_ms;
        }
        self.pass_lengths.push(pass.uses.len());
        self.resident_ms += resident_ms;
        Ok(())
    }

    /// Tells every use from `first` on where its group ends.
    fn close_groups(&mut self, first: usize) {
        let mut last = (usize::MAX, 0);
        for used in self.uses.get_mut(first..).unwrap_or_default().iter_mut().rev() {
            if used.group_first != last.0 {
                last = (used.group_first, used.group_last);
            }
            used.group_last = last.1;
        }
    }

    fn clean(&mut self, ms: f64) -> f64 {
        if ms.is_finite() && ms >= 0.0 {
            return ms;
        }
        self.cleaned += 1;
        0.0
    }

    /// The position of a unit in the request.
    pub(crate) fn position(&self, unit: UnitId) -> Option<usize> {
        self.positions.get(&unit).copied()
    }

    /// The unit at a position of the request.
    pub(crate) fn id(&self, position: usize) -> UnitId {
        self.ids.get(position).copied().unwrap_or(UnitId(u32::MAX))
    }

    /// Units in order of first use; units that no pass uses are not in it.
    pub(crate) fn first_uses(&self) -> &[usize] {
        &self.first_uses
    }

    /// Units that no pass uses, in the order of the request.
    pub(crate) fn unused(&self) -> &[usize] {
        &self.unused
    }

    /// All units in the order in which they lie around a ring: as they are used, then those that no pass uses.
    pub(crate) fn ring_order(&self) -> impl Iterator<Item = usize> {
        self.first_uses.iter().chain(&self.unused).copied()
    }

    /// The units and times of all uses, in order.
    pub(crate) fn uses(&self) -> impl Iterator<Item = (usize, f64)> {
        self.uses.iter().map(|used| (used.unit, used.compute_ms + used.tail_ms))
    }

    /// The groups of uses that are held together, each as the units it uses.
    pub(crate) fn groups(&self) -> impl Iterator<Item = Vec<usize>> {
        self.uses
            .chunk_by(|a, b| a.group_first == b.group_first)
            .map(|group| group.iter().map(|used| used.unit).collect())
    }

    /// Runs the course until it is steady. The runs must be free of conflicts ([`layout::conflicts`]).
    pub(crate) fn run(&self, track: &Track<'_>, runs: &[Run], with_timeline: bool) -> Simulation {
        let copies = self.copies(track, runs);
        let mut clock = Clock::new(self.uses.len(), copies.chunks.len());
        let mut period = 0.0;
        for _ in 0..MOST_CYCLES {
            period = clock.cycle(&self.uses, &copies);
            if clock.is_steady(period) {
                break;
            }
        }
        let link_ms: f64 = copies.chunks.iter().map(|chunk| chunk.ms).sum();
        // A lead that is still being used up hides these two limits for some cycles.
        let cycle_ms = period.max(link_ms).max(self.resident_ms);
        let copied = self.uses.iter().zip(&copies.counts).filter(|(_, count)| **count > 0);
        Simulation {
            cycle_ms,
            waits_ms: self.by_pass(&clock.waits),
            link_busy: if cycle_ms > 0.0 { link_ms / cycle_ms } else { 0.0 },
            copied_bytes: copied
                .map(|(used, _)| runs.get(used.unit).map_or(0, |run| run.pages * track.page_bytes))
                .sum(),
            timeline: if with_timeline {
                self.timeline(track.page_bytes, &clock, &copies)
            } else {
                Vec::new()
            },
        }
    }

    fn by_pass(&self, waits: &[f64]) -> Vec<Vec<f64>> {
        let mut rest = waits;
        let mut take = |length: usize| {
            let (pass, after) = rest.split_at(length.min(rest.len()));
            rest = after;
            pass.to_vec()
        };
        self.pass_lengths.iter().map(|&length| take(length)).collect()
    }

    fn timeline(&self, page_bytes: u64, clock: &Clock, copies: &Copies) -> Vec<Span> {
        let mut spans = Vec::with_capacity(self.uses.len() + copies.chunks.len());
        let mut chunks = copies.chunks.iter().zip(&clock.copied).zip(&clock.idle);
        for (index, (used, &count)) in self.uses.iter().zip(&copies.counts).enumerate() {
            let unit = self.id(used.unit);
            let span = |kind, ms: f64, end: f64, wait_ms, bytes| Span {
                kind,
                unit,
                use_index: index,
                start_ms: end - ms - clock.cycle_start,
                end_ms: end - clock.cycle_start,
                wait_ms,
                bytes,
            };
            spans.extend(chunks.by_ref().take(count).map(|((chunk, &end), &idle)| {
                span(SpanKind::Copy, chunk.ms, end, idle, chunk.pages * page_bytes)
            }));
            let end = clock.ends.get(index).copied().unwrap_or_default();
            let wait = clock.waits.get(index).copied().unwrap_or_default();
            spans.push(span(SpanKind::Use, used.compute_ms, end, wait, 0));
        }
        spans
    }

    /// The copies of every use at steady state. Walking the cycle once leaves the ring as every later cycle
    /// finds it; the second walk takes notes.
    fn copies(&self, track: &Track<'_>, runs: &[Run]) -> Copies {
        let mut ring = RingPages::new(track.ring_pages);
        let mut copies = Copies { chunks: Vec::new(), counts: Vec::with_capacity(self.uses.len()) };
        let full_ms = track.link.copy_ms(track.chunk_pages * track.page_bytes);
        for cycle in 0..2 {
            for (index, used) in self.uses.iter().enumerate() {
                let run = runs.get(used.unit).copied().unwrap_or_default();
                let now = cycle * self.uses.len() + index;
                if cycle == 1 {
                    let before = copies.chunks.len();
                    if !ring.holds(used.unit, run) {
                        for part in run.parts(track.chunk_pages, track.ring_pages) {
                            let whole = part.pages == track.chunk_pages;
                            let ms = if whole {
                                full_ms
                            } else {
                                track.link.copy_ms(part.pages * track.page_bytes)
                            };
                            let gate = ring.last_use(part).map(|last| self.release_of(last).min(now - 1));
                            copies.chunks.push(Chunk { pages: part.pages, ms, gate });
                        }
                    }
                    copies.counts.push(copies.chunks.len() - before);
                }
                ring.show(used.unit, run, now);
            }
        }
        copies
    }

    /// The use at whose end everything held together with this use is released; both counted over the
    /// previous and this cycle.
    fn release_of(&self, position: usize) -> usize {
        let cycle_start = position / self.uses.len().max(1) * self.uses.len();
        self.uses.get(position - cycle_start).map_or(position, |used| cycle_start + used.group_last)
    }
}
