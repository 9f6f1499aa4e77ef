//! From the chosen filling to the plan that says it: placements, runs, orders, bytes, bound and notes.
//! Choosing is `search`'s job.

use crate::layout::Run;
use crate::plan::idle::Idle;
use crate::plan::{Placement, Plan, PlanNote, PlanRequest, RingRun};
use crate::simulate::Course;

/// A filling that was laid around a ring and timed; vectors are by position of the unit in the request.
#[derive(Debug, Clone)]
pub(super) struct Choice {
    pub(super) ring_pages: u64,
    pub(super) streamed: Vec<u64>,
    pub(super) runs: Vec<Run>,
    pub(super) predicted_ms: f64,
    pub(super) streamed_bytes: u64,
    /// Pages by which it misses the budget.
    pub(super) missing: u64,
    pub(super) notes: Vec<PlanNote>,
}

impl Choice {
    /// Nothing is streamed.
    pub(super) fn resident(request: &PlanRequest, course: &Course) -> Self {
        Choice {
            ring_pages: 0,
            streamed: vec![0; request.units.len()],
            runs: vec![Run::default(); request.units.len()],
            predicted_ms: course.resident_ms,
            streamed_bytes: 0,
            missing: 0,
            notes: Vec::new(),
        }
    }
}

/// The plan of a choice whose ring counts against the budget.
pub(super) fn plan(request: &PlanRequest, course: &Course, choice: Choice) -> Plan {
    let ring_bytes = choice.ring_pages * request.page_bytes;
    describe(request, course, choice, ring_bytes)
}

/// The plan of a choice; `ring_bytes` is what its ring adds to the peak.
pub(super) fn describe(request: &PlanRequest, course: &Course, choice: Choice, ring_bytes: u64) -> Plan {
    let streamed_total: u64 = choice.streamed.iter().sum();
    let total = request.total_bytes();
    let peak_bytes = total - streamed_total * request.page_bytes + ring_bytes;
    let pages = |unit: usize| choice.streamed.get(unit).copied().unwrap_or(0);
    let layout = course.ring_order().filter_map(|unit| {
        let run = choice.runs.get(unit).filter(|run| run.pages > 0)?;
        Some(RingRun { unit: course.id(unit), start: run.start, pages: run.pages })
    });
    let placements = request.units.iter().enumerate();
    let placements = placements.map(|(at, unit)| Placement { unit: unit.id, streamed_pages: pages(at) });
    let mut notes = choice.notes;
    if let Some(asked) = request.budget.filter(|asked| *asked < peak_bytes) {
        notes.push(PlanNote::BudgetMissed { smallest_budget: peak_bytes, asked });
    }
    if course.cleaned > 0 {
        notes.push(PlanNote::TimesCleaned { count: course.cleaned });
    }
    Plan {
        placements: placements.collect(),
        ring_pages: choice.ring_pages,
        layout: layout.collect(),
        orders: orders(request, course, &choice.streamed),
        resident_bytes: peak_bytes - ring_bytes - request.fixed_bytes,
        ring_bytes,
        streamed_bytes: choice.streamed_bytes,
        predicted_ms: choice.predicted_ms,
        bound_ms: bound_ms(request, course),
        peak_bytes,
        notes,
    }
}

/// The streamed uses of every model, in order. Of several passes of one model the first one counts.
fn orders(
    request: &PlanRequest,
    course: &Course,
    streamed: &[u64],
) -> Vec<(crate::units::ModelId, Vec<crate::units::UnitId>)> {
    let is_streamed =
        |unit| course.position(unit).and_then(|at| streamed.get(at)).is_some_and(|pages| *pages > 0);
    let mut orders: Vec<(_, Vec<_>)> = Vec::new();
    for pass in &request.passes {
        if orders.iter().all(|(model, _)| *model != pass.model) {
            let uses = pass.uses.iter().map(|used| used.unit).filter(|unit| is_streamed(*unit));
            orders.push((pass.model, uses.collect()));
        }
    }
    orders
}

/// The least time that any plan could take: every pass computes, and reads over the link what does not fit of
/// the bytes that passes read. Idle units are not read.
fn bound_ms(request: &PlanRequest, course: &Course) -> f64 {
    let budget = request.budget.unwrap_or(u64::MAX);
    let over = (request.total_bytes() - Idle::bytes(request, course)).saturating_sub(budget);
    course.resident_ms.max(over as f64 / request.link.peak_bytes_per_ms())
}
