//! How long a plan takes to make: 80 layers of 9 weights have to stay below 100 ms, 10,000 weights below 1 s; in the
//! middle of what is asked for, and where planning takes longest: computing and copying take about as long, or weights
//! are used twice and memory holds few of them.

use criterion::{Criterion, criterion_group, criterion_main};
use flextensor_core::plan::{PassProfile, PlanRequest, UnitInfo, UseInfo, amended, plan};
use flextensor_core::units::{ModelId, UnitId};

/// A model of equal layers: attention weights small, the others large, some of them not divisible.
fn request(layers: u32, weights: u32, percent: u64, ms_per_page: f64) -> PlanRequest {
    let units: Vec<UnitInfo> = (0..layers * weights)
        .map(|at| {
            let pages = if at % weights < 4 { 8 + u64::from(at % 3) } else { 112 };
            UnitInfo {
                id: UnitId(at),
                name: format!("layers.{}.{}", at / weights, at % weights),
                bytes: pages * PlanRequest::PAGE_BYTES,
                pages,
                splittable: at % 5 != 0,
                stay: None,
            }
        })
        .collect();
    let uses = units
        .iter()
        .map(|unit| UseInfo { unit: unit.id, compute_ms: ms_per_page * unit.pages as f64, owner: unit.id.0 })
        .collect();
    let pass =
        PassProfile { model: ModelId(1), shape: 0, uses, tail_ms: 0.5, resident_ms: 0.0, host_ms: 0.0 };
    let mut request = PlanRequest { units, passes: vec![pass], ..PlanRequest::default() };
    request.budget = Some(request.total_bytes() / 100 * percent);
    request
}

/// The request with every third weight used a second time at the end of the pass, when all others have been.
fn used_again(mut request: PlanRequest) -> PlanRequest {
    for pass in &mut request.passes {
        let again =
            pass.uses.iter().step_by(3).map(|used| UseInfo { owner: used.owner + 1_000_000, ..*used });
        let again: Vec<UseInfo> = again.collect();
        pass.uses.extend(again);
    }
    request
}

fn planning(criterion: &mut Criterion) {
    for (name, layers, weights) in [("80 layers of 9 weights", 80, 9), ("10,000 weights", 1000, 10)] {
        for (case, percent, ms_per_page) in [("", 50, 0.02), (", slowest", 80, 0.01)] {
            let request = request(layers, weights, percent, ms_per_page);
            criterion.bench_function(&format!("{name}{case}"), |bencher| bencher.iter(|| plan(&request)));
        }
    }
    for (weights, layers, percent, ms_per_page) in [
        ("2,000", 200, 20, 0.01),
        ("2,000", 200, 50, 0.01),
        ("2,000", 200, 80, 0.01),
        ("10,000", 1000, 20, 0.02),
    ] {
        let request = used_again(request(layers, 10, percent, ms_per_page));
        let name = format!("{weights} weights, a third of them used twice, {percent} %");
        criterion.bench_function(&name, |bencher| bencher.iter(|| plan(&request)));
    }
}

/// Of a plan at half of the weights, 200 MiB less or half a GiB more.
fn amending(criterion: &mut Criterion) {
    for (name, layers, weights) in
        [("16 layers of 9 weights", 16, 9), ("80 layers of 9 weights", 80, 9), ("10,000 weights", 1000, 10)]
    {
        let request = request(layers, weights, 50, 0.02);
        let standing = plan(&request).unwrap_or_default();
        let budget = standing.peak_bytes;
        for (case, budget) in [("less", budget - (200 << 20)), ("more", budget + (512 << 20))] {
            let request = PlanRequest { budget: Some(budget), ..request.clone() };
            let name = format!("{name}, a plan with {case} memory amended");
            criterion.bench_function(&name, |bencher| bencher.iter(|| amended(&standing, &request)));
        }
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(10);
    targets = planning, amending
}
criterion_main!(benches);
