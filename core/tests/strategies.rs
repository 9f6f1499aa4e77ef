//! What single strategies do, what they refuse, and how they are made from parameters and options.
#![allow(clippy::unwrap_used, reason = "a test panics when something is missing, and may show its figures")]

mod models;
mod strategies_asked;

use flextensor_core::CoreError;
use flextensor_core::link::LinkCurve;
use flextensor_core::plan::{PlanNote, PlanRequest, StayReason, plan};
use flextensor_core::strategy::{
    Chosen, Parameters, Question, Strategy, StrategyError, Value, by_name, from_options, has_transfer_gaps,
    names,
};
use flextensor_core::units::{ModelId, UnitId};
use models::{PAGE, chain, pass, unit};
use strategies_asked::{check, parameters, planned};

fn refusal(name: &str, given: &[(&str, Value)]) -> String {
    by_name(name, &parameters(given)).unwrap_err().to_string()
}

#[test]
fn a_name_that_is_no_strategy_is_refused_with_all_that_are() {
    let refused = refusal("knapsack", &[]);
    assert!(
        refused.contains("`knapsack`") && refused.contains("KnapsackStrategy, KnapsackBlockStrategy"),
        "{refused}"
    );
}

#[test]
fn a_parameter_that_a_strategy_does_not_have_is_refused_with_all_that_it_has() {
    let refused = refusal("GreedyStrategy", &[("cyclic", Value::Flag(true))]);
    assert_eq!(
        refused,
        "GreedyStrategy has no parameter `cyclic`: allowed are threshold_mb, n_blocks, scale"
    );
}

#[test]
fn every_value_that_is_not_allowed_is_named_with_what_is() {
    let text = |text: &str| Value::Text(text.to_owned());
    for (name, parameter, value, allowed) in [
        ("KnapsackStrategy", "scale", Value::Number(0.0), "a number above 0"),
        ("KnapsackStrategy", "scale", Value::Number(f64::NAN), "a number above 0"),
        ("KnapsackStrategy", "n_blocks", Value::Whole(1), "a whole number from 2 on"),
        ("KnapsackStrategy", "cyclic", Value::Whole(1), "true or false"),
        ("KnapsackBlockStrategy", "group_size", Value::Whole(0), "a whole number from 1 on"),
        ("AdaptiveKnapsackStrategy", "loader_type", text("magic"), "strategy, raw_block_transfer"),
        ("NthLayerStrategy", "nth_layer", Value::Whole(0), "a whole number from 1 on"),
        ("GlobalOffloadStrategy", "min_blocks", Value::Whole(5), "at most max_blocks, which is 4"),
        ("GlobalOffloadStrategy", "assignment_strategy", text("random"), "OptimizedRoundRobinAssignment"),
        ("GlobalTensorSelectionStrategy", "optimizer", text("GA"), "DE, SA"),
        ("GlobalTensorSelectionStrategy", "seed_ratio", Value::Number(1.5), "a number from 0 to 1"),
        ("GlobalTensorSelectionStrategy", "scale_ub", Value::Number(0.5), "a number not below scale"),
        ("GlobalTensorSelectionStrategy", "seed", Value::Whole(-1), "a whole number from 0 on"),
        ("AdaptiveStrategy", "min_blocks", Value::Whole(5), "at most n_blocks, which is 4"),
        ("BudgetFillStrategy", "n_blocks", Value::Whole(1), "2 and more"),
        ("BudgetFillGreedyStrategy", "threshold_mb", Value::Number(-1.0), "a number of MiB from 0 on"),
    ] {
        let refused = refusal(name, &[(parameter, value.clone())]);
        assert!(
            refused.contains(name) && refused.contains(&format!("`{parameter}` is {value}")),
            "{refused}"
        );
        assert!(refused.contains(allowed), "{refused} should say: {allowed}");
    }
}

#[test]
fn none_is_the_default_and_whole_numbers_are_numbers() {
    for name in names() {
        let none = by_name(name, &parameters(&[("threshold_mb", Value::None)])).unwrap();
        assert_eq!(format!("{none:?}"), format!("{:?}", by_name(name, &Parameters::new()).unwrap()));
        assert_eq!(none.name(), name);
    }
    assert!(by_name("KnapsackBlockStrategy", &parameters(&[("scale", Value::Whole(1))])).is_ok());
}

