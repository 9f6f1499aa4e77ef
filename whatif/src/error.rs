//! What can be wrong with a question. Whether it is the caller's command line or a file is told by
//! [`WhatIfError::is_file`].

use flextensor_core::CoreError;

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
    /// The results of a benchmark cannot be read.
    #[error("line {line} is no result of the benchmark: {why}")]
    BadResult {
        /// Its number, from 1.
        line: usize,
        /// What is wrong.
        why: String,
    },
    /// There is nothing to draw.
    #[error("nothing to draw: {why}")]
    Nothing {
        /// What was looked for.
        why: String,
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
    /// Whether a file is at fault, and not the command line.
    #[must_use]
    pub fn is_file(&self) -> bool {
        matches!(self, WhatIfError::BadResult { .. } | WhatIfError::Core(_))
    }
}
