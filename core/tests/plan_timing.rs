//! The timing model against cases that can be reckoned by hand, and against its own rules, checked span by
//! span.
#![allow(clippy::unwrap_used, reason = "a test panics when something is missing, and may show its figures")]

mod models;

use flextensor_core::CoreError;
use flextensor_core::link::LinkCurve;
use flextensor_core::plan::{Placement, Plan, PlanRequest, RingRun, plan};
use flextensor_core::simulate::{Simulation, SpanKind, simulate};
use flextensor_core::units::{GIB, UnitId};
use models::{PAGE, Work, chain, llama, pass, with_percent};

/// What a wait between two streams costs in the model.
const HAND_OVER_MS: f64 = 0.003;

/// A plan that streams these runs (unit, start, pages) around a ring.
fn laid(ring_pages: u64, runs: &[(u32, u64, u64)]) -> Plan {
    let layout = runs.iter().map(|&(unit, start, pages)| RingRun { unit: UnitId(unit), start, pages });
    let placements =
        runs.iter().map(|&(unit, _, pages)| Placement { unit: UnitId(unit), streamed_pages: pages });
    Plan { placements: placements.collect(), ring_pages, layout: layout.collect(), ..Plan::default() }
}

/// Pages of equal weights laid one after the other.
fn in_turn(ring_pages: u64, units: u32, pages: u64) -> Plan {
    let runs: Vec<_> = (0..units).map(|unit| (unit, u64::from(unit) * pages % ring_pages, pages)).collect();
    laid(ring_pages, &runs)
}

/// A link that carries one page in this many milliseconds.
fn link(page_ms: f64) -> LinkCurve {
    LinkCurve::flat(PAGE as f64 / 1e6 / page_ms)
}

fn run(request: &PlanRequest, plan: &Plan) -> Simulation {
    simulate(request, plan, true).unwrap()
}

fn near(left: f64, right: f64) -> bool {
    (left - right).abs() <= 1e-6 * right.abs().max(1.0)
}

#[test]
fn copies_faster_than_computing_cost_nothing() {
    let request = PlanRequest { link: link(0.05), ..chain(&[10; 8], 1.0, true) };
    let simulation = run(&request, &in_turn(20, 8, 10));
    assert!(near(simulation.cycle_ms, 8.0), "{}", simulation.cycle_ms);
    assert!(near(simulation.link_busy, 0.5));
    assert_eq!(simulation.copied_bytes, 80 * PAGE);
}

#[test]
fn copies_slower_than_computing_keep_the_link_busy_all_the_time() {
    let request = PlanRequest { link: link(0.2), chunk_pages: 1, ..chain(&[10; 8], 1.0, true) };
    let simulation = run(&request, &in_turn(40, 8, 10));
    assert!(near(simulation.cycle_ms, 16.0), "{}", simulation.cycle_ms);
    assert!(near(simulation.link_busy, 1.0));
}

#[test]
fn a_ring_without_lead_makes_copying_and_computing_take_turns() {
    let request = PlanRequest { link: link(0.1), chunk_pages: 100, ..chain(&[10; 8], 1.0, true) };
    let simulation = run(&request, &in_turn(10, 8, 10));
    assert!(near(simulation.cycle_ms, 8.0 * (1.0 + 1.0 + 2.0 * HAND_OVER_MS)), "{}", simulation.cycle_ms);
    assert!(near(simulation.waits_ms[0][3], 1.0 + 2.0 * HAND_OVER_MS));
}

#[test]
fn weights_held_together_are_released_together() {
    let mut request = PlanRequest { link: link(0.1), chunk_pages: 100, ..chain(&[10; 8], 1.0, true) };
    let apart = run(&request, &in_turn(20, 8, 10)).cycle_ms;
    request.passes[0].uses.iter_mut().for_each(|used| used.owner /= 2);
    let together = run(&request, &in_turn(20, 8, 10)).cycle_ms;
    // Apart, a copy follows the use two before it, and both sides are busy all the time but for hand-overs.
    assert!(near(apart, 8.0 * (1.0 + HAND_OVER_MS)), "{apart}");
    // Together: nothing is copied while a pair is used; its first copy shows, its second runs beside the
    // first use.
    assert!(near(together, 4.0 * (1.0 + 2.0 + 2.0 * HAND_OVER_MS)), "{together}");
}

#[test]
fn chunks_start_as_soon_as_their_own_pages_are_free() {
    let request = PlanRequest { link: link(0.1), ..chain(&[10; 9], 1.0, true) };
    let chunked = run(&PlanRequest { chunk_pages: 5, ..request.clone() }, &in_turn(15, 9, 10)).cycle_ms;
    let whole = run(&PlanRequest { chunk_pages: 100, ..request }, &in_turn(15, 9, 10)).cycle_ms;
    assert!(chunked < 0.8 * whole, "{chunked} of {whole} ms");
}

