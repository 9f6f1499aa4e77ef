//! From observed passes to what the planner reads: order of use, compute times, one [`PassProfile`] for each
//! model and shape. Measuring belongs to the interposer; whether a pass is to be recorded is `phase`'s word.

use std::collections::{BTreeMap, VecDeque};

use crate::plan::{PassProfile, UseInfo};
use crate::units::{ModelId, UnitId};

/// Passes kept for each model and shape; older ones are forgotten.
pub const KEPT_PASSES: usize = 1024;

/// Shapes of a model that are known at once while it is learnt. One that came seldom gives way to a new one: a program may show a new shape in each pass.
pub const LEARNT_SHAPES: usize = 64;

/// A sample further than this many median deviations from the median is an outlier.
const OUTLIER_DEVIATIONS: f64 = 5.0;
/// Deviations below this part of the median never make an outlier: measured passes always differ by a little.
const OUTLIER_FLOOR: f64 = 0.05;

/// Passes timed as a whole that are kept.
const KEPT_WHOLE: usize = 8;
/// What observing may have added to a use, as a part of the time that was measured.
const MOST_ADDED: f64 = 0.9;

/// Units and owners in order of use.
type Order = Vec<(UnitId, u32)>;

/// One pass as it was observed. Fill it in order of use, then hand it to [`ProfileCollector::add`].
#[derive(Debug, Clone, PartialEq)]
pub struct PassRecord {
    model: ModelId,
    shape: u64,
    timed: bool,
    uses: Order,
    times_ms: Vec<f64>,
    /// Launches of each use.
    launches: Vec<u32>,
    tail_ms: f64,
}

impl PassRecord {
    /// A pass whose times are to be kept.
    #[must_use]
    pub fn timed(model: ModelId, shape: u64) -> Self {
        let (uses, times_ms, launches) = (Vec::new(), Vec::new(), Vec::new());
        PassRecord { model, shape, timed: true, uses, times_ms, launches, tail_ms: 0.0 }
    }

    /// A pass that only shows the order of use (DISCOVERY, capture, suspended recording).
    #[must_use]
    pub fn order_only(model: ModelId, shape: u64) -> Self {
        PassRecord { timed: false, ..PassRecord::timed(model, shape) }
    }

    /// The next use: its unit, its owner, and the milliseconds from the end of the previous use to the end of
    /// this one.
    pub fn record(&mut self, unit: UnitId, owner: u32, elapsed_ms: f64) {
        self.uses.push((unit, owner));
        self.times_ms.push(elapsed_ms);
        self.launches.push(1);
    }

    /// So many launches were observed for the use that was recorded last; one if nobody says.
    pub fn record_launches(&mut self, count: u32) {
        if let Some(last) = self.launches.last_mut() {
            *last = count.max(1);
        }
    }

    /// The end of the pass, and the milliseconds since the end of the last use.
    #[must_use]
    pub fn finish(mut self, tail_ms: f64) -> Self {
        self.tail_ms = tail_ms;
        self
    }

    fn total_ms(&self) -> f64 {
        self.times_ms.iter().sum::<f64>() + self.tail_ms
    }
}

/// What one model and shape has shown so far.
#[derive(Debug, Clone, Default)]
struct ShapeHistory {
    passes: u64,
    kept: VecDeque<PassRecord>,
    /// Milliseconds of passes that were timed as a whole, oldest first.
    whole_ms: VecDeque<f64>,
    /// Milliseconds until such passes returned to the program, oldest first, of those of which it is known: passes of streamed weights say nothing of it, and must not
    /// take their place.
    host_ms: VecDeque<f64>,
}

/// Collects passes by model and shape.
#[derive(Debug, Clone, Default)]
pub struct ProfileCollector {
    shapes: BTreeMap<(ModelId, u64), ShapeHistory>,
}

impl ProfileCollector {
    /// An empty collector.
    #[must_use]
    pub fn new() -> Self {
        ProfileCollector::default()
    }

    /// Takes one finished pass.
    pub fn add(&mut self, pass: PassRecord) {
        self.make_room(pass.model, pass.shape);
        let history = self.shapes.entry((pass.model, pass.shape)).or_default();
        history.passes += 1;
        if history.kept.len() == KEPT_PASSES {
            history.kept.pop_front();
        }
        history.kept.push_back(pass);
    }

