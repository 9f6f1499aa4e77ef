//! The measured Llama under four budgets: prediction over bound.
#![allow(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a test panics when something is missing, and may show its figures"
)]

mod models;

use flextensor_core::plan::plan;
use flextensor_core::units::{Bytes, GIB};
use models::{Work, llama};

/// Prediction over bound; prints the row.
fn ratio(work: Work, gib: u64) -> f64 {
    let plan = plan(&llama(work, Some(gib * GIB))).unwrap();
    let ratio = plan.predicted_ms / plan.bound_ms;
    println!(
        "{work:?} {gib:>2} GiB: predicted {:6.1} ms, bound {:6.1} ms, ratio {ratio:.4}, ring {} of {} pages, streamed {}",
        plan.predicted_ms,
        plan.bound_ms,
        Bytes(plan.ring_bytes),
        plan.ring_pages,
        Bytes(plan.streamed_bytes),
    );
    assert!(plan.notes.is_empty(), "{:?}", plan.notes);
    assert!(plan.peak_bytes <= gib * GIB);
    ratio
}

#[test]
fn prefill_stays_near_the_bound() {
    for (gib, most) in [(4, 1.04), (8, 1.04), (16, 1.07), (24, 1.04)] {
        let ratio = ratio(Work::Prefill, gib);
        assert!(ratio <= most, "{gib} GiB: {ratio}");
    }
}

#[test]
fn decode_stays_near_the_bound() {
    for gib in [4, 8, 16, 24] {
        let ratio = ratio(Work::Decode, gib);
        assert!(ratio <= 1.04, "{gib} GiB: {ratio}");
    }
}

#[test]
fn every_further_half_gigabyte_makes_it_no_slower() {
    for work in [Work::Prefill, Work::Decode] {
        let mut before = f64::INFINITY;
        for half_gib in 3..54 {
            let plan = plan(&llama(work, Some(half_gib * GIB / 2))).unwrap();
            let now = plan.predicted_ms;
            assert!(now <= before * 1.002, "{work:?} at {half_gib} / 2 GiB: {now} ms after {before} ms");
            assert!(
                now <= plan.bound_ms * 1.06,
                "{work:?} at {half_gib} / 2 GiB: {now} ms, bound {} ms",
                plan.bound_ms
            );
            before = now;
        }
    }
}

#[test]
fn a_wall_of_compute_hides_all_copies_and_the_ring_stays_small() {
    // Diffusion-like: a third of the memory, ten times the computing. The ring has to hold what is used and
    // what is copied meanwhile, 300 MiB each.
    let mut request = llama(Work::Prefill, Some(26 * GIB / 3));
    request.passes[0].uses.iter_mut().for_each(|used| used.compute_ms *= 10.0);
    let plan = plan(&request).unwrap();
    assert!(plan.predicted_ms <= plan.bound_ms * 1.005, "{} of {} ms", plan.predicted_ms, plan.bound_ms);
    assert!(plan.ring_bytes <= 3 * GIB / 4, "{}", Bytes(plan.ring_bytes));
}

#[test]
fn the_budget_at_which_even_streaming_everything_fails_is_named() {
    let plan = plan(&llama(Work::Decode, Some(GIB / 4))).unwrap();
    let smallest = plan.budget_missed().expect("250 MiB cannot hold one weight of 500 MiB");
    assert!((448 << 20..512 << 20).contains(&smallest), "{}", Bytes(smallest));
}
