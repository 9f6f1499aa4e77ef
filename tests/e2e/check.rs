//! Check mode (docs/check-mode.md): it finds each fault that is put between the pager and the driver, and nothing in programs without one.

use super::paging::random_model;
use super::told::{said, streamed, told_well};
use harness::{Outcome, Run};

/// A story under check mode.
fn checked(story: &str) -> Run {
    streamed(story).option("FT_CHECK", "1")
}

/// The same with a fault. simcuda goes on where it notices something itself.
fn faulty(story: &str, fault: &str) -> Run {
    checked(story).preload_with_fault(fault).sim("STRICT", "0")
}

fn findings(outcome: &Outcome, kind: &str) -> u64 {
    let report = outcome.report.as_ref().unwrap_or_else(|| panic!("no report: {}", outcome.describe()));
    report["check"]["kinds"][kind].as_u64().unwrap_or_else(|| panic!("no {kind}: {:#}", report["check"]))
}

fn looked_at(outcome: &Outcome, what: &str) -> u64 {
    let report = outcome.report.as_ref().unwrap_or_else(|| panic!("no report: {}", outcome.describe()));
    report["check"]["looked_at"][what].as_u64().unwrap_or_else(|| panic!("no {what}: {:#}", report["check"]))
}

/// The line names the weight, the kernel where there is one, and the rule.
fn finds(story: &str, fault: &str, kind: &str, line: &[&str]) -> Outcome {
    let outcome = faulty(story, fault).start();
    assert!(findings(&outcome, kind) > 0, "{fault}: {}", outcome.describe());
    let is_it =
        |text: &str| text.contains(&format!("[{kind}]")) && line.iter().all(|part| text.contains(part));
    assert!(outcome.stderr.lines().any(is_it), "{fault}: no line with {line:?}: {}", outcome.describe());
    outcome
}

fn finds_nothing(run: Run) -> Outcome {
    let outcome = told_well(run);
    let report = outcome.report.as_ref().unwrap_or_else(|| panic!("no report: {}", outcome.describe()));
    assert_eq!(report["check"]["findings"], 0, "{:#}", report["check"]);
    assert!(outcome.stderr.contains("check: 0 findings in "), "{}", outcome.describe());
    outcome
}

#[test]
fn a_second_stream_that_does_not_wait_for_the_copy_is_found() {
    let parts =
        ["layers.", "is read on a stream that does not wait for its copy", "kernel check_slow", "(rule 1)"];
    finds("readers on two streams", "second stream", "launch_before_copy", &parts);
    finds_nothing(checked("readers on two streams"));
}

#[test]
fn a_copy_that_waits_for_one_reader_of_two_is_found() {
    let parts = [
        "is overwritten on a copy stream that does not wait",
        "what comes is layers.",
        "kernel check",
        "(rule 3)",
    ];
    finds("readers on two streams", "one reader", "overwritten_in_use", &parts);
}

/// The event that the next copy waits for stands before the launch.
#[test]
fn pages_that_are_released_between_check_and_enqueue_are_found() {
    finds("reads in order", "released early", "overwritten_in_use", &["kernel check", "(rule 3)"]);
}

#[test]
fn a_wait_for_an_event_that_was_never_recorded_is_found() {
    let parts = ["is ordered by an event that was never recorded", "layers.", "(rule 10)"];
    finds("reads in order", "unrecorded", "unrecorded_wait", &parts);
}

#[test]
fn a_write_that_is_not_written_back_is_found() {
    let parts = ["without having been written back", "layers.", "(rule 3)"];
    let outcome = finds("writes by a kernel", "lost write", "lost_write", &parts);
    assert!(said(&outcome, "mismatches") > 0, "the program saw it too: {}", outcome.describe());
}

#[test]
fn memory_that_is_used_again_while_it_is_streamed_is_found() {
    let parts = ["kernel fill", "still has pages of the ring", "(rule 12)"];
    finds("memory that is used again", "aliased", "aliased_page", &parts);
    let outcome = finds_nothing(checked("memory that is used again"));
    assert!(looked_at(&outcome, "addresses") > 0, "no other memory was looked at: {}", outcome.describe());
}

#[test]
fn a_shadow_that_changes_behind_our_back_is_found() {
    let parts = ["other bytes in page 0 of its shadow", "layers."];
    finds("reads in order", "shadow changed", "shadow_changed", &parts);
}

#[test]
fn a_reader_that_begins_to_write_is_stopped_by_the_gpu_and_named() {
    let outcome = checked("a reader that begins to write").sim("STRICT", "0").start();
    assert_eq!(findings(&outcome, "protected_written"), 1, "{}", outcome.describe());
    assert!(outcome.stderr.contains("kernel scale_inplace on layers."), "{}", outcome.describe());
    assert!(outcome.journal_number("/detections/read_only_write") > 0, "{}", outcome.describe());
}

/// What check mode protects stays protected when its memory is opened to another GPU.
#[test]
fn a_weight_that_another_gpu_may_reach_stays_protected() {
    let outcome = finds_nothing(checked("another GPU reaches protected weights").sim("DEVICES", "2"));
    let before = said(&outcome, "protected before");
    assert!(before > 0, "nothing was protected: {}", outcome.describe());
    assert_eq!(said(&outcome, "protected after"), before, "{}", outcome.describe());
    assert_eq!(said(&outcome, "protected from the other"), before, "{}", outcome.describe());
}

