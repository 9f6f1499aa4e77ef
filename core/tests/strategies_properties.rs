//! What holds for every strategy on random profiles; and that our own planner never streams more than any of them
//! for the same time.
#![allow(clippy::unwrap_used, reason = "a test panics when something is missing, and may show its figures")]

mod models;
mod strategies_asked;

use flextensor_core::link::LinkCurve;
use flextensor_core::plan::{PassProfile, PlanRequest, StayReason, plan};
use flextensor_core::strategy::{Planned, Question, by_name, names};
use models::{PAGE, pass, unit};
use proptest::prelude::*;
use proptest::test_runner::{RngSeed, TestRunner};
use strategies_asked::{check, planned, quick};

/// Layers of a few tensors each; some stay, some layers have none. `divisible`: the part of the tensors that can
/// be split.
fn requests(divisible: f64) -> impl Strategy<Value = PlanRequest> {
    // Shrinking makes bools false whatever their weight: where all can be split, none may become one that cannot.
    let splits = if divisible < 1.0 { prop::bool::weighted(divisible).boxed() } else { Just(true).boxed() };
    let tensor = (1..40u64, splits, prop::bool::weighted(0.05));
    let layer = (prop::collection::vec(tensor, 0..5), 0.0..3.0f64);
    let layers = prop::collection::vec(layer, 1..10);
    (layers, 5.0..60.0f64, prop::option::of(0.1..1.1f64), 0..20u64, prop::bool::ANY).prop_map(
        |(layers, link, part, fixed, second_shape)| {
            let mut request = PlanRequest {
                link: LinkCurve::flat(link),
                fixed_bytes: fixed * PAGE,
                units: Vec::new(),
                ..PlanRequest::default()
            };
            let mut uses = Vec::new();
            for (at, (tensors, ms)) in layers.iter().enumerate() {
                for (tensor, &(pages, splittable, stays)) in tensors.iter().enumerate() {
                    let id = request.units.len() as u32;
                    let mut unit = unit(id, pages, splittable);
                    unit.name = format!("layers.{at}.{tensor}");
                    unit.stay = stays.then_some(StayReason::Excluded);
                    request.units.push(unit);
                    uses.push((id, ms / tensors.len() as f64, id));
                }
            }
            request.passes = vec![pass(1, &uses, 0.1)];
            if second_shape {
                // Computes less, and leaves one tensor out.
                uses.truncate(uses.len().max(1) - 1);
                uses.iter_mut().for_each(|(_, ms, _)| *ms /= 10.0);
                request.passes.push(PassProfile { shape: 2, ..pass(1, &uses, 0.0) });
            }
            request.budget = part.map(|part| (request.total_bytes() as f64 * part) as u64);
            request
        },
    )
}

/// By which part of what the best strategy streams ours may stream more where it is beaten.
const BY_CHANCE: f64 = 0.25;

/// Pages of the largest weight that cannot be split.
fn largest_whole(request: &PlanRequest) -> u64 {
    request.units.iter().filter(|unit| !unit.splittable).map(|unit| unit.pages).max().unwrap_or(0)
}

