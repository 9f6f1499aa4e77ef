//! Faults that users reported of other libraries of this kind, as far as no other file has them: docs/reliability.md lists all, each with its test.

use super::told::{said, streamed, told_well};

/// Unmapping does not wait for kernels; freeing must.
#[test]
fn memory_that_is_freed_behind_a_launch_that_reads_it_is_there_until_it_ends() {
    told_well(streamed("freed while it is read"));
    let all_resident = streamed("freed while it is read").option("FT_MAX_GPU_MEM", "1GiB").start();
    all_resident.assert_success().assert_nothing_detected();
    assert_eq!(said(&all_resident, "mismatches"), 0, "{}", all_resident.describe());
}

#[test]
fn frees_that_make_no_sense_are_answered_as_the_driver_does() {
    let outcome = told_well(streamed("frees that make no sense"));
    let inner = outcome.stdout.lines().filter(|line| *line == "inner 1").count();
    assert_eq!(inner, 3, "{}", outcome.describe());
    let codes = ["nothing", "unknown", "once", "twice"].map(|what| said(&outcome, what));
    assert_eq!(codes, [0, 1, 0, 1], "{}", outcome.describe());
}

#[test]
fn a_legacy_handle_of_managed_memory_is_refused_with_one_line_and_the_program_goes_on() {
    let outcome = told_well(streamed("a handle for another process"));
    assert_eq!(said(&outcome, "handle"), 1, "{}", outcome.describe());
    let lines = outcome.stderr.matches("cannot be shared with other processes by a legacy handle").count();
    assert_eq!(lines, 1, "{}", outcome.describe());
}
