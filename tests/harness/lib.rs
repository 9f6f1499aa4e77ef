//! The test harness: runs programs with or without the preloaded library, on simcuda or a GPU, and gives the programs
//! typed access to what they test.
//!
//! - `run`: starts a program and collects what it left (for the tests)
//! - `driver`: the CUDA driver, by a selectable route (for the programs)
//! - `gpu`: a device with one context, streams, memory and kernels, over `driver` (for the programs)
//! - `ft`: the C interface of the preloaded library (for the programs)
//! - `sim`: simcuda's own numbers and settings (for the programs)
//! - `pattern`: the words that simcuda's kernels write and verify
//!
//! It names neither the interposer nor simcuda: both are found as shared libraries beside the test binary.

pub mod driver;
pub mod ft;
pub mod gpu;
pub mod pattern;
pub mod run;
pub mod sim;

pub use run::{Outcome, Run, Talk};
