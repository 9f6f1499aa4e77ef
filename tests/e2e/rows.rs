//! A table of which forwards read single rows lies in host memory for good: nothing of it is copied, it takes no GPU memory, and its bytes are right.

use super::told::{BUDGET, preloaded, said, story, streamed, survives, told_well};
use harness::Run;
use std::time::Duration;

const TABLE: u64 = 4 << 20;

/// Words of the program's own, and of its stage.
const OWN: u64 = 64 << 10;

#[test]
fn a_table_of_rows_lies_in_the_host_and_takes_none_of_the_budget() {
    let outcome = told_well(streamed("a table of rows"));
    assert_eq!(said(&outcome, "learnt in the host"), TABLE, "{}", outcome.describe());
    assert_eq!(said(&outcome, "ran in the host"), TABLE, "{}", outcome.describe());
    // The weights that remain fill the budget; what is held is what is said.
    let held = said(&outcome, "weights_gpu_bytes");
    assert!(held <= BUDGET && said(&outcome, "device_bytes") <= held + OWN, "{}", outcome.describe());
}

#[test]
fn a_table_of_rows_is_streamed_where_that_is_asked_for_or_a_strategy_chooses() {
    for (key, value) in [("FT_HOST_EMBEDDINGS", "0"), ("FT_LOAD_STRATEGY", "BudgetFillStrategy")] {
        let outcome = told_well(streamed("a table of rows").option(key, value));
        assert_eq!(said(&outcome, "learnt in the host"), 0, "{key}: {}", outcome.describe());
    }
}

/// Weights of 24 MiB that compute for longer than their copies take.
fn in_long_forwards(name: &str) -> Run {
    preloaded(name).option("FT_MAX_GPU_MEM", LONG_BUDGET.to_string())
}

const LONG_BUDGET: u64 = 18 << 20;

/// Where copies are hidden anyway, its rows would only come later over the link. When forwards come that wait for copies, it goes, and weights take its memory.
#[test]
fn a_table_stays_on_the_gpu_as_long_as_forwards_wait_for_no_copy() {
    let outcome = told_well(in_long_forwards("a table in long forwards"));
    assert_eq!(said(&outcome, "learnt in the host"), 0, "{}", outcome.describe());
    assert_eq!(said(&outcome, "ran in the host"), TABLE, "{}", outcome.describe());
    // Eight to see that they take longer than they should, one that is observed, and a few while the plan is made.
    assert!(said(&outcome, "short passes") <= 100, "{}", outcome.describe());
    for held in ["weights_gpu_bytes", "then"] {
        assert!(said(&outcome, held) <= LONG_BUDGET + OWN, "{held}: {}", outcome.describe());
    }
}

/// It needs no ring, and nothing else has to move.
#[test]
fn a_table_that_stayed_goes_first_where_memory_runs_short() {
    let run = in_long_forwards("a table in long forwards, and a cache").sim("MEM", (64 << 20).to_string());
    let outcome = told_well(run);
    assert_eq!(said(&outcome, "learnt in the host"), 0, "{}", outcome.describe());
    assert_eq!(said(&outcome, "grew"), 1, "{}", outcome.describe());
    assert_eq!(said(&outcome, "ran in the host"), TABLE, "{}", outcome.describe());
}

/// A thread of ours may not close the gate whenever it likes: what a stream carries may end only after the program has launched on another one.
#[test]
fn a_table_goes_where_a_forward_ends_not_while_streams_wait_for_what_is_launched_next() {
    let outcome = told_well(in_long_forwards("a table amid streams that wait for each other"));
    assert_eq!(said(&outcome, "given up"), 0, "{}", outcome.describe());
    assert_eq!(said(&outcome, "ran in the host"), TABLE, "{}", outcome.describe());
}

#[test]
fn a_table_that_stayed_does_not_go_when_the_program_wants_it_private() {
    let outcome = told_well(in_long_forwards("a table that stayed is private"));
    assert_eq!(said(&outcome, "asked"), 1, "{}", outcome.describe());
    assert_eq!(said(&outcome, "ran in the host"), 0, "{}", outcome.describe());
}

/// Such plans save memory wherever that costs little.
#[test]
fn in_latency_mode_a_table_takes_no_gpu_memory_however_long_forwards_are() {
    let outcome = told_well(preloaded("a table in long forwards only").option("FT_MODE", "latency"));
    assert_eq!(said(&outcome, "learnt in the host"), TABLE, "{}", outcome.describe());
}

#[test]
fn a_table_that_stayed_stays_without_learning_where_a_profile_is_known() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let name = "a table in long forwards only";
    let run = || in_long_forwards(name).option("FT_PROFILE_STORAGE_DIR", folder.path());
    for passes in [2, 1] {
        let outcome = told_well(run());
        let learnt = outcome.stderr.contains("its plan is used, without learning passes");
        assert_eq!(learnt, passes == 1, "{}", outcome.describe());
        assert_eq!(said(&outcome, "learnt in the host"), 0, "{}", outcome.describe());
        assert!(said(&outcome, "then") <= LONG_BUDGET + OWN, "{}", outcome.describe());
    }
}

