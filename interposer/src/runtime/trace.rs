//! What passes looked like once weights stream: how long each use computed, and how long its launches waited for copies. Kept for the report, which answers with
//! it why a pass is slower than its plan says. Seeing a pass is `learn`'s matter; plans are made of what was learnt, never of this.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

use flextensor_core::pager::KEPT_SHAPES;
use flextensor_core::units::{ModelId, UnitId};
use serde_json::{Value, json};

use super::config;
use super::world::World;

/// Waits that are listed: the longest.
const LISTED: usize = 24;

/// One use of a weight.
#[derive(Clone, Copy, Debug)]
pub(super) struct TracedUse {
    pub(super) unit: UnitId,
    pub(super) launches: u32,
    /// Milliseconds since the use before it ended, without what it waited for.
    pub(super) computed_ms: f64,
    /// Milliseconds that its launches stood on the GPU until their pages were there.
    pub(super) waited_ms: f64,
}

/// One pass, seen whole.
#[derive(Clone, Debug, Default)]
pub(super) struct Trace {
    pub(super) uses: Vec<TracedUse>,
    /// Milliseconds behind the last use.
    pub(super) tail_ms: f64,
}

impl Trace {
    fn computed_ms(&self) -> f64 {
        self.uses.iter().map(|used| used.computed_ms).sum::<f64>() + self.tail_ms
    }

    fn waited_ms(&self) -> f64 {
        self.uses.iter().map(|used| used.waited_ms).sum()
    }

    /// The uses that waited longest, with their places in the pass.
    fn longest(&self) -> Vec<(usize, &TracedUse)> {
        let mut waits: Vec<_> =
            self.uses.iter().enumerate().filter(|(_, used)| used.waited_ms > 0.0).collect();
        waits.sort_by(|(_, one), (_, other)| other.waited_ms.total_cmp(&one.waited_ms));
        waits.truncate(LISTED);
        waits
    }
}

/// The last pass of each model and shape that was seen, and how many were.
type Traces = BTreeMap<(ModelId, u64), (u64, Trace)>;

fn traces() -> MutexGuard<'static, Traces> {
    static TRACES: Mutex<Traces> = Mutex::new(BTreeMap::new());
    TRACES.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Whether the pass of a model that is its `passes`th in INFERENCE is to be seen (`trace_every`).
pub(super) fn is_due(passes: u64) -> bool {
    let every = u64::from(config().trace_every);
    every > 0 && passes.is_multiple_of(every)
}

/// A pass has been seen. Of shapes beyond those that are remembered anywhere nothing is kept.
pub(super) fn keep(model: ModelId, shape: u64, trace: Trace) {
    let mut traces = traces();
    let known = traces.keys().filter(|(of, _)| *of == model).count();
    if known < KEPT_SHAPES || traces.contains_key(&(model, shape)) {
        let kept = traces.entry((model, shape)).or_default();
        *kept = (kept.0 + 1, trace);
    }
}

/// The model is gone.
pub(super) fn forget(model: ModelId) {
    traces().retain(|(of, _), _| *of != model);
}

/// What the report says of a model's passes.
pub(super) fn report(world: &World, model: ModelId) -> Vec<Value> {
    let traces = traces();
    let mine = traces.iter().filter(|((of, _), _)| *of == model);
    mine.map(|((_, shape), (passes, trace))| {
        let name = |unit: UnitId| world.unit(unit).map(|unit| unit.name());
        let wait = |(at, used): (usize, &TracedUse)| {
            json!({
                "use": at, "name": name(used.unit), "launches": used.launches,
                "waited_ms": used.waited_ms, "computed_ms": used.computed_ms,
            })
        };
        json!({
            "shape": format!("{shape:016x}"),
            "passes": passes,
            "uses": trace.uses.len(),
            "launches": trace.uses.iter().map(|used| u64::from(used.launches)).sum::<u64>(),
            "computed_ms": trace.computed_ms(),
            "waited_ms": trace.waited_ms(),
            "waits": trace.longest().into_iter().map(wait).collect::<Vec<_>>(),
        })
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn used(unit: u32, computed_ms: f64, waited_ms: f64) -> TracedUse {
        TracedUse { unit: UnitId(unit), launches: 1, computed_ms, waited_ms }
    }

    #[test]
    fn the_longest_waits_come_first_with_their_places_and_uses_that_never_waited_do_not() {
        let trace =
            Trace { uses: vec![used(4, 1.0, 0.5), used(5, 2.0, 0.0), used(6, 3.0, 2.0)], tail_ms: 0.5 };
        let longest: Vec<_> = trace.longest().into_iter().map(|(at, used)| (at, used.unit.0)).collect();
        assert_eq!(longest, [(2, 6), (0, 4)]);
        assert_eq!((trace.computed_ms(), trace.waited_ms()), (6.5, 2.5));
    }

    #[test]
    fn of_a_model_as_many_shapes_are_kept_as_elsewhere_and_the_last_pass_of_each() {
        let model = ModelId(u64::MAX);
        for shape in 0..KEPT_SHAPES as u64 + 3 {
            keep(model, shape, Trace::default());
        }
        keep(model, 0, Trace { uses: vec![used(1, 1.0, 1.0)], tail_ms: 0.0 });
        let mine = |traces: &Traces| traces.keys().filter(|(of, _)| *of == model).count();
        assert_eq!(mine(&traces()), KEPT_SHAPES);
        assert_eq!(
            traces().get(&(model, 0)).map(|(passes, trace)| (*passes, trace.uses.len())),
            Some((2, 1))
        );
        forget(model);
        assert_eq!(mine(&traces()), 0);
    }
}
