//! What happens to weights that no pass uses: they are the first to be streamed, and cost no pass anything.
#![allow(clippy::unwrap_used, reason = "a test panics when something is missing, and may show its figures")]

mod models;

use flextensor_core::link::LinkCurve;
use flextensor_core::plan::{Plan, PlanNote, PlanRequest, StayReason, plan, plan_increment};
use flextensor_core::simulate::simulate;
use flextensor_core::units::{ModelId, UnitId};
use models::{PAGE, chain, unit};

/// A model that ends each pass early: equal weights of which only the first `used` run.
fn ends_early(pages: u64, used: usize, all: usize) -> PlanRequest {
    let mut model = chain(&vec![pages; all], 1.0, true);
    model.passes[0].uses.truncate(used);
    model
}

fn planned(model: &PlanRequest, budget_pages: u64) -> Plan {
    let request = PlanRequest { budget: Some(budget_pages * PAGE), ..model.clone() };
    let made = plan(&request).unwrap();
    assert!(simulate(&request, &made, false).is_ok());
    made
}

fn streamed(plan: &Plan) -> Vec<u64> {
    plan.placements.iter().map(|p| p.streamed_pages).collect()
}

#[test]
fn idle_weights_that_save_enough_are_all_that_is_streamed_and_cost_nothing() {
    let made = planned(&ends_early(50, 6, 10), 400);
    // Four idle weights gain three pages for every page of ring.
    assert_eq!(made.ring_pages, 34);
    assert_eq!(streamed(&made), [0, 0, 0, 0, 0, 0, 32, 34, 34, 34]);
    assert_eq!((made.predicted_ms, made.streamed_bytes, made.peak_bytes), (6.0, 0, 400 * PAGE));
    assert_eq!(made.orders, [(ModelId(1), vec![])]);
    assert!(made.notes.is_empty());
}

#[test]
fn where_all_idle_weights_are_needed_the_ring_is_as_long_as_the_longest_of_them() {
    let made = planned(&ends_early(50, 6, 10), 350);
    assert_eq!((made.ring_pages, streamed(&made)[5..].to_vec()), (50, vec![0, 50, 50, 50, 50]));
    assert_eq!((made.streamed_bytes, made.budget_missed()), (0, None));
}

#[test]
fn the_ring_of_idle_weights_may_hold_weights_in_use_that_are_then_never_overwritten() {
    // One idle weight saves nothing through a ring of its own.
    let made = planned(&ends_early(50, 9, 10), 450);
    assert_eq!((made.predicted_ms, made.streamed_bytes, made.peak_bytes), (9.0, 0, 450 * PAGE));
    assert_eq!(streamed(&made)[9], 50);
    assert_eq!(streamed(&made)[..9].iter().sum::<u64>(), made.ring_pages);
}

#[test]
fn one_long_idle_weight_gets_a_ring_as_long_as_it_saves() {
    let mut model = chain(&[20; 40], 1.0, true);
    model.units.push(unit(40, 700, true));
    let made = planned(&model, 850);
    assert_eq!((made.ring_pages, made.streamed_pages(UnitId(40)), made.streamed_bytes), (650, 650, 0));
}

#[test]
fn weights_in_use_stream_only_what_idle_ones_leave_over() {
    let model = ends_early(50, 6, 10);
    let made = planned(&model, 250);
    assert_eq!((made.budget_missed(), &streamed(&made)[6..]), (None, &[50; 4][..]));
    let mut hidden = model;
    hidden.units[6..].iter_mut().for_each(|unit| unit.stay = Some(StayReason::Hidden));
    let without = planned(&hidden, 250);
    assert_eq!(streamed(&without)[6..], [0; 4]);
    assert!(
        made.predicted_ms < 0.8 * without.predicted_ms,
        "{} and {} ms",
        made.predicted_ms,
        without.predicted_ms
    );
    assert!(made.streamed_bytes + 140 * PAGE < without.streamed_bytes);
}

