//! From the chosen filling to the plan that says it: placements, runs, orders, bytes, bound and notes.
//! Choosing is `search`'s job.

use crate::layout::Run;
use crate::plan::{Forecast, Placement, Plan, PlanNote, PlanRequest, RingRun};
use crate::simulate::{Course, Scenario};

/// A filling that was laid around a ring and timed; vectors are by position of the unit in the request.
#[derive(Debug, Clone)]
pub(super) struct Choice {
    pub(super) ring_pages: u64,
    pub(super) chunk_pages: u64,
    pub(super) streamed: Vec<u64>,
    pub(super) runs: Vec<Run>,
    /// One for each scenario.
    pub(super) cycles: Vec<Cycle>,
    /// What it is judged by: the less the better.
    pub(super) score: f64,
    /// Pages by which it misses the budget.
    pub(super) missing: u64,
    pub(super) notes: Vec<PlanNote>,
}

/// What was predicted for one scenario.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Cycle {
    pub(super) ms: f64,
    /// Milliseconds in which the link copies: the time of a cycle that computes nothing.
    pub(super) link_ms: f64,
    pub(super) bytes: u64,
}

impl Choice {
    /// Nothing is streamed.
    pub(super) fn resident(request: &PlanRequest, course: &Course) -> Self {
        let resident = |scenario: &Scenario| Cycle { ms: scenario.resident_ms, link_ms: 0.0, bytes: 0 };
        Choice {
            ring_pages: 0,
            chunk_pages: request.chunk_pages.max(1),
            streamed: vec![0; request.units.len()],
            runs: vec![Run::default(); request.units.len()],
            cycles: course.scenarios().iter().map(resident).collect(),
            score: 1.0,
            missing: 0,
            notes: Vec::new(),
        }
    }

    /// Milliseconds of a cycle that computes nothing, in the scenario that copies longest.
    pub(super) fn link_ms(&self) -> f64 {
        self.cycles.iter().map(|cycle| cycle.link_ms).fold(0.0, f64::max)
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
    let forecasts = forecasts(request, course, &choice.cycles);
    let first = forecasts.first().cloned().unwrap_or_default();
    Plan {
        placements: placements.collect(),
        ring_pages: choice.ring_pages,
        layout: layout.collect(),
        orders: orders(request, course, &choice.streamed),
        resident_bytes: peak_bytes - ring_bytes - request.fixed_bytes,
        ring_bytes,
        streamed_bytes: first.copied_bytes,
        predicted_ms: first.predicted_ms,
        bound_ms: first.bound_ms,
        peak_bytes,
        chunk_pages: choice.chunk_pages,
        forecasts,
        notes,
    }
}

/// The streamed uses of every model, in order. Of several shapes of one model the first one counts.
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

fn forecasts(request: &PlanRequest, course: &Course, cycles: &[Cycle]) -> Vec<Forecast> {
    let scenarios = course.scenarios().iter().zip(cycles);
    scenarios
        .map(|(scenario, cycle)| Forecast {
            shapes: scenario.shapes.clone(),
            resident_ms: scenario.resident_ms,
            predicted_ms: cycle.ms,
            bound_ms: bound_ms(request, scenario),
            copied_bytes: cycle.bytes,
        })
        .collect()
}

/// The least time that any plan could take: every pass computes, and reads over the link what does not fit of
/// the bytes that passes read. What no pass of the scenario reads is left out, unless it has to stay.
pub(crate) fn bound_ms(request: &PlanRequest, scenario: &Scenario) -> f64 {
    let mut read = vec![false; request.units.len()];
    for (unit, _) in scenario.uses() {
        if let Some(read) = read.get_mut(unit) {
            *read = true;
        }
    }
    let unread = request.units.iter().zip(read).filter(|(unit, read)| !read && unit.stay.is_none());
    let unread = unread.map(|(unit, _)| unit.footprint(request.page_bytes)).fold(0, u64::saturating_add);
    let over = (request.total_bytes() - unread).saturating_sub(request.budget.unwrap_or(u64::MAX));
    scenario.resident_ms.max(over as f64 / request.link.peak_bytes_per_ms())
}
