//! What is kept of passes is bounded, also where a forward never ends, or learning is put off for ever.

use super::told::{said, streamed, told_well};
use harness::Run;

/// Events of the ring, of checks that wait, and of a few passes of six weights.
const FEW: u64 = 300;

/// Marks that are kept for later passes.
const SPARE: u64 = 1024;

/// With copies that are hardly late: these stories run many passes.
fn endless(story: &str) -> Run {
    streamed(story).sim("LATE_US", "20")
}

#[test]
fn a_forward_that_outlives_learning_leaves_nothing_behind_and_nothing_is_observed_for_it() {
    let outcome = told_well(endless("a forward outlives learning"));
    assert_eq!(said(&outcome, "hits early"), said(&outcome, "hits late"), "{}", outcome.describe());
    for when in ["events early", "events late"] {
        assert!(said(&outcome, when) <= FEW, "{when}: {}", outcome.describe());
    }
}

#[test]
fn passes_are_not_heaped_up_while_learning_is_put_off() {
    let outcome = told_well(endless("learning is put off"));
    assert_eq!(said(&outcome, "phase meanwhile"), 2, "{}", outcome.describe());
    assert!(said(&outcome, "events meanwhile") <= FEW, "{}", outcome.describe());
}

#[test]
fn marks_of_a_long_forward_are_not_all_kept_for_later_ones() {
    let outcome = told_well(endless("a long forward"));
    assert!(said(&outcome, "events afterwards") <= SPARE + FEW, "{}", outcome.describe());
}
