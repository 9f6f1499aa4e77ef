//! Times over a range of budgets, and their chart. One plan is made for each budget; who makes it is the
//! caller's choice.

use flextensor_core::plan::PlanRequest;
use flextensor_core::units::Bytes;

use crate::chart::{Chart, Line, Stroke, Upright};
use crate::error::WhatIfError;
use crate::planner::Planner;

/// Budgets of a sweep, evenly from one part of the weights to all of them.
pub const BUDGETS: u32 = 32;

/// What one budget gives.
#[derive(Debug, Clone, Copy, PartialEq, serde::Serialize)]
pub struct Point {
    /// The budget.
    pub budget_bytes: u64,
    /// What the plan takes of it; more than the budget where that cannot be met.
    pub peak_bytes: u64,
    /// Predicted milliseconds of one pass of every model.
    pub predicted_ms: f64,
    /// The least that any plan could take.
    pub bound_ms: f64,
    /// Bytes copied in these passes.
    pub streamed_bytes: u64,
}

impl Point {
    /// Whether the plan keeps the budget.
    #[must_use]
    pub fn is_met(&self) -> bool {
        self.peak_bytes <= self.budget_bytes
    }
}

/// Sweeps by the name of who planned.
pub type Sweeps = Vec<(String, Vec<Point>)>;

/// The budgets of a sweep: evenly spread up to all weights, and the chosen one.
#[must_use]
pub fn budgets(request: &PlanRequest) -> Vec<u64> {
    let total = request.total_bytes();
    let mut budgets: Vec<u64> =
        (1..=u64::from(BUDGETS)).map(|part| total / u64::from(BUDGETS) * part).collect();
    if let Some(last) = budgets.last_mut() {
        *last = total;
    }
    budgets.extend(request.budget.filter(|budget| *budget < total));
    budgets.retain(|budget| *budget > 0);
    budgets.sort_unstable();
    budgets.dedup();
    budgets
}

/// One point for each budget of [`budgets`]; where the planner has no answer, there is none.
///
/// # Errors
/// [`WhatIfError::Core`] when the request contradicts itself.
pub fn sweep(request: &PlanRequest, planner: &Planner) -> Result<Vec<Point>, WhatIfError> {
    let mut points = Vec::new();
    for budget in budgets(request) {
        match planner.plan(&PlanRequest { budget: Some(budget), ..request.clone() }) {
            Ok(plan) => points.push(Point {
                budget_bytes: budget,
                peak_bytes: plan.peak_bytes,
                predicted_ms: plan.predicted_ms,
                bound_ms: plan.bound_ms,
                streamed_bytes: plan.streamed_bytes,
            }),
            Err(WhatIfError::Declined { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(points)
}

/// The chart of sweeps by name: times against budgets that are met, the bound, the native time, the chosen budget.
#[must_use]
pub fn chart(title: String, sweeps: &[(String, Vec<Point>)], native_ms: f64, chosen: Option<u64>) -> Chart {
    let met = |points: &[Point], read: fn(&Point) -> f64| {
        let met = points.iter().filter(|point| point.is_met());
        met.map(|point| (gib(point.budget_bytes as f64), read(point))).collect::<Vec<_>>()
    };
    let mut lines: Vec<Line> = sweeps
        .iter()
        .map(|(name, points)| Line {
            label: name.clone(),
            stroke: Stroke::Through,
            points: met(points, |point| point.predicted_ms),
        })
        .filter(|line| !line.points.is_empty())
        .collect();
    if let Some((_, points)) = sweeps.first() {
        // The bound knows no ring, so it has a value where no plan meets the budget.
        let bound = points.iter().map(|point| (gib(point.budget_bytes as f64), point.bound_ms)).collect();
        lines.push(Line { label: "bound".into(), stroke: Stroke::Limit, points: bound });
        let most = points.last().map_or(0.0, |point| gib(point.budget_bytes as f64));
        let native = vec![(0.0, native_ms), (most, native_ms)];
        lines.push(Line { label: "everything resident".into(), stroke: Stroke::Reference, points: native });
    }
    let upright = chosen.map(|bytes| {
        let first = sweeps.first().map(|(_, points)| points.as_slice()).unwrap_or_default();
        let point = first.iter().find(|point| point.budget_bytes == bytes && point.is_met());
        let time = point.map(|point| format!(": {:.1} ms", point.predicted_ms)).unwrap_or_default();
        Upright { at: gib(bytes as f64), label: format!("{}{time}", Bytes(bytes)) }
    });
    Chart {
        title,
        along: "GPU memory that weights may take, GiB".into(),
        upward: "milliseconds a pass".into(),
        lines,
        uprights: upright.into_iter().collect(),
        ..Chart::default()
    }
}

/// Bytes in GiB.
pub(crate) fn gib(bytes: f64) -> f64 {
    bytes / f64::from(1 << 30)
}
