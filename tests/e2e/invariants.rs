//! The invariants of the design, one test each at least, over whole programs on simcuda. Each fails when its guard is taken out: docs/testing.md has the
//! table. The pager's own rules are tested in `core`.

use super::told::{BUDGET, said, story, streamed, told_well};

/// Reads that nobody foresaw, too, with copies that are two milliseconds late.
#[test]
fn invariant_1_a_launch_never_runs_before_its_bytes_are_in_place() {
    told_well(streamed("reads in order").sim("LATE_US", "2000"));
    let outcome = told_well(streamed("reads in any order").sim("LATE_US", "2000"));
    assert!(said(&outcome, "demand_loads") > 0, "all was foreseen: {}", outcome.describe());
}

#[test]
fn invariant_2_a_page_is_never_overwritten_before_its_readers_on_all_streams() {
    told_well(streamed("slow readers elsewhere"));
}

#[test]
fn invariant_3_what_kernels_wrote_is_not_lost_with_their_pages() {
    told_well(streamed("writes by a kernel"));
    told_well(streamed("a kernel that adds"));
}

#[test]
fn invariant_3_a_kernel_that_wrote_the_same_bytes_so_far_is_no_reader_outside_forwards() {
    told_well(streamed("writes that change nothing at first"));
}

#[test]
fn invariant_3_what_copies_and_fills_wrote_is_not_lost_with_their_pages() {
    told_well(streamed("writes by a copy to the device"));
    told_well(streamed("writes by an asynchronous copy"));
    told_well(streamed("writes by a copy on the device"));
    told_well(streamed("a fill"));
}

#[test]
fn invariant_3_a_kernel_that_gets_the_handle_of_a_proven_reader_is_no_proven_reader() {
    told_well(streamed("modules come and go"));
}

/// The ring has room for one of them.
#[test]
fn invariant_4_what_one_launch_reads_never_shares_pages() {
    let outcome = told_well(streamed("two weights in one launch"));
    assert!(said(&outcome, "conflicts") > 0, "no two weights met: {}", outcome.describe());
}

#[test]
fn invariant_4_what_is_read_through_pointers_stays_until_its_owner_returns() {
    told_well(streamed("pointers in an owner"));
    told_well(streamed("pointers in an owner that another thread leaves"));
    told_well(streamed("pointers in an owner of a second model"));
}

#[test]
fn invariant_5_addresses_and_what_the_driver_says_of_them_stay() {
    told_well(streamed("addresses"));
}

/// No gate holds a launch back that shows no weight: the switch-over itself waits for the pass after it.
#[test]
fn invariant_4_what_a_thread_reads_through_pointers_stays_when_another_one_ends_learning() {
    let outcome = told_well(streamed("pointers in an owner while another thread ends learning"));
    assert_eq!(said(&outcome, "phase inside"), 2, "{}", outcome.describe());
    assert_eq!(said(&outcome, "wrong inside"), 0, "{}", outcome.describe());
}

/// By the driver's own count of physical bytes; the program's own few words are the only other memory.
#[test]
fn invariant_6_physical_bytes_keep_to_the_budget_after_the_switch_over() {
    const OWN: u64 = 64 << 10;
    // What the link is measured with, before any weight moves.
    const MEASURE: u64 = 32 << 20;
    let outcome = told_well(streamed("budget"));
    let (before, after, peak) = (said(&outcome, "before"), said(&outcome, "after"), said(&outcome, "peak"));
    assert!(after <= BUDGET + OWN, "{after} bytes after: {}", outcome.describe());
    assert!(peak <= before + MEASURE, "{peak} bytes at the peak, {before} before: {}", outcome.describe());
    assert!(said(&outcome, "weights_gpu_bytes") <= BUDGET);
    assert!(said(&outcome, "weights_gpu_bytes") <= after, "the report counts less than there is");
}

#[test]
fn invariant_6_host_memory_holds_shadows_of_what_is_streamed_and_no_more() {
    let outcome = told_well(streamed("budget"));
    let streamed = 6 * (4 << 20) - (said(&outcome, "weights_gpu_bytes") - said(&outcome, "ring_bytes"));
    assert_eq!(said(&outcome, "host_bytes"), streamed, "{}", outcome.describe());
}

#[test]
fn invariant_6_all_memory_goes_back_with_the_last_weight() {
    let outcome = told_well(streamed("freed and allocated"));
    assert!(said(&outcome, "left") < 64 << 10, "{}", outcome.describe());
}

#[test]
fn invariant_7_words_that_are_never_followed_cost_no_byte() {
    let outcome = told_well(streamed("a stale word"));
    assert!(said(&outcome, "redirects") > 0, "no word was doubtful: {}", outcome.describe());
}

