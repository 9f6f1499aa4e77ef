//! Plans in force that are changed for another budget: the ring stays, most runs stay, and the time is near that of a plan from scratch.
#![allow(clippy::unwrap_used, reason = "a test panics when something is missing, and may show its figures")]

mod models;

use flextensor_core::plan::{Plan, PlanRequest, StayReason, amended, plan};
use flextensor_core::simulate::simulate;
use flextensor_core::units::UnitId;
use models::random::{cases, requests, with_budget};
use models::rules::hold;
use models::{PAGE, Work, chain, llama};
use proptest::prelude::*;

const GIB: u64 = 1 << 30;

/// Pages that come to be streamed, or stay from now on, and how many units these are of; panics where one that streams as much as before, or less, has left its last page of the ring, or the ring has changed.
fn changed(before: &Plan, after: &Plan) -> (u64, usize) {
    assert_eq!(after.ring_pages, before.ring_pages);
    let last = |plan: &Plan, unit| plan.run(unit).map(|run| (run.start + run.pages) % plan.ring_pages);
    let both = before.placements.iter().zip(&after.placements);
    let pages = both.map(|(before, after)| before.streamed_pages.abs_diff(after.streamed_pages));
    let pages: Vec<u64> = pages.filter(|pages| *pages > 0).collect();
    for placement in &before.placements {
        let now = after.streamed_pages(placement.unit);
        if now > 0 && now <= placement.streamed_pages {
            let (then, now) = (last(before, placement.unit), last(after, placement.unit));
            assert_eq!(then, now, "{:?} lies elsewhere", placement.unit);
        }
    }
    (pages.iter().sum(), pages.len())
}

fn with(request: &PlanRequest, budget: u64) -> PlanRequest {
    PlanRequest { budget: Some(budget), ..request.clone() }
}

/// The plan for this budget, then what becomes of it with another one; and what a plan from scratch takes.
fn moved(request: &PlanRequest, from: u64, to: u64) -> (Plan, Plan, f64) {
    let before = plan(&with(request, from)).unwrap();
    let after = amended(&before, &with(request, to)).unwrap().unwrap();
    hold(&with(request, to), &after, false);
    let scratch = plan(&with(request, to)).unwrap();
    (before, after, scratch.predicted_ms)
}

#[test]
fn half_a_gibibyte_more_moves_no_other_page_and_is_used_as_well_as_from_scratch() {
    for work in [Work::Decode, Work::Prefill] {
        let (before, after, scratch_ms) = moved(&llama(work, None), 19 * GIB, 19 * GIB + GIB / 2);
        assert_eq!(changed(&before, &after).0 * PAGE, GIB / 2);
        assert!(
            after.predicted_ms <= scratch_ms * 1.01,
            "{} ms, from scratch {scratch_ms}",
            after.predicted_ms
        );
    }
}

#[test]
fn a_fifth_of_a_gibibyte_less_is_paid_by_few_units_and_nearly_as_well_as_from_scratch() {
    // A prefill that the plan from scratch hides to the last page finds no room for more around the same ring.
    for (work, as_well) in [(Work::Decode, 1.02), (Work::Prefill, 1.03)] {
        let (before, after, scratch_ms) = moved(&llama(work, None), 19 * GIB, 19 * GIB - GIB / 5);
        let (pages, units) = changed(&before, &after);
        assert!(pages * PAGE <= GIB / 5 + PAGE && units <= 16, "{pages} pages, {units} units");
        assert!(
            after.predicted_ms <= scratch_ms * as_well,
            "{} ms, from scratch {scratch_ms}",
            after.predicted_ms
        );
    }
}

#[test]
fn nothing_is_amended_where_the_budget_is_the_same_where_all_fits_and_where_nothing_streams() {
    let request = chain(&[10; 20], 1.0, true);
    let (budget, all) = (120 * PAGE, 200 * PAGE);
    let before = plan(&with(&request, budget)).unwrap();
    assert_eq!(amended(&before, &with(&request, before.peak_bytes)).unwrap(), None);
    assert_eq!(amended(&before, &with(&request, all)).unwrap(), None);
    let resident = plan(&with(&request, all)).unwrap();
    assert_eq!(amended(&resident, &with(&request, budget)).unwrap(), None);
}

#[test]
fn a_plan_that_streams_what_has_to_stay_now_is_not_amended() {
    let request = with(&chain(&[10; 20], 1.0, true), 120 * PAGE);
    let before = plan(&request).unwrap();
    let mut stays = with(&request, 140 * PAGE);
    let streamed = before.layout[0].unit;
    let of = |unit: UnitId| move |info: &&mut flextensor_core::plan::UnitInfo| info.id == unit;
    stays.units.iter_mut().find(of(streamed)).unwrap().stay = Some(StayReason::Private);
    assert_eq!(amended(&before, &stays).unwrap(), None);
}

#[test]
fn a_plan_whose_runs_collide_in_what_is_held_together_now_is_not_amended() {
    let request = chain(&[10; 20], 1.0, true);
    let before = plan(&with(&request, 120 * PAGE)).unwrap();
    let mut held = with(&request, 140 * PAGE);
    held.passes[0].uses.iter_mut().for_each(|used| used.owner = 1);
    assert_eq!(amended(&before, &held).unwrap(), None);
}

#[test]
fn what_no_plan_around_the_ring_can_hold_is_left_to_a_plan_from_scratch() {
    let request = chain(&[10; 20], 1.0, true);
    let before = plan(&with(&request, 150 * PAGE)).unwrap();
    assert_eq!(amended(&before, &with(&request, PAGE)).unwrap(), None);
}

proptest! {
    #![proptest_config(cases(192))]

    #[test]
    fn whatever_the_budgets_an_amended_plan_is_a_valid_one_on_the_same_ring(
        request in requests(), part in 0.2..1.0f64, other in 0.2..1.0f64,
    ) {
        let before = plan(&with_budget(&request, part)).unwrap();
        let asked = with_budget(&request, other);
        let Some(after) = amended(&before, &asked).unwrap() else { return Ok(()) };
        hold(&asked, &after, false);
        changed(&before, &after);
        let simulated = simulate(&asked, &after, false).unwrap();
        prop_assert!((simulated.cycle_ms - after.predicted_ms).abs() <= 1e-9 * after.predicted_ms);
        if before.budget_missed().is_none() {
            let streams = |plan: &Plan| plan.placements.iter().map(|placed| placed.streamed_pages).sum::<u64>();
            // More memory is used, as far as what is indivisible allows; less is kept to.
            prop_assert!(after.peak_bytes <= before.peak_bytes.max(asked.budget.unwrap()));
            prop_assert!(other > part || streams(&after) >= streams(&before));
            prop_assert!(other > part || after.budget_missed().is_none());
        }
    }
}