#[test]
fn a_pass_that_ends_amid_the_ring_loses_lead() {
    let request = PlanRequest { link: link(0.1), chunk_pages: 1, ..chain(&[10; 8], 1.0, true) };
    let whole = run(&request, &in_turn(40, 8, 10)).cycle_ms;
    let amid = run(&request, &in_turn(75, 8, 10)).cycle_ms;
    assert!(amid > whole + 0.4, "{amid} and {whole} ms");
}

#[test]
fn a_weight_that_nothing_overwrites_is_not_copied_again() {
    let request = PlanRequest { link: link(0.1), ..chain(&[10; 2], 1.0, true) };
    assert_eq!(run(&request, &laid(20, &[(0, 0, 10), (1, 10, 10)])).copied_bytes, 0);
    let tied =
        PlanRequest { passes: vec![pass(1, &[(0, 1.0, 0), (0, 1.0, 1), (1, 1.0, 2)], 0.0)], ..request };
    assert_eq!(run(&tied, &laid(10, &[(0, 0, 10), (1, 0, 10)])).copied_bytes, 20 * PAGE);
}

#[test]
fn a_timeline_says_what_every_copy_and_use_waited_for() {
    let request = PlanRequest { link: link(0.1), chunk_pages: 4, ..chain(&[10; 8], 1.0, true) };
    let simulation = run(&request, &in_turn(10, 8, 10));
    let of = |kind| simulation.timeline.iter().filter(move |span| span.kind == kind);
    let bytes: u64 = of(SpanKind::Copy).map(|span| span.bytes).sum();
    assert_eq!(bytes, simulation.copied_bytes);
    for kind in [SpanKind::Copy, SpanKind::Use] {
        let spans: Vec<_> = of(kind).collect();
        for pair in spans.windows(2) {
            let gap = pair[1].start_ms - pair[0].end_ms;
            assert!(near(pair[1].wait_ms, gap), "{kind:?}: {} ms, gap {gap} ms", pair[1].wait_ms);
        }
        // The first of a cycle waited behind the last of the cycle before.
        let busy: f64 = spans.iter().map(|span| span.end_ms - span.start_ms).sum();
        let lost: f64 = spans.iter().map(|span| span.wait_ms).sum();
        assert!(near(busy + lost, simulation.cycle_ms), "{kind:?}: {busy} + {lost} ms");
    }
    let waits: Vec<f64> = of(SpanKind::Use).map(|span| span.wait_ms).collect();
    assert_eq!(waits, simulation.waits_ms[0]);
}

#[test]
fn time_after_the_last_use_is_used_for_the_next_pass() {
    let mut request = PlanRequest { link: link(0.1), ..chain(&[10; 4], 0.0, true) };
    request.passes[0].tail_ms = 2.0;
    // Two of four copies fit the ring ahead of the pass; only the other two show.
    let simulation = run(&request, &in_turn(20, 4, 10));
    assert!(simulation.cycle_ms > 4.0 && simulation.cycle_ms < 4.1, "{}", simulation.cycle_ms);
    // A pass that is known to take longer than its parts passes that time at its end.
    request.passes[0].resident_ms = 10.0;
    assert!(run(&request, &in_turn(20, 4, 10)).cycle_ms < 12.1);
}

#[test]
fn layouts_that_could_never_run_are_refused() {
    let mut request = chain(&[10; 4], 1.0, true);
    assert_eq!(
        simulate(&request, &laid(8, &[(0, 0, 10)]), false),
        Err(CoreError::RunExceedsRing { unit: UnitId(0), pages: 10, ring_pages: 8 })
    );
    request.passes[0].uses.iter_mut().for_each(|used| used.owner = 0);
    assert_eq!(
        simulate(&request, &in_turn(25, 4, 10), false),
        Err(CoreError::HeldTogetherOverlap { first: UnitId(0), second: UnitId(2), ring_pages: 25 })
    );
}

#[test]
fn no_copy_overlaps_another_or_overwrites_what_is_still_used() {
    for (work, gib, owner_size) in [(Work::Prefill, 8, 1), (Work::Decode, 16, 1), (Work::Prefill, 16, 3)] {
        let mut request = llama(work, Some(gib * GIB));
        request.passes[0].uses.iter_mut().for_each(|used| used.owner /= owner_size);
        let plan = plan(&request).unwrap();
        check_spans(&request, &plan, &run(&request, &plan));
    }
}

