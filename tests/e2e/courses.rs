//! Models whose program says how they are learnt, through the C interface: the Python interface stands on these rules.

use super::told::{said, streamed, told_well};

#[test]
fn a_model_takes_the_course_that_its_program_gave_it() {
    let outcome = told_well(streamed("takes a course of its own"));
    assert_eq!((said(&outcome, "course"), said(&outcome, "late"), said(&outcome, "unknown")), (0, 2, 2));
    assert_eq!(said(&outcome, "phases"), 112_223, "{}", outcome.describe());
}

/// Noting launches, and what the hook tells, take host time that the program does not take afterwards.
#[test]
fn the_last_pass_of_learning_is_left_alone_and_timed_as_a_whole() {
    let outcome = told_well(streamed("is timed as a whole at last"));
    assert_eq!(said(&outcome, "looked at"), 1110, "{}", outcome.describe());
    let wanted: Vec<&str> = outcome
        .stdout
        .lines()
        .filter_map(|line| line.strip_prefix("wants in the pass"))
        .map(str::trim)
        .collect();
    assert_eq!(wanted, ["3", "3", "3", "0"], "{}", outcome.describe());
}

#[test]
fn while_times_are_suspended_discovery_goes_on_and_profiling_waits() {
    let outcome = told_well(streamed("suspends its times"));
    assert_eq!((said(&outcome, "unbalanced"), said(&outcome, "wrong")), (2, 2));
    assert_eq!(
        (said(&outcome, "suspended"), said(&outcome, "still"), said(&outcome, "resumed")),
        (222, 2, 3)
    );
}

#[test]
fn options_change_while_the_program_runs_and_switching_off_is_none_of_them() {
    let outcome = told_well(streamed("changes its budget"));
    assert_eq!((said(&outcome, "refused"), said(&outcome, "taken"), said(&outcome, "enabled")), (2, 0, 1));
    assert!(outcome.stderr.contains("budget 8 MiB"), "{}", outcome.describe());
    assert!(outcome.stderr.contains("max_gpu_mem = \"lots\" is not allowed"), "{}", outcome.describe());
}

#[test]
fn a_model_that_is_given_a_folder_starts_from_its_profile_at_once() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let path = folder.path().to_str().expect("a text");
    let run = streamed("starts from a folder of its own").args([path]);
    let outcome = told_well(run);
    assert_eq!((said(&outcome, "saved"), said(&outcome, "at once")), (0, 3), "{}", outcome.describe());
}
