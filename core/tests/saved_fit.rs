//! What a run may take from a profile: the plan where all is as it was, times where it is not, nothing of another model.

mod saved_models;

use flextensor_core::plan::StayReason;
use flextensor_core::saved::{Additions, Difference, Here, LinkId, fit};
use flextensor_core::units::UnitId;
use saved_models::{MIB, MODEL, additions, here, ids, model, our_plan, planned, saved_plan};

const BUDGET: Option<u64> = Some(64 * MIB);

fn profile() -> Additions {
    additions(vec![planned(model(4, 16), BUDGET)])
}

fn same() -> Here {
    here(&profile().models[0], BUDGET)
}

/// The differences after a change of the run; the times are kept in every case.
fn differences(change: impl FnOnce(&mut Here)) -> (Vec<Difference>, bool) {
    let (profile, mut run) = (profile(), same());
    change(&mut run);
    let (_, taken) = fit(&profile, &run, &[]).expect("it is the same model");
    assert_eq!(taken.plan.is_some(), taken.differences.is_empty());
    assert_eq!(taken.model.passes, profile.models[0].passes);
    (taken.differences, taken.link)
}

#[test]
fn where_all_is_as_it_was_the_plan_is_the_one_that_was_saved() {
    let profile = profile();
    let run = same();
    let (at, taken) = fit(&profile, &run, &[]).expect("the same model");
    assert_eq!((at, taken.link), (0, true));
    assert_eq!(taken.units, (0..9).map(Some).collect::<Vec<_>>());
    let toy = &profile.models[0];
    let plan = taken.plan.expect("nothing differs").plan(toy, MODEL, &ids(toy, 0));
    let made = our_plan(toy, BUDGET);
    assert_eq!(
        (&plan.layout, plan.ring_pages, plan.ring_bytes),
        (&made.layout, made.ring_pages, made.ring_bytes)
    );
    assert_eq!((plan.resident_bytes, plan.peak_bytes), (made.resident_bytes, made.peak_bytes));
    assert_eq!(plan.placements, made.placements);
    assert_eq!(plan.orders[0].1, made.orders[0].1);
    assert_eq!((plan.chunk_pages, plan.forecasts.len()), (made.chunk_pages, made.forecasts.len()));
    assert_eq!(plan.forecasts[0].shapes, [(MODEL, 0xa1)]);
    assert_eq!(plan.orders[0].0, MODEL);
}

#[test]
fn units_are_called_what_the_run_calls_them() {
    let profile = profile();
    let toy = &profile.models[0];
    let plan = toy.plan.as_ref().expect("a plan").plan(toy, MODEL, &ids(toy, 100));
    assert!(plan.layout.iter().all(|run| run.unit.0 >= 100));
    assert_eq!(plan.placements[0].unit, UnitId(100));
}

#[test]
fn another_gpu_or_link_keeps_the_times_but_neither_plan_nor_curve() {
    let (found, link) = differences(|run| run.uuid = "GPU-other".to_owned());
    assert!(matches!(found.as_slice(), [Difference::Gpu { is, .. }] if is == "GPU-other") && !link);
    let (found, link) = differences(|run| run.link = LinkId { generation: 4, width: 8 });
    assert!(!link && found.len() == 1);
    assert_eq!(found[0].to_string(), "the link is PCIe 4.0 x8, not PCIe 5.0 x16");
}

#[test]
fn a_gpu_or_link_that_does_not_say_which_it_is_is_another() {
    let (mut profile, mut run) = (profile(), same());
    profile.gpus[0].uuid.clear();
    run.uuid.clear();
    let (_, taken) = fit(&profile, &run, &[]).expect("the same model");
    assert_eq!(taken.differences[0].to_string(), "the GPU is unknown, not unknown");
    assert!(!taken.link && taken.plan.is_none());
    let (found, link) = differences(|run| run.link = LinkId::default());
    assert_eq!(found[0].to_string(), "the link is unknown, not PCIe 5.0 x16");
    assert!(!link);
}

#[test]
fn another_budget_pattern_ring_or_place_keeps_times_and_curve() {
    type Change = fn(&mut Here);
    let cases: [(Change, &str); 11] = [
        (|run| run.budget = Some(48 << 20), "the budget is 48 MiB, not 64 MiB"),
        (|run| run.budget = None, "the budget is none, not 64 MiB"),
        (
            |run| drop(run.settings.insert("mode".to_owned(), "latency".to_owned())),
            "mode is latency, not auto",
        ),
        (|run| drop(run.settings.insert("a".to_owned(), "b".to_owned())), "a is b, not unset"),
        (|run| run.patterns.exclude.clear(), "the patterns are others"),
        (|run| run.model.weights[1].flags = 0, "the patterns are others"),
        (|run| run.ring_override = Some(8 << 20), "the ring is another one"),
        (|run| run.ring_before = 4, "the ring is another one"),
        (
            |run| run.model.units[1].pages += 1,
            "weights lie otherwise in GPU memory, or more of them beside these",
        ),
        (|run| run.fixed_bytes += 1, "weights lie otherwise in GPU memory, or more of them beside these"),
        (
            |run| run.model.units.iter_mut().for_each(|unit| unit.splittable = false),
            "weights lie otherwise in GPU memory, or more of them beside these",
        ),
    ];
    for (change, said) in cases {
        let (found, link) = differences(change);
        assert_eq!(found.iter().map(ToString::to_string).collect::<Vec<_>>(), [said]);
        assert!(link, "{said}");
    }
}

