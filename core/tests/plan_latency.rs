//! Latency mode: as little memory as is free.
#![allow(clippy::unwrap_used, reason = "a test panics when something is missing, and may show its figures")]

mod models;

use flextensor_core::plan::{Objective, Plan, PlanRequest, plan};
use flextensor_core::units::GIB;
use models::{Work, chain, llama};
use proptest::prelude::*;

fn latency(request: PlanRequest) -> PlanRequest {
    PlanRequest { objective: Objective::LATENCY, ..request }
}

fn streamed_pages(plan: &Plan) -> u64 {
    plan.placements.iter().map(|p| p.streamed_pages).sum()
}

#[test]
fn a_diffusion_transformer_keeps_a_third_of_its_memory_at_one_percent() {
    let request = latency(llama(Work::Diffusion, None));
    let made = plan(&request).unwrap();
    assert!(made.peak_bytes * 3 <= request.total_bytes(), "{} bytes", made.peak_bytes);
    assert!(made.predicted_ms <= 1.01 * made.forecasts[0].resident_ms);
}

#[test]
fn where_copying_takes_as_long_as_computing_less_is_streamed() {
    let request = latency(llama(Work::Prefill, None));
    let made = plan(&request).unwrap();
    let resident_ms = made.forecasts[0].resident_ms;
    assert!(made.predicted_ms <= 1.01 * resident_ms);
    // The link alone carries 40 % of the weights in that time.
    let part = streamed_pages(&made) as f64 / (request.total_bytes() / request.page_bytes) as f64;
    assert!((0.36..0.41).contains(&part), "{part}");
}

#[test]
fn a_model_that_computes_nothing_stays_where_it_is() {
    let made = plan(&latency(chain(&[50; 20], 0.0, true))).unwrap();
    assert_eq!((streamed_pages(&made), made.streamed_bytes, made.ring_pages), (0, 0, 0));
}

#[test]
fn the_shape_that_computes_least_decides_what_is_free() {
    let mut request = latency(llama(Work::Prefill, None));
    request.passes.extend(llama(Work::Decode, None).passes);
    let both = plan(&request).unwrap();
    let decode = plan(&latency(llama(Work::Decode, None))).unwrap();
    let (both, decode) = (streamed_pages(&both), streamed_pages(&decode));
    assert!(both <= decode + 60, "{both} pages, {decode} for decoding alone");
}

#[test]
fn a_budget_is_met_before_anything_is_free() {
    let tight = plan(&latency(llama(Work::Decode, Some(8 * GIB)))).unwrap();
    let timely = plan(&llama(Work::Decode, Some(8 * GIB))).unwrap();
    assert_eq!(tight, timely);
    // What is free beyond the budget is streamed all the same.
    let roomy = plan(&latency(llama(Work::Diffusion, Some(20 * GIB)))).unwrap();
    assert!(roomy.peak_bytes < 10 * GIB);
}

#[test]
fn a_slowdown_that_makes_no_sense_counts_as_none() {
    for slowdown in [f64::NAN, -0.5] {
        let objective = Objective::LeastMemory { slowdown };
        let made = plan(&PlanRequest { objective, ..llama(Work::Diffusion, None) }).unwrap();
        assert!(made.predicted_ms <= made.forecasts[0].resident_ms);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(48) })]

    #[test]
    fn no_model_is_slower_than_allowed(
        pages in prop::collection::vec(1..60u64, 2..20),
        ms in 0.0..6.0f64,
        slowdown in 0.0..0.3f64,
    ) {
        let objective = Objective::LeastMemory { slowdown };
        let request = PlanRequest { objective, ..chain(&pages, ms, true) };
        let made = plan(&request).unwrap();
        let resident_ms = made.forecasts[0].resident_ms;
        prop_assert!(made.predicted_ms <= resident_ms * (1.0 + slowdown) + 1e-9);
        prop_assert!(made.peak_bytes <= request.total_bytes());
    }
}
