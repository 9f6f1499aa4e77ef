//! Strategies by name. Parameters and their defaults are said where each strategy reads them.

use super::adaptive::{self, Adaptive};
use super::budget_fill::{self, BudgetFill};
use super::global_offload::{self, GlobalOffload};
use super::greedy::{self, Greedy};
use super::knapsack::{self, AdaptiveKnapsack, Knapsack};
use super::nth_layer::{self, NthLayer};
use super::parameters::{Parameters, Reader};
use super::tensor_selection::{self, TensorSelection};
use super::{Strategy, StrategyError};

/// Makes a strategy from its parameters.
type Make = fn(&mut Reader<'_>) -> Box<dyn Strategy>;

/// All strategies, in the order in which they are listed.
const ALL: &[(&str, Make)] = &[
    (knapsack::KNAPSACK, |reader| Box::new(Knapsack::read(reader))),
    (knapsack::KNAPSACK_BLOCK, |reader| Box::new(Knapsack::read_block(reader))),
    (knapsack::ADAPTIVE_KNAPSACK, |reader| Box::new(AdaptiveKnapsack::read(reader))),
    (greedy::NAME, |reader| Box::new(Greedy::read(reader))),
    (nth_layer::NAME, |reader| Box::new(NthLayer::read(reader))),
    (global_offload::NAME, |reader| Box::new(GlobalOffload::read(reader))),
    (tensor_selection::NAME, |reader| Box::new(TensorSelection::read(reader))),
    (adaptive::NAME, |reader| Box::new(Adaptive::read(reader))),
    (budget_fill::FACADE, |reader| Box::new(BudgetFill::read(reader))),
    (budget_fill::GREEDY, |reader| Box::new(BudgetFill::read_greedy(reader))),
    (budget_fill::LAYER_DE, |reader| Box::new(BudgetFill::read_layers(reader))),
    (budget_fill::TENSOR_DE, |reader| Box::new(BudgetFill::read_tensors(reader))),
];

/// The names of all strategies.
#[must_use]
pub fn names() -> Vec<&'static str> {
    ALL.iter().map(|(name, _)| *name).collect()
}

/// Makes the strategy of this name. Parameters that are not given, or given as [`super::Value::None`], have
/// their defaults.
///
/// # Errors
/// [`StrategyError::UnknownStrategy`], [`StrategyError::UnknownParameter`] and
/// [`StrategyError::BadParameter`], each naming what was given and what is allowed.
pub fn by_name(name: &str, parameters: &Parameters) -> Result<Box<dyn Strategy>, StrategyError> {
    let Some((name, make)) = ALL.iter().find(|(known, _)| *known == name) else {
        return Err(StrategyError::UnknownStrategy { given: name.to_owned() });
    };
    let mut reader = Reader::new(name, parameters);
    let strategy = make(&mut reader);
    reader.finish()?;
    Ok(strategy)
}
