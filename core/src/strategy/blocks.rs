//! Which block of GPU memory receives which layer: a block is as large as its largest layer, and layers that
//! stream one after the other never share one, because the second is copied while the first is read.

use serde::{Deserialize, Serialize};

/// Labels up to which all assignments are looked at.
const MOST_EXHAUSTIVE_LABELS: usize = 12;
/// Blocks up to which all assignments are looked at.
const MOST_EXHAUSTIVE_BLOCKS: usize = 4;
/// Scores this close count as equal; then fewer blocks win.
const SAME_SCORE: f64 = 1e-9;

/// The blocks of a selection.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Blocks {
    /// For each layer: its block, if it streams.
    pub of_layer: Vec<Option<usize>>,
    /// Bytes of each block.
    pub bytes: Vec<u64>,
}

impl Blocks {
    /// Bytes of all blocks.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        self.bytes.iter().sum()
    }

    /// The last position, counted over the previous and this pass, that reads the block of a layer before the
    /// layer itself does.
    pub(super) fn last_reader(&self, layers: usize, layer: usize) -> Option<usize> {
        let block = self.of_layer.get(layer).copied().flatten()?;
        let reads = |of: &Option<usize>| *of == Some(block);
        let (before, after) = self.of_layer.split_at(layer);
        let this_pass = before.iter().rposition(reads).map(|at| layers + at);
        // Round the end of the pass; the layer itself read it then as well.
        this_pass.or_else(|| after.iter().rposition(reads).map(|at| layer + at))
    }

    /// The blocks of layers of these sizes, when the ones that stream take these blocks in turn.
    fn of(bytes: &[u64], taken: &[usize]) -> Blocks {
        let mut blocks = Blocks { of_layer: vec![None; bytes.len()], bytes: Vec::new() };
        let mut taken = taken.iter();
        for (&bytes, slot) in bytes.iter().zip(&mut blocks.of_layer) {
            if bytes == 0 {
                continue;
            }
            let Some(&block) = taken.next() else { break };
            *slot = Some(block);
            if blocks.bytes.len() <= block {
                blocks.bytes.resize(block + 1, 0);
            }
            if let Some(size) = blocks.bytes.get_mut(block) {
                *size = (*size).max(bytes);
            }
        }
        blocks
    }
}

/// A way to give blocks to layers.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub enum Assignment {
    /// One block after the other.
    StrictRoundRobin {
        /// Number of blocks, at least 2.
        blocks: usize,
    },
    /// Every number of blocks in a range is tried; few bytes and long times before a block is used again win.
    OptimizedRoundRobin {
        /// Fewest blocks, at least 2.
        least: usize,
        /// Most blocks.
        most: usize,
        /// What the times count, 0 to 1; the bytes count the rest.
        distribution_weight: f64,
    },
    /// Each layer takes the block that has the fewest layers so far.
    FewestLabels {
        /// Number of blocks, at least 2.
        blocks: usize,
    },
}

impl Assignment {
    /// Gives a block to every layer that streams anything.
    #[must_use]
    pub fn assign(&self, bytes: &[u64]) -> Blocks {
        let sizes: Vec<u64> = bytes.iter().copied().filter(|bytes| *bytes > 0).collect();
        let mut taken = match *self {
            Assignment::StrictRoundRobin { blocks } => {
                (0..sizes.len()).map(|at| at % blocks.max(1)).collect()
            }
            Assignment::FewestLabels { blocks } => fewest_labels(sizes.len(), blocks.max(1)),
            Assignment::OptimizedRoundRobin { least, most, distribution_weight } => {
                Best::new(&sizes, distribution_weight).search(least, most)
            }
        };
        // If the first layer is copied during the last one of the pass before, these two are neighbours as well.
        if bytes.first().is_some_and(|bytes| *bytes > 0) {
            close_round(&mut taken);
        }
        Blocks::of(bytes, &taken)
    }
}

