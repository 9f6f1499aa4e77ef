//! Pictures and figures of a Llama of 16 layers, whose sizes and times are known.
#![allow(clippy::unwrap_used, reason = "a test panics when something is missing")]

use flextensor_core::link::LinkCurve;
use flextensor_core::plan::{PassProfile, PlanRequest, UnitInfo, UseInfo, plan};
use flextensor_core::units::{GIB, ModelId, UnitId};
use flextensor_whatif::planner::Planner;
use flextensor_whatif::sweep::Point;
use flextensor_whatif::timeline::BarKind;
use flextensor_whatif::{WhatIfError, draw, sweep, timeline};

/// Milliseconds a page: 194 and 12.5 ms a pass.
const PREFILL: f64 = 0.0149;
const DECODE: f64 = 0.00096;

/// 16 layers of seven weights, 816 pages each, 25.5 GiB in all; `ms` a page.
fn llama(ms: f64, budget: Option<u64>) -> PlanRequest {
    let sizes = [64, 8, 8, 64, 224, 224, 224];
    let units: Vec<UnitInfo> = (0..16 * 7)
        .map(|at: u32| {
            let pages = sizes[at as usize % 7];
            UnitInfo {
                id: UnitId(at),
                name: format!("layers.{}.{}", at / 7, at % 7),
                bytes: pages * PlanRequest::PAGE_BYTES,
                pages,
                splittable: true,
                stay: None,
            }
        })
        .collect();
    let uses = units.iter().map(|unit| UseInfo {
        unit: unit.id,
        compute_ms: ms * unit.pages as f64,
        owner: unit.id.0,
    });
    let pass = PassProfile {
        model: ModelId(1),
        shape: 1,
        uses: uses.collect(),
        tail_ms: 2.0,
        resident_ms: 0.0,
        host_ms: 0.0,
    };
    PlanRequest { budget, units, passes: vec![pass], link: LinkCurve::flat(50.0), ..PlanRequest::default() }
}

fn ours(request: &PlanRequest) -> Vec<Point> {
    sweep::sweep(request, &Planner::ours()).unwrap()
}

#[test]
fn a_sweep_goes_from_a_small_part_of_the_weights_to_all_of_them_and_never_gets_slower() {
    let request = llama(PREFILL, Some(8 * GIB));
    let points = ours(&request);
    assert!(points.iter().any(|point| point.budget_bytes == 8 * GIB), "the chosen budget is one of them");
    assert_eq!(points.last().unwrap().budget_bytes, request.total_bytes());
    assert_eq!(points.last().unwrap().streamed_bytes, 0);
    for pair in points.windows(2) {
        let [less, more] = pair else { unreachable!() };
        assert!(less.budget_bytes < more.budget_bytes);
        assert!(more.predicted_ms <= less.predicted_ms * 1.002, "{less:?} {more:?}");
        assert!(less.predicted_ms >= less.bound_ms * 0.999, "{less:?}");
    }
}

#[test]
fn the_chart_of_a_sweep_has_ours_the_bound_the_resident_time_and_the_chosen_budget() {
    let request = llama(DECODE, Some(8 * GIB));
    let points = ours(&request);
    let at_8 = points.iter().find(|point| point.budget_bytes == 8 * GIB).unwrap().predicted_ms;
    let chart = sweep::chart("Llama".into(), &[("flextensor".into(), points)], 15.1, request.budget);
    let labels: Vec<_> = chart.lines.iter().map(|line| line.label.as_str()).collect();
    assert_eq!(labels, ["flextensor", "bound", "everything resident"]);
    let [ours, bound, resident] = chart.lines.as_slice() else { unreachable!() };
    assert_eq!(bound.points.len(), usize::try_from(sweep::BUDGETS).unwrap() + 1);
    assert!(ours.points.len() <= bound.points.len() && ours.points.len() >= 30);
    assert!(resident.points.iter().all(|(_, ms)| *ms == 15.1));
    assert_eq!(chart.uprights[0].at, 8.0);
    assert_eq!(chart.uprights[0].label, format!("8 GiB: {at_8:.1} ms"));
}

#[test]
fn a_budget_that_cannot_be_met_has_a_bound_but_no_time() {
    let request = llama(DECODE, Some(64 << 20));
    let points = ours(&request);
    assert!(!points[0].is_met(), "64 MiB hold no two weights of 448 MiB");
    let chart = sweep::chart("Llama".into(), &[("flextensor".into(), points)], 15.1, request.budget);
    assert!(chart.lines[0].points.iter().all(|(gib, _)| *gib > 0.0625));
    assert_eq!(chart.lines[1].points[0].0, 0.0625);
    assert_eq!(chart.uprights[0].label, "64 MiB");
}

