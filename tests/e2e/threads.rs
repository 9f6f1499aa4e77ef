//! Threads, streams, modules and contexts that come and go, and processes that end in every way.

use super::told::{said, streamed, told_well};
use std::os::unix::process::ExitStatusExt;

#[test]
fn threads_that_run_one_model_at_the_same_time_read_right_bytes() {
    told_well(streamed("threads"));
}

#[test]
fn two_models_that_come_to_their_switch_over_at_once_share_one_ring() {
    let outcome = told_well(streamed("two models learnt at once").option("FT_MAX_GPU_MEM", "24MiB"));
    assert!(said(&outcome, "weights_gpu_bytes") <= 24 << 20, "{}", outcome.describe());
}

#[test]
fn launches_that_meet_the_switch_over_read_right_bytes() {
    told_well(streamed("launches during the switch-over"));
}

/// What such a pass is not observed for would keep a weight from moving under a kernel that has its address from memory.
#[test]
fn owners_that_read_through_pointers_are_told_of_in_passes_that_are_timed_whole() {
    let run = streamed("pointers in owners of passes that are timed whole").option("FT_PROFILING_ITERS", "4");
    let outcome = told_well(run);
    assert_eq!(said(&outcome, "passes that tell of all owners"), 4, "{}", outcome.describe());
    assert_eq!(said(&outcome, "passes that tell of pointers"), 5, "{}", outcome.describe());
}

#[test]
fn streams_that_end_with_work_on_them_and_come_again_cost_no_byte() {
    told_well(streamed("streams come and go"));
}

#[test]
fn a_context_takes_its_ring_with_it_and_the_next_one_gets_its_own() {
    let outcome = told_well(streamed("contexts come and go"));
    assert_eq!(said(&outcome, "left"), 0, "{}", outcome.describe());
}

#[test]
fn the_last_release_of_the_primary_context_takes_its_ring_and_all_memory_with_it() {
    let outcome = told_well(streamed("the primary context comes and goes"));
    assert_eq!(said(&outcome, "left"), 0, "{}", outcome.describe());
    let report = outcome.report.as_ref().unwrap_or_else(|| panic!("no report: {}", outcome.describe()));
    assert!(report["counters"]["bytes_in"].as_u64() > Some(0), "{report:#}");
}

#[test]
fn a_weight_that_another_context_uses_leaves_the_ring_of_this_one() {
    let outcome = told_well(streamed("used in another context"));
    assert!(outcome.stderr.contains("in another context than the ring's"), "{}", outcome.describe());
}

#[test]
fn models_that_are_dropped_and_named_again_stream_again() {
    let outcome = told_well(streamed("dropped and named again"));
    // The buffer with which the link was measured stays.
    let shadows = said(&outcome, "pinned_bytes") - (32 << 20);
    assert_eq!(shadows, said(&outcome, "host_bytes"), "host memory stays: {}", outcome.describe());
    told_well(streamed("asked to be private"));
}

#[test]
fn an_exit_while_other_threads_launch_is_an_exit() {
    let outcome = streamed("exit in a thread").start();
    assert!(outcome.status.success(), "{}", outcome.describe());
    let report = outcome.report.as_ref().unwrap_or_else(|| panic!("no report: {}", outcome.describe()));
    assert_eq!(report["phase"], "INFERENCE");
}

#[test]
fn an_immediate_exit_is_immediate() {
    let outcome = streamed("_exit in a thread").start();
    assert!(outcome.status.success(), "{}", outcome.describe());
}

#[test]
fn a_signal_ends_the_process_as_it_would_without_us() {
    let outcome = streamed("terminated").start();
    assert_eq!(outcome.status.signal(), Some(15), "{}", outcome.describe());
}
