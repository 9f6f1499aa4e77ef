//! What can be wrong with a question. Whether it is the caller's command line or a file is told by
//! [`WhatIfError::is_usage`].

use flextensor_core::CoreError;
use flextensor_core::saved::SavedError;
use flextensor_core::strategy::StrategyError;

/// An error of this crate.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum WhatIfError {
    /// The budget is no amount.
    #[error("gpu memory `{given}` is no size: allowed are {allowed}")]
    BadBudget {
        /// The text as given.
        given: String,
        /// What would be understood.
        allowed: &'static str,
    },
    /// The link is no speed.
    #[error(
        "link `{given}` is no speed: allowed are bytes a second above 0 with a unit, as 25GB/s, 55.4 GB/s or 900MiB/s"
    )]
    BadLink {
        /// The text as given.
        given: String,
    },
    /// The profile has no model on this GPU.
    #[error("gpu {given} has no model in this profile: allowed are {known}")]
    NoDevice {
        /// The number as given.
        given: i32,
        /// The numbers that there are.
        known: String,
    },
    /// The profile has fewer shapes.
    #[error("input shape {given} is not in this profile: allowed are 1 to {most}")]
    NoShape {
        /// The number as given.
        given: usize,
        /// The last one.
        most: usize,
    },
    /// A strategy, or one of its parameters, does not exist.
    #[error(transparent)]
    Strategy(#[from] StrategyError),
    /// A parameter of a strategy has no value.
    #[error("parameter `{given}` has no value: allowed is NAME:parameter=value,parameter=value")]
    BadParameter {
        /// The text as given.
        given: String,
    },
    /// A strategy has no answer to such a question.
    #[error("{why}")]
    Declined {
        /// Why, as the strategy says it.
        why: String,
    },
    /// The profile has nothing to plan.
    #[error("profile `{file}` has no weight that a pass uses: there is nothing to plan")]
    Empty {
        /// The file.
        file: String,
    },
    /// The profile cannot be used.
    #[error(transparent)]
    Profile(#[from] SavedError),
    /// The results of a benchmark cannot be read.
    #[error("line {line} of `{file}` is no result of the benchmark: {why}")]
    BadResult {
        /// The file.
        file: String,
        /// Its number, from 1.
        line: usize,
        /// What is wrong.
        why: String,
    },
    /// The results have no run that could be drawn.
    #[error("nothing to draw: no run has a time and GPU bytes")]
    Nothing,
    /// The results have no such case.
    #[error("nothing to draw: no run of case `{given}` has a time; cases here: {known}")]
    NoCase {
        /// The name as given.
        given: String,
        /// The names that there are.
        known: String,
    },
    /// A picture could not be drawn.
    #[error("the picture cannot be drawn: {why}")]
    Drawing {
        /// The drawing library's words.
        why: String,
    },
    /// The profile contradicts itself.
    #[error(transparent)]
    Core(#[from] CoreError),
}

impl WhatIfError {
    /// Whether what was asked is at fault, and not a file.
    #[must_use]
    pub fn is_usage(&self) -> bool {
        use WhatIfError::{BadBudget, BadLink, BadParameter, NoCase, NoDevice, NoShape, Strategy};
        matches!(
            self,
            BadBudget { .. }
                | BadLink { .. }
                | BadParameter { .. }
                | NoCase { .. }
                | NoDevice { .. }
                | NoShape { .. }
                | Strategy(_)
        )
    }
}
