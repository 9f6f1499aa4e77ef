//! Programs that change after the switch-over: every byte stays right, and after a few passes everything is foreseen again. Stories are in
//! `programs/scenario/changes.rs`.

use super::told::{said, streamed, told_well};

#[test]
fn each_shape_is_followed_in_its_own_order() {
    let outcome = told_well(streamed("shapes in orders of their own"));
    assert!(said(&outcome, "at first") > 0, "the second shape was known before: {}", outcome.describe());
    assert_eq!(said(&outcome, "later"), 0, "{}", outcome.describe());
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
fn four_threads_that_change_shapes_as_they_like_read_right_bytes() {
    told_well(streamed("changes under four threads"));
}
