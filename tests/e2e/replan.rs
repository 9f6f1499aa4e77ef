//! Programs that change after the switch-over: every byte stays right, and after a few passes everything is foreseen again. Stories are in
//! `programs/scenario/changes.rs`.

use super::told::{said, streamed, told_well};
use harness::Run;

#[test]
fn each_shape_is_followed_in_its_own_order() {
    let outcome = told_well(streamed("shapes in orders of their own"));
    assert!(said(&outcome, "at first") > 0, "the second shape was known before: {}", outcome.describe());
    assert_eq!(said(&outcome, "later"), 0, "{}", outcome.describe());
    // The one that was learnt, and the one that was observed later.
    assert_eq!(said(&outcome, "shapes with an outlook"), 2, "{}", outcome.describe());
    let outcome = told_well(streamed("a shape learnt in its own order"));
    assert_eq!(said(&outcome, "later"), 0, "{}", outcome.describe());
}

#[test]
fn an_order_that_turns_round_is_followed_after_two_passes() {
    let outcome = told_well(streamed("an order that turns round"));
    assert!(said(&outcome, "at first") > 0, "{}", outcome.describe());
    assert_eq!(said(&outcome, "later"), 0, "{}", outcome.describe());
}

/// Three weights of two pages, ten times, and what is ahead at the end.
#[test]
fn what_a_program_leaves_out_is_not_copied_any_more() {
    let outcome = told_well(streamed("a second half that is left out"));
    assert!(said(&outcome, "pages of ten halves") <= 10 * 6 + 4, "{}", outcome.describe());
    assert_eq!(said(&outcome, "later"), 0, "{}", outcome.describe());
}

#[test]
fn shapes_that_never_come_again_are_expected_to_do_as_the_last_one() {
    let outcome = told_well(streamed("shapes that never come again"));
    assert_eq!(said(&outcome, "at first"), 0, "{}", outcome.describe());
    assert_eq!(said(&outcome, "later"), 0, "{}", outcome.describe());
    assert_eq!(said(&outcome, "again"), 0, "{}", outcome.describe());
}

#[test]
fn an_order_that_cannot_be_learnt_is_observed_seldom() {
    let outcome = told_well(streamed("an order that never settles"));
    let observed = said(&outcome, "observed");
    assert!((1..=10).contains(&observed), "{observed} of 100: {}", outcome.describe());
}

#[test]
fn with_replan_off_nothing_is_observed_and_every_byte_is_right() {
    let outcome = told_well(streamed("an order that never settles").option("FT_REPLAN", "off"));
    assert_eq!(said(&outcome, "observed"), 0, "{}", outcome.describe());
}

#[test]
fn a_second_model_of_weights_that_stream_already_is_followed_in_its_own_order() {
    let outcome = told_well(streamed("a second model of streamed weights"));
    assert_eq!(said(&outcome, "later"), 0, "{}", outcome.describe());
}

#[test]
fn other_kernels_in_another_order_are_followed_also_where_no_owner_is_told_of() {
    let outcome = told_well(streamed("other kernels in another order, and no owners"));
    assert!(said(&outcome, "at first") > 0, "{}", outcome.describe());
    assert_eq!(said(&outcome, "later"), 0, "{}", outcome.describe());
}

#[test]
fn four_threads_that_change_shapes_as_they_like_read_right_bytes() {
    told_well(streamed("changes under four threads"));
}

/// Twelve pages stream through a ring of one or two; fifteen more come, in weights of five.
const FOR_TWO: u64 = 16 << 20;

/// A pipeline's decoder runs once for each image: the budget has to hold also before it has been learnt.
#[test]
fn weights_that_stream_leave_a_model_that_is_still_learnt_its_share_of_the_budget() {
    let newcomer = |budget: u64| {
        streamed("a second model that is not learnt")
            .option("FT_MAX_GPU_MEM", budget.to_string())
            // The second one's passes are those of DISCOVERY and PROFILING to the end.
            .option("FT_PROFILING_ITERS", "3")
    };
    // Twelve pages in eight, and two more; then twelve in thirteen, all of which stay until the two come.
    for (budget, streams) in [(16 << 20, true), (26 << 20, false)] {
        let outcome = told_well(newcomer(budget));
        assert_eq!(said(&outcome, "streamed before") > 0, streams, "{}", outcome.describe());
        assert!(said(&outcome, "weights_gpu_bytes") <= budget, "{budget}: {}", outcome.describe());
    }
}

/// A shortage that lasts no longer than a capture: nobody knows whether the newcomer will ever be learnt.
#[test]
fn a_budget_that_cannot_be_held_when_a_model_comes_is_held_after_later_forwards() {
    let outcome =
        told_well(streamed("a second model in a capture").option("FT_MAX_GPU_MEM", FOR_TWO.to_string()));
    assert!(said(&outcome, "weights_gpu_bytes") <= FOR_TWO, "{}", outcome.describe());
}

