//! What the order of uses allows: limits that are worked out by hand, and plans that come near to them.
#![allow(clippy::unwrap_used, reason = "a test panics when something is missing, and may show its figures")]

mod models;

use flextensor_core::link::LinkCurve;
use flextensor_core::plan::{PlanRequest, limits_ms, plan};
use models::{PAGE, chain};

/// Milliseconds in which the link carries a page here.
const PAGE_MS: f64 = 0.1;

/// Weights of 50 pages, each used once; how long each computes, and how many pages fit.
fn uneven(times: &[f64], held: u64) -> PlanRequest {
    let mut request = chain(&vec![50; times.len()], 0.0, true);
    request.passes[0].uses.iter_mut().zip(times).for_each(|(used, ms)| used.compute_ms = *ms);
    PlanRequest { budget: Some(held * PAGE), link: LinkCurve::flat(PAGE as f64 / PAGE_MS / 1e6), ..request }
}

fn limit_ms(request: &PlanRequest) -> f64 {
    limits_ms(request).unwrap()[0]
}

/// Ten weights that compute nothing, and ten that compute long.
fn half() -> Vec<f64> {
    (0..20).map(|at| if at < 10 { 0.0 } else { 10.0 }).collect()
}

#[test]
fn weights_in_a_row_that_compute_nothing_and_exceed_memory_are_waited_for() {
    // When the weight before the ten ends, it is in memory; when the one after them starts, that and the ten have
    // been: 600 pages, 300 of which fit.
    let request = uneven(&half(), 300);
    assert!((limit_ms(&request) - (100.0 + 30.0)).abs() < 1e-6, "{} ms", limit_ms(&request));
    let made = plan(&request).unwrap();
    assert!((made.bound_ms - 100.0).abs() < 1e-6, "the bound knows no order: {} ms", made.bound_ms);
    assert!(made.predicted_ms < 1.05 * limit_ms(&request), "{} ms", made.predicted_ms);
}

#[test]
fn a_stretch_that_goes_on_into_the_next_pass_counts_whole() {
    let mut times = half();
    times.rotate_left(5);
    let request = uneven(&times, 300);
    assert!((limit_ms(&request) - 130.0).abs() < 1e-6, "{} ms", limit_ms(&request));
}

#[test]
fn of_stretches_between_which_the_link_catches_up_each_is_waited_for() {
    let times = [half(), half()].concat();
    let request = uneven(&times, 300);
    assert!((limit_ms(&request) - (200.0 + 2.0 * 30.0)).abs() < 1e-6, "{} ms", limit_ms(&request));
}

#[test]
fn a_weight_that_a_stretch_uses_twice_is_copied_once_for_it() {
    let mut request = uneven(&half(), 300);
    let again = request.passes[0].uses[2];
    request.passes[0].uses.insert(6, again);
    assert!((limit_ms(&request) - 130.0).abs() < 1e-6, "{} ms", limit_ms(&request));
}

#[test]
fn a_weight_that_two_stretches_use_is_copied_for_each() {
    let times = [half(), half()].concat();
    let mut request = uneven(&times, 300);
    // The second stretch uses the first one's weights instead of its own.
    for at in 0..10 {
        request.passes[0].uses[20 + at].unit = request.passes[0].uses[at].unit;
    }
    request.units.retain(|unit| !(20..30).contains(&unit.id.0));
    assert!((limit_ms(&request) - 260.0).abs() < 1e-6, "{} ms", limit_ms(&request));
}

#[test]
fn what_passes_after_the_last_use_of_a_pass_is_time_to_copy() {
    let mut request = uneven(&half(), 300);
    request.passes[0].tail_ms = 2.0;
    assert!((limit_ms(&request) - (102.0 + 30.0 - 2.0)).abs() < 1e-6, "{} ms", limit_ms(&request));
    // Long enough to copy what the weight before it took.
    request.passes[0].tail_ms = 10.0;
    assert!((limit_ms(&request) - (110.0 + 25.0)).abs() < 1e-6, "{} ms", limit_ms(&request));
}

#[test]
fn memory_that_holds_the_longest_stretch_is_waited_for_nowhere() {
    assert!((limit_ms(&uneven(&half(), 700)) - 100.0).abs() < 1e-6);
}
