//! The pager against a model: `gpu` runs what was submitted in the worst orders, `world` is a program that keeps its own
//! order and performs the pager's commands. What is tried is the test files' matter.
#![allow(dead_code, reason = "each test file uses its part of the model")]

pub(crate) mod gpu;
pub(crate) mod world;