/// A ring that is longer than what is streamed in it costs more than it saves.
#[test]
fn a_ring_that_nobody_needs_goes_before_a_second_model_could_be_put_into_it() {
    let outcome = told_well(streamed("a second model where little is streamed"));
    assert_eq!(said(&outcome, "streamed before"), 1, "{}", outcome.describe());
    assert_eq!(said(&outcome, "streamed when it comes"), 0, "{}", outcome.describe());
}

fn second_model() -> Run {
    streamed("a larger second model").option("FT_MAX_GPU_MEM", FOR_TWO.to_string())
}

#[test]
fn a_second_model_that_is_too_large_for_the_ring_is_planned_together_with_the_first() {
    let outcome = told_well(second_model());
    assert_eq!(said(&outcome, "replans"), 1, "{}", outcome.describe());
    assert!(said(&outcome, "weights_gpu_bytes") <= FOR_TWO, "{}", outcome.describe());
    assert!(said(&outcome, "device") <= FOR_TWO + (128 << 10), "{}", outcome.describe());
    assert!(outcome.stderr.contains("a new plan on GPU 0 (another model came)"), "{}", outcome.describe());
}

#[test]
fn with_replan_off_the_first_plan_stays() {
    let outcome = told_well(second_model().option("FT_REPLAN", "off"));
    assert_eq!(said(&outcome, "replans"), 0, "{}", outcome.describe());
}

#[test]
fn a_new_plan_under_four_threads_costs_no_byte() {
    let run =
        streamed("a larger second model under four threads").option("FT_MAX_GPU_MEM", FOR_TWO.to_string());
    let outcome = told_well(run);
    assert_eq!(said(&outcome, "replans"), 1, "{}", outcome.describe());
}

/// Twelve pages stream where three weights of two pages were chosen, and a page or two of ring keep the budget.
const FOR_CHOSEN: u64 = 18 << 20;

#[test]
fn weights_that_the_program_chose_are_streamed_and_no_others() {
    let run = streamed("weights that the program chose").option("FT_MAX_GPU_MEM", FOR_CHOSEN.to_string());
    let outcome = told_well(run);
    assert_eq!(
        (said(&outcome, "code"), said(&outcome, "code of the last")),
        (0, 0),
        "{}",
        outcome.describe()
    );
    assert_eq!(said(&outcome, "odd"), 101_010, "{}", outcome.describe());
    assert_eq!(said(&outcome, "last"), 111_000, "{}", outcome.describe());
    assert_eq!(said(&outcome, "code of nonsense"), 2, "{}", outcome.describe());
    assert_eq!(said(&outcome, "code of a stranger"), 2, "{}", outcome.describe());
    assert!(said(&outcome, "weights_gpu_bytes") <= FOR_CHOSEN, "{}", outcome.describe());
    for text in ["(the program chose what is streamed)", "`Nonsense` does not exist"] {
        assert!(outcome.stderr.contains(text), "{text}: {}", outcome.describe());
    }
}

/// Frees of its weights, which are none any more then, found no plan, and nothing else looked for one.
#[test]
fn a_plan_that_waits_for_a_forward_goes_with_its_model() {
    let run = streamed("a choice whose model goes first").option("FT_MAX_GPU_MEM", FOR_CHOSEN.to_string());
    let outcome = told_well(run);
    assert_eq!(said(&outcome, "code"), 0, "{}", outcome.describe());
    assert_eq!(said(&outcome, "streams of the plan"), 2, "{}", outcome.describe());
    assert_eq!(said(&outcome, "streams left"), 0, "{}", outcome.describe());
}

#[test]
fn a_choice_that_does_not_meet_the_budget_is_left_to_our_planner() {
    let outcome = told_well(streamed("too few weights that the program chose"));
    assert_eq!(said(&outcome, "code"), 0, "{}", outcome.describe());
    assert_ne!(said(&outcome, "streamed"), 10, "{}", outcome.describe());
    assert!(outcome.stderr.contains("does not meet the budget"), "{}", outcome.describe());
    assert!(said(&outcome, "weights_gpu_bytes") <= super::told::BUDGET, "{}", outcome.describe());
}

#[test]
fn a_strategy_that_the_program_chose_plans_with_its_own_parameters() {
    let run =
        streamed("a strategy that the program chose").option("FT_MAX_GPU_MEM", (20u64 << 20).to_string());
    let outcome = told_well(run);
    assert_eq!(said(&outcome, "code"), 0, "{}", outcome.describe());
    assert_eq!(said(&outcome, "streamed"), 10_100, "{}", outcome.describe());
}

fn half_of_the_weights() -> Run {
    let run = streamed("half of the weights from now on").option("FT_MAX_GPU_MEM", FOR_TWO.to_string());
    run.option("FT_RING_BYTES", "4MiB").sim("H2D_GBPS", "1")
}

#[test]
fn what_is_not_used_any_more_makes_room_for_what_is() {
    let outcome = told_well(half_of_the_weights());
    assert_eq!(said(&outcome, "replans"), 1, "{}", outcome.describe());
    assert_eq!(said(&outcome, "pages of ten halves"), 0, "{}", outcome.describe());
}

