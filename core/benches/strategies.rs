//! How long every strategy takes for 80 layers of 9 weights, half of which fit, plan on the ring included.

use criterion::{Criterion, criterion_group, criterion_main};
use flextensor_core::plan::{PassProfile, PlanRequest, UnitInfo, UseInfo};
use flextensor_core::strategy::{Parameters, by_name, names};
use flextensor_core::units::{ModelId, UnitId};

/// 80 layers: attention weights small, the others large.
fn request() -> PlanRequest {
    let units: Vec<UnitInfo> = (0..720u32)
        .map(|at| {
            let pages = if at % 9 < 4 { 8 + u64::from(at % 3) } else { 112 };
            UnitInfo {
                id: UnitId(at),
                name: format!("layers.{}.{}", at / 9, at % 9),
                bytes: pages * PlanRequest::PAGE_BYTES,
                pages,
                splittable: true,
                stay: None,
            }
        })
        .collect();
    let uses = units
        .iter()
        .map(|unit| UseInfo { unit: unit.id, compute_ms: 0.02 * unit.pages as f64, owner: unit.id.0 })
        .collect();
    let pass =
        PassProfile { model: ModelId(1), shape: 0, uses, tail_ms: 0.5, resident_ms: 0.0, host_ms: 0.0 };
    let mut request = PlanRequest { units, passes: vec![pass], ..PlanRequest::default() };
    request.budget = Some(request.total_bytes() / 2);
    request
}

fn strategies(criterion: &mut Criterion) {
    let request = request();
    for name in names() {
        let Ok(strategy) = by_name(name, &Parameters::new()) else { continue };
        criterion.bench_function(name, |bencher| bencher.iter(|| strategy.plan(&request)));
    }
}

criterion_group! {
    name = benches;
    config = Criterion::default().sample_size(10);
    targets = strategies
}
criterion_main!(benches);
