//! What the preloaded library costs a launch that shows no weight, resident ones only, or resident ones while nothing needs to be looked at, with 1,720 bytes of parameters: the same program with and without it, on simcuda, which refuses every
//! launch at once. The target is 150 ns more (a release build on a quiet machine). Run: `cargo bench -p flextensor-tests --bench launch`.

use criterion::{Criterion, criterion_group, criterion_main};
use harness::{Run, Talk};
use std::time::Duration;

fn program() -> Run {
    Run::program("launch_cost").args(["answer"]).sim("FAULTS", "cuLaunchKernel@*=1")
}

fn launches(criterion: &mut Criterion) {
    let sides: [(&str, Talk); 2] = [("stock", program().talk()), ("preloaded", program().preload().talk())];
    for (side, mut talk) in sides {
        for kind in ["packed", "each", "resident", "quiet"] {
            criterion.bench_function(&format!("launch/{kind}/{side}"), |bencher| {
                bencher.iter_custom(|count| {
                    let nanoseconds = talk.ask(&format!("{kind} {count}"));
                    Duration::from_nanos(nanoseconds.parse().expect("an answer is a number"))
                });
            });
        }
    }
}

criterion_group!(benches, launches);
criterion_main!(benches);
