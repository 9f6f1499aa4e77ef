//! A choice that was made elsewhere, by a strategy of the program's own: these units are streamed, and no others.

use std::collections::BTreeSet;

use super::{Assignment, Planned, Question, Selection, Strategy, StrategyError, Window, on_ring};
use crate::plan::PlanRequest;
use crate::units::UnitId;

const NAME: &str = "a strategy of the program";
/// Blocks of which only the estimate speaks: on the ring there are none.
const BLOCKS: usize = 2;

/// Streams exactly these units, as far as they may be streamed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Chosen {
    units: BTreeSet<UnitId>,
}

impl Chosen {
    /// A choice of units. Such that do not exist in a request, must stay there or are used by several layers are passed over.
    #[must_use]
    pub fn new(units: BTreeSet<UnitId>) -> Self {
        Chosen { units }
    }
}

impl Strategy for Chosen {
    fn name(&self) -> &'static str {
        NAME
    }

    fn select(&self, question: &Question) -> Result<Selection, StrategyError> {
        let streamed = question.layers.iter().map(|layer| {
            let tensors = layer.tensors.iter().enumerate();
            tensors.filter(|(_, tensor)| self.units.contains(&tensor.unit)).map(|(at, _)| at).collect()
        });
        let assignment = Assignment::StrictRoundRobin { blocks: BLOCKS };
        Ok(Selection::new(NAME, question, streamed.collect(), assignment, Window::SingleLayer))
    }

    /// As every strategy's; a budget that the choice does not meet is no choice: somebody else has to meet it.
    fn plan(&self, request: &PlanRequest) -> Result<Planned, StrategyError> {
        let planned = on_ring::plan(NAME, request, |question| self.select(question))?;
        if planned.plan.budget_missed().is_some() {
            let reason = "what it chose does not meet the budget";
            return Err(StrategyError::NotApplicable { strategy: NAME, reason });
        }
        Ok(planned)
    }
}