/// Panics when a strategy streams less than our planner in the same time, by more than this part of what it streams
/// and so many pages.
fn rival(request: &PlanRequest, part: f64, pages: u64) {
    let ours = plan(request).unwrap();
    for name in names() {
        let Some(Planned { plan: theirs, .. }) = planned(name, request) else { continue };
        // A plan that misses the budget is no rival of one that keeps it.
        if theirs.peak_bytes > request.budget.unwrap_or(u64::MAX) {
            continue;
        }
        assert_eq!(ours.budget_missed(), None, "{name} meets the budget");
        assert!(
            theirs.predicted_ms > ours.predicted_ms
                || theirs.streamed_bytes as f64 * (1.0 + part) + (pages * PAGE) as f64
                    >= ours.streamed_bytes as f64,
            "{name}: {} ms, {} pages; ours {} ms, {} pages",
            theirs.predicted_ms,
            theirs.streamed_bytes / PAGE,
            ours.predicted_ms,
            ours.streamed_bytes / PAGE
        );
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(96) })]

    #[test]
    fn every_strategy_makes_plans_that_hold_together(request in requests(0.8)) {
        let ours = plan(&request).unwrap();
        for name in names() {
            let Some(found) = planned(name, &request) else { continue };
            check(name, &request, &found.plan);
            prop_assert_eq!(found.plan.forecasts.len(), ours.forecasts.len(), "{}", name);
            for (theirs, ours) in found.plan.forecasts.iter().zip(&ours.forecasts) {
                prop_assert_eq!((&theirs.shapes, theirs.resident_ms), (&ours.shapes, ours.resident_ms));
                prop_assert!((theirs.bound_ms - ours.bound_ms).abs() <= 1e-9 * ours.bound_ms, "{}", name);
            }
            prop_assert_eq!(planned(name, &request), Some(found), "{} is not reproducible", name);
        }
    }

    #[test]
    fn every_selection_names_tensors_that_exist_and_blocks_that_hold_them(request in requests(0.8)) {
        let question = Question::of_request(&request);
        for name in names() {
            let strategy = by_name(name, &quick(name)).unwrap();
            let Ok(selection) = strategy.select(&question) else { continue };
            let mut streamed_bytes = 0;
            prop_assert_eq!(selection.streamed.len(), question.layers.len());
            for (at, (layer, chosen)) in question.layers.iter().zip(&selection.streamed).enumerate() {
                prop_assert!(chosen.windows(2).all(|pair| pair[0] < pair[1]), "{}: {:?}", name, chosen);
                let bytes: u64 = chosen.iter().map(|&tensor| layer.tensors[tensor].bytes).sum();
                streamed_bytes += bytes;
                prop_assert_eq!(selection.starts[at].is_some(), bytes > 0);
                if let Some(block) = selection.blocks.of_layer[at] {
                    prop_assert!(bytes > 0 && bytes <= selection.blocks.bytes[block], "{}", name);
                }
            }
            let estimate = selection.estimate;
            prop_assert_eq!(estimate.streamed_bytes, streamed_bytes, "{}", name);
            let peak = question.total_bytes() - streamed_bytes + selection.blocks.total_bytes();
            prop_assert_eq!(estimate.peak_bytes, peak, "{}", name);
            prop_assert!(estimate.overhead >= 0.0);
            if let (true, Some(budget)) = (estimate.valid, question.budget) {
                prop_assert!(estimate.peak_bytes <= budget, "{}", name);
            }
        }
    }

    #[test]
    fn searches_are_never_worse_than_what_they_begin_at(request in requests(0.8)) {
        let question = Question::of_request(&request);
        let ask = |name| by_name(name, &quick(name)).unwrap().select(&question);
        let filled = ask("GlobalOffloadStrategy").unwrap().estimate;
        let searched = ask("GlobalTensorSelectionStrategy").unwrap().estimate;
        prop_assert!(searched.rank(&filled).is_le(), "{:?} after {:?}", searched, filled);
        if let Ok(ranked) = ask("BudgetFillGreedyStrategy") {
            for name in ["BudgetFillLayerDEStrategy", "BudgetFillTensorDEStrategy", "BudgetFillStrategy"] {
                let (found, ranked) = (ask(name).unwrap().estimate, ranked.estimate);
                prop_assert!(found.valid || !ranked.valid, "{}", name);
                prop_assert!(!ranked.valid || found.streamed_bytes <= ranked.streamed_bytes, "{}", name);
            }
        }
    }
}

/// The same 256 profiles every time, whatever number of cases the environment asks for: a planner that tries a few
/// hundred plans is beaten by chance in about one of some thousands of models that are as small as these.
fn for_the_same_profiles(divisible: f64, check: impl Fn(PlanRequest)) {
    let config = ProptestConfig {
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(1),
        cases: 256,
        ..ProptestConfig::default()
    };
    let checked = TestRunner::new(config).run(&requests(divisible), |mut request| {
        // With several shapes ours serves the worst one, at the cost of others.
        request.passes.truncate(1);
        check(request);
        Ok(())
    });
    checked.unwrap();
}

#[test]
fn our_planner_never_streams_more_than_any_strategy_for_the_same_time() {
    for_the_same_profiles(1.0, |request| rival(&request, 0.0, 0));
}

#[test]
fn what_cannot_be_split_makes_ours_stream_less_than_one_such_weight_more() {
    for_the_same_profiles(0.5, |request| rival(&request, 0.0, largest_whole(&request)));
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(1),
        ..ProptestConfig::with_cases(256)
    })]

    #[test]
    fn by_chance_ours_streams_a_quarter_more_at_most(mut request in requests(1.0)) {
        request.passes.truncate(1);
        rival(&request, BY_CHANCE, 0);
    }

    #[test]
    fn by_chance_ours_streams_one_weight_that_cannot_be_split_and_a_quarter_more_at_most(
        mut request in requests(0.5),
    ) {
        request.passes.truncate(1);
        rival(&request, BY_CHANCE, largest_whole(&request));
    }
}