/// Gives the last label another block if it has the first one's; where there are only two blocks it cannot.
fn close_round(taken: &mut [usize]) {
    let (Some(first), &[.., before, last]) = (taken.first().copied(), &*taken) else { return };
    let other = taken.iter().copied().find(|block| *block != first && *block != before);
    if let (true, Some(other), Some(slot)) = (first == last, other, taken.last_mut()) {
        *slot = other;
    }
}

/// Each label takes the block with the fewest labels that is not the block of the label before.
fn fewest_labels(labels: usize, blocks: usize) -> Vec<usize> {
    let mut counts = vec![0usize; blocks];
    let mut taken: Vec<usize> = Vec::with_capacity(labels);
    for _ in 0..labels {
        let previous = taken.last().copied();
        let free = counts.iter_mut().enumerate().filter(|(block, _)| Some(*block) != previous || blocks == 1);
        if let Some((block, count)) = free.min_by_key(|(block, count)| (**count, *block)) {
            *count += 1;
            taken.push(block);
        }
    }
    taken
}

/// The best assignment found so far.
#[derive(Debug)]
struct Best<'a> {
    sizes: &'a [u64],
    total: f64,
    distribution_weight: f64,
    taken: Vec<usize>,
    blocks: usize,
    score: f64,
}

impl<'a> Best<'a> {
    fn new(sizes: &'a [u64], distribution_weight: f64) -> Self {
        let total = sizes.iter().sum::<u64>().max(1) as f64;
        Best { sizes, total, distribution_weight, taken: Vec::new(), blocks: 0, score: f64::NEG_INFINITY }
    }

    /// Looks at every number of blocks from `least` to `most`; fewer layers than blocks take one each.
    fn search(mut self, least: usize, most: usize) -> Vec<usize> {
        let labels = self.sizes.len();
        for blocks in least.max(2).min(labels)..=most.max(least).max(2).min(labels) {
            if labels <= MOST_EXHAUSTIVE_LABELS && blocks <= MOST_EXHAUSTIVE_BLOCKS {
                self.every(&mut Vec::with_capacity(labels), 0, blocks);
            } else {
                let in_turn = (0..labels).map(|at| at % blocks.max(1)).collect();
                self.offer(in_turn, blocks);
                let by_size = self.by_size(blocks);
                self.offer(by_size, blocks);
            }
        }
        self.taken
    }

    /// Every assignment to exactly so many blocks; blocks are numbered as they come up.
    fn every(&mut self, taken: &mut Vec<usize>, used: usize, blocks: usize) {
        let left = self.sizes.len() - taken.len();
        if left == 0 {
            self.offer(taken.clone(), blocks);
            return;
        }
        // Each block that has not come up needs a label of its own.
        let first = if left == blocks - used { used } else { 0 };
        for block in first..blocks.min(used + 1) {
            if taken.last() != Some(&block) {
                taken.push(block);
                self.every(taken, used.max(block + 1), blocks);
                taken.pop();
            }
        }
    }

    /// Each label takes the block that grows least, of those that grow alike the one that rested longest.
    fn by_size(&self, blocks: usize) -> Vec<usize> {
        let mut state = vec![(0u64, None::<usize>); blocks];
        let mut taken: Vec<usize> = Vec::with_capacity(self.sizes.len());
        for (label, &size) in self.sizes.iter().enumerate() {
            let previous = taken.last().copied();
            let free = state.iter_mut().enumerate().filter(|(block, _)| Some(*block) != previous);
            let chosen =
                free.min_by_key(|(block, (bytes, last))| (size.saturating_sub(*bytes), *last, *block));
            if let Some((block, (bytes, last))) = chosen {
                *bytes = size.max(*bytes);
                *last = Some(label);
                taken.push(block);
            }
        }
        taken
    }

