//! Weights that a pass uses several times: which of them stay.
#![allow(clippy::unwrap_used, reason = "a test panics when something is missing, and may show its figures")]

mod models;

use std::collections::BTreeMap;

use flextensor_core::link::LinkCurve;
use flextensor_core::plan::{Plan, PlanRequest, StayReason, plan};
use flextensor_core::units::UnitId;
use models::random::cases;
use models::{PAGE, pass, unit, with_percent};
use proptest::prelude::*;

/// Pages of every weight.
const PAGES: u64 = 20;
/// Weights that are used at the beginning and in the middle of the pass.
const FAR: std::ops::Range<u32> = 0..4;
/// Pairs of weights that are used in turns, three times each, and by then are still where they were copied to.
const NEAR: std::ops::Range<u32> = 4..24;
/// Weights that are used once.
const ONCE: std::ops::Range<u32> = 24..44;

/// A pass that copies longer than it computes.
fn pass_with_repeats() -> PlanRequest {
    let near = NEAR.step_by(2).flat_map(|first| [first, first + 1].repeat(3));
    let order = FAR.chain(near).chain(FAR).chain(ONCE);
    let uses: Vec<_> = (0..).zip(order).map(|(owner, unit)| (unit, 0.05, owner)).collect();
    PlanRequest {
        units: (0..ONCE.end).map(|id| unit(id, PAGES, true)).collect(),
        passes: vec![pass(1, &uses, 0.0)],
        ..PlanRequest::default()
    }
}

fn streamed(plan: &Plan, units: std::ops::Range<u32>) -> u64 {
    units.map(|unit| plan.streamed_pages(UnitId(unit))).sum()
}

#[test]
fn what_the_ring_would_lose_between_two_uses_stays_and_not_what_is_used_most() {
    let request = pass_with_repeats();
    let made = plan(&with_percent(request, 22)).unwrap();
    assert_eq!(made.budget_missed(), None);
    assert_eq!(streamed(&made, FAR), 0, "{:?}", made.placements);
    assert_eq!(made.streamed_bytes, (streamed(&made, NEAR) + streamed(&made, ONCE)) * PAGE, "each once");
}

/// A model whose weights are used in order, some of them again somewhere.
fn requests() -> impl Strategy<Value = PlanRequest> {
    let pages = prop::collection::vec(1..40u64, 3..24);
    let again = prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>()), 1..16);
    let times = prop::collection::vec(0.0..2.0f64, 40);
    (pages, again, times, 1.0..60.0f64).prop_map(|(pages, again, times, link)| {
        let mut order: Vec<u32> = (0..pages.len() as u32).collect();
        for (from, to) in again {
            let unit = order[from.index(order.len())];
            order.insert(to.index(order.len()), unit);
        }
        let uses: Vec<_> = (0..).zip(order).map(|(at, unit)| (unit, times[at as usize], at)).collect();
        PlanRequest {
            units: (0..).zip(pages).map(|(id, pages)| unit(id, pages, true)).collect(),
            passes: vec![pass(1, &uses, 0.0)],
            link: LinkCurve::flat(link),
            ..PlanRequest::default()
        }
    })
}

proptest! {
    #![proptest_config(cases(192))]

    #[test]
    fn nothing_is_gained_by_excluding_what_is_used_again(request in requests(), percent in 10..90u64) {
        let request = with_percent(request, percent);
        let mut uses = BTreeMap::new();
        // Uses in a row are one.
        for used in request.passes[0].uses.chunk_by(|a, b| a.unit == b.unit) {
            *uses.entry(used[0].unit).or_insert(0) += 1;
        }
        let mut excluding = request.clone();
        for unit in excluding.units.iter_mut().filter(|unit| uses[&unit.id] > 1) {
            unit.stay = Some(StayReason::Excluded);
        }
        let by_hand = plan(&excluding).unwrap();
        prop_assume!(by_hand.budget_missed().is_none());
        let made = plan(&request).unwrap();
        prop_assert_eq!(made.budget_missed(), None);
        prop_assert!(
            made.predicted_ms <= by_hand.predicted_ms * 1.002,
            "{} ms, {} ms without", made.predicted_ms, by_hand.predicted_ms
        );
    }
}
