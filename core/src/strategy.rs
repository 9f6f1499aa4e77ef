//! Strategies by name: other ways than [`crate::plan::plan`] to choose what is streamed, for users who ask for
//! one and for comparison.
//!
//! A strategy sees a [`Question`]: layers in order, each with tensors and a duration, the link and a budget. It
//! answers with a [`Selection`]: which tensors are copied during which earlier layer, and which block of GPU
//! memory receives them. All are judged by one [`Estimate`]. What such a selection is worth on the ring is
//! found by [`Strategy::plan`]: the same layout and the same simulation as for our own plan.
//!
//! | module | job |
//! | --- | --- |
//! | `registry` | names and parameters; makes strategies |
//! | `parameters` | values of parameters, and what is wrong with them |
//! | `question`, `transfer` | what strategies are asked; how long copies take |
//! | `window`, `blocks`, `estimate` | when copies start, where they go, what that costs |
//! | `allocation` | layers into blocks of limited capacity, for those who plan blocks by hand |
//! | `chosen` | what a strategy of the program's own chose |
//! | `on_ring` | from a selection to a [`Plan`](crate::plan::Plan) |
//! | all others | one strategy, or one way of searching, each |

mod adaptive;
mod allocation;
mod blocks;
mod budget_fill;
mod chosen;
mod estimate;
mod evolve;
mod global_offload;
mod greedy;
mod knapsack;
mod nth_layer;
mod on_ring;
mod parameters;
mod question;
mod registry;
mod scale;
mod subset_sum;
mod tensor_selection;
mod transfer;
mod window;

use std::fmt;

use crate::error::CoreError;
use crate::plan::PlanRequest;

pub use allocation::allocate;
pub use blocks::{Assignment, Blocks};
pub use chosen::Chosen;
pub use estimate::{Candidate, Estimate, Selection};
pub use on_ring::Planned;
pub use parameters::{Parameters, Value};
pub use question::{Layer, Question, Tensor};
pub use registry::{by_name, from_options, names};
pub use transfer::TransferCurve;
pub use window::{Transfer, Window, has_transfer_gaps, rearrange};

/// A way to choose what is streamed. Deterministic: the same question gets the same answer.
pub trait Strategy: fmt::Debug + Send + Sync {
    /// Its name in options and files.
    fn name(&self) -> &'static str;

    /// Chooses the tensors that are streamed. A budget that cannot be met gets the best that there is, with
    /// [`Estimate::valid`] unset.
    ///
    /// # Errors
    /// [`StrategyError::NotApplicable`] when the strategy has no answer to such a question.
    fn select(&self, question: &Question) -> Result<Selection, StrategyError>;

    /// Chooses, and lays what was chosen around a ring.
    ///
    /// # Errors
    /// As [`Strategy::select`]; [`StrategyError::Core`] when the request contradicts itself.
    fn plan(&self, request: &PlanRequest) -> Result<Planned, StrategyError> {
        on_ring::plan(self.name(), request, |question| self.select(question))
    }
}

/// What can be wrong with a strategy or a question to it.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum StrategyError {
    /// There is no strategy of this name.
    #[error("strategy `{given}` does not exist: allowed are {}", names().join(", "))]
    UnknownStrategy {
        /// The name as given.
        given: String,
    },
    /// The strategy has no parameter of this name.
    #[error("{strategy} has no parameter `{given}`: allowed are {allowed}")]
    UnknownParameter {
        /// The strategy.
        strategy: &'static str,
        /// The name as given.
        given: String,
        /// All its parameters.
        allowed: String,
    },
    /// A parameter has a value that is not allowed.
    #[error("{strategy}: `{parameter}` is {given}: allowed is {allowed}")]
    BadParameter {
        /// The strategy.
        strategy: &'static str,
        /// The parameter.
        parameter: &'static str,
        /// Its value as given.
        given: String,
        /// What would be allowed.
        allowed: String,
    },
    /// The strategy has no answer to such a question.
    #[error("{strategy} cannot be used here: {reason}")]
    NotApplicable {
        /// The strategy.
        strategy: &'static str,
        /// Why.
        reason: &'static str,
    },
    /// The request contradicts itself.
    #[error(transparent)]
    Core(#[from] CoreError),
}