/// Checks every copy of a steady cycle against every use of this cycle before it and of the cycle before,
/// page by page.
fn check_spans(request: &PlanRequest, plan: &Plan, simulation: &Simulation) {
    let uses = &request.passes[0].uses;
    let ends: Vec<f64> =
        simulation.timeline.iter().filter(|s| s.kind == SpanKind::Use).map(|s| s.end_ms).collect();
    let released = |index: usize| {
        let held = uses[index..].iter().take_while(|used| used.owner == uses[index].owner).count();
        ends[index + held - 1]
    };
    let on_page = |index: usize, page: u64| {
        plan.run(uses[index].unit)
            .is_some_and(|run| (page + plan.ring_pages - run.start) % plan.ring_pages < run.pages)
    };
    let slack = 1e-3 * simulation.cycle_ms;
    let (mut link_free, mut done) = (f64::MIN, vec![0; uses.len()]);
    for span in simulation.timeline.iter().filter(|span| span.kind == SpanKind::Copy) {
        assert!(span.start_ms >= link_free - 1e-6, "two copies at once at {} ms", span.start_ms);
        link_free = span.end_ms;
        let run = plan.run(span.unit).unwrap();
        let first = done[span.use_index];
        let last = run.pages.min(first + request.chunk_pages);
        done[span.use_index] = last;
        for page in (first..last).map(|at| (run.start + at) % plan.ring_pages) {
            let before = (0..span.use_index).rev().find(|&index| on_page(index, page));
            let free = before.map(released).unwrap_or_else(|| {
                let in_last_cycle = (0..uses.len()).rev().find(|&index| on_page(index, page)).unwrap();
                released(in_last_cycle) - simulation.cycle_ms - slack
            });
            assert!(
                span.start_ms >= free - 1e-6,
                "page {page} is overwritten at {} ms, free at {free} ms",
                span.start_ms
            );
        }
        let start = ends[span.use_index] - uses[span.use_index].compute_ms;
        assert!(span.end_ms <= start + 1e-6, "use {} starts before its copy has ended", span.use_index);
    }
    assert!(done.iter().zip(uses).all(|(done, used)| *done == plan.streamed_pages(used.unit)));
}

/// Four pages of 0.1 ms for each use: 0.003 ms of the host a use, 0.012 a copy, and launching is slower by a tenth of what the link is busy.
#[test]
fn a_pass_takes_no_less_than_the_host_does_with_what_streaming_adds_to_it() {
    let mut request = PlanRequest { link: link(0.1), chunk_pages: 2, ..chain(&[4; 8], 1.0, true) };
    let plan = in_turn(8, 8, 4);
    assert!(near(run(&request, &plan).cycle_ms, 8.0), "the host is not known");
    request.passes[0].host_ms = 7.5;
    let simulation = run(&request, &plan);
    assert!(
        near(simulation.cycle_ms, 7.5 + 8.0 * 0.003 + 16.0 * 0.012 + 3.2 * 0.1),
        "{}",
        simulation.cycle_ms
    );
    request.passes[0].host_ms = 5.0;
    assert!(near(run(&request, &plan).cycle_ms, 8.0), "the GPU takes longer");
}

/// Two thirds of 64 small weights stay: each streamed use and each copy costs the host, and it has no time to spare.
#[test]
fn where_the_host_has_no_time_to_spare_few_units_are_streamed_whole_and_in_long_copies() {
    let chosen = |host_ms: f64| {
        let mut request = with_percent(chain(&[12; 64], 1.0, true), 66);
        request.passes[0].host_ms = host_ms;
        let plan = plan(&request).unwrap();
        let copies = run(&request, &plan).timeline.iter().filter(|span| span.kind == SpanKind::Copy).count();
        assert!(plan.peak_bytes <= request.budget.unwrap(), "{plan:?}");
        (plan.placements.iter().filter(|placed| placed.streamed_pages > 0).count(), copies, plan.predicted_ms)
    };
    let (all, free) = (chosen(0.0), chosen(63.0));
    assert!(free.0 * 2 < all.0 && free.1 * 2 < all.1, "{all:?} {free:?}");
    assert!(near(all.2, 64.0) && free.2 > 63.0, "{all:?} {free:?}");
}

/// A forward that waits for the GPU returns with it: nobody can tell that from a host that is slow.
#[test]
fn a_host_that_looks_bound_because_it_waits_for_the_gpu_gets_plans_that_are_as_fast_on_the_gpu() {
    for percent in [60, 66, 75, 85] {
        let request = with_percent(llama(Work::Prefill, None), percent);
        let alone = run(&request, &plan(&request).unwrap()).gpu_ms;
        let mut waits = request.clone();
        waits.passes[0].host_ms = alone;
        let made = plan(&waits).unwrap();
        let beside = run(&waits, &made).gpu_ms;
        assert!(beside <= alone * 1.005, "{percent} %: {alone} ms, {beside} with the host");
        assert!(made.peak_bytes <= request.budget.unwrap());
    }
}

#[test]
fn a_host_that_takes_longer_than_the_pass_takes_as_long() {
    let mut request = with_percent(chain(&[12; 64], 1.0, true), 66);
    let predicted = |request: &PlanRequest| plan(request).unwrap().predicted_ms;
    request.passes[0].host_ms = 64.0;
    let as_long = predicted(&request);
    for more in [64.1, 1e300, f64::MAX] {
        request.passes[0].host_ms = more;
        assert!(near(predicted(&request), as_long), "{more}");
    }
    let unknown = predicted(&PlanRequest { passes: chain(&[12; 64], 1.0, true).passes, ..request.clone() });
    for nonsense in [f64::NAN, f64::INFINITY, -1.0, 0.0] {
        request.passes[0].host_ms = nonsense;
        assert!(near(predicted(&request), unknown), "{nonsense}");
    }
}