#[test]
fn an_idle_weight_longer_than_the_ring_keeps_the_rest_resident() {
    let mut model = ends_early(20, 20, 20);
    model.units.push(unit(20, 300, true));
    let wanted = PlanRequest { ring_override: Some(60 * PAGE), ..model.clone() };
    let made = planned(&wanted, 550);
    assert_eq!((made.ring_pages, made.streamed_pages(UnitId(20))), (60, 60));
    model.units[20].splittable = false;
    let whole = planned(&PlanRequest { ring_override: Some(60 * PAGE), ..model }, 550);
    assert_eq!((whole.ring_pages, whole.streamed_pages(UnitId(20))), (60, 0));
}

#[test]
fn the_smallest_budget_counts_idle_weights_as_streamable() {
    let mut model = ends_early(50, 2, 10);
    for (budget, smallest) in [(40, 50), (49, 50)] {
        let made = planned(&model, budget);
        let note = PlanNote::BudgetMissed { smallest_budget: smallest * PAGE, asked: budget * PAGE };
        assert_eq!((made.notes, streamed(&planned(&model, smallest))), (vec![note], vec![50; 10]));
    }
    model.units[2..].iter_mut().for_each(|unit| unit.stay = Some(StayReason::Hidden));
    assert_eq!(planned(&model, 40).budget_missed(), Some(450 * PAGE));
    // A ring that is longer than all weights in use, for two idle ones that gain by it.
    let mut longer = chain(&[10; 20], 1.0, true);
    longer.units.extend([unit(20, 100, true), unit(21, 100, true)]);
    assert_eq!(planned(&longer, 50).budget_missed(), Some(100 * PAGE));
}

/// A ring that is as long as what is in use streams copies nothing: all of it lies there side by side.
#[test]
fn a_ring_in_which_nothing_is_overwritten_is_tried_although_it_is_long() {
    let mut model = chain(&[11, 59, 39, 4, 6, 42], 0.0, true);
    model.fixed_bytes = PAGE;
    model.chunk_pages = 1;
    model.link = LinkCurve::flat(1.0);
    let mut uses = model.passes[0].uses.clone();
    uses.retain(|used| ![3, 5].contains(&used.unit.0));
    uses.swap(0, 1);
    model.passes[0].uses = uses;
    for budget in [120, 143] {
        let made = planned(&model, budget);
        assert_eq!((made.budget_missed(), made.streamed_bytes), (None, 0), "{budget} pages: {made:?}");
        assert!(made.predicted_ms < 1e-9, "{budget} pages: {} ms", made.predicted_ms);
    }
}

#[test]
fn the_bound_asks_for_no_bytes_that_no_pass_reads() {
    let mut model = ends_early(250, 6, 10);
    let page_ms = PAGE as f64 / model.link.peak_bytes_per_ms();
    let bound_ms = planned(&model, 1000).bound_ms;
    assert!((bound_ms - 500.0 * page_ms).abs() < 1e-9, "{bound_ms} ms");
    // What must stay takes its part of the budget, whether it is read or not.
    model.units[9].stay = Some(StayReason::Hidden);
    let bound_ms = planned(&model, 1000).bound_ms;
    assert!((bound_ms - 750.0 * page_ms).abs() < 1e-9, "{bound_ms} ms");
}

#[test]
fn weights_held_together_still_fit_a_ring_made_for_idle_ones() {
    let mut model = ends_early(30, 9, 12);
    model.passes[0].uses.iter_mut().for_each(|used| used.owner /= 3);
    for budget in [355, 300, 200, 100] {
        let made = planned(&model, budget);
        assert_eq!(made.budget_missed(), None, "{budget} pages");
    }
}

#[test]
fn idle_weights_of_a_second_model_follow_on_the_ring_that_exists() {
    let running = planned(&chain(&[50; 10], 1.0, true), 300);
    let mut second = ends_early(20, 5, 10);
    second.units.iter_mut().for_each(|unit| unit.id.0 += 100);
    second.passes[0].uses.iter_mut().for_each(|used| used.unit.0 += 100);
    let request = PlanRequest { budget: Some(120 * PAGE), ..second };
    let made = plan_increment(&running, &request).unwrap();
    assert_eq!(streamed(&made), [0, 0, 0, 0, 0, 0, 20, 20, 20, 20]);
    assert_eq!((made.streamed_bytes, made.peak_bytes, made.ring_pages), (0, 120 * PAGE, running.ring_pages));
    let last = running.layout.last().unwrap();
    assert_eq!(made.layout[0].start, (last.start + last.pages) % running.ring_pages);
}