#[test]
fn options_of_a_run_reach_the_parameters_that_a_strategy_has_and_no_others() {
    let options = [("scale", 0.5), ("n_blocks", 6.0), ("min_blocks", 3.0)];
    for name in names() {
        assert_eq!(from_options(name, &options).unwrap().name(), name);
    }
    let given = parameters(&[("n_blocks", Value::Whole(6))]);
    let nth = by_name("NthLayerStrategy", &given).unwrap();
    assert_eq!(format!("{:?}", from_options("NthLayerStrategy", &options).unwrap()), format!("{nth:?}"));
    let refused = from_options("NthLayerStrategy", &[("n_blocks", 1.0)]).unwrap_err().to_string();
    assert!(refused.contains("`n_blocks` is 1"), "{refused}");
}

#[test]
fn texts_become_the_values_they_look_like() {
    for (text, value) in [
        ("none", Value::None),
        ("True", Value::Flag(true)),
        (" 3 ", Value::Whole(3)),
        ("0.5", Value::Number(0.5)),
        ("SA", Value::Text("SA".to_owned())),
    ] {
        assert_eq!(Value::parse(text), value, "{text}");
    }
}

#[test]
fn requests_that_contradict_themselves_are_refused_as_by_the_planner() {
    let mut twice = chain(&[4, 4], 1.0, true);
    twice.units[1].id = UnitId(0);
    let mut unknown = chain(&[4], 1.0, true);
    unknown.passes[0].uses[0].unit = UnitId(9);
    let mut no_page = chain(&[4], 1.0, true);
    no_page.page_bytes = 0;
    for (request, error) in [
        (twice, CoreError::DuplicateUnit { unit: UnitId(0) }),
        (unknown, CoreError::UnknownUnit { unit: UnitId(9) }),
        (no_page, CoreError::ZeroPageSize),
    ] {
        for name in names() {
            let strategy = by_name(name, &Parameters::new()).unwrap();
            assert_eq!(strategy.plan(&request).unwrap_err(), StrategyError::Core(error.clone()), "{name}");
        }
    }
}

#[test]
fn odd_models_and_times_get_a_plan_from_everyone() {
    let mut bad_times = chain(&[8, 8, 8], 1.0, true);
    bad_times.passes[0].uses[0].compute_ms = f64::NAN;
    bad_times.passes[0].uses[1].compute_ms = -3.0;
    bad_times.budget = Some(20 * PAGE);
    let mut no_time = chain(&[8, 8, 8, 8], 0.0, true);
    no_time.budget = Some(24 * PAGE);
    let mut impossible = chain(&[8, 8, 8], 1.0, false);
    impossible.budget = Some(0);
    for request in [PlanRequest::default(), chain(&[8], 1.0, true), bad_times, no_time, impossible] {
        for name in names() {
            if let Some(found) = planned(name, &request) {
                check(name, &request, &found.plan);
            }
        }
    }
}

#[test]
fn every_strategy_streams_something_when_half_of_the_model_fits() {
    let mut request = chain(&[16; 12], 2.0, true);
    request.units.iter_mut().zip(0..).for_each(|(unit, at)| unit.name = format!("layers.{at}.weight"));
    request.budget = Some(request.total_bytes() / 2);
    for name in names() {
        let plan = planned(name, &request).expect(name).plan;
        assert!(plan.streamed_bytes > 0, "{name}");
        // Every other layer is half of them, and the ring comes on top of the other half.
        let meets = plan.budget_missed().is_none();
        assert!(meets || name == "NthLayerStrategy", "{name}: {:?}", plan.notes);
    }
}

#[test]
fn a_weight_that_two_layers_use_stays_and_idle_ones_go_first() {
    let mut request = chain(&[16, 16, 16, 16], 2.0, true);
    request.passes = vec![pass(1, &[(1, 1.0, 0), (0, 1.0, 1), (2, 1.0, 2), (0, 1.0, 3)], 0.0)];
    request.budget = Some(40 * PAGE);
    let plan = planned("GlobalOffloadStrategy", &request).unwrap().plan;
    assert_eq!(plan.streamed_pages(UnitId(0)), 0, "used twice");
    assert!(plan.streamed_pages(UnitId(3)) > 0, "never used");
}

#[test]
fn a_weight_that_would_collide_with_its_own_layer_is_kept_apart() {
    // Weight 1 is used alone, then again together with weight 3: a ring of two weights holds 1 and 3 at one place.
    let mut request = chain(&[10; 4], 1.0, true);
    for (unit, name) in request.units.iter_mut().zip(["layers.0.a", "layers.1.a", "layers.1.b", "layers.1.c"])
    {
        unit.name = name.to_owned();
    }
    let uses = [(0, 1.0, 0), (1, 1.0, 1), (2, 1.0, 2), (1, 1.0, 3), (3, 1.0, 3)];
    request.passes = vec![pass(1, &uses, 0.0)];
    request.ring_override = Some(20 * PAGE);
    let every = by_name("NthLayerStrategy", &parameters(&[("nth_layer", Value::Whole(1))])).unwrap();
    let plan = every.plan(&request).unwrap().plan;
    assert!(plan.notes.contains(&PlanNote::KeptApart { unit: UnitId(1) }), "{:?}", plan.notes);
    assert_eq!((plan.streamed_pages(UnitId(1)), plan.streamed_pages(UnitId(3))), (0, 10));
    check("NthLayerStrategy", &request, &plan);
}

