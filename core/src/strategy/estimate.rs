//! What a selection costs, in the model that all strategies share: layers one after the other, one link, each
//! layer's copy a whole. It is coarser than [`mod@crate::simulate`], which knows the ring; strategies choose by
//! it because it is cheap.

use std::cmp::Ordering;

use serde::{Deserialize, Serialize};

use super::window::{self, Window};
use super::{Assignment, Blocks, Question};

/// Passes after which copies that go on across passes have settled.
const PASSES: usize = 3;
/// Waits shorter than this part of the computing are rounding.
const ROUNDING: f64 = 1e-9;

/// What a selection costs.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Estimate {
    /// Whether it keeps the budget, and no block is written while it is read.
    pub valid: bool,
    /// Time that layers wait for copies, over the time that they compute.
    pub overhead: f64,
    /// Bytes of GPU memory: what stays, and the blocks.
    pub peak_bytes: u64,
    /// Bytes that a pass copies.
    pub streamed_bytes: u64,
}

impl Estimate {
    /// Less is better: what is valid before what is not; then less overhead and a lower peak, where nothing is
    /// valid only the peak counts.
    #[must_use]
    pub fn rank(&self, other: &Estimate) -> Ordering {
        let peak = self.peak_bytes.cmp(&other.peak_bytes);
        match (self.valid, other.valid) {
            (true, false) => Ordering::Less,
            (false, true) => Ordering::Greater,
            (true, true) if (self.overhead - other.overhead).abs() > ROUNDING => {
                self.overhead.total_cmp(&other.overhead)
            }
            (true, true) | (false, false) => peak,
        }
    }
}

/// One of several answers that a strategy looked at.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Candidate {
    /// What found it.
    pub solver: String,
    /// What it costs.
    pub estimate: Estimate,
}

/// What a strategy chose.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Selection {
    /// For each layer: the positions of its tensors that are streamed, ascending.
    pub streamed: Vec<Vec<usize>>,
    /// The blocks that receive them.
    pub blocks: Blocks,
    /// For each layer that streams: the layer at whose beginning its copy starts. Layer 0 is copied during a
    /// layer of the pass before, every other one during an earlier layer of the same pass.
    pub starts: Vec<Option<usize>>,
    /// What it costs.
    pub estimate: Estimate,
    /// What found it: the strategy, or the one of its candidates that won.
    pub solver: String,
    /// All answers that the strategy compared, if it compared several.
    pub candidates: Vec<Candidate>,
}

impl Selection {
    /// Assigns blocks, times copies and estimates what was chosen.
    pub(super) fn new(
        solver: &str,
        question: &Question,
        streamed: Vec<Vec<usize>>,
        assignment: Assignment,
        window: Window,
    ) -> Selection {
        let bytes = streamed_bytes(question, &streamed);
        let blocks = assignment.assign(&bytes);
        let starts = starts(question, &bytes, &blocks, window);
        let estimate = estimate(question, &bytes, &blocks, &starts);
        let layers = question.layers.len().max(1);
        Selection {
            streamed,
            blocks,
            starts: starts.into_iter().map(|start| start.map(|at| at % layers)).collect(),
            estimate,
            solver: solver.to_owned(),
            candidates: Vec::new(),
        }
    }
}

impl Selection {
    /// A selection that was made elsewhere: tensors, blocks and starts (all by layer, a start that is not before its layer means the pass before)
    /// as given, with what they cost. Without a start a copy begins one layer before it is read.
    #[must_use]
    pub fn given(
        solver: &str,
        question: &Question,
        streamed: Vec<Vec<usize>>,
        blocks: Blocks,
        starts: Vec<Option<usize>>,
    ) -> Selection {
        let bytes = streamed_bytes(question, &streamed);
        let layers = question.layers.len();
        let positions = bytes.iter().enumerate().map(|(layer, bytes)| {
            let start = starts.get(layer).copied().flatten().filter(|start| *start < layers);
            let start = start.unwrap_or((layer + layers - 1) % layers.max(1));
            (*bytes > 0).then_some(if start < layer { layers + start } else { start })
        });
        let positions: Vec<Option<usize>> = positions.collect();
        let estimate = estimate(question, &bytes, &blocks, &positions);
        let starts = positions.into_iter().map(|start| start.map(|at| at % layers.max(1))).collect();
        Selection { streamed, blocks, starts, estimate, solver: solver.to_owned(), candidates: Vec::new() }
    }
}

