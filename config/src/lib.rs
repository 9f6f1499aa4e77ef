//! Configuration of flextensor: the one option table, and every source that an option can come from.
//!
//! - `options`: THE TABLE. A new option is one row there, one field in `config`, and `BLESS=1 cargo test -p
//!   flextensor-config` for the generated pages; a test says what is missing.
//! - `row`: what a row can say.
//! - `choices`, `size`, `value`: from texts and file values to typed values. `rules`: between options.
//! - `file`, `environment`: the sources. `load`: their order, and who is on by default.
//! - `patterns`, `glob`: which modules and parameters a pattern selects.
//! - `pages`: `default.toml` and `docs/options.md`, made from the table.
//!
//! Only [`load_preload`] and [`load_preload_with`] touch the machine (variables, one file); nothing here logs or keeps
//! state. What the values do is left to the crates that read [`Config`].
#![forbid(unsafe_code)]

pub mod choices;
mod config;
mod environment;
mod error;
mod file;
mod glob;
mod load;
pub mod options;
pub mod pages;
pub mod patterns;
pub mod row;
mod rules;
pub mod size;
mod value;

pub use config::Config;
pub use error::{ConfigError, Origin};
pub use file::ConfigFile;
pub use load::{changed, config_file, from_keywords, load_config, load_preload, load_preload_with, preload};
pub use value::Raw;