#[test]
fn layers_are_the_blocks_that_names_tell_and_else_the_owners() {
    let mut request = chain(&[4, 4, 4, 4], 1.0, true);
    for (unit, name) in
        request.units.iter_mut().zip(["embed.weight", "layers.0.a", "layers.0.b", "layers.1.a"])
    {
        unit.name = name.to_owned();
    }
    let question = Question::of_request(&request);
    let layers: Vec<_> = question
        .layers
        .iter()
        .map(|layer| (layer.label.as_str(), layer.tensors.len(), layer.duration_ms))
        .collect();
    assert_eq!(layers, [("owner 0", 1, 1.0), ("layers.0", 2, 2.0), ("layers.1", 1, 1.0)]);
}

#[test]
fn a_gap_aware_window_hides_what_a_single_layer_cannot() {
    // Every other layer is small enough to stay; a copy takes 1.5 layers.
    let mut request = chain(&[40, 1, 40, 1, 40], 1.0, true);
    request.link = LinkCurve::flat(40.0 * PAGE as f64 / 1.5 / 1e6);
    let question = Question::of_request(&request);
    let streamed = |window: &str| {
        let given = parameters(&[
            ("transfer_window", Value::Text(window.to_owned())),
            ("threshold_mb", Value::Whole(3)),
            ("scale", Value::Whole(2)),
        ]);
        let selection = by_name("GlobalTensorSelectionStrategy", &given).unwrap().select(&question).unwrap();
        assert_eq!(selection.estimate.overhead, 0.0, "{window}");
        selection.estimate.streamed_bytes / PAGE
    };
    assert_eq!((streamed("GapAwareWindow"), streamed("SingleLayerWindow")), (80, 0));
}

#[test]
fn gaps_are_seen_and_copies_are_rearranged_into_them() {
    let mut request = chain(&[40, 1, 40, 1, 40], 1.0, true);
    request.units[1].stay = Some(StayReason::Excluded);
    request.units[3].stay = Some(StayReason::Excluded);
    // A copy takes 1.5 layers: too long for one, short enough for two.
    request.link = LinkCurve::flat(40.0 * PAGE as f64 / 1.5 / 1e6);
    let every = by_name("NthLayerStrategy", &parameters(&[("nth_layer", Value::Whole(2))])).unwrap();
    let selection = every.select(&Question::of_request(&request)).unwrap();
    assert!(has_transfer_gaps(&selection));
    assert_eq!(selection.starts, [None, None, Some(0), None, Some(0)]);
    assert_eq!(selection.estimate.overhead, 0.0, "{:?}", selection.estimate);
}

#[test]
fn the_first_layer_is_streamed_only_where_passes_wrap_around() {
    let request = chain(&[4; 6], 5.0, true);
    let question = Question::of_request(&request);
    for (cyclic, first) in [(true, vec![0]), (false, vec![])] {
        let strategy = by_name("KnapsackStrategy", &parameters(&[("cyclic", Value::Flag(cyclic))])).unwrap();
        let selection = strategy.select(&question).unwrap();
        assert_eq!(selection.streamed[0], first);
        assert!(selection.estimate.valid);
    }
}

#[test]
fn tensors_below_the_threshold_stay() {
    let request = chain(&[4, 1, 4, 1, 4], 5.0, true);
    let question = Question::of_request(&request);
    for name in
        ["KnapsackStrategy", "GreedyStrategy", "GlobalOffloadStrategy", "GlobalTensorSelectionStrategy"]
    {
        let strategy = by_name(name, &parameters(&[("threshold_mb", Value::Whole(3))])).unwrap();
        let selection = strategy.select(&question).unwrap();
        let streams = |layer: usize| !selection.streamed[layer].is_empty();
        assert!(!streams(1) && !streams(3) && streams(2), "{name}: {:?}", selection.streamed);
    }
}

