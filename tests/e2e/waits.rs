//! Programs that wait for all of their context: what a device does for weights of the next pass is no business of theirs, and all else is.

use super::told::{said, story, streamed, told_well};

/// Every pass of a program that waits for its device had been as much longer as the link takes for the ring.
#[test]
fn a_wait_for_the_device_is_none_for_weights_of_the_next_pass() {
    let outcome = told_well(streamed("waits for its device"));
    assert!(said(&outcome, "waited") < 15_000, "microseconds of a copy of 30,000: {}", outcome.describe());
}

#[test]
fn a_wait_for_the_device_is_one_for_all_that_the_program_submitted() {
    let name = "waits for work on every stream";
    let outcome = told_well(streamed(name));
    for what in ["legacy", "plain", "apart", "destroyed", "destroyed meanwhile", "own"] {
        assert_eq!(said(&outcome, what), 0, "{what}: {}", outcome.describe());
    }
    let native = story(name).start();
    for what in ["in a capture", "the capture"] {
        assert_eq!(said(&outcome, what), said(&native, what), "{what}: {}", outcome.describe());
    }
}
