//! A model that arrives when a plan is already in force: its weights are laid on the ring that exists.
//! Moving what already runs is a new plan for everything, and not done here.

use crate::error::CoreError;
use crate::plan::assemble;
use crate::plan::search::{self, SharedRing};
use crate::plan::{Forecast, Plan, PlanRequest};
use crate::simulate::Course;

/// See [`crate::plan::plan_increment`].
pub(super) fn plan(existing: &Plan, request: &PlanRequest) -> Result<Plan, CoreError> {
    if existing.ring_pages == 0 {
        return search::plan(request);
    }
    let course = Course::new(request)?;
    let cursor = existing.layout.last().map_or(0, |run| run.start + run.pages);
    let ring = SharedRing { ring_pages: existing.ring_pages, cursor, chunk_pages: existing.chunk_pages };
    let choice = search::choose(request, &course, Some(ring));
    let ring_pages = existing.ring_pages;
    // The ring is paid for by the plan that made it.
    Ok(Plan { ring_pages, ..assemble::describe(request, &course, choice, 0) })
}

impl Plan {
    /// This plan with an increment made for it: both models' placements, runs and orders on one ring. Times
    /// and bytes add up, as if the models took turns.
    #[must_use]
    pub fn with_increment(mut self, increment: Plan) -> Plan {
        self.placements.extend(increment.placements);
        self.layout.extend(increment.layout);
        self.orders.extend(increment.orders);
        self.notes.extend(increment.notes);
        self.ring_pages = self.ring_pages.max(increment.ring_pages);
        self.ring_bytes += increment.ring_bytes;
        self.resident_bytes += increment.resident_bytes;
        self.streamed_bytes += increment.streamed_bytes;
        self.peak_bytes += increment.peak_bytes;
        self.predicted_ms += increment.predicted_ms;
        self.bound_ms += increment.bound_ms;
        self.chunk_pages = if self.chunk_pages > 0 { self.chunk_pages } else { increment.chunk_pages };
        self.forecasts = in_turn(self.forecasts, increment.forecasts);
        self
    }
}

/// Forecasts of two models that take turns: first with first, second with second; the last of the shorter list
/// is repeated.
fn in_turn(one: Vec<Forecast>, other: Vec<Forecast>) -> Vec<Forecast> {
    let (Some(last), Some(other_last)) = (one.last().cloned(), other.last().cloned()) else {
        return if one.is_empty() { other } else { one };
    };
    let length = one.len().max(other.len());
    let all = one.into_iter().chain(std::iter::repeat(last));
    let others = other.into_iter().chain(std::iter::repeat(other_last));
    let add = |(mut sum, add): (Forecast, Forecast)| {
        sum.shapes.extend(add.shapes);
        sum.resident_ms += add.resident_ms;
        sum.predicted_ms += add.predicted_ms;
        sum.bound_ms += add.bound_ms;
        sum.copied_bytes += add.copied_bytes;
        sum
    };
    all.zip(others).take(length).map(add).collect()
}