    fn offer(&mut self, taken: Vec<usize>, blocks: usize) {
        if taken.len() != self.sizes.len() {
            return;
        }
        let mut state = vec![(0u64, None::<usize>); blocks.max(1)];
        let mut distances = 0;
        for (label, (&block, &size)) in taken.iter().zip(self.sizes).enumerate() {
            let Some((bytes, last)) = state.get_mut(block) else { return };
            if let Some(last) = last.replace(label) {
                distances += label - last;
            }
            *bytes = size.max(*bytes);
        }
        let block_bytes: u64 = state.iter().map(|(bytes, _)| bytes).sum();
        // The mean over all labels, as a part of them all; a label that takes a fresh block counts nothing.
        let labels = taken.len().max(1) as f64;
        let distance = distances as f64 / (labels * labels);
        let score = (1.0 - self.distribution_weight) * (1.0 - block_bytes as f64 / self.total)
            + self.distribution_weight * distance;
        if score > self.score + SAME_SCORE {
            (self.taken, self.blocks, self.score) = (taken, blocks, score);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn taken(assignment: Assignment, bytes: &[u64]) -> Vec<usize> {
        assignment.assign(bytes).of_layer.into_iter().flatten().collect()
    }

    fn optimized(least: usize, most: usize) -> Assignment {
        Assignment::OptimizedRoundRobin { least, most, distribution_weight: 0.5 }
    }

    #[test]
    fn strict_round_robin_gives_eight_labels_to_four_blocks_in_turn() {
        let strict = Assignment::StrictRoundRobin { blocks: 4 };
        assert_eq!(taken(strict, &[5; 8]), [0, 1, 2, 3, 0, 1, 2, 3]);
    }

    #[test]
    fn optimized_round_robin_alternates_over_equal_sizes() {
        for labels in [8, 12, 13, 80] {
            let expected: Vec<usize> = (0..labels).map(|at| at % 2).collect();
            assert_eq!(taken(optimized(2, 4), &vec![10; labels]), expected, "{labels} labels");
        }
    }

    #[test]
    fn optimized_round_robin_lets_a_small_label_use_a_large_block_again() {
        assert_eq!(taken(optimized(2, 4), &[10, 10, 1]), [0, 1, 0]);
    }

    #[test]
    fn layers_that_stream_nothing_take_no_block() {
        let blocks = Assignment::StrictRoundRobin { blocks: 2 }.assign(&[0, 7, 0, 3, 9]);
        assert_eq!(blocks.of_layer, [None, Some(0), None, Some(1), Some(0)]);
        assert_eq!(blocks.bytes, [9, 3]);
        assert_eq!(blocks.total_bytes(), 12);
        assert_eq!(optimized(2, 4).assign(&[0, 0]).bytes, [0u64; 0]);
    }

    #[test]
    fn the_last_layer_leaves_the_first_one_s_block_where_copies_go_on_across_passes() {
        let four = Assignment::FewestLabels { blocks: 4 };
        assert_eq!(taken(four, &[5; 9]), [0, 1, 2, 3, 0, 1, 2, 3, 1]);
        assert_eq!(taken(four, &[0, 5, 5, 5, 5, 5]), [0, 1, 2, 3, 0], "the first layer stays");
    }

    #[test]
    fn neighbours_never_share_a_block_where_there_are_two() {
        let sizes = [9, 1, 8, 2, 7, 3, 6, 4, 5, 9, 1, 8, 2, 7, 3];
        for count in [2, 3, 4, 6] {
            for assignment in [
                Assignment::FewestLabels { blocks: count },
                Assignment::StrictRoundRobin { blocks: count },
                optimized(2, count),
                optimized(count, count),
            ] {
                for labels in [2, 5, 11, 15] {
                    let taken = taken(assignment, &sizes[..labels]);
                    assert_eq!(taken.len(), labels);
                    assert!(taken.windows(2).all(|pair| pair[0] != pair[1]), "{assignment:?}: {taken:?}");
                }
            }
        }
    }
}
