//! flextensor-core: the decisions, as functions from state and event to state and commands.
//!
//! No driver, clock, thread, environment or print is used here; the interposer observes, asks, and performs
//! what it is told.
//!
//! | module | decides |
//! | --- | --- |
//! | [`units`] | how amounts of memory are read and printed; what units and models are called |
//! | [`phase`] | when a model moves from DISCOVERY to PROFILING to INFERENCE |
//! | [`pieces`] | which weights of a large allocation are streamed together |
//! | [`profile`] | what the passes seen so far say about order and time of use |
//! | [`link`] | how fast copies of a size are |
//! | [`mod@plan`] | which pages stay and which are streamed |
//! | `layout` | where in the ring streamed pages lie |
//! | [`mod@simulate`] | how long passes take under a plan |
//! | [`saved`] | what a profile file says, and what of it another run may use |
//! | [`drift`] | which later passes are worth observing, and when a new plan is worth making |
//! | [`strategy`] | what other strategies would stream, by their names |
//! | [`pager`] | when a ring page may be read and when it may be overwritten |
//! | [`audit`] | which rule of the page protocol was not kept by what was enqueued |
//! | [`error`] | what can be wrong with a question |
#![forbid(unsafe_code)]

pub mod audit;
pub mod drift;
pub mod error;
mod layout;
pub mod link;
pub mod pager;
pub mod phase;
pub mod pieces;
pub mod plan;
pub mod profile;
pub mod saved;
pub mod simulate;
pub mod strategy;
pub mod units;

pub use error::CoreError;
