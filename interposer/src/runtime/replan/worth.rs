//! Whether a new plan is worth its change, by what it is thought of for. What passes take in a plan is core's `simulate`, after how many a change must have repaid
//! itself its `drift`.

use flextensor_core::drift::repays;
use flextensor_core::plan::Plan;
use flextensor_core::simulate::simulate_shapes;
use flextensor_core::units::GIB;

use super::super::arena::PAGE;
use super::super::pressure;
use super::standing::Asked;
use super::target::Target;
use crate::log;

/// Milliseconds that the gate may be closed for each GiB that is mapped anew; what a change is reckoned to cost.
const REMAP_MS_PER_GIB: f64 = 50.0;

/// Why a new plan is thought of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in super::super) enum Why {
    /// A model came when the ring was there already.
    Model,
    /// Passes take longer, or far shorter, than the plan says.
    Drift,
    /// An allocation has no room.
    Pressure,
    /// Memory that weights had to make free is not needed any more.
    Room,
    /// A weight became private, and the budget is exceeded by it.
    Budget,
    /// The program chose a strategy, or weights.
    Chosen,
    /// The program asked for it.
    Asked,
}

/// The program's word counts; then the budget comes first; then what is gained must repay what the change costs.
pub(super) fn is_worth_it(asked: &Asked, made: &Plan, targets: &[Target], why: Why) -> bool {
    if why == Why::Room {
        // Less than what stays free is not worth moving for, unless it is the rest.
        let gained = made.peak_bytes.saturating_sub(asked.peak());
        return !targets.is_empty() && (made.ring_pages == 0 || gained >= pressure::room(asked.total_bytes));
    }
    // A ring of nothing is the end of streaming, which is left to those who let weights go.
    if targets.is_empty() || made.ring_pages == 0 {
        return false;
    }
    if why == Why::Chosen {
        return true;
    }
    let fits = asked.request.budget.is_none_or(|budget| made.peak_bytes <= budget);
    if asked.over_budget && fits {
        return true;
    }
    let fits_better = made.peak_bytes <= asked.request.budget.unwrap_or(u64::MAX).max(asked.peak());
    if why == Why::Asked {
        return fits_better;
    }
    let Ok(cycles) = simulate_shapes(&asked.request, &asked.standing, false) else {
        // Uses that are held together share pages as things stand: nothing could be worse.
        return fits_better;
    };
    let then = made.forecasts.iter().map(|forecast| forecast.predicted_ms);
    let times: Vec<(f64, f64)> = cycles.iter().map(|cycle| cycle.cycle_ms).zip(then).collect();
    let cost_ms = cost_ms(asked, targets);
    log::debug!(
        "a new plan for GPU {}: {times:.1?} ms a pass now and then, {cost_ms:.1} ms to get there",
        asked.device
    );
    fits_better && repays(&times, cost_ms)
}

/// Milliseconds that a change costs once: the gate is closed for what is mapped anew, and the link carries what moves.
pub(super) fn cost_ms(asked: &Asked, targets: &[Target]) -> f64 {
    let remapped: u64 = targets.iter().map(Target::remapped).sum();
    let moved: u64 = targets.iter().map(|target| target.demoted() + target.promoted()).sum();
    (remapped * PAGE) as f64 / GIB as f64 * REMAP_MS_PER_GIB
        + (moved * PAGE) as f64 / asked.request.link.peak_bytes_per_ms()
}

/// What a pass takes in a plan, on average over all shapes.
pub(super) fn mean_ms(plan: &Plan) -> f64 {
    let count = plan.forecasts.len().max(1) as f64;
    plan.forecasts.iter().map(|forecast| forecast.predicted_ms).sum::<f64>() / count
}
