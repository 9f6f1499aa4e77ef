//! Whole programs under a budget: a small transformer, and random models in random use by seed. Every byte is verified by the programs themselves.
//!
//! `FT_SEEDS=1000` runs that many random models instead of a few.

use super::told::{forwards, said, streamed, told_well};
use harness::{Outcome, Run};
use std::time::Duration;

#[test]
fn a_transformer_lives_through_all_phases_and_answers_as_without_us() {
    let arguments = ["--layers", "2", "--forwards", "6"];
    let without = Run::program("transformer").args(arguments).start();
    without.assert_success();
    let under = Run::program("transformer")
        .args(arguments)
        .preload()
        .option("FT_MAX_GPU_MEM", "64MiB")
        .option("FT_PROFILING_ITERS", "2")
        .sim("STRICT", "1")
        .start();
    under.assert_success().assert_nothing_detected();
    assert_eq!(forwards(&without), forwards(&under));
    assert_eq!(forwards(&under).len(), 6);
    let phases: Vec<&str> = under.stdout.lines().filter(|line| line.starts_with("phase ")).collect();
    assert_eq!(phases, ["phase PROFILING after forward 0", "phase INFERENCE after forward 2"]);
    let summary = under.stderr.lines().find(|line| line.contains("INFERENCE on GPU 0: budget 64 MiB"));
    assert!(summary.is_some(), "{}", under.describe());
    let report = under.report.as_ref().unwrap_or_else(|| panic!("no report: {}", under.describe()));
    assert!(report["counters"]["bytes_in"].as_u64() > Some(100 << 20), "{report:#}");
}

/// How a seed is run: budgets from less than a weight to more than all, queues that fill, late copies, slow kernels and links.
pub(crate) fn random_model(seed: u64) -> Run {
    let pick = |list: &[&str], divisor: u64| list[(seed / divisor % list.len() as u64) as usize].to_owned();
    let run = Run::program("random_model")
        .args([seed.to_string()])
        .preload()
        .option("FT_MANAGED_MIN_BYTES", "1MiB")
        .option("FT_PROFILING_ITERS", pick(&["1", "2"], 1))
        .option("FT_MAX_GPU_MEM", pick(&["6MiB", "10MiB", "16MiB", "24MiB", "40MiB", "1GiB"], 1))
        .sim("STRICT", "1")
        .sim("LATE_US", pick(&["0", "300", "100", "1000"], 1))
        .sim("QUEUE", pick(&["1024", "4", "16", "64", "256"], 1))
        .sim("KERNEL_US", pick(&["0", "200", "50"], 2))
        .limit(Duration::from_secs(90));
    if seed % 7 == 3 { run.sim("H2D_GBPS", "2") } else { run }
}

/// Each quarter of the seeds is a test, so that they run side by side.
fn quarter(number: u64) {
    let seeds: u64 = std::env::var("FT_SEEDS").ok().and_then(|count| count.parse().ok()).unwrap_or(40);
    let mut counted = [0; 4];
    for seed in (1..=seeds).filter(|seed| seed % 4 == number) {
        let outcome = random_model(seed).start();
        assert!(outcome.status.success(), "seed {seed}: {}", outcome.describe());
        outcome.assert_nothing_detected();
        let Some(report) = &outcome.report else { panic!("seed {seed}: no report") };
        for (sum, key) in counted.iter_mut().zip(["uses", "redirects", "demand_loads", "pages_back"]) {
            *sum += report["counters"][key].as_u64().unwrap_or(0);
        }
    }
    assert!(counted.iter().all(|count| *count > 0), "something never happened: {counted:?}");
}

#[test]
fn random_models_read_right_bytes_first_quarter() {
    quarter(0);
}

#[test]
fn random_models_read_right_bytes_second_quarter() {
    quarter(1);
}

#[test]
fn random_models_read_right_bytes_third_quarter() {
    quarter(2);
}

#[test]
fn random_models_read_right_bytes_last_quarter() {
    quarter(3);
}

/// With the default size of managed allocations, and a weight's size that is no multiple of a page.
#[test]
fn a_random_model_of_large_weights_reads_right_bytes() {
    let run = Run::program("random_model").args(["5", "--large", "--forwards", "14"]).preload();
    let run = run.option("FT_MAX_GPU_MEM", "30MiB").option("FT_PROFILING_ITERS", "1").sim("STRICT", "1");
    let outcome = run.start();
    outcome.assert_success().assert_nothing_detected();
}

/// Thirty weights of two and a half pages and as many small ones lie side by side in one allocation: a third of them may be in GPU memory.
fn pool(story: &str) -> (Outcome, u64) {
    let budget = 48 << 20;
    let outcome = told_well(streamed(story).option("FT_MAX_GPU_MEM", budget.to_string()));
    assert!(said(&outcome, "weights_gpu_bytes") <= budget, "{}", outcome.describe());
    (outcome, budget)
}

#[test]
fn weights_of_one_allocation_stream_each_by_itself() {
    let (outcome, _) = pool("weights of one allocation");
    assert!(said(&outcome, "streamed_units") >= 10, "{}", outcome.describe());
    assert_eq!(said(&outcome, "demand_loads"), 0, "{}", outcome.describe());
}

#[test]
fn a_small_weight_on_a_page_of_a_large_one_is_no_use_of_it() {
    let (outcome, _) = pool("weights of one allocation, the small ones last");
    assert_eq!(said(&outcome, "uses of a pass"), said(&outcome, "streamed_units"), "{}", outcome.describe());
}

#[test]
fn what_lies_beside_weights_of_one_allocation_changes_without_a_copy() {
    let (outcome, _) = pool("weights of one allocation beside what changes");
    let back = |when: &str| said(&outcome, when);
    assert_eq!(back("pages_back"), back("pages_back at first"), "{}", outcome.describe());
}

#[test]
fn a_write_to_a_weight_of_one_allocation_leaves_its_neighbours_alone() {
    pool("weights of one allocation that are written");
}
