//! Who is taken for a reader of weights: what is proven early, and what is never believed. Rule 8 of the page protocol.

use super::told::{said, streamed, told_well};
use harness::{Outcome, Run};

/// A story that is learnt in five passes.
fn learnt(name: &str) -> Run {
    streamed(name).option("FT_PROFILING_ITERS", "4")
}

#[test]
fn readers_are_proven_while_they_are_learnt_and_nothing_is_written_back() {
    let outcome = told_well(learnt("readers that learning proves"));
    assert!(said(&outcome, "proven words") > 0, "{}", outcome.describe());
    assert_eq!(said(&outcome, "back"), 0, "{}", outcome.describe());
}

#[test]
fn a_kernel_that_writes_while_it_is_learnt_is_no_reader() {
    told_well(learnt("a writer among readers while learning"));
}

/// The streamed pages are the same all the time, the private ones in front of them are not.
#[test]
fn a_kernel_that_writes_private_pages_alone_while_it_is_learnt_is_no_reader() {
    let outcome = told_well(learnt("private pages written while learning"));
    assert_eq!(said(&outcome, "split"), 1, "{}", outcome.describe());
}

#[test]
fn a_kernel_that_writes_private_pages_alone_while_it_is_streamed_is_no_reader() {
    let outcome = told_well(streamed("writes of private pages alone at first"));
    assert_eq!(said(&outcome, "split"), 1, "{}", outcome.describe());
}

#[test]
fn kernels_are_proven_although_the_program_never_waits() {
    let outcome = told_well(streamed("passes that run ahead"));
    assert_eq!(said(&outcome, "passes without a page back"), 4, "{}", outcome.describe());
}

#[test]
fn a_weight_that_goes_while_it_is_looked_at_is_read_no_longer() {
    let run = streamed("weights that are freed while they are looked at");
    let outcome = run.option("FT_MAX_GPU_MEM", "16MiB").sim("D2H_GBPS", "0.1").start();
    outcome.assert_success().assert_nothing_detected();
    assert_eq!(said(&outcome, "mismatches"), 0, "{}", outcome.describe());
    assert_eq!(said(&outcome, "looked at"), 64 << 20, "{}", outcome.describe());
}

/// Between forwards they cost a redirect, or the write-back of what has been prefetched for the next one; never a copy.
#[test]
fn stale_words_between_forwards_copy_nothing_in() {
    let outcome = told_well(learnt("stale words between forwards"));
    // What is prefetched when the rounds are counted differs by a ring or two.
    const RINGS: u64 = 4;
    for of in ["last", "amid", "next"] {
        let (with, without) = (said(&outcome, &format!("{of} in")), said(&outcome, "nothing in"));
        assert!(with.abs_diff(without) <= RINGS, "{of}: {}", outcome.describe());
    }
    assert_eq!(said(&outcome, "last back") + said(&outcome, "amid back"), 0, "{}", outcome.describe());
}

fn stays(outcome: &Outcome) {
    assert!(said(outcome, "told") > 0, "nobody asked: {}", outcome.describe());
    assert_eq!(said(outcome, "stays"), 1, "{}", outcome.describe());
}

#[test]
fn a_weight_that_forwards_write_stays_although_its_bytes_were_the_same_while_it_was_learnt() {
    stays(&told_well(learnt("a cache that is warmed up with the same bytes")));
}

#[test]
fn a_weight_that_forwards_begin_to_write_stays_although_its_bytes_were_the_same_at_first() {
    stays(&told_well(learnt("a cache that is written later on")));
}

#[test]
fn what_is_proven_of_a_kernel_holds_no_longer_when_another_thread_has_ended_the_forward() {
    let outcome = told_well(learnt("a forward that another thread ends"));
    assert_eq!(said(&outcome, "taken for a reader"), 1, "{}", outcome.describe());
}

/// Nothing is in doubt of a weight that is in use, but for this.
#[test]
fn launches_that_show_what_is_in_use_may_write_it_all_the_same() {
    told_well(learnt("writes amid uses"));
    told_well(learnt("writes from outside amid uses"));
}