#[test]
fn a_plan_that_the_program_asks_for_is_put_in_force_though_nothing_drifted() {
    let run = |story: &str| streamed(story).option("FT_MAX_GPU_MEM", FOR_TWO.to_string());
    let outcome = told_well(run("half of the weights, and nobody asks"));
    assert_eq!(said(&outcome, "replans"), 0, "{}", outcome.describe());
    let outcome = told_well(run("half of the weights, and a plan that is asked for"));
    assert_eq!(said(&outcome, "replans"), 1, "{}", outcome.describe());
    assert_eq!(
        (said(&outcome, "code"), said(&outcome, "code of a stranger")),
        (0, 2),
        "{}",
        outcome.describe()
    );
    assert!(
        outcome.stderr.contains("a new plan on GPU 0 (the program asked for it)"),
        "{}",
        outcome.describe()
    );
}

#[test]
fn with_replan_off_a_program_that_asks_is_told_that_no_plan_follows() {
    let story = "half of the weights, and a plan that is asked for";
    let outcome = told_well(streamed(story).option("FT_REPLAN", "off"));
    assert_eq!((said(&outcome, "code"), said(&outcome, "replans")), (1, 0), "{}", outcome.describe());
}

/// These calls of ours in a change of places fail once, or from then on: all bytes are right, or the program sees an error.
fn sweep(run: fn() -> Run, calls: &[&str]) {
    let whole = told_well(run());
    let mut met = 0;
    for call in calls {
        let last = said(&whole, call);
        assert!(last > 0, "{call} is not made: {}", whole.describe());
        for (moment, more) in [(1, "+"), (last.div_ceil(2), ""), (last, "")] {
            let fault = format!("{call}@change.{moment}{more}=999");
            let outcome = run().sim("FAULTS", &fault).start();
            match outcome.status.code() {
                Some(0) => {
                    assert_eq!(said(&outcome, "mismatches"), 0, "{fault}: {}", outcome.describe());
                    outcome.assert_nothing_detected();
                    // The plan stayed, or the change went on without what was refused, and said so.
                    let refused = outcome.stderr.contains("was refused");
                    met += u32::from(said(&outcome, "replans") == 0 || refused);
                }
                Some(2) => {
                    assert!(outcome.stderr.contains(" returned "), "{fault}: {}", outcome.describe());
                    met += 1;
                }
                _ => panic!("{fault}: {}", outcome.describe()),
            }
        }
    }
    assert!(met > 0, "none of the refused calls was the change's");
}

#[test]
fn a_change_of_places_that_is_refused_a_mapping_puts_everything_back() {
    sweep(second_model, &["cuMemUnmap", "cuMemMap", "cuMemSetAccess"]);
}

/// What stays mapped has the old ring's write protection, of which the new one knows nothing.
#[test]
fn a_change_of_places_in_check_mode_leaves_no_page_protected() {
    let run = || half_of_the_weights().option("FT_CHECK", "1");
    for moment in [5, 9, 13] {
        let outcome = run().sim("FAULTS", format!("cuMemMap@change.{moment}=999")).start();
        assert!(matches!(outcome.status.code(), Some(0 | 2)), "{moment}: {}", outcome.describe());
        outcome.assert_nothing_detected();
    }
}

#[test]
fn a_change_of_places_that_is_refused_memory_or_a_copy_changes_nothing() {
    sweep(second_model, &["cuMemHostRegister_v2", "cuMemcpyDtoHAsync_v2"]);
}

/// Weights that become private are filled from their shadows.
#[test]
fn a_change_of_places_that_is_refused_a_copy_to_the_gpu_or_a_page_puts_everything_back() {
    sweep(half_of_the_weights, &["cuMemMap", "cuMemSetAccess", "cuMemcpyHtoDAsync_v2"]);
}

/// Long lives of random models: most of these change so much that a new plan is made, when depends on times; if none did, others follow until one does.
#[test]
fn random_models_that_are_planned_anew_read_right_bytes() {
    let mut replans = 0;
    for (at, seed) in [2_u64, 10, 17, 24, 7, 8, 14, 20].into_iter().enumerate() {
        if at >= 4 && replans > 0 {
            break;
        }
        let run =
            Run::program("random_model").args([seed.to_string(), "--forwards".into(), "60".into()]).preload();
        let run = run.option("FT_MANAGED_MIN_BYTES", "1MiB").option("FT_PROFILING_ITERS", "1");
        let budget = ["16MiB", "24MiB"][(seed % 2) as usize];
        let run = run.option("FT_MAX_GPU_MEM", budget).sim("STRICT", "1").sim("H2D_GBPS", "2");
        let outcome = run.limit(std::time::Duration::from_secs(120)).start();
        assert!(outcome.status.success(), "seed {seed}: {}", outcome.describe());
        outcome.assert_nothing_detected();
        let report = outcome.report.as_ref().unwrap_or_else(|| panic!("seed {seed}: no report"));
        println!(
            "seed {seed}: {} new plans, {} given up",
            report["counters"]["replans"], report["counters"]["replans_given_up"]
        );
        replans += report["counters"]["replans"].as_u64().unwrap_or(0);
    }
    assert!(replans > 0, "no plan was made anew");
}
