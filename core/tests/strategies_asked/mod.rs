//! Strategies, asked with parameters that keep their searches short, and what every plan of theirs must keep.
#![allow(dead_code, reason = "every test program uses its own part of this module")]

use flextensor_core::plan::{Plan, PlanRequest};
use flextensor_core::simulate::simulate;
use flextensor_core::strategy::{Parameters, Planned, StrategyError, Value, by_name};

use crate::models::PAGE;

/// Parameters of these names.
pub(crate) fn parameters(given: &[(&str, Value)]) -> Parameters {
    given.iter().map(|(name, value)| ((*name).to_owned(), value.clone())).collect()
}

/// Parameters with which the searches of a strategy stay short.
pub(crate) fn quick(name: &str) -> Parameters {
    let searches =
        name == "GlobalTensorSelectionStrategy" || name.starts_with("BudgetFill") && !name.contains("Greedy");
    if searches {
        parameters(&[("pop_size", Value::Whole(6)), ("epoch", Value::Whole(8))])
    } else {
        Parameters::new()
    }
}

/// What a strategy makes of a request; none when it has no answer, which only those that fill a budget may say.
pub(crate) fn planned(name: &str, request: &PlanRequest) -> Option<Planned> {
    match by_name(name, &quick(name)).unwrap().plan(request) {
        Ok(planned) => Some(planned),
        Err(StrategyError::NotApplicable { .. }) if name.starts_with("BudgetFill") => None,
        Err(error) => panic!("{name}: {error}"),
    }
}

/// Panics when a plan contradicts its request or itself.
pub(crate) fn check(name: &str, request: &PlanRequest, plan: &Plan) {
    let streamed: u64 = plan.placements.iter().map(|placement| placement.streamed_pages).sum();
    assert_eq!(plan.placements.len(), request.units.len(), "{name}");
    assert_eq!(request.fixed_bytes + plan.resident_bytes + streamed * PAGE, request.total_bytes(), "{name}");
    assert_eq!(plan.peak_bytes, request.fixed_bytes + plan.resident_bytes + plan.ring_bytes, "{name}");
    assert_eq!(plan.budget_missed().is_none(), request.budget.is_none_or(|budget| plan.peak_bytes <= budget));
    for (unit, placement) in request.units.iter().zip(&plan.placements) {
        assert!(placement.streamed_pages == 0 || unit.stay.is_none(), "{name} streams {unit:?}");
        assert!(placement.streamed_pages <= unit.pages, "{name}");
        assert_eq!(plan.run(unit.id).map_or(0, |run| run.pages), placement.streamed_pages, "{name}");
    }
    let simulated = simulate(request, plan, false).unwrap();
    assert!((simulated.cycle_ms - plan.predicted_ms).abs() <= 1e-9 * plan.predicted_ms, "{name}");
    assert_eq!(simulated.copied_bytes, plan.streamed_bytes, "{name}");
}