/// Without its view a split weight would be copied in for each stale word, and its pages asked for twice by one launch. The driver reserves small
/// ranges where it likes: a view must not depend on that.
#[test]
fn invariant_7_every_streamed_weight_can_be_pointed_away_from() {
    for budget in ["12MiB", "16MiB", "20MiB"] {
        let outcome = told_well(streamed("a stale word").option("FT_MAX_GPU_MEM", budget));
        assert!(said(&outcome, "streamed_units") > 0, "{}", outcome.describe());
        assert_eq!(said(&outcome, "views"), said(&outcome, "streamed_units"), "{}", outcome.describe());
        assert_eq!(said(&outcome, "demand_loads"), 0, "{}", outcome.describe());
    }
}

#[test]
fn invariant_7_a_weight_whose_address_went_to_memory_is_right_when_nothing_shows_it() {
    let ways = [
        "a copy",
        "a copy of any memory",
        "an asynchronous copy of any memory",
        "a copy of pinned memory",
        "a copy of rows",
        "a copy of rows of any memory",
    ];
    for way in ways {
        told_well(streamed(&format!("an address in {way}")));
    }
}

#[test]
fn invariant_6_a_weight_that_becomes_private_leaves_the_budget_held() {
    let run = streamed("a streamed weight's address in a copy, and many forwards")
        .option("FT_MAX_GPU_MEM", "12MiB");
    let outcome = told_well(run);
    assert!(outcome.stderr.contains("its address went to device memory"), "{}", outcome.describe());
    assert!(outcome.stderr.contains("exceeded the budget"), "{}", outcome.describe());
    assert!(said(&outcome, "weights_gpu_bytes") <= 12 << 20, "{}", outcome.describe());
}

/// It may be a number, so that nothing is replaced: the weight is copied in, or gets private pages.
#[test]
fn invariant_7_a_stale_word_amid_a_weight_costs_no_byte() {
    for budget in ["6MiB", "12MiB", "20MiB"] {
        told_well(streamed("a stale word amid a weight").option("FT_MAX_GPU_MEM", budget));
    }
}

/// A kernel that gets another number than it was passed is wrong, whatever it looked like.
#[test]
fn invariant_7_numbers_that_look_like_addresses_reach_the_kernel_as_they_are() {
    for budget in ["6MiB", "12MiB", "16MiB"] {
        for story in ["a number that looks like an address", "two numbers that look like an address"] {
            told_well(streamed(story).option("FT_MAX_GPU_MEM", budget));
        }
    }
}

/// Where such a number and a weight that is read cannot be in the ring together, the launch reads the weight over the link, and both go on streaming.
#[test]
fn invariant_7_a_number_beside_a_reader_makes_no_weight_private() {
    for budget in ["6MiB", "12MiB"] {
        let story = streamed("a number that looks like an address beside a reader");
        let outcome = told_well(story.option("FT_MAX_GPU_MEM", budget));
        assert!(said(&outcome, "passes until proven") < 200, "{}", outcome.describe());
        assert!(said(&outcome, "conflicts") > 0, "no two weights met: {}", outcome.describe());
        let (before, after) = (said(&outcome, "streamed before"), said(&outcome, "streamed_units"));
        assert_eq!(before, after, "{}", outcome.describe());
    }
}

/// The driver tells no layout of kernels that are new after the switch-over.
#[test]
fn invariant_7_a_launch_whose_parameters_cannot_be_known_reads_right_bytes() {
    let outcome = told_well(streamed("an unknown kernel"));
    let from = said(&outcome, "asked") + 1;
    let faults = format!("cuFuncGetParamInfo@{from}+=801,cuKernelGetParamInfo@{from}+=801");
    let outcome = streamed("an unknown kernel").sim("FAULTS", faults).start();
    outcome.assert_success().assert_nothing_detected();
    assert_eq!(said(&outcome, "mismatches"), 0, "{}", outcome.describe());
    assert!(outcome.stderr.contains("does not tell what a kernel is passed"), "{}", outcome.describe());
}

/// Switched off, we are not there: the driver sees the same calls as without us.
#[test]
fn invariant_8_switched_off_the_driver_sees_the_same_calls_as_without_us() {
    let without = story("reads in order").start();
    without.assert_success();
    let off = streamed("reads in order").option("FT_ENABLED", "0").start();
    off.assert_success();
    assert_eq!(off.stderr, "", "not a word is said");
    let calls = |outcome: &harness::Outcome| outcome.journal.as_ref().map(|journal| journal["calls"].clone());
    assert_eq!(calls(&without), calls(&off));
}
