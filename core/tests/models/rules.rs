//! What holds of every plan, however it came about.

use std::collections::BTreeSet;

use flextensor_core::plan::{Plan, PlanRequest};
use flextensor_core::units::UnitId;

use super::PAGE;

/// Panics when the plan breaks a rule that holds for every plan; `shared_ring` = its ring belongs to another
/// plan.
pub(crate) fn hold(request: &PlanRequest, plan: &Plan, shared_ring: bool) {
    let streamed: u64 = plan.placements.iter().map(|p| p.streamed_pages).sum();
    let total = request.total_bytes();
    assert_eq!(plan.placements.len(), request.units.len());
    assert_eq!(request.fixed_bytes + plan.resident_bytes + streamed * PAGE, total);
    assert_eq!(plan.peak_bytes, request.fixed_bytes + plan.resident_bytes + plan.ring_bytes);
    assert!(plan.peak_bytes <= total, "streaming must not cost memory");
    if let Some(budget) = request.budget {
        assert_eq!(plan.budget_missed().is_none(), plan.peak_bytes <= budget);
    } else {
        assert_eq!(streamed, 0);
    }
    if !shared_ring {
        assert_eq!(plan.ring_bytes, plan.ring_pages * PAGE);
    }
    for (unit, placement) in request.units.iter().zip(&plan.placements) {
        let pages = placement.streamed_pages;
        assert_eq!(placement.unit, unit.id);
        assert!(pages <= unit.pages && (pages == 0 || unit.stay.is_none()));
        assert!(unit.splittable || pages == 0 || pages == unit.pages);
        assert_eq!(plan.run(unit.id).map_or(0, |run| run.pages), pages);
    }
    for run in &plan.layout {
        assert!(run.pages <= plan.ring_pages && run.start < plan.ring_pages);
    }
    for pass in &request.passes {
        for group in pass.uses.chunk_by(|a, b| a.owner == b.owner) {
            let mut holder = vec![None; plan.ring_pages as usize];
            for run in group.iter().filter_map(|used| plan.run(used.unit)) {
                for page in run.start..run.start + run.pages {
                    let holder = &mut holder[(page % plan.ring_pages) as usize];
                    assert!(
                        holder.is_none_or(|unit| unit == run.unit),
                        "{holder:?} and {run:?} are held together"
                    );
                    *holder = Some(run.unit);
                }
            }
        }
    }
    let used: BTreeSet<UnitId> =
        request.passes.iter().flat_map(|pass| &pass.uses).map(|used| used.unit).collect();
    assert!(plan.orders.iter().flat_map(|(_, order)| order).all(|unit| used.contains(unit)));
    assert!(plan.predicted_ms.is_finite() && plan.predicted_ms >= 0.0);
    if plan.budget_missed().is_none() && !shared_ring {
        assert!(plan.predicted_ms >= plan.bound_ms * (1.0 - 1e-9), "faster than the bound: {plan:?}");
    }
}