    /// A new shape is about to be known of the model: of as many as are kept, the least usual one is forgotten.
    fn make_room(&mut self, model: ModelId, shape: u64) {
        if self.shapes.contains_key(&(model, shape)) || self.of(model).count() < LEARNT_SHAPES {
            return;
        }
        let least =
            self.of(model).min_by_key(|(_, history)| (history.kept.iter().any(|p| p.timed), history.passes));
        if let Some(least) = least.map(|(key, _)| *key) {
            self.shapes.remove(&least);
        }
    }

    /// Takes one finished pass in place of all that is known of its model and shape: the program has changed.
    pub fn replace(&mut self, pass: PassRecord) {
        let history = self.shapes.entry((pass.model, pass.shape)).or_default();
        history.passes += 1;
        // Where it does the same as before, the host takes as long as before.
        if history.kept.iter().all(|kept| kept.uses != pass.uses) {
            history.host_ms.clear();
        }
        history.kept = VecDeque::from([pass]);
        history.whole_ms.clear();
    }

    /// A pass in a shape that is known took so long altogether, while nothing else was observed of it: no pass whose weights are all in place takes longer. What
    /// observing added to the times of its uses is taken off them. `host_ms`: until the forward returned to the program; 0 = unknown.
    pub fn add_whole(&mut self, model: ModelId, shape: u64, ms: f64, host_ms: f64) {
        let Some(history) = self.shapes.get_mut(&(model, shape)).filter(|_| ms.is_finite() && ms > 0.0)
        else {
            return;
        };
        push_bounded(&mut history.whole_ms, ms);
        if host_ms.is_finite() && host_ms > 0.0 {
            push_bounded(&mut history.host_ms, host_ms);
        }
    }

    /// Takes the usual pass of an earlier run, which saw `passes` of that shape; they returned to the program after `host_ms` (0 = unknown).
    pub fn restore(&mut self, pass: PassRecord, passes: u64, host_ms: f64) {
        let history = self.shapes.entry((pass.model, pass.shape)).or_default();
        history.passes += passes.max(1);
        history.host_ms.extend((host_ms.is_finite() && host_ms > 0.0).then_some(host_ms));
        history.kept.push_back(pass);
    }

    /// Passes of a model in one shape that were seen, kept or not.
    #[must_use]
    pub fn passes(&self, model: ModelId, shape: u64) -> u64 {
        self.shapes.get(&(model, shape)).map_or(0, |history| history.passes)
    }

    /// Forgets all shapes of a model but these.
    pub fn keep_shapes(&mut self, model: ModelId, shapes: &[u64]) {
        self.shapes.retain(|(owner, shape), _| *owner != model || shapes.contains(shape));
    }

    /// Forgets all times of a model; orders of use stay known.
    pub fn clear_durations(&mut self, model: ModelId) {
        for (_, history) in self.shapes.range_mut((model, 0)..=(model, u64::MAX)) {
            for pass in &mut history.kept {
                pass.timed = false;
            }
            history.whole_ms.clear();
            history.host_ms.clear();
        }
    }

    /// Forgets a model.
    pub fn forget(&mut self, model: ModelId) {
        self.shapes.retain(|(owner, _), _| *owner != model);
    }

    /// Timed passes of a model in one shape that are kept.
    #[must_use]
    pub fn timed_passes(&self, model: ModelId, shape: u64) -> usize {
        self.shapes.get(&(model, shape)).map_or(0, |h| h.kept.iter().filter(|p| p.timed).count())
    }

    /// The profile that a plan for this model is made from: its most frequent shape (of equally frequent ones
    /// the smallest hash). Shapes that were timed go before shapes that were not. None before any pass.
    #[must_use]
    pub fn profile(&self, model: ModelId) -> Option<PassProfile> {
        let ((_, shape), history) = self.of(model).max_by_key(|((_, shape), history)| {
            (history.kept.iter().any(|p| p.timed), history.passes, std::cmp::Reverse(*shape))
        })?;
        Some(history.profile(model, *shape))
    }

    /// The profiles of all shapes of a model, by shape.
    #[must_use]
    pub fn profiles(&self, model: ModelId) -> Vec<PassProfile> {
        self.of(model).map(|((_, shape), history)| history.profile(model, *shape)).collect()
    }

    fn of(&self, model: ModelId) -> impl Iterator<Item = (&(ModelId, u64), &ShapeHistory)> {
        self.shapes.range((model, 0)..=(model, u64::MAX))
    }
}

