//! NthLayerStrategy: streams every nth layer whole, whatever it costs. The first layer stays.

use super::parameters::Reader;
use super::{Assignment, Question, Selection, Strategy, StrategyError, Window, scale};

pub(super) const NAME: &str = "NthLayerStrategy";
/// Every other layer, when only the name is given.
const NTH: u32 = 2;

#[derive(Debug)]
pub(super) struct NthLayer {
    nth: usize,
    threshold: u64,
    blocks: usize,
}

impl NthLayer {
    pub(super) fn read(reader: &mut Reader<'_>) -> NthLayer {
        NthLayer {
            nth: reader.whole("nth_layer", NTH, 1) as usize,
            threshold: reader.mebibytes("threshold_mb", 0.1),
            blocks: reader.whole("n_blocks", 4, 2) as usize,
        }
    }
}

impl Strategy for NthLayer {
    fn name(&self) -> &'static str {
        NAME
    }

    fn select(&self, question: &Question) -> Result<Selection, StrategyError> {
        let layers = question.layers.iter().enumerate();
        let streamed = layers.map(|(at, layer)| {
            if at > 0 && at % self.nth == 0 { scale::eligible(layer, self.threshold) } else { Vec::new() }
        });
        let assignment = Assignment::FewestLabels { blocks: self.blocks };
        Ok(Selection::new(NAME, question, streamed.collect(), assignment, Window::SingleLayer))
    }
}
