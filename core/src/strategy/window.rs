//! When the copy of a layer starts: in the layer before it, or earlier where nothing else is copied. Where the
//! bytes go is in `blocks`, what it costs in `estimate`.
//!
//! Positions of layers are counted over the previous and this pass: layer `i` of `n` is at `n + i`.

use serde::{Deserialize, Serialize};

use super::{Blocks, Question, Selection};

/// The compute time behind which the copy of a layer may hide.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub enum Window {
    /// The layer before.
    #[default]
    SingleLayer,
    /// All layers back to the last one that streams: layers without weights in between count as well.
    GapAware,
    /// Layers taken in groups of so many: all of the group before.
    Group(usize),
}

impl Window {
    /// The names of windows that users can choose.
    pub(super) const CHOICES: [(&'static str, Window); 2] =
        [("SingleLayerWindow", Window::SingleLayer), ("GapAwareWindow", Window::GapAware)];

    /// A window of groups of so many layers.
    pub(super) fn of_groups(size: usize) -> Window {
        if size > 1 { Window::Group(size) } else { Window::SingleLayer }
    }

    /// The earliest position at which this window lets the copy for layer `layer` start; `previous` is the
    /// position of the layer that streamed last before it.
    fn floor(self, layers: usize, layer: usize, previous: Option<usize>) -> usize {
        let position = layers + layer;
        let floor = match self {
            Window::SingleLayer => position - 1,
            Window::GapAware => previous.unwrap_or(layers),
            Window::Group(size) => layers + (layer / size).saturating_sub(1) * size,
        };
        floor.min(position - 1)
    }

    /// Milliseconds of this pass behind which the copy for layer `layer` may hide, when layers stream these bytes and compute this long.
    /// The copy for the first layer belongs to the pass before: 0.
    #[must_use]
    pub fn ms(self, layer: usize, bytes: &[u64], durations_ms: &[f64]) -> f64 {
        let layers = bytes.len();
        let streamed_before = bytes.get(..layer).unwrap_or(bytes).iter().rposition(|bytes| *bytes > 0);
        let from = match layer {
            0 => return 0.0,
            _ => self.floor(layers, layer, streamed_before.map(|at| layers + at)) - layers,
        };
        durations_ms.get(from..layer).unwrap_or_default().iter().sum()
    }

    /// For every layer that streams: the position at whose beginning its copy starts. A block is written at
    /// least one layer after its last reader, and copies keep their order. Layer 0 is copied in the pass
    /// before.
    pub(super) fn starts(self, bytes: &[u64], blocks: &Blocks) -> Vec<Option<usize>> {
        let layers = bytes.len();
        let mut previous = last_streamed_before(bytes);
        let mut before = 0;
        let mut starts = vec![None; layers];
        for (layer, start) in starts.iter_mut().enumerate() {
            if bytes.get(layer).is_none_or(|bytes| *bytes == 0) {
                continue;
            }
            let position = layers + layer;
            let free = blocks.last_reader(layers, layer).map_or(0, |reader| reader + 1);
            let floor = self.floor(layers, layer, previous);
            let chosen = floor.max(free).max(before).min(position - 1);
            *start = Some(chosen);
            before = chosen;
            previous = Some(position);
        }
        starts
    }
}

/// The position of the last layer of the previous pass that streams, if copies go on across passes at all.
fn last_streamed_before(bytes: &[u64]) -> Option<usize> {
    let wraps = bytes.first().is_some_and(|bytes| *bytes > 0);
    bytes.iter().rposition(|bytes| *bytes > 0).filter(|_| wraps)
}

/// Starts every copy as early as its block allows within the pass, in the order of use.
pub(super) fn rearranged(bytes: &[u64], blocks: &Blocks) -> Vec<Option<usize>> {
    Window::Group(bytes.len().max(1)).starts(bytes, blocks)
}

/// A copy between two layers of a pass: where it starts, who reads it, and where it goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Transfer {
    /// The layer at whose beginning it starts.
    pub start: usize,
    /// The layer that reads it. Not after `start` where the copy is for the next pass.
    pub reader: usize,
    /// The block that receives it.
    pub block: usize,
}

/// Starts copies earlier where layers without a copy come before them. Every layer starts one copy at most, copies keep their order, and a block is
/// written no earlier than `gap` layers after the layer that read it last. Copies for the next pass stay where they are. The answers are in the
/// order of `transfers`.
#[must_use]
pub fn rearrange(transfers: &[Transfer], gap: usize) -> Vec<usize> {
    let mut starts: Vec<usize> = transfers.iter().map(|transfer| transfer.start).collect();
    let mut order: Vec<usize> = (0..transfers.len()).collect();
    order.sort_by_key(|&at| transfers.get(at).map(|transfer| transfer.reader));
    let taken: Vec<usize> = transfers.iter().filter(|it| it.start >= it.reader).map(|it| it.start).collect();
    let mut first_free = 0;
    for at in order {
        let Some(transfer) = transfers.get(at).filter(|transfer| transfer.start < transfer.reader) else {
            continue;
        };
        let same_block = transfers.iter().filter(|other| other.block == transfer.block);
        let read = same_block.map(|other| other.reader).filter(|reader| *reader < transfer.reader).max();
        let least = read.map_or(0, |reader| reader + gap).max(first_free);
        let chosen = (least..transfer.start).find(|start| !taken.contains(start)).unwrap_or(transfer.start);
        if let Some(slot) = starts.get_mut(at) {
            *slot = chosen;
        }
        first_free = first_free.max(chosen + 1);
    }
    starts
}

/// Whether a question has layers without any weight: then copies are rearranged.
pub(super) fn has_gaps(question: &Question) -> bool {
    question.layers.iter().any(|layer| layer.tensors.is_empty())
}

/// Whether layers that stream nothing lie between layers that do.
#[must_use]
pub fn has_transfer_gaps(selection: &Selection) -> bool {
    let streams = |tensors: &Vec<usize>| !tensors.is_empty();
    let first = selection.streamed.iter().position(streams);
    let last = selection.streamed.iter().rposition(streams);
    match (first, last) {
        (Some(first), Some(last)) => {
            selection.streamed.get(first..last).is_some_and(|between| !between.iter().all(streams))
        }
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::strategy::Assignment;

    /// Positions of starts, for layers of these bytes over so many blocks; as layers of this pass.
    fn starts(window: Window, bytes: &[u64], blocks: usize) -> Vec<Option<usize>> {
        let blocks = Assignment::StrictRoundRobin { blocks }.assign(bytes);
        let starts = window.starts(bytes, &blocks);
        starts.into_iter().map(|start| start.map(|at| at.saturating_sub(bytes.len()))).collect()
    }

    #[test]
    fn a_single_layer_window_is_the_layer_before() {
        assert_eq!(starts(Window::SingleLayer, &[0, 1, 0, 0, 1], 2), [None, Some(0), None, None, Some(3)]);
    }

    #[test]
    fn a_gap_aware_window_reaches_back_to_the_last_streamed_layer() {
        assert_eq!(starts(Window::GapAware, &[0, 1, 0, 0, 1], 2), [None, Some(0), None, None, Some(1)]);
        assert_eq!(starts(Window::GapAware, &[0, 0, 1, 1], 2), [None, None, Some(0), Some(2)]);
    }

    #[test]
    fn a_window_is_as_long_as_the_layers_that_it_spans() {
        let (bytes, durations) = ([0, 1, 0, 0, 1], [1.0, 2.0, 4.0, 8.0, 16.0]);
        let of = |window: Window| (0..5).map(|at| window.ms(at, &bytes, &durations)).collect::<Vec<_>>();
        assert_eq!(of(Window::SingleLayer), [0.0, 1.0, 2.0, 4.0, 8.0]);
        assert_eq!(of(Window::GapAware), [0.0, 1.0, 2.0, 6.0, 14.0]);
        assert_eq!(Window::GapAware.ms(9, &bytes, &durations), 0.0, "there is no such layer");
    }

    #[test]
    fn transfers_move_to_free_layers_but_never_into_a_block_that_is_still_read() {
        let of = |list: &[(usize, usize, usize)]| {
            list.iter().map(|&(start, reader, block)| Transfer { start, reader, block }).collect::<Vec<_>>()
        };
        let alternating = of(&[(0, 1, 0), (1, 2, 1), (2, 5, 0), (5, 6, 1), (6, 7, 0)]);
        assert_eq!(rearrange(&alternating, 1), [0, 1, 2, 3, 6]);
        assert_eq!(rearrange(&alternating, 2), [0, 1, 2, 4, 6]);
        assert_eq!(rearrange(&of(&[(0, 3, 0), (3, 6, 1), (6, 9, 2)]), 1), [0, 1, 2]);
        // The one for the next pass stays, and its layer is taken.
        assert_eq!(rearrange(&of(&[(1, 0, 0), (3, 4, 1)]), 1), [1, 0]);
        assert_eq!(rearrange(&of(&[(0, 0, 0), (3, 4, 1)]), 1), [0, 1]);
    }

    #[test]
    fn rearranged_copies_start_as_soon_as_their_block_was_read() {
        let bytes = [0, 1, 0, 1, 0, 0, 1];
        let blocks = Assignment::StrictRoundRobin { blocks: 2 }.assign(&bytes);
        let starts: Vec<_> = rearranged(&bytes, &blocks).into_iter().flatten().map(|at| at - 7).collect();
        // The third one goes to the block that layer 1 read.
        assert_eq!(starts, [0, 0, 2]);
    }
}
