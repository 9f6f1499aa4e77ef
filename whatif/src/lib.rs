//! flextensor-whatif: what a plan would do, without a GPU and without the program.
//!
//! From texts to texts: a saved profile, a budget and a link go in; figures and pictures come out. Nothing is read,
//! written or kept here. Planning and simulating are core's; files and the terminal are the command line's.
//!
//! | module | does |
//! | --- | --- |
//! | [`profile`] | a saved profile as what a question starts from |
//! | [`question`] | budget and link as the planner takes them |
//! | [`planner`] | our planner and the strategies, by name |
//! | [`answer`] | the figures of a plan |
//! | [`mod@sweep`] | times over a range of budgets |
//! | [`mod@timeline`] | one steady pass as bars |
//! | [`results`] | lines of the benchmark as charts |
//! | [`chart`], [`draw`] | charts in numbers; charts and timelines as SVG |
//! | [`error`] | what can be wrong |
#![forbid(unsafe_code)]

pub mod answer;
pub mod chart;
pub mod draw;
pub mod error;
pub mod planner;
pub mod profile;
pub mod question;
pub mod results;
pub mod sweep;
pub mod timeline;

pub use error::WhatIfError;
