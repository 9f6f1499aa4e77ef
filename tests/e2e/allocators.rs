//! Allocators that get memory in another way than by `cuMemAlloc`: the program runs as without us, and one line says what that means for the budget.

use super::told::{said, streamed, told_well};
use harness::Outcome;

/// All bytes right, nothing streamed, and one line with this.
fn runs_unmanaged(name: &str, line: &str) -> Outcome {
    let outcome = streamed(name).start();
    outcome.assert_success().assert_nothing_detected();
    assert_eq!((said(&outcome, "mismatches"), said(&outcome, "pages_in")), (0, 0), "{}", outcome.describe());
    assert_eq!(outcome.stderr.matches(line).count(), 1, "no line with {line:?}: {}", outcome.describe());
    outcome
}

#[test]
fn weights_that_the_program_maps_itself_are_said_to_stay() {
    let outcome = runs_unmanaged("weights in mappings of the program's own", "expandable_segments:True");
    let line = "24 MiB of weights on GPU 0 cannot be streamed, so the budget of 6 MiB is not held by them";
    assert!(outcome.stderr.contains(line), "{}", outcome.describe());
}

#[test]
fn weights_from_pools_are_said_to_stay() {
    runs_unmanaged("weights in a pool", "backend:cudaMallocAsync");
}

#[test]
fn weights_beside_those_of_a_pool_are_streamed() {
    let outcome = told_well(streamed("every other weight in a pool").option("FT_MAX_GPU_MEM", "4MiB"));
    assert!(
        outcome.stderr.contains("12 MiB of weights on GPU 0 cannot be streamed"),
        "{}",
        outcome.describe()
    );
}

#[test]
fn without_a_budget_nothing_is_said_of_them() {
    let run = streamed("weights in a pool").option("FT_MAX_GPU_MEM", "none").start();
    run.assert_success().assert_nothing_detected();
    assert!(!run.stderr.contains("cannot"), "{}", run.describe());
}