/// Bytes that every layer streams.
pub(super) fn streamed_bytes(question: &Question, streamed: &[Vec<usize>]) -> Vec<u64> {
    let layers = question.layers.iter().zip(streamed);
    let bytes = layers.map(|(layer, chosen)| {
        chosen.iter().filter_map(|&at| layer.tensors.get(at)).map(|tensor| tensor.bytes).sum()
    });
    bytes.collect()
}

/// Where copies start. Where layers without weights were found, copies are rearranged: they start as early as
/// their blocks allow.
pub(super) fn starts(
    question: &Question,
    bytes: &[u64],
    blocks: &Blocks,
    window: Window,
) -> Vec<Option<usize>> {
    if window::has_gaps(question) { window::rearranged(bytes, blocks) } else { window.starts(bytes, blocks) }
}

/// Estimates layers that stream these bytes into these blocks, with copies that start at these positions.
pub(super) fn estimate(
    question: &Question,
    bytes: &[u64],
    blocks: &Blocks,
    starts: &[Option<usize>],
) -> Estimate {
    let streamed_bytes: u64 = bytes.iter().sum();
    let peak_bytes = question.total_bytes() - streamed_bytes + blocks.total_bytes();
    let layers = bytes.len();
    let clash = starts.iter().enumerate().any(|(layer, start)| {
        let reader = blocks.last_reader(layers, layer);
        matches!((reader, start), (Some(reader), Some(start)) if reader >= *start)
    });
    let compute_ms = question.compute_ms();
    let stalled_ms = stalled_ms(question, bytes, starts);
    let overhead = match stalled_ms {
        ms if ms <= ROUNDING * compute_ms => 0.0,
        _ if compute_ms > 0.0 => stalled_ms / compute_ms,
        _ => f64::INFINITY,
    };
    let in_budget = question.budget.is_none_or(|budget| peak_bytes <= budget);
    Estimate { valid: in_budget && !clash, overhead, peak_bytes, streamed_bytes }
}

