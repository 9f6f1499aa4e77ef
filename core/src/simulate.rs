//! The timing model: how long passes take when weights are streamed through the ring, at steady state.
//! It knows the link, the ring and the order of use, and nothing of budgets; choosing is `plan`'s job.
//!
//! Copies run one after the other on one link, in order of use, in chunks. A chunk starts when the link is
//! free and the last use of what it overwrites has ended (its whole group, if uses are held together). A use
//! starts when its copies have ended and the previous use has ended. Passes repeat; the first of the next
//! cycle is prefetched during the last of this one.

mod clock;
mod course;
mod lap;
mod ring;

use crate::error::CoreError;
use crate::layout::{self, Run};
use crate::link::LinkCurve;
use crate::plan::{Plan, PlanRequest};
use crate::units::UnitId;
pub(crate) use course::{Course, Scenario};

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
    /// Milliseconds of the cycle if the host took no time.
    #[serde(default)]
    pub gpu_ms: f64,
    /// For each pass, for each use: milliseconds it waited for its copies.
    pub waits_ms: Vec<Vec<f64>>,
    /// Part of the time in which the link copies, 0 to 1.
    pub link_busy: f64,
    /// Milliseconds in which the link copies.
    #[serde(default)]
    pub link_ms: f64,
    /// Bytes copied.
    pub copied_bytes: u64,
    /// Every copy and use, if asked for.
    pub timeline: Vec<Span>,
}

/// Simulates the passes of a request under a plan. Of a model with several shapes the first is taken;
/// [`simulate_shapes`] takes them all. Without any pass nothing happens.
///
/// # Errors
/// [`CoreError::RunExceedsRing`] and [`CoreError::HeldTogetherOverlap`] when the plan's layout could never
/// run; [`CoreError::UnknownUnit`] when a pass uses a unit that the request does not describe, and the other
/// errors of [`crate::plan::plan`].
pub fn simulate(request: &PlanRequest, plan: &Plan, with_timeline: bool) -> Result<Simulation, CoreError> {
    Ok(simulate_shapes(request, plan, with_timeline)?.into_iter().next().unwrap_or_default())
}

/// Simulates a cycle for every shape: the first of every model, the second of every model, and so on (a model
/// with fewer repeats its last one), in the order of [`Plan::forecasts`].
///
/// # Errors
/// As [`simulate`].
pub fn simulate_shapes(
    request: &PlanRequest,
    plan: &Plan,
    with_timeline: bool,
) -> Result<Vec<Simulation>, CoreError> {
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
        chunk_pages: if plan.chunk_pages > 0 { plan.chunk_pages } else { request.chunk_pages.max(1) },
        ring_pages: plan.ring_pages,
    };
    Ok(course.run(&track, &runs, with_timeline))
}

/// What a candidate is run on.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Track<'a> {
    pub(crate) link: &'a LinkCurve,
    pub(crate) page_bytes: u64,
    pub(crate) chunk_pages: u64,
    pub(crate) ring_pages: u64,
}
