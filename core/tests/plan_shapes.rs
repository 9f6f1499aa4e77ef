//! Several shapes of one model: one plan that serves them all.
#![allow(clippy::unwrap_used, reason = "a test panics when something is missing, and may show its figures")]

mod models;

use flextensor_core::plan::{PassProfile, Plan, PlanRequest, limits_ms, plan, plan_increment};
use flextensor_core::simulate::{simulate, simulate_shapes};
use flextensor_core::units::{ModelId, UnitId};
use models::{PAGE, chain, pass, unit, with_percent};
use proptest::prelude::*;

/// The request with a second shape of its model.
fn with_shape(mut request: PlanRequest, uses: &[(u32, f64, u32)]) -> PlanRequest {
    let second = PassProfile { shape: 2, ..pass(1, uses, 0.0) };
    request.passes.push(second);
    request
}

/// Plans, and checks that the simulator sees in every shape what was forecast.
fn planned(request: &PlanRequest) -> Plan {
    let made = plan(request).unwrap();
    let simulated = simulate_shapes(request, &made, false).unwrap();
    assert_eq!(simulated.len(), made.forecasts.len());
    for (simulation, forecast) in simulated.iter().zip(&made.forecasts) {
        assert!((simulation.cycle_ms - forecast.predicted_ms).abs() <= 1e-9 * forecast.predicted_ms);
        assert_eq!(simulation.copied_bytes, forecast.copied_bytes);
    }
    made
}

#[test]
fn shapes_are_alternatives_and_not_one_after_the_other() {
    let one = with_percent(chain(&[50; 20], 1.0, true), 50);
    let uses: Vec<_> = (0..20).map(|id| (id, 0.1, id)).collect();
    let both = planned(&with_shape(one.clone(), &uses));
    let shapes: Vec<_> = both.forecasts.iter().map(|forecast| forecast.shapes.clone()).collect();
    assert_eq!(shapes, [vec![(ModelId(1), 1)], vec![(ModelId(1), 2)]]);
    let resident: Vec<f64> = both.forecasts.iter().map(|forecast| forecast.resident_ms).collect();
    assert!((resident[0] - 20.0).abs() < 1e-9 && (resident[1] - 2.0).abs() < 1e-9, "{resident:?}");
    // The plan's own figures are those of the first shape.
    assert_eq!(
        (both.predicted_ms, both.bound_ms, both.streamed_bytes),
        (both.forecasts[0].predicted_ms, both.forecasts[0].bound_ms, both.forecasts[0].copied_bytes)
    );
    assert_eq!(both.orders.len(), 1);
}

#[test]
fn each_model_s_shapes_are_numbered_on_their_own() {
    let mut request = with_percent(chain(&[50; 20], 1.0, true), 50);
    let uses: Vec<_> = (0..20).map(|id| (id, 0.1, id)).collect();
    request = with_shape(request, &uses);
    request.units.push(unit(20, 50, true));
    request.passes.push(pass(2, &[(20, 3.0, 0)], 0.0));
    let shapes: Vec<_> = planned(&request).forecasts.into_iter().map(|forecast| forecast.shapes).collect();
    let (first, second, other) = ((ModelId(1), 1), (ModelId(1), 2), (ModelId(2), 1));
    assert_eq!(shapes, [vec![first, other], vec![second, other]]);
}

#[test]
fn weights_of_a_shape_that_computes_little_are_not_all_streamed_for_the_other_one_s_sake() {
    // The first half computes long in the first shape, the second half in the second one: each alone would
    // stream the half that hides its copies.
    let long_first = |id: u32| if id < 20 { 4.0 } else { 0.0 };
    let mut first = chain(&[50; 40], 0.0, true);
    first.passes[0].uses.iter_mut().for_each(|used| used.compute_ms = long_first(used.unit.0));
    let uses: Vec<_> = (0..40).map(|id| (id, long_first(39 - id), id)).collect();
    let first = with_percent(first, 70);
    let both = with_shape(first.clone(), &uses);
    let alone = plan(&first).unwrap();
    let other = simulate_shapes(&both, &alone, false).unwrap()[1].cycle_ms;
    let joint = planned(&both);
    let worst = joint.forecasts.iter().map(|forecast| forecast.predicted_ms).fold(0.0, f64::max);
    assert!(worst < other, "{worst} ms together, {other} ms in the second shape with the first one's plan");
}

