//! Requests made by chance, for what must hold of all plans.

use flextensor_core::link::LinkCurve;
use flextensor_core::plan::{PlanRequest, StayReason};
use proptest::prelude::*;

use super::{PAGE, pass, unit};

/// A random model: units, some indivisible, some that stay, some idle; uses with repeated units and owners of
/// several uses.
pub(crate) fn requests() -> impl Strategy<Value = PlanRequest> {
    let shape = (
        1..60u64,
        prop::bool::weighted(0.7),
        prop::bool::weighted(0.1),
        prop::sample::select(vec![false, false, true]),
    );
    let with_idle = prop::collection::vec(shape.clone(), 1..24);
    let all_used =
        prop::collection::vec(shape.prop_map(|(pages, split, stays, _)| (pages, split, stays, false)), 1..24);
    let units = prop_oneof![with_idle, all_used];
    let repeats = prop::collection::vec((any::<prop::sample::Index>(), 0..40u32), 0..4);
    let owners = prop::collection::vec(1..4u32, 24);
    let times = prop::collection::vec(0.0..2.0f64, 28);
    (units, repeats, owners, times, 0..50u64, 1.0..60.0f64, 1..20u64).prop_map(
        |(shapes, repeats, owners, times, fixed, link, chunk)| {
            let mut units = Vec::new();
            let mut uses: Vec<(u32, f64, u32)> = Vec::new();
            let mut owner_sizes = owners.iter().copied();
            let (mut owner, mut left) = (0, 0);
            for ((id, (pages, splittable, stays, idle)), ms) in (0..).zip(shapes).zip(&times) {
                let mut unit = unit(id, pages, splittable);
                unit.stay = stays.then_some(StayReason::Excluded);
                units.push(unit);
                if idle {
                    continue;
                }
                if left == 0 {
                    owner += 1;
                    left = owner_sizes.next().unwrap_or(1);
                }
                left -= 1;
                uses.push((id, *ms, owner));
            }
            for ((at, owner), ms) in repeats.into_iter().zip(&times[24..]) {
                if uses.is_empty() {
                    break;
                }
                let again = uses[at.index(uses.len())].0;
                let to = (owner as usize * 7) % (uses.len() + 1);
                uses.insert(to, (again, *ms, owner));
            }
            PlanRequest {
                fixed_bytes: fixed * PAGE,
                units,
                passes: vec![pass(1, &uses, times[0])],
                link: LinkCurve::flat(link),
                chunk_pages: chunk,
                ..PlanRequest::default()
            }
        },
    )
}

/// The request with this part of all weights as its budget.
pub(crate) fn with_budget(request: &PlanRequest, part: f64) -> PlanRequest {
    PlanRequest { budget: Some((request.total_bytes() as f64 * part) as u64), ..request.clone() }
}

/// Cases of a property; those that are left out do not end a run with more cases.
pub(crate) fn cases(count: u32) -> ProptestConfig {
    ProptestConfig {
        failure_persistence: None,
        max_global_rejects: u32::MAX,
        ..ProptestConfig::with_cases(count)
    }
}