#[test]
fn where_nothing_is_streamed_a_table_of_rows_stays_on_the_gpu() {
    let run = story("a table of rows").preload().option("FT_MANAGED_MIN_BYTES", "1MiB");
    let outcome = run.option("FT_PROFILING_ITERS", "1").option("FT_MAX_GPU_MEM", "1GiB").start();
    outcome.assert_success().assert_nothing_detected();
    assert_eq!(said(&outcome, "mismatches"), 0, "{}", outcome.describe());
    assert_eq!(said(&outcome, "ran in the host"), 0, "{}", outcome.describe());
}

#[test]
fn a_table_that_others_read_whole_is_streamed_like_any_weight() {
    for name in ["a table that others read", "a table that others hold"] {
        let outcome = told_well(streamed(name));
        assert_eq!(said(&outcome, "learnt in the host"), 0, "{name}: {}", outcome.describe());
    }
}

#[test]
fn memory_of_a_table_that_is_let_go_leaves_the_host() {
    let outcome = told_well(streamed("a table is let go"));
    assert_eq!(said(&outcome, "learnt in the host"), TABLE, "{}", outcome.describe());
    assert_eq!(said(&outcome, "let go in the host"), 0, "{}", outcome.describe());
    assert_eq!(said(&outcome, "ran in the host"), 0, "{}", outcome.describe());
}

#[test]
fn memory_of_a_table_that_is_replaced_leaves_the_host() {
    let outcome = told_well(streamed("a table is replaced"));
    assert_eq!(said(&outcome, "learnt in the host"), TABLE, "{}", outcome.describe());
    assert_eq!(said(&outcome, "refused"), 0, "{}", outcome.describe());
    assert_eq!(said(&outcome, "replaced in the host"), 0, "{}", outcome.describe());
}

/// The second model has it placed anew, as a weight that is read whole.
#[test]
fn a_table_that_a_second_model_reads_whole_leaves_the_host() {
    let outcome = told_well(streamed("a table that a second model holds"));
    assert_eq!(said(&outcome, "learnt in the host"), TABLE, "{}", outcome.describe());
    assert_eq!(said(&outcome, "tables left there"), 0, "{}", outcome.describe());
    assert!(said(&outcome, "weights_gpu_bytes") <= BUDGET, "{}", outcome.describe());
}

/// Shadows and tables count together against the limit.
#[test]
fn the_limit_of_host_memory_holds_for_tables_too() {
    let held = |outcome: &harness::Outcome| said(outcome, "ran in the host") + said(outcome, "pinned_bytes");
    let needed = held(&told_well(streamed("a table of rows")));
    for limit in [needed, needed - (2 << 20)] {
        let outcome = streamed("a table of rows").option("FT_HOST_MEM_LIMIT", limit.to_string()).start();
        outcome.assert_success().assert_nothing_detected();
        assert_eq!(said(&outcome, "mismatches"), 0, "{limit}: {}", outcome.describe());
        assert!(held(&outcome) <= limit, "{limit}: {}", outcome.describe());
    }
}

#[test]
fn memory_of_a_table_that_is_freed_is_given_back() {
    let outcome = told_well(streamed("a table is freed"));
    assert_eq!(said(&outcome, "learnt in the host"), TABLE, "{}", outcome.describe());
    assert_eq!(said(&outcome, "freed in the host"), 0, "{}", outcome.describe());
}

/// The profile's plan is for the weights beside the table.
#[test]
fn a_table_of_rows_goes_to_the_host_without_learning_where_a_profile_is_known() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let run = || streamed("a table of rows").option("FT_PROFILE_STORAGE_DIR", folder.path());
    told_well(run());
    let outcome = told_well(run());
    assert!(outcome.stderr.contains("its plan is used, without learning passes"), "{}", outcome.describe());
    assert_eq!(said(&outcome, "passes"), 1, "{}", outcome.describe());
    assert_eq!(said(&outcome, "learnt in the host"), TABLE, "{}", outcome.describe());
    assert!(said(&outcome, "weights_gpu_bytes") <= BUDGET, "{}", outcome.describe());
}

#[test]
fn refused_host_memory_or_mappings_leave_the_table_right() {
    for call in ["cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemUnmap", "cuMemcpyDtoHAsync_v2"] {
        for moment in ["20", "24", "28", "32", "36", "40", "28+"] {
            let fault = format!("{call}@{moment}=999");
            let run =
                streamed("a table of rows").sim("FAULTS", &fault).sim("STRICT", "0").sim("LATE_US", "0");
            survives(&run.limit(Duration::from_secs(60)).start(), &fault);
        }
    }
}