#[test]
fn the_bars_of_a_timeline_fill_the_pass_and_never_overlap() {
    for ms in [PREFILL, DECODE] {
        let request = llama(ms, Some(8 * GIB));
        let made = plan(&request).unwrap();
        let drawn = timeline::timeline(&request, &made, "Llama".into()).unwrap();
        let lane = |kinds: &[BarKind]| {
            let mut bars: Vec<_> = drawn.bars.iter().filter(|bar| kinds.contains(&bar.kind)).collect();
            bars.sort_by(|a, b| a.start_ms.total_cmp(&b.start_ms));
            for pair in bars.windows(2) {
                assert!(pair[0].end_ms <= pair[1].start_ms + 1e-6, "{:?} {:?}", pair[0], pair[1]);
            }
            bars.iter().map(|bar| bar.end_ms - bar.start_ms).sum::<f64>()
        };
        // The GPU computes or waits at every moment; what is copied takes the link its time.
        let gpu_ms = lane(&[BarKind::Compute, BarKind::Wait]);
        assert!(
            (gpu_ms - made.predicted_ms).abs() < made.predicted_ms * 0.002,
            "{gpu_ms} {}",
            made.predicted_ms
        );
        let link_ms = lane(&[BarKind::Copy]);
        let needed_ms = made.streamed_bytes as f64 / request.link.peak_bytes_per_ms();
        assert!((link_ms - needed_ms).abs() < needed_ms * 0.01, "{link_ms} {needed_ms}");
        assert!(drawn.from_ms <= 0.0 && drawn.bars.iter().all(|bar| bar.end_ms <= drawn.to_ms + 1e-6));
    }
}

#[test]
fn uses_too_short_to_be_seen_are_drawn_as_one() {
    let mut request = llama(DECODE, Some(8 * GIB));
    let many: Vec<UseInfo> = (0..200).flat_map(|_| request.passes[0].uses.clone()).collect();
    request.passes[0].uses = many;
    let made = plan(&llama(DECODE, Some(8 * GIB))).unwrap();
    let drawn = timeline::timeline(&request, &made, "many".into()).unwrap();
    let most = 3 * 2400;
    assert!(drawn.bars.len() <= most, "{} bars for {} uses", drawn.bars.len(), request.passes[0].uses.len());
}

#[test]
fn pictures_are_svg_with_their_texts_escaped_and_all_their_lines() {
    let request = llama(DECODE, Some(8 * GIB));
    let mut chart =
        sweep::chart("a <b> & \"c\"".into(), &[("ours".into(), ours(&request))], 15.1, request.budget);
    chart.lines[0].label = "x < y".into();
    let text = draw::charts(&[chart.clone(), chart]).unwrap();
    assert!(text.starts_with("<svg") && text.trim_end().ends_with("</svg>"));
    assert!(text.contains("width=\"1240\""), "two charts are twice as wide");
    assert_eq!(text.matches("everything resident").count(), 2);
    assert!(
        text.contains("a &lt;b&gt; &amp;") && text.contains("x &lt; y") && !text.contains("<b>"),
        "{text}"
    );
    let made = plan(&request).unwrap();
    let bars = timeline::timeline(&request, &made, "Llama".into()).unwrap();
    let text = draw::timeline(&bars).unwrap();
    assert!(text.matches("<rect").count() >= bars.bars.len());
    assert!(text.contains("copies") && text.contains("waiting"));
}

#[test]
fn a_strategy_follows_the_parameters_behind_its_name() {
    let request = llama(PREFILL, Some(20 * GIB));
    let streamed = |text: &str| Planner::named(text).unwrap().plan(&request).unwrap().streamed_bytes;
    assert!(streamed("NthLayerStrategy:nth_layer=2") > streamed("NthLayerStrategy:nth_layer=20, n_blocks=2"));
    assert_eq!(streamed("NthLayerStrategy"), streamed("NthLayerStrategy:nth_layer=2"));
}

#[test]
fn each_planner_has_a_row_and_ours_is_not_slower() {
    let request = llama(PREFILL, Some(12 * GIB));
    let ours = Planner::ours().plan(&request).unwrap();
    for planner in Planner::all(Some(&["GreedyStrategy", "NthLayerStrategy"].map(str::to_owned))).unwrap() {
        match planner.plan(&request) {
            Ok(plan) if plan.peak_bytes <= 12 * GIB => {
                assert!(ours.predicted_ms <= plan.predicted_ms * 1.002, "{}", planner.name());
            }
            Ok(_) | Err(WhatIfError::Declined { .. }) => {}
            Err(error) => panic!("{}: {error}", planner.name()),
        }
    }
}
