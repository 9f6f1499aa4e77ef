//! GreedyStrategy: lets compute time add up until it hides the copy of a whole layer, streams that layer, and
//! starts again.

use super::parameters::Reader;
use super::scale::{self, Scaled};
use super::{Assignment, Question, Selection, Strategy, StrategyError, Window};

pub(super) const NAME: &str = "GreedyStrategy";

#[derive(Debug)]
pub(super) struct Greedy {
    threshold: u64,
    blocks: usize,
    scale: f64,
}

impl Greedy {
    pub(super) fn read(reader: &mut Reader<'_>) -> Greedy {
        Greedy {
            threshold: reader.mebibytes("threshold_mb", 0.1),
            blocks: reader.whole("n_blocks", 4, 2) as usize,
            scale: reader.positive("scale", 1.0),
        }
    }
}

impl Strategy for Greedy {
    fn name(&self) -> &'static str {
        NAME
    }

    fn select(&self, question: &Question) -> Result<Selection, StrategyError> {
        let at_scale = |scale: f64| {
            let mut saved_ms = 0.0;
            let layers = question.layers.iter().enumerate().map(|(at, layer)| {
                let chosen = scale::eligible(layer, self.threshold);
                let bytes = scale::bytes_of(layer, &chosen);
                let streams = at > 0 && bytes > 0 && question.link.ms(bytes) <= saved_ms * scale;
                saved_ms = if streams { 0.0 } else { saved_ms } + scale::granted(layer.duration_ms);
                if streams { chosen } else { Vec::new() }
            });
            let streamed = layers.collect();
            let assignment = Assignment::FewestLabels { blocks: self.blocks };
            Selection::new(NAME, question, streamed, assignment, Window::GapAware)
        };
        Ok(Scaled::new(question, self.scale).search(at_scale))
    }
}
