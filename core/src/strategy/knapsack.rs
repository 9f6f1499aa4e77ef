//! The knapsack family: during each layer, as many bytes of the next one are copied as its compute time hides.
//!
//! | strategy | differs by |
//! | --- | --- |
//! | KnapsackStrategy | the last layer may copy for the first one |
//! | KnapsackBlockStrategy | the first layer stays |
//! | AdaptiveKnapsackStrategy | tries several scales and numbers of blocks, and keeps the best |
//!
//! With `group_size` above 1 so many layers are filled together, from the time of as many layers before them.

use super::parameters::Reader;
use super::scale::{self, Scaled};
use super::{Assignment, Candidate, Question, Selection, Strategy, StrategyError, Window, subset_sum};

pub(super) const KNAPSACK: &str = "KnapsackStrategy";
pub(super) const KNAPSACK_BLOCK: &str = "KnapsackBlockStrategy";
pub(super) const ADAPTIVE_KNAPSACK: &str = "AdaptiveKnapsackStrategy";
/// Ways in which weights are carried, as the Python interface names them; whether each has blocks.
pub(super) const LOADERS: [(&str, bool); 3] =
    [("strategy", false), ("raw_block_transfer", true), ("allocation_block_transfer", true)];
/// Scales that the adaptive strategy tries, as multiples of the one asked for.
const SCALES: [f64; 6] = [1.0, 1.25, 0.9, 0.75, 0.5, 0.25];
/// Numbers of blocks that the adaptive strategy tries.
const BLOCKS: [usize; 3] = [2, 3, 4];

/// What all of the family share.
#[derive(Debug, Clone)]
struct Filling {
    threshold: u64,
    group: usize,
    cyclic: bool,
}

impl Filling {
    fn read(reader: &mut Reader<'_>, cyclic: bool) -> Filling {
        Filling {
            threshold: reader.mebibytes("threshold_mb", 0.1),
            group: reader.whole("group_size", 1, 1) as usize,
            cyclic,
        }
    }

    /// Fills every group of layers from the time of the group before, at this scale.
    fn chosen(&self, question: &Question, scale: f64) -> Vec<Vec<usize>> {
        let mut streamed = vec![Vec::new(); question.layers.len()];
        let time = |group: &[super::Layer]| group.iter().map(|layer| scale::granted(layer.duration_ms)).sum();
        let groups: Vec<_> = question.layers.chunks(self.group).collect();
        let mut before: f64 = groups.last().filter(|_| self.cyclic).map_or(0.0, |last| time(last));
        for (number, group) in groups.into_iter().enumerate() {
            let mut items = Vec::new();
            for (at, layer) in group.iter().enumerate() {
                let at = number * self.group + at;
                if at > 0 || self.cyclic {
                    items.extend(
                        scale::eligible(layer, self.threshold).into_iter().map(|tensor| (at, tensor)),
                    );
                }
            }
            let bytes_of = |(at, tensor): &(usize, usize)| {
                question
                    .layers
                    .get(*at)
                    .and_then(|layer| layer.tensors.get(*tensor))
                    .map_or(0, |tensor| tensor.bytes)
            };
            let sizes: Vec<u64> = items.iter().map(bytes_of).collect();
            let taken = subset_sum::fill(&sizes, question.link.bytes_within(before * scale));
            for (at, tensor) in taken.into_iter().filter_map(|item| items.get(item)) {
                if let Some(layer) = streamed.get_mut(*at) {
                    layer.push(*tensor);
                }
            }
            before = time(group);
        }
        streamed
    }

    fn select(&self, name: &str, question: &Question, scale: f64, blocks: usize) -> Selection {
        let at_scale = |filling: &Filling, scale| {
            let streamed = filling.chosen(question, scale);
            let assignment = Assignment::FewestLabels { blocks };
            Selection::new(name, question, streamed, assignment, Window::of_groups(filling.group))
        };
        let search =
            |filling: &Filling| Scaled::new(question, scale).search(|scale| at_scale(filling, scale));
        let found = search(self);
        if found.estimate.valid || !self.cyclic {
            return found;
        }
        // With few blocks the first and the last layer may have to share one; then the first has to stay.
        let straight = search(&Filling { cyclic: false, ..self.clone() });
        if straight.estimate.rank(&found.estimate).is_lt() { straight } else { found }
    }
}

