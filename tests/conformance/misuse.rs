//! simcuda notices each kind of misuse, and is silent about the same program done right.

use harness::{Outcome, Run};

fn run(act: &str) -> Run {
    Run::program("misuse").args([act])
}

/// Runs an act in which exactly one kind of detection is expected.
fn detects(run: Run, kind: &str) -> Outcome {
    let outcome = run.start();
    outcome.assert_success();
    assert!(outcome.journal_number(&format!("/detections/{kind}")) > 0, "{}", outcome.describe());
    assert!(outcome.stderr.contains(kind), "the exit report names it: {}", outcome.describe());
    outcome
}

fn is_silent(run: Run) -> Outcome {
    let outcome = run.start();
    outcome.assert_success().assert_nothing_detected();
    assert_eq!(outcome.stderr, "", "{}", outcome.describe());
    outcome
}

fn number(outcome: &Outcome, what: &str) -> u64 {
    let line = outcome.stdout.lines().find_map(|line| line.strip_prefix(what));
    line.and_then(|rest| rest.trim().parse().ok())
        .unwrap_or_else(|| panic!("no {what}: {}", outcome.describe()))
}

#[test]
fn a_copy_over_a_page_that_a_kernel_reads_through_another_address_is_noticed_and_seen_by_the_kernel() {
    let outcome = detects(run("overwrite while read"), "unordered");
    assert!(number(&outcome, "mismatches") > 0, "the bytes really changed: {}", outcome.describe());
    let outcome = is_silent(run("overwrite after read"));
    assert_eq!(number(&outcome, "mismatches"), 0);
}

#[test]
fn a_kernel_that_does_not_wait_for_a_late_copy_is_noticed_and_reads_old_bytes() {
    let outcome = detects(run("read before copied").sim("LATE_US", "30000"), "unordered");
    assert!(number(&outcome, "mismatches") > 0, "{}", outcome.describe());
    let outcome = is_silent(run("read after copied").sim("LATE_US", "30000"));
    assert_eq!(number(&outcome, "mismatches"), 0);
}

#[test]
fn unmapping_under_a_running_kernel_is_noticed_and_takes_the_context() {
    let outcome = detects(run("unmap while read"), "unmap_in_use");
    assert_eq!(number(&outcome, "code"), 700);
}

#[test]
fn changing_the_access_of_memory_under_a_running_kernel_is_noticed_and_through_another_address_is_not() {
    detects(run("protect while read"), "access_in_use");
    is_silent(run("protect after read"));
    is_silent(run("protect another address"));
}

#[test]
fn freeing_waits_for_the_kernel_as_a_driver_does() {
    let outcome = is_silent(run("free while read"));
    assert_eq!(number(&outcome, "mismatches"), 0);
    assert_eq!(outcome.journal_number("/free_waited"), 1);
}

#[test]
fn unregistering_under_a_copy_is_noticed() {
    detects(run("unregister while copied").sim("LATE_US", "30000"), "unregister_in_use");
}

#[test]
fn a_stale_word_is_harmless_until_it_is_followed() {
    assert_eq!(number(&is_silent(run("stale word")), "code"), 0);
    let outcome = detects(run("stale word followed"), "unmapped_access");
    assert_eq!(number(&outcome, "code"), 700);
}

#[test]
fn a_wait_for_an_event_that_was_never_recorded_is_noticed_and_ends_a_strict_run() {
    detects(run("wait for nothing"), "unrecorded_wait");
    let outcome = run("wait for nothing").sim("STRICT", "1").start();
    assert!(!outcome.status.success(), "{}", outcome.describe());
    assert!(outcome.stderr.starts_with("simcuda: unrecorded_wait"), "{}", outcome.describe());
}

#[test]
fn graph_nodes_that_share_bytes_without_an_edge_are_noticed() {
    detects(run("graph without an edge"), "unordered");
    assert_eq!(number(&is_silent(run("graph with an edge")), "mismatches"), 0);
}

#[test]
fn a_programmatic_launch_runs_beside_the_kernel_before_it() {
    assert!(number(&is_silent(run("successive")), "milliseconds") >= 300);
    let together = number(&is_silent(run("overlapping")), "milliseconds");
    assert!((150..300).contains(&together), "{together} ms");
}

#[test]
fn a_programmatic_launch_that_reads_what_the_kernel_before_it_writes_is_noticed() {
    is_silent(run("write then read"));
    detects(run("write beside read").sim("KERNEL_US", "20000"), "unordered");
}

#[test]
fn arguments_arrive_by_every_way_to_pass_them() {
    let outcome = is_silent(run("every launch"));
    assert_eq!(number(&outcome, "mismatches"), 0);
    assert_eq!(number(&outcome, "sum is right"), 1);
    assert_eq!(outcome.journal_number("/kernels/check"), 6);
}

#[test]
fn the_memory_limit_holds() {
    let outcome = is_silent(run("memory limit").sim("MEM", "32MiB"));
    assert_eq!(number(&outcome, "code"), 2);
    assert_eq!(number(&outcome, "total"), 32 << 20);
    assert_eq!(number(&outcome, "free and in use"), 32 << 20);
    assert!(number(&outcome, "in use") >= 2 << 20, "{}", outcome.describe());
}

#[test]
fn faults_come_at_the_call_they_name() {
    let outcome = run("memory limit").sim("FAULTS", "cuMemAlloc@2=304").start();
    assert_eq!(number(&outcome, "code"), 304);
    assert_eq!(outcome.journal_number("/faults_delivered"), 1);
    let outcome = run("memory limit").sim("FAULTS", "cuMemCreate@1=2").start();
    assert_eq!(outcome.status.code(), Some(2), "{}", outcome.describe());
    assert!(outcome.stderr.contains("cuMemCreate returned 2"), "{}", outcome.describe());
    let outcome = run("memory limit").sim("FAULTS", "cuMemCreate").start();
    assert_eq!(outcome.status.code(), Some(97), "{}", outcome.describe());
}

#[test]
fn a_full_queue_makes_the_caller_wait_and_loses_nothing() {
    let outcome = is_silent(run("every launch").sim("QUEUE", "1").sim("KERNEL_US", "2000"));
    assert_eq!(number(&outcome, "mismatches"), 0);
}

#[test]
fn a_copy_takes_the_time_of_its_link() {
    // 2 MiB at 0.02 GB/s are 105 ms.
    let outcome = is_silent(run("read after copied").sim("H2D_GBPS", "0.02"));
    assert!(outcome.wall.as_millis() >= 100, "{}", outcome.describe());
}
