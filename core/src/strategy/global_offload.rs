//! GlobalOffloadStrategy: fills the window of every layer with its largest tensors first, then looks for the
//! assignment of blocks that keeps most memory free.

use super::parameters::Reader;
use super::scale::{self, Scaled};
use super::{Assignment, Question, Selection, Strategy, StrategyError, Window};

pub(super) const NAME: &str = "GlobalOffloadStrategy";

/// The names of assignments that users can choose; whether each is the optimised one.
pub(super) const ASSIGNMENTS: [(&str, bool); 4] = [
    ("OptimizedRoundRobinAssignment", true),
    ("StrictRoundRobinAssignment", false),
    ("OptimizedRoundRobin", true),
    ("StrictRoundRobin", false),
];

/// What long times before a block is used again count where nothing else is asked for.
pub(super) const DISTRIBUTION_WEIGHT: f64 = 0.5;

/// How blocks are given, as the parameters `n_blocks`, `min_blocks`, `max_blocks`, `assignment_strategy` and `distribution_weight` say.
pub(super) fn read_assignment(reader: &mut Reader<'_>) -> Assignment {
    let blocks = reader.whole("n_blocks", 4, 2);
    let least = reader.whole("min_blocks", 2, 2);
    let most = reader.whole("max_blocks", blocks, 2);
    let allowed = format!("at most max_blocks, which is {most}");
    reader.require(least <= most, "min_blocks", i64::from(least), &allowed);
    let distribution_weight = reader.part("distribution_weight", DISTRIBUTION_WEIGHT);
    match reader.choice("assignment_strategy", true, &ASSIGNMENTS) {
        true => Assignment::OptimizedRoundRobin {
            least: least as usize,
            most: most as usize,
            distribution_weight,
        },
        false => Assignment::StrictRoundRobin { blocks: blocks as usize },
    }
}

/// The optimised assignment with its usual weight.
pub(super) fn optimized(least: usize, most: usize) -> Assignment {
    Assignment::OptimizedRoundRobin { least, most, distribution_weight: DISTRIBUTION_WEIGHT }
}

#[derive(Debug)]
pub(super) struct GlobalOffload {
    pub(super) assignment: Assignment,
    pub(super) scale: f64,
    pub(super) threshold: u64,
}

impl GlobalOffload {
    pub(super) fn read(reader: &mut Reader<'_>) -> GlobalOffload {
        GlobalOffload {
            assignment: read_assignment(reader),
            scale: reader.positive("scale", 1.0),
            threshold: reader.mebibytes("threshold_mb", 0.1),
        }
    }
}

impl Strategy for GlobalOffload {
    fn name(&self) -> &'static str {
        NAME
    }

    fn select(&self, question: &Question) -> Result<Selection, StrategyError> {
        let at_scale = |scale| {
            let streamed = largest_first(question, self.threshold, scale);
            Selection::new(NAME, question, streamed, self.assignment, Window::SingleLayer)
        };
        Ok(Scaled::new(question, self.scale).search(at_scale))
    }
}

/// The largest tensors of every layer but the first, as far as the layer before hides them at this scale.
pub(super) fn largest_first(question: &Question, threshold: u64, scale: f64) -> Vec<Vec<usize>> {
    let mut before = 0.0;
    let layers = question.layers.iter().map(|layer| {
        let mut left = question.link.bytes_within(before * scale);
        before = scale::granted(layer.duration_ms);
        let bytes = |at: &usize| layer.tensors.get(*at).map_or(0, |tensor| tensor.bytes);
        let mut chosen = scale::eligible(layer, threshold);
        chosen.sort_by_key(|at| (std::cmp::Reverse(bytes(at)), *at));
        chosen.retain(|at| {
            let fits = bytes(at) <= left;
            left -= if fits { bytes(at) } else { 0 };
            fits
        });
        chosen.sort_unstable();
        chosen
    });
    layers.collect()
}