/// KnapsackStrategy and KnapsackBlockStrategy.
#[derive(Debug)]
pub(super) struct Knapsack {
    name: &'static str,
    filling: Filling,
    scale: f64,
    blocks: usize,
}

impl Knapsack {
    pub(super) fn read(reader: &mut Reader<'_>) -> Knapsack {
        let cyclic = reader.flag("cyclic", true);
        Knapsack::with(KNAPSACK, reader, cyclic)
    }

    pub(super) fn read_block(reader: &mut Reader<'_>) -> Knapsack {
        Knapsack::with(KNAPSACK_BLOCK, reader, false)
    }

    /// KnapsackStrategy as a candidate among others.
    pub(super) fn candidate(
        threshold: u64,
        group: usize,
        cyclic: bool,
        scale: f64,
        blocks: usize,
    ) -> Knapsack {
        Knapsack { name: KNAPSACK, filling: Filling { threshold, group, cyclic }, scale, blocks }
    }

    /// KnapsackBlockStrategy as a candidate among others.
    pub(super) fn block_candidate(threshold: u64, group: usize, scale: f64, blocks: usize) -> Knapsack {
        Knapsack { name: KNAPSACK_BLOCK, ..Knapsack::candidate(threshold, group, false, scale, blocks) }
    }

    fn with(name: &'static str, reader: &mut Reader<'_>, cyclic: bool) -> Knapsack {
        Knapsack {
            name,
            filling: Filling::read(reader, cyclic),
            scale: reader.positive("scale", 1.0),
            blocks: reader.whole("n_blocks", 4, 2) as usize,
        }
    }
}

impl Strategy for Knapsack {
    fn name(&self) -> &'static str {
        self.name
    }

    fn select(&self, question: &Question) -> Result<Selection, StrategyError> {
        Ok(self.filling.select(self.name, question, self.scale, self.blocks))
    }
}

/// AdaptiveKnapsackStrategy.
#[derive(Debug)]
pub(super) struct AdaptiveKnapsack {
    filling: Filling,
    scale: f64,
}

impl AdaptiveKnapsack {
    pub(super) fn read(reader: &mut Reader<'_>) -> AdaptiveKnapsack {
        let has_blocks = reader.choice("loader_type", false, &LOADERS);
        // Blocks are filled within a pass.
        let cyclic = reader.flag("cyclic", true) && !has_blocks;
        AdaptiveKnapsack { filling: Filling::read(reader, cyclic), scale: reader.positive("scale", 1.0) }
    }
}

impl Strategy for AdaptiveKnapsack {
    fn name(&self) -> &'static str {
        ADAPTIVE_KNAPSACK
    }

    fn select(&self, question: &Question) -> Result<Selection, StrategyError> {
        let mut found = Vec::new();
        for scale in SCALES {
            for blocks in BLOCKS {
                found.push(self.filling.select(ADAPTIVE_KNAPSACK, question, self.scale * scale, blocks));
            }
        }
        best(ADAPTIVE_KNAPSACK, found)
    }
}

/// The best of several selections, with what the others cost; of equal ones the first.
pub(super) fn best(name: &'static str, found: Vec<Selection>) -> Result<Selection, StrategyError> {
    let candidates = found
        .iter()
        .map(|selection| Candidate { solver: selection.solver.clone(), estimate: selection.estimate });
    let candidates: Vec<Candidate> = candidates.collect();
    let best = found.into_iter().min_by(|a, b| a.estimate.rank(&b.estimate));
    let nothing = StrategyError::NotApplicable { strategy: name, reason: "no candidate has an answer" };
    best.map(|best| Selection { candidates, ..best }).ok_or(nothing)
}
