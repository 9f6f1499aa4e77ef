//! Strategies by name. Parameters and their defaults are said where each strategy reads them.

use super::adaptive::{self, Adaptive};
use super::budget_fill::{self, BudgetFill};
use super::global_offload::{self, GlobalOffload};
use super::greedy::{self, Greedy};
use super::knapsack::{self, AdaptiveKnapsack, Knapsack};
use super::nth_layer::{self, NthLayer};
use super::parameters::{Parameters, Reader, Value};
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

/// Makes the strategy of this name. Parameters that are not given, or given as [`Value::None`], have their
/// defaults.
///
/// # Errors
/// [`StrategyError::UnknownStrategy`], [`StrategyError::UnknownParameter`] and
/// [`StrategyError::BadParameter`], each naming what was given and what is allowed.
pub fn by_name(name: &str, parameters: &Parameters) -> Result<Box<dyn Strategy>, StrategyError> {
    let (strategy, reader) = read(name, parameters)?;
    reader.finish()?;
    Ok(strategy)
}

/// Makes the strategy of this name from options of a whole run, which may concern other strategies: those that
/// are no parameter of this one are left out.
///
/// # Errors
/// As [`by_name`], except for unknown parameters.
pub fn from_options(name: &str, options: &[(&str, f64)]) -> Result<Box<dyn Strategy>, StrategyError> {
    let value = |number: f64| match number as i64 {
        whole if whole as f64 == number => Value::Whole(whole),
        _ => Value::Number(number),
    };
    let given: Parameters =
        options.iter().map(|(name, number)| ((*name).to_owned(), value(*number))).collect();
    let (strategy, reader) = read(name, &given)?;
    reader.finish_known()?;
    Ok(strategy)
}

fn read<'a>(
    name: &str,
    parameters: &'a Parameters,
) -> Result<(Box<dyn Strategy>, Reader<'a>), StrategyError> {
    let Some((name, make)) = ALL.iter().find(|(known, _)| *known == name) else {
        return Err(StrategyError::UnknownStrategy { given: name.to_owned() });
    };
    let mut reader = Reader::new(name, parameters);
    let strategy = make(&mut reader);
    Ok((strategy, reader))
}