#[test]
fn a_group_of_layers_shares_the_time_of_the_group_before() {
    // Of every two layers one computes long: alone it hides everything, the other one nothing.
    let mut request = chain(&[10; 8], 1.0, true);
    for (at, used) in request.passes[0].uses.iter_mut().enumerate() {
        used.compute_ms = if at % 2 == 0 { 4.0 } else { 0.0 };
    }
    request.link = LinkCurve::flat(10.0 * PAGE as f64 / 2.0 / 1e6);
    let question = Question::of_request(&request);
    let streamed = |group| {
        let given = parameters(&[("group_size", Value::Whole(group))]);
        let selection = by_name("KnapsackBlockStrategy", &given).unwrap().select(&question).unwrap();
        selection.streamed.iter().filter(|layer| !layer.is_empty()).count()
    };
    assert_eq!((streamed(1), streamed(2)), (4, 6));
}

#[test]
fn another_seed_may_answer_otherwise_but_the_same_one_never_does() {
    let mut request = chain(&[13, 7, 22, 5, 17, 9, 30, 11, 8, 3, 19, 12], 0.3, true);
    request.budget = Some(request.total_bytes() * 3 / 5);
    let question = Question::of_request(&request);
    for (name, optimizer) in [
        ("GlobalTensorSelectionStrategy", "DE"),
        ("GlobalTensorSelectionStrategy", "SA"),
        ("BudgetFillTensorDEStrategy", ""),
    ] {
        let ask = |seed| {
            let mut given = vec![("seed", Value::Whole(seed))];
            if !optimizer.is_empty() {
                given.push(("optimizer", Value::Text(optimizer.to_owned())));
            }
            by_name(name, &parameters(&given)).unwrap().select(&question).unwrap()
        };
        assert_eq!(ask(1), ask(1), "{name} {optimizer}");
        assert!(ask(1).estimate.valid && ask(2).estimate.valid);
    }
}

#[test]
fn adaptive_has_our_planner_among_its_candidates() {
    let mut request = chain(&[16; 12], 0.1, true);
    request.units.iter_mut().zip(0..).for_each(|(unit, at)| unit.name = format!("layers.{at}.weight"));
    request.budget = Some(request.total_bytes() / 2);
    let found = planned("AdaptiveStrategy", &request).unwrap();
    assert_eq!(found.solver, "planner");
    assert_eq!(found.plan, plan(&request).unwrap());
    // Without a budget ours streams nothing, and less memory is what was asked for.
    let mut slow = chain(&[16; 12], 9.0, true);
    slow.units.iter_mut().zip(0..).for_each(|(unit, at)| unit.name = format!("layers.{at}.weight"));
    let found = planned("AdaptiveStrategy", &slow).unwrap();
    assert!(found.plan.peak_bytes < slow.total_bytes() / 2, "{}", found.plan.peak_bytes / PAGE);
    assert!(found.plan.predicted_ms <= found.plan.bound_ms * 1.001);
}

#[test]
fn passes_of_two_models_follow_each_other_and_other_shapes_of_one_do_not_count() {
    let mut request = chain(&[8, 8], 1.0, true);
    request.units.extend([unit(2, 8, true), unit(3, 8, true)]);
    request.passes.push(pass(2, &[(2, 2.0, 2), (3, 2.0, 3)], 0.0));
    let mut decode = pass(1, &[(0, 0.1, 0), (1, 0.1, 1)], 0.0);
    decode.shape = 2;
    request.passes.push(decode);
    let question = Question::of_request(&request);
    let durations: Vec<f64> = question.layers.iter().map(|layer| layer.duration_ms).collect();
    assert_eq!(durations, [1.0, 1.0, 2.0, 2.0]);
    request.budget = Some(24 * PAGE);
    let plan = planned("GlobalOffloadStrategy", &request).unwrap().plan;
    let models: Vec<ModelId> = plan.orders.iter().map(|(model, _)| *model).collect();
    assert_eq!(models, [ModelId(1), ModelId(2)]);
}

#[test]
fn what_a_strategy_of_the_program_chose_is_streamed_and_nothing_else() {
    let mut request = chain(&[8; 6], 1.0, true);
    request.units[4].stay = Some(StayReason::Escaped);
    request.budget = Some(40 * PAGE);
    // Weight 4 must stay, and there is no weight 9.
    let chosen = Chosen::new([1, 3, 4, 9].map(UnitId).into());
    let made = chosen.plan(&request).unwrap();
    let streamed: Vec<u64> = made.plan.placements.iter().map(|unit| unit.streamed_pages).collect();
    assert_eq!(streamed, [0, 8, 0, 8, 0, 0]);
    check("chosen", &request, &made.plan);
    request.budget = Some(32 * PAGE);
    let refused = chosen.plan(&request).unwrap_err();
    assert!(matches!(refused, StrategyError::NotApplicable { .. }), "{refused}");
    assert!(refused.to_string().contains("does not meet the budget"), "{refused}");
}
