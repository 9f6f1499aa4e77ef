//! The scale: how much copy time a strategy grants for each millisecond of computing. With a budget the scale
//! that was asked for is only where the search for a sufficient one begins. Also what strategies that go layer
//! by layer have in common.

use super::{Layer, Question, Selection};

/// Halvings of the interval in which a sufficient scale is looked for.
const HALVINGS: usize = 40;
/// Layers that compute less than this count as computing this long, so that a scale can grant them anything.
const LEAST_MS: f64 = 1e-6;
/// A copy that takes longer than its window by less than this part fits: sums of times are rounded.
const ROUNDING: f64 = 1e-9;

/// Positions of the tensors of a layer that have at least this many bytes.
pub(super) fn eligible(layer: &Layer, threshold: u64) -> Vec<usize> {
    let tensors = layer.tensors.iter().enumerate();
    tensors.filter(|(_, tensor)| tensor.bytes >= threshold.max(1)).map(|(at, _)| at).collect()
}

/// Bytes of these tensors of a layer.
pub(super) fn bytes_of(layer: &Layer, chosen: &[usize]) -> u64 {
    chosen.iter().filter_map(|&at| layer.tensors.get(at)).map(|tensor| tensor.bytes).sum()
}

/// The time for which a layer that computes this long lets others copy, at scale 1.
pub(super) fn granted(duration_ms: f64) -> f64 {
    duration_ms.max(LEAST_MS) * (1.0 + ROUNDING)
}

/// A search for the scale that meets the budget.
#[derive(Debug)]
pub(super) struct Scaled<'a> {
    question: &'a Question,
    asked: f64,
}

impl<'a> Scaled<'a> {
    /// A search that begins at the scale that was asked for.
    pub(super) fn new(question: &'a Question, asked: f64) -> Self {
        Scaled { question, asked }
    }

    /// The best selection of all scales that were tried: the one asked for, if it meets the budget; else the
    /// smallest one that does, and what was seen on the way to it.
    pub(super) fn search(&self, at_scale: impl Fn(f64) -> Selection) -> Selection {
        let mut best = at_scale(self.asked);
        if self.question.budget.is_none() || best.estimate.valid {
            return best;
        }
        let mut offer = |scale: f64| {
            let found = at_scale(scale);
            let valid = found.estimate.valid;
            if found.estimate.rank(&best.estimate).is_lt() {
                best = found;
            }
            valid
        };
        let (mut small, mut large) = (self.asked, self.everything());
        offer(large);
        for _ in 0..HALVINGS {
            // Scales differ by factors.
            let middle = (small * large).sqrt();
            if middle <= small || middle >= large {
                break;
            }
            if offer(middle) { large = middle } else { small = middle }
        }
        best
    }

    /// A scale at which every layer can be copied during any other.
    pub(super) fn everything(&self) -> f64 {
        let layers = &self.question.layers;
        let longest = layers.iter().map(|layer| self.question.link.ms(layer.bytes())).fold(0.0, f64::max);
        let shortest = layers.iter().map(|layer| granted(layer.duration_ms)).fold(f64::INFINITY, f64::min);
        (longest / shortest * 1.001).max(self.asked)
    }
}
