//! The measured Llama under four budgets: prediction over bound.

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