#[test]
fn a_reader_that_begins_to_write_is_found_where_weights_are_not_protected() {
    let parts = ["layers.2.weight has other bytes", "in the ring than in its shadow", "(rule 8)"];
    let outcome = finds("a reader that begins to write", "unprotected", "ring_differs", &parts);
    assert_eq!(findings(&outcome, "protected_written"), 0);
    assert_eq!(looked_at(&outcome, "protections"), 0);
}

/// Of the bytes that a page held before, nothing is left for whoever does not wait: they would often be the right ones.
#[test]
fn what_leaves_the_ring_is_poisoned_before_something_else_comes() {
    let outcome = finds_nothing(checked("reads in order"));
    let pages = said(&outcome, "pages_in");
    assert_eq!(looked_at(&outcome, "poisoned_pages"), pages, "{}", outcome.describe());
    // One for the whole ring as it begins.
    let fills = outcome.journal_number("/calls/cuMemsetD8Async");
    assert!(fills > looked_at(&outcome, "copies"), "{fills} fills: {}", outcome.describe());
}

#[test]
fn every_part_of_check_mode_is_at_work_and_finds_nothing_in_programs_that_are_right() {
    for story in ["reads in any order", "writes by a kernel", "a stale word", "pointers in an owner"] {
        let outcome = finds_nothing(checked(story));
        for what in ["launches", "copies", "shadow_pages", "ring_pages", "protections"] {
            assert!(looked_at(&outcome, what) > 0, "{story}: no {what}: {}", outcome.describe());
        }
    }
}

/// Threads, streams that end, graphs, pointers, redirected writes, memory that comes and goes: small budgets, so that much is streamed.
#[test]
fn nothing_is_found_in_random_models() {
    let mut pages = 0;
    for seed in [6, 12, 18, 19, 25, 31] {
        let outcome = random_model(seed).option("FT_CHECK", "1").start();
        outcome.assert_success().assert_nothing_detected().assert_no_findings();
        pages += looked_at(&outcome, "shadow_pages");
    }
    assert!(pages > 0, "nothing was streamed");
}

#[test]
fn weights_that_are_written_are_opened_first_and_shut_again() {
    for story in ["writes by a kernel", "writes by a copy to the device", "a fill", "a kernel that adds"] {
        let outcome = finds_nothing(checked(story));
        assert!(looked_at(&outcome, "openings") > 0, "{story}: {}", outcome.describe());
        let (units, shut) = (said(&outcome, "streamed_units"), looked_at(&outcome, "protections"));
        assert!(shut > units, "{story}: nothing was shut again: {}", outcome.describe());
    }
}

/// Readers, write-backs and comparisons are on their way most of the time.
#[test]
fn access_to_a_weight_is_changed_only_while_nothing_uses_its_addresses() {
    for story in [
        "writes by a kernel",
        "writes by a copy to the device",
        "a fill",
        "a kernel that adds",
        "readers on two streams",
        "pointers in an owner",
    ] {
        let outcome = finds_nothing(checked(story).sim("KERNEL_US", "1000"));
        assert!(looked_at(&outcome, "openings") > 0, "{story}: {}", outcome.describe());
        // One in each unit's life is no change.
        let (units, shut) = (said(&outcome, "streamed_units"), looked_at(&outcome, "protections"));
        assert!(shut > units, "{story}: nothing was shut again: {}", outcome.describe());
    }
}

#[test]
fn nothing_is_opened_while_another_thread_enqueues_a_launch_that_reads_it() {
    let story = "a reader is late while another thread writes";
    let outcome = finds_nothing(checked(story).sim("QUEUE", "1").sim("KERNEL_US", "12000"));
    assert!(looked_at(&outcome, "openings") > 0, "{}", outcome.describe());
}

#[test]
fn a_context_that_is_lost_to_a_copy_is_said_like_one_that_is_lost_to_a_kernel() {
    // One of the fills that come before copies in; nothing else in these programs fills.
    let lost = |code: u32| {
        let fault = format!("cuMemsetD8Async@10={code}");
        checked("reads in order").sim("STRICT", "0").sim("FAULTS", fault).start()
    };
    for code in [700, 719] {
        let outcome = lost(code);
        assert_eq!(findings(&outcome, "protected_written"), 1, "{code}: {}", outcome.describe());
        assert!(outcome.stderr.contains(&format!("(error {code})")), "{}", outcome.describe());
    }
    let outcome = lost(999);
    assert_eq!(findings(&outcome, "protected_written"), 0, "{}", outcome.describe());
}

#[test]
fn abort_ends_the_process_at_the_first_finding() {
    let outcome = faulty("reads in order", "unrecorded").option("FT_CHECK", "abort").start();
    assert_eq!(outcome.status.code(), Some(86), "{}", outcome.describe());
    assert_eq!(outcome.stderr.matches("flextensor: check: ").count(), 1, "{}", outcome.describe());
    told_well(checked("reads in order").option("FT_CHECK", "abort"));
}

#[test]
fn what_is_not_checked_says_nothing_of_it() {
    let outcome = told_well(streamed("reads in order"));
    let report = outcome.report.as_ref().expect("a report");
    assert!(report["check"].is_null());
    assert!(!outcome.stderr.contains("check:"), "{}", outcome.describe());
    assert_eq!(outcome.journal_number("/calls/cuLaunchHostFunc"), 0);
}

#[test]
fn the_library_that_is_passed_on_knows_no_faults_on_demand() {
    let bytes = std::fs::read(harness::run::preload_library()).expect("the library can be read");
    let name = b"FLEXTENSOR_SEEDED_FAULT";
    assert!(!bytes.windows(name.len()).any(|part| part == name));
}