#[test]
fn a_shape_that_uses_only_some_weights_copies_only_these() {
    let uses: Vec<_> = (0..5).map(|id| (id, 1.0, id)).collect();
    let made = planned(&with_shape(with_percent(chain(&[50; 20], 1.0, true), 40), &uses));
    let pages: u64 = (0..5).map(|id| made.streamed_pages(UnitId(id))).sum();
    assert!(made.forecasts[1].copied_bytes <= pages * PAGE);
    assert!(made.forecasts[1].bound_ms < made.forecasts[0].bound_ms);
}

#[test]
fn weights_held_together_in_one_shape_only_never_overlap() {
    let request = with_percent(chain(&[30; 12], 1.0, true), 40);
    let uses: Vec<_> = (0..12).map(|id| (id, 1.0, id / 4)).collect();
    let made = planned(&with_shape(request, &uses));
    assert_eq!(made.budget_missed(), None);
}

#[test]
fn models_that_take_turns_add_up_shape_by_shape() {
    let first = with_percent(chain(&[50; 10], 1.0, true), 50);
    let running = planned(&first);
    let mut second = chain(&[20; 10], 1.0, true);
    let uses: Vec<_> = (0..10).map(|id| (id, 0.5, id)).collect();
    second = with_percent(with_shape(second, &uses), 50);
    for unit in &mut second.units {
        unit.id.0 += 100;
    }
    for pass in &mut second.passes {
        pass.model = ModelId(2);
        pass.uses.iter_mut().for_each(|used| used.unit.0 += 100);
    }
    let increment = plan_increment(&running, &second).unwrap();
    let sum = running.clone().with_increment(increment.clone());
    assert_eq!(sum.forecasts.len(), 2);
    let expected = running.forecasts[0].predicted_ms + increment.forecasts[1].predicted_ms;
    assert!((sum.forecasts[1].predicted_ms - expected).abs() < 1e-9);
    assert_eq!(sum.chunk_pages, running.chunk_pages);
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(96) })]

    #[test]
    fn any_two_shapes_get_a_plan_that_both_can_run_and_that_no_limit_forbids(
        pages in prop::collection::vec(1..60u64, 2..20),
        times in prop::collection::vec((0.0..2.0f64, 0.0..2.0f64), 20),
        sizes in (1..4u32, 1..4u32),
        first_used in 0..4usize,
        part in 15..100u64,
        splittable: bool,
    ) {
        let mut request = with_percent(chain(&pages, 0.0, splittable), part);
        for (used, (ms, _)) in request.passes[0].uses.iter_mut().zip(&times) {
            used.compute_ms = *ms;
            used.owner /= sizes.0;
        }
        let second = (0..).zip(&times).take(pages.len()).skip(first_used);
        let uses: Vec<_> = second.map(|(id, (_, ms))| (id, *ms, id / sizes.1)).collect();
        let request = with_shape(request, &uses);
        let made = planned(&request);
        prop_assert!(simulate(&request, &made, false).is_ok());
        for (forecast, limit_ms) in made.forecasts.iter().zip(limits_ms(&request).unwrap()) {
            prop_assert!(forecast.predicted_ms >= forecast.resident_ms * (1.0 - 1e-9));
            if made.budget_missed().is_none() {
                prop_assert!(
                    forecast.predicted_ms >= limit_ms * (1.0 - 1e-9),
                    "{} ms, proven limit {limit_ms} ms", forecast.predicted_ms
                );
            }
        }
    }
}