#[test]
fn less_memory_beside_the_model_than_before_is_no_difference() {
    let mut toy = model(4, 16);
    toy.fixed_bytes = 8 * MIB;
    let profile = additions(vec![planned(toy, BUDGET)]);
    let mut run = here(&profile.models[0], BUDGET);
    run.fixed_bytes = 0;
    let (_, taken) = fit(&profile, &run, &[]).expect("the same model");
    assert_eq!(taken.differences, []);
}

#[test]
fn what_must_stay_here_is_not_streamed_by_an_old_plan() {
    let profile = profile();
    let streamed = profile.models[0].plan.as_ref().expect("a plan").runs[0].unit as usize;
    let (found, _) = differences(|run| run.model.units[streamed].stay = Some(StayReason::Escaped));
    assert_eq!(found, [Difference::Units]);
}

#[test]
fn a_model_with_other_weights_or_modules_gets_nothing() {
    type Change = fn(&mut Here);
    let cases: [(Change, &str); 6] = [
        (
            |run| run.model.weights[1].name = "x".to_owned(),
            "weight `x` stands where the file has `layers.0.up.weight`",
        ),
        (
            |run| run.model.weights[1].bytes = 7,
            "weight `layers.0.up.weight` has 7 bytes, in the file 16777216",
        ),
        (|run| run.model.weights[9].tied = None, "weight `head.weight` is held by others than in the file"),
        (|run| run.model.weights.truncate(3), "3 weights, in the file 10"),
        (|run| run.model.owners[1].class = "Conv2d".to_owned(), "its modules differ"),
        (|run| run.model.owners[1].trap = -1, "its modules differ"),
    ];
    for (change, said) in cases {
        let (profile, mut run) = (profile(), same());
        change(&mut run);
        let why = fit(&profile, &run, &[]).expect_err("another model");
        assert_eq!(why.to_string(), format!("the model is another one ({said})"));
    }
    assert!(fit(&additions(vec![]), &same(), &[]).is_err());
}

#[test]
fn two_equal_models_take_one_entry_each() {
    let profile = additions(vec![planned(model(4, 16), BUDGET), planned(model(4, 16), BUDGET)]);
    let run = same();
    assert_eq!(fit(&profile, &run, &[]).map(|(at, _)| at), Ok(0));
    assert_eq!(fit(&profile, &run, &[0]).map(|(at, _)| at), Ok(1));
    assert!(fit(&profile, &run, &[0, 1]).is_err());
}

#[test]
fn weights_that_lie_together_now_share_the_times_of_both() {
    let (profile, mut run) = (profile(), same());
    let second = run.model.units.remove(2);
    run.model.units[1].weights.extend(second.weights);
    run.model.units[1].pages += second.pages;
    let (_, taken) = fit(&profile, &run, &[]).expect("the same model");
    assert_eq!(taken.units[..4], [Some(0), Some(1), Some(1), Some(2)]);
    assert_eq!(taken.differences, [Difference::Units]);
}

#[test]
fn a_plan_that_takes_more_than_it_says_is_not_used() {
    let toy = model(4, 16);
    let roomy = our_plan(&toy, Some(1 << 30));
    let mut lying = toy.clone();
    lying.plan = Some(saved_plan(&roomy, BUDGET, 0));
    let profile = additions(vec![lying]);
    let (_, taken) = fit(&profile, &same(), &[]).expect("the same model");
    assert_eq!(taken.differences, [Difference::OverBudget]);
    assert!(taken.plan.is_none());
}

#[test]
fn a_budget_that_cannot_be_met_is_missed_again_in_the_same_way() {
    let profile = additions(vec![planned(model(4, 16), Some(1))]);
    let toy = &profile.models[0];
    let run = here(toy, Some(1));
    let (_, taken) = fit(&profile, &run, &[]).expect("the same model");
    let plan = taken.plan.expect("nothing differs").plan(toy, MODEL, &ids(toy, 0));
    assert_eq!(plan.budget_missed(), our_plan(toy, Some(1)).budget_missed());
    assert!(plan.budget_missed().is_some());
}

#[test]
fn a_model_without_a_plan_gives_its_times() {
    let profile = additions(vec![model(4, 16)]);
    let run = same();
    let (_, taken) = fit(&profile, &run, &[]).expect("the same model");
    assert_eq!((taken.differences, taken.plan), (vec![Difference::NoPlan], None));
}
