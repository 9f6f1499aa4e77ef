//! Options as users set them, seen from outside: counts of passes, budgets in every notation, files, levels of messages.

use super::told::{said, story, streamed, told_well};
use std::io::Write;

#[test]
fn the_counts_of_learning_passes_are_as_configured() {
    let run = |discovery: &str, profiling: &str| {
        let run = streamed("reads in order");
        let run = run.option("FT_DISCOVERY_ITERS", discovery).option("FT_PROFILING_ITERS", profiling);
        said(&told_well(run), "passes")
    };
    assert_eq!(run("1", "1"), 2);
    assert_eq!(run("2", "4"), 6);
    assert_eq!(run("1", "0"), 2, "profiling takes one pass at least");
}

#[test]
fn a_budget_in_percent_is_of_the_gpu() {
    // 1 GiB: one percent is more than 10 MiB.
    let outcome = told_well(streamed("budget").option("FT_MAX_GPU_MEM", "1%").sim("MEM", "1GiB"));
    assert!(said(&outcome, "after") <= (1 << 30) / 100 + (64 << 10), "{}", outcome.describe());
    assert!(outcome.stderr.contains("budget 10.24 MiB"), "{}", outcome.describe());
}

#[test]
fn without_a_budget_everything_stays() {
    let run =
        story("budget").preload().option("FT_MANAGED_MIN_BYTES", "1MiB").option("FT_PROFILING_ITERS", "1");
    let outcome = run.start();
    outcome.assert_success().assert_nothing_detected();
    assert_eq!(said(&outcome, "after"), said(&outcome, "before"), "{}", outcome.describe());
    assert_eq!(said(&outcome, "pages_in"), 0);
}

#[test]
fn a_file_says_the_same_as_the_environment_and_the_environment_wins() {
    let mut file = tempfile::Builder::new().suffix(".toml").tempfile().expect("a temporary file");
    writeln!(file, "max_gpu_mem = \"8MiB\"\nmanaged_min_bytes = \"1MiB\"\nprofiling_iters = 1")
        .expect("a write");
    let run = || story("budget").preload().option("FT_CONFIG_FILE", file.path());
    let outcome = told_well(run());
    assert!(outcome.stderr.contains("budget 8 MiB"), "{}", outcome.describe());
    let outcome = told_well(run().option("FT_MAX_GPU_MEM", "10MiB"));
    assert!(outcome.stderr.contains("budget 10 MiB"), "{}", outcome.describe());
}

#[test]
fn a_ring_of_a_chosen_size_has_that_size() {
    let run = streamed("budget").option("FT_RING_BYTES", "8MiB").option("FT_MAX_GPU_MEM", "12MiB");
    assert_eq!(said(&told_well(run), "ring_bytes"), 8 << 20);
}

#[test]
fn messages_below_the_level_are_not_said() {
    let outcome = told_well(streamed("reads in order").option("FT_LOG", "error"));
    assert_eq!(outcome.stderr, "");
}

#[test]
fn one_line_says_what_was_planned() {
    let outcome = told_well(streamed("reads in order"));
    assert_eq!(outcome.stderr.lines().count(), 1, "{}", outcome.describe());
    for part in ["INFERENCE on GPU 0: budget 6 MiB", "resident", "ring", "streamed", "expected", "bound"] {
        assert!(outcome.stderr.contains(part), "{part}: {}", outcome.describe());
    }
}

#[test]
fn a_strategy_by_name_makes_the_plan() {
    let with = |strategy: Option<&str>| {
        let run = streamed("reads in order").option("FT_MAX_GPU_MEM", "1GiB");
        let outcome = match strategy {
            Some(name) => run.option("FT_LOAD_STRATEGY", name).start(),
            None => run.start(),
        };
        outcome.assert_success().assert_nothing_detected();
        let report = outcome.report.as_ref().expect("a report is written");
        report["plan"]["ring_bytes"].as_u64().unwrap_or_else(|| panic!("{}", outcome.describe()))
    };
    assert_eq!(with(None), 0, "ours leaves what fits where it is");
    assert!(with(Some("NthLayerStrategy")) > 0, "every second layer goes through a ring, whatever fits");
}

#[test]
fn latency_mode_streams_what_is_free_without_a_budget() {
    let with = |mode: &str| {
        let run = story("reads in order").preload().option("FT_MANAGED_MIN_BYTES", "1MiB");
        // Kernels that take their time hide copies.
        let run = run.option("FT_PROFILING_ITERS", "2").option("FT_MODE", mode);
        let outcome = run.start();
        outcome.assert_success().assert_nothing_detected();
        let report = outcome.report.as_ref().expect("a report is written");
        report["plan"]["ring_bytes"].as_u64().unwrap_or_else(|| panic!("{}", outcome.describe()))
    };
    assert_eq!(with("auto"), 0, "without a budget nothing is streamed");
    assert!(with("latency") > 0, "copies are hidden behind kernels, so they are free");
}