impl ShapeHistory {
    fn profile(&self, model: ModelId, shape: u64) -> PassProfile {
        let order = self.usual_order();
        let timed: Vec<&PassRecord> =
            self.kept.iter().filter(|pass| pass.timed && pass.uses == order).collect();
        let totals: Vec<f64> = timed.iter().map(|pass| pass.total_ms()).collect();
        let usual: Vec<&PassRecord> = timed
            .iter()
            .zip(within_usual(&totals))
            .filter_map(|(pass, keep)| keep.then_some(*pass))
            .collect();
        let mut uses: Vec<UseInfo> = order
            .iter()
            .enumerate()
            .map(|(at, &(unit, owner))| {
                let times = usual.iter().filter_map(|pass| pass.times_ms.get(at).copied()).collect();
                UseInfo { unit, compute_ms: median(times), owner }
            })
            .collect();
        let mut tail_ms = median(usual.iter().map(|pass| pass.tail_ms).collect());
        let mut resident_ms = median(usual.iter().map(|pass| pass.total_ms()).collect());
        if let (Some(whole_ms), Some(pass)) =
            (self.least_usual_whole().filter(|&ms| ms < resident_ms), usual.last())
        {
            take_off(resident_ms - whole_ms, &mut uses, &pass.launches);
            // Where little can be taken off, or the medians add up to something else.
            let rest = uses.iter().map(|used| used.compute_ms).sum::<f64>() + tail_ms;
            let scale = if rest > whole_ms { whole_ms / rest } else { 1.0 };
            uses.iter_mut().for_each(|used| used.compute_ms *= scale);
            tail_ms *= scale;
            resident_ms = whole_ms;
        }
        // Longer than the pass itself it cannot have taken: then it stood still for other reasons.
        let host_ms = lower_median(&self.host_ms).unwrap_or(0.0).min(resident_ms);
        PassProfile { model, shape, uses, tail_ms, resident_ms, host_ms }
    }

    /// The middle one of the passes that were timed as a whole; of two the shorter one.
    fn least_usual_whole(&self) -> Option<f64> {
        lower_median(&self.whole_ms)
    }

    /// The order of use that most kept passes showed; timed passes count before the others, later ones before
    /// earlier ones.
    fn usual_order(&self) -> Order {
        // By order: timed passes, passes, position of the last one.
        let mut seen: BTreeMap<&Order, (usize, usize, usize)> = BTreeMap::new();
        for (at, pass) in self.kept.iter().enumerate() {
            let entry = seen.entry(&pass.uses).or_default();
            *entry = (entry.0 + usize::from(pass.timed), entry.1 + 1, at);
        }
        seen.into_iter().max_by_key(|(_, rank)| *rank).map(|(order, _)| order.clone()).unwrap_or_default()
    }
}

/// Takes what observing added off the uses: as much for each launch.
fn take_off(added_ms: f64, uses: &mut [UseInfo], launches: &[u32]) {
    let count = |at: usize| f64::from(launches.get(at).copied().unwrap_or(1));
    let all: f64 = (0..uses.len()).map(count).sum();
    for (at, used) in uses.iter_mut().enumerate() {
        let added = added_ms * count(at) / all.max(1.0);
        used.compute_ms -= added.min(used.compute_ms * MOST_ADDED);
    }
}

/// For each sample, whether it is no outlier. Samples that are not numbers are outliers.
fn within_usual(samples: &[f64]) -> Vec<bool> {
    let middle = median(samples.to_vec());
    let deviation = median(samples.iter().map(|s| (s - middle).abs()).collect());
    let allowed = (OUTLIER_DEVIATIONS * deviation).max(OUTLIER_FLOOR * middle.abs());
    samples.iter().map(|s| (s - middle).abs() <= allowed).collect()
}

/// One more of at most [`KEPT_WHOLE`].
fn push_bounded(samples: &mut VecDeque<f64>, ms: f64) {
    if samples.len() == KEPT_WHOLE {
        samples.pop_front();
    }
    samples.push_back(ms);
}

/// The middle one; of two the shorter one.
fn lower_median(samples: &VecDeque<f64>) -> Option<f64> {
    let mut sorted: Vec<f64> = samples.iter().copied().collect();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len().saturating_sub(1) / 2).copied()
}

/// The middle of the finite samples (the mean of the two middle ones); 0 when there is none.
fn median(mut samples: Vec<f64>) -> f64 {
    samples.retain(|s| s.is_finite());
    samples.sort_by(f64::total_cmp);
    let half = samples.len() / 2;
    match (samples.get(half), half.checked_sub(1).and_then(|i| samples.get(i))) {
        (Some(upper), Some(lower)) if samples.len().is_multiple_of(2) => (lower + upper) / 2.0,
        (Some(middle), _) => *middle,
        (None, _) => 0.0,
    }
}

#[cfg(test)]
#[path = "profile_tests.rs"]
mod tests;
