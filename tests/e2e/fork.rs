//! Processes that split, before and after the driver was used.

use super::told::{said, streamed, told_well};

#[test]
fn a_child_forked_before_the_first_use_lives_its_own_life() {
    told_well(streamed("fork before the first use"));
}

#[test]
fn a_child_forked_after_the_switch_over_is_left_alone_and_exits_in_order() {
    let outcome = told_well(streamed("fork after the switch"));
    assert_eq!(said(&outcome, "child"), 0, "{}", outcome.describe());
    assert!(outcome.report.is_some(), "the parent wrote its report");
}
