//! Strategies by name. Parameters and their defaults are said where each strategy reads them.

use super::greedy::{self, Greedy};
use super::nth_layer::{self, NthLayer};
use super::parameters::{Parameters, Reader};
use super::{Strategy, StrategyError};

/// Makes a strategy from its parameters.
type Make = fn(&mut Reader<'_>) -> Box<dyn Strategy>;

/// All strategies, in the order in which they are listed.
const ALL: &[(&str, Make)] = &[
    (greedy::NAME, |reader| Box::new(Greedy::read(reader))),
    (nth_layer::NAME, |reader| Box::new(NthLayer::read(reader))),
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
