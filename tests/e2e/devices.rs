//! Several GPUs in one process: a model on each, memory that one lets the other reach, copies between them.

use super::told::{BUDGET, said, streamed, told_well};
use harness::Run;

fn on_two(name: &str) -> Run {
    streamed(name).sim("DEVICES", "2")
}

#[test]
fn a_model_on_each_gpu_is_streamed_there_within_that_gpu_s_budget() {
    within_each_budget("a model on each GPU");
}

#[test]
fn threads_that_change_gpus_between_forwards_read_right_bytes_on_each() {
    within_each_budget("a model on each GPU, by threads that change GPUs");
}

fn within_each_budget(name: &str) {
    let outcome = told_well(on_two(name));
    assert_eq!(said(&outcome, "plans"), 2, "{}", outcome.describe());
    // A context counts as a sixty-fourth part; counters, arrays and pieces of the driver's are small.
    let most = BUDGET + (1 << 30) / 64 + (64 << 10);
    for device in 0..2 {
        let held = said(&outcome, &format!("held by GPU {device}"));
        assert!(held <= most, "GPU {device} holds {held} of {most}: {}", outcome.describe());
    }
}

/// What is marked then belongs to the first GPU's context, and so does its default stream.
#[test]
fn a_forward_goes_on_behind_what_its_thread_captured_or_destroyed_on_another_gpu() {
    for story in [
        "a capture on the other GPU amid a forward",
        "a stream that is destroyed from the other GPU amid a forward",
    ] {
        told_well(on_two(story));
        told_well(on_two(story).option("FT_CHECK", "1"));
    }
}

/// The hook of Python names a model for each GPU; who names one for both is told.
#[test]
fn a_model_that_is_named_over_two_gpus_is_right_on_both_and_its_weights_on_the_second_stay() {
    let outcome = told_well(on_two("a model over two GPUs"));
    let line = "weights of one model lie on several GPUs: those that are not on GPU 0 stay";
    assert_eq!(outcome.stderr.matches(line).count(), 1, "{}", outcome.describe());
}

#[test]
fn memory_is_open_to_a_gpu_that_the_program_lets_reach_it() {
    told_well(on_two("another GPU reads weights"));
}

/// What GPU 1 is let into lies in host memory, under two addresses.
#[test]
fn host_pages_that_stand_in_for_gpu_memory_are_open_to_a_gpu_that_the_program_lets_reach_them() {
    let on_host = |name: &str| on_two(name).option("FT_BUDGET_WHILE_LOADING", "1");
    told_well(on_host("another GPU reads weights"));
    told_well(on_host("copies between GPUs that reach each other"));
    told_well(on_host("another GPU reads weights").option("FT_PROFILING_ITERS", "6").option("FT_CHECK", "1"));
}

/// A kernel that found half of the memory shut would lose its context.
#[test]
fn memory_that_cannot_be_opened_to_a_gpu_is_an_error_of_the_call_that_asks_for_it() {
    for call in ["cuCtxGetDevice", "cuMemSetAccess"] {
        let run = on_two("another GPU reads weights").sim("FAULTS", format!("{call}@reach.1=999"));
        let outcome = run.start();
        assert_eq!(outcome.status.code(), Some(2), "{call}: {}", outcome.describe());
        assert!(
            outcome.stderr.contains("cuCtxEnablePeerAccess returned 999"),
            "{call}: {}",
            outcome.describe()
        );
        outcome.assert_nothing_detected();
    }
}

#[test]
fn weights_move_when_the_kernels_of_other_gpus_that_read_them_have_ended() {
    told_well(on_two("another GPU reads weights while they are learnt"));
}

#[test]
fn memory_that_another_gpu_reads_is_there_until_it_has_read_it() {
    told_well(on_two("freed while another GPU reads it"));
}

#[test]
fn copies_between_gpus_need_no_peers() {
    told_well(on_two("copies between GPUs"));
    told_well(on_two("copies between GPUs that reach each other"));
}

/// What is streamed would lie in the same memory twice: all allocations are the driver's, and one line says why the budget is not held.
#[test]
fn on_an_integrated_gpu_the_program_runs_as_without_us_and_one_line_says_so() {
    let line = "GPU 0 is integrated and has no memory but the host's: nothing is streamed there";
    let on_integrated = |key: &str, value: &str| {
        let outcome = streamed("reads in order").sim("INTEGRATED", "0").option(key, value).start();
        outcome.assert_success().assert_nothing_detected();
        for what in ["mismatches", "pages_in"] {
            assert_eq!(said(&outcome, what), 0, "{what}: {}", outcome.describe());
        }
        // The driver's own memory throughout: no page is made or mapped, and nothing stays pinned.
        assert_eq!(said(&outcome, "pinned_bytes"), 0, "{}", outcome.describe());
        for call in ["cuMemCreate", "cuMemMap"] {
            assert_eq!(
                outcome.journal_number(&format!("/calls/{call}")),
                0,
                "{call}: {}",
                outcome.describe()
            );
        }
        assert!(!outcome.stderr.contains("cannot be met"), "{}", outcome.describe());
        outcome
    };
    let outcome = on_integrated("FT_PROFILING_ITERS", "1");
    assert_eq!(outcome.stderr.matches(line).count(), 1, "{}", outcome.describe());
    assert!(outcome.stderr.contains("so the budget of 6 MiB is not held"), "{}", outcome.describe());
    // Who asked for nothing hears nothing of it.
    assert!(!on_integrated("FT_MAX_GPU_MEM", "none").stderr.contains("integrated"));
}

#[test]
fn beside_an_integrated_gpu_weights_of_another_one_are_streamed() {
    let outcome = told_well(on_two("a model on each GPU").sim("INTEGRATED", "1"));
    assert_eq!(outcome.stderr.matches("GPU 1 is integrated").count(), 1, "{}", outcome.describe());
    assert!(!outcome.stderr.contains("GPU 0 is integrated"), "{}", outcome.describe());
    let most = BUDGET + (1 << 30) / 64 + (64 << 10);
    let held = said(&outcome, "held by GPU 0");
    assert!(held <= most, "GPU 0 holds {held} of {most}: {}", outcome.describe());
}

/// The limit of the process is no matter of streaming.
#[test]
fn an_integrated_gpu_keeps_the_limit_of_the_process() {
    let run = || streamed("reads in order").sim("INTEGRATED", "0").option("FT_MAX_GPU_MEM", "none");
    // A context counts as a sixty-fourth part of 256 MiB; six weights are 24 MiB.
    let outcome = run().sim("MEM", "256MiB").option("FT_GPU_LIMIT", "16MiB").start();
    assert_eq!(outcome.status.code(), Some(2), "{}", outcome.describe());
    assert!(outcome.stderr.contains("cuMemAlloc returned 2"), "{}", outcome.describe());
    run().sim("MEM", "256MiB").option("FT_GPU_LIMIT", "32MiB").start().assert_success();
}