/// Milliseconds for which the layers of a settled pass wait for their copies: a copy starts when its position
/// begins and the link is free, a layer when its copy has ended.
fn stalled_ms(question: &Question, bytes: &[u64], starts: &[Option<usize>]) -> f64 {
    let layers = question.layers.len();
    let copies: Vec<f64> = bytes.iter().map(|bytes| question.link.ms(*bytes)).collect();
    // Beginnings of the layers of the previous and of this pass.
    let mut begins = vec![0.0f64; 2 * layers];
    let (mut now, mut link_free, mut stalled) = (0.0f64, 0.0f64, 0.0f64);
    for _ in 0..PASSES {
        begins.rotate_left(layers);
        stalled = 0.0;
        for (at, ((layer, copy), start)) in question.layers.iter().zip(&copies).zip(starts).enumerate() {
            if let Some(start) = start.and_then(|start| begins.get(start).copied()) {
                link_free = link_free.max(start) + copy;
                let wait = (link_free - now).max(0.0);
                stalled += wait;
                now += wait;
            }
            if let Some(begin) = begins.get_mut(layers + at) {
                *begin = now;
            }
            now += layer.duration_ms;
        }
    }
    stalled
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::strategy::{Layer, Tensor, TransferCurve};
    use crate::units::{MIB, UnitId};

    /// Layers of one tensor each: (MiB, milliseconds). The link carries 25 MiB a millisecond.
    fn question(layers: &[(u64, f64)]) -> Question {
        let layers = layers.iter().zip(0u32..).map(|(&(mib, duration_ms), at)| {
            let tensor = Tensor { unit: UnitId(at), name: "weight".to_owned(), bytes: mib * MIB };
            let tensors = if mib == 0 { Vec::new() } else { vec![tensor] };
            Layer { label: format!("layer {at}"), tensors, duration_ms }
        });
        Question { layers: layers.collect(), link: TransferCurve::flat(0.04), ..Question::default() }
    }

    fn all_but_first(question: &Question, assignment: Assignment, window: Window) -> Estimate {
        let layers = question.layers.iter().enumerate();
        let chosen =
            layers.map(|(at, layer)| if at > 0 { (0..layer.tensors.len()).collect() } else { Vec::new() });
        Selection::new("test", question, chosen.collect(), assignment, window).estimate
    }

    const TWO: Assignment = Assignment::StrictRoundRobin { blocks: 2 };

    #[test]
    fn a_copy_longer_than_the_layer_before_it_stalls_by_the_difference() {
        let found = all_but_first(&question(&[(50, 1.0), (50, 1.0), (25, 2.0)]), TWO, Window::SingleLayer);
        assert!((found.overhead - 1.0 / 4.0).abs() < 1e-12, "{found:?}");
        assert_eq!((found.peak_bytes, found.streamed_bytes), (125 * MIB, 75 * MIB));
        assert!(found.valid);
    }

    #[test]
    fn a_selection_made_elsewhere_is_judged_by_the_same_rules() {
        let question = question(&[(50, 1.0), (50, 1.0), (25, 2.0)]);
        let blocks = |of: [Option<usize>; 3]| Blocks { of_layer: of.to_vec(), bytes: vec![50 * MIB; 2] };
        let streamed = vec![vec![], vec![0], vec![0]];
        let given = |of, starts: Vec<Option<usize>>| {
            Selection::given("theirs", &question, streamed.clone(), blocks(of), starts)
        };
        let apart = given([None, Some(0), Some(1)], vec![None, Some(0), Some(1)]);
        let made = Selection::new("ours", &question, streamed.clone(), TWO, Window::SingleLayer);
        assert_eq!((apart.estimate.overhead, apart.starts), (made.estimate.overhead, made.starts));
        assert!(apart.estimate.valid);
        assert!(!given([None, Some(0), Some(0)], vec![None, Some(0), Some(1)]).estimate.valid);
        assert_eq!(given([None, Some(0), Some(1)], Vec::new()).starts, [None, Some(0), Some(1)]);
    }

    #[test]
    fn one_block_for_neighbours_is_not_valid() {
        let one = Assignment::StrictRoundRobin { blocks: 1 };
        let found = all_but_first(&question(&[(10, 1.0), (10, 1.0), (10, 1.0)]), one, Window::SingleLayer);
        assert!(!found.valid);
    }

    #[test]
    fn layers_without_weights_hide_copies_because_they_are_rearranged() {
        let found = all_but_first(&question(&[(50, 1.0), (0, 1.0), (50, 1.0)]), TWO, Window::SingleLayer);
        assert_eq!(found.overhead, 0.0);
    }

    #[test]
    fn copies_that_start_together_share_the_link() {
        // Rearranged, both copies start at once; the second ends after 4 ms, when 2.5 ms have been computed for.
        let layers = [(10, 1.0), (0, 0.0), (50, 0.5), (50, 0.5)];
        let found = all_but_first(&question(&layers), TWO, Window::SingleLayer);
        assert!((found.overhead - 2.5 / 2.0).abs() < 1e-12, "{found:?}");
    }

    #[test]
    fn the_first_layer_is_copied_during_the_last_one_of_the_pass_before() {
        let question = question(&[(50, 1.0), (10, 1.0), (10, 0.5)]);
        let selection =
            Selection::new("test", &question, vec![vec![0], vec![], vec![]], TWO, Window::SingleLayer);
        assert_eq!(selection.starts, [Some(2), None, None]);
        assert!((selection.estimate.overhead - 1.5 / 2.5).abs() < 1e-12, "{:?}", selection.estimate);
    }

    #[test]
    fn without_any_computing_waiting_is_endless_and_not_waiting_is_free() {
        let question = question(&[(50, 0.0), (50, 0.0)]);
        assert_eq!(all_but_first(&question, TWO, Window::SingleLayer).overhead, f64::INFINITY);
        let nothing = Selection::new("test", &question, vec![vec![]; 2], TWO, Window::SingleLayer);
        assert_eq!(nothing.estimate.overhead, 0.0);
    }

    #[test]
    fn valid_plans_rank_by_overhead_then_peak_and_others_by_peak() {
        let at = |valid, overhead, peak_bytes| Estimate { valid, overhead, peak_bytes, streamed_bytes: 0 };
        assert_eq!(at(true, 9.0, 9).rank(&at(false, 0.0, 1)), Ordering::Less);
        assert_eq!(at(true, 0.1, 9).rank(&at(true, 0.2, 1)), Ordering::Less);
        assert_eq!(at(true, 0.1, 9).rank(&at(true, 0.1, 1)), Ordering::Greater);
        assert_eq!(at(false, 0.1, 9).rank(&at(false, 0.2, 1)), Ordering::Greater);
    }
}
