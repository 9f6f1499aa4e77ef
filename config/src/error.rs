//! What can be wrong with a configuration. Each message names the place, the key, the value given, and what is allowed.

use std::fmt;
use std::path::{Path, PathBuf};

use flextensor_core::units::one_line;

/// Where a value came from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Nothing set it.
    Default,
    /// A configuration file; the line is known for most files.
    File {
        /// The file.
        path: PathBuf,
        /// Line, from 1.
        line: Option<usize>,
    },
    /// The environment variable of this name.
    Variable(String),
    /// A keyword argument of the Python interface.
    Keyword,
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { path, line: Some(line) } => write!(f, "{}:{line}", shown(path)),
            Self::File { path, line: None } => f.write_str(&shown(path)),
            Self::Variable(name) => f.write_str(&one_line(name)),
            Self::Keyword => f.write_str("keyword"),
        }
    }
}

fn shown(path: &Path) -> String {
    one_line(&path.display().to_string())
}

/// A configuration that cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The file cannot be read.
    #[error("cannot read configuration file {}: {source}", shown(path))]
    Unreadable {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// The file's name does not say its format.
    #[error(
        "configuration file {} has an unknown format; allowed: .toml, .ini, .conf, .json, .yaml, .yml",
        shown(path)
    )]
    UnknownFormat {
        /// The file.
        path: PathBuf,
    },
    /// The file is not in its format.
    #[error("{place}: {}", one_line(message))]
    Syntax {
        /// File and line.
        place: Origin,
        /// What the parser says.
        message: String,
    },
    /// A value that its option does not take.
    #[error("{place}: {key} = {value} is not allowed; allowed: {}", one_line(allowed))]
    Invalid {
        /// Where the value was given.
        place: Origin,
        /// The option.
        key: &'static str,
        /// The value given.
        value: String,
        /// What would be allowed.
        allowed: String,
    },
    /// A value that does not go with another option's value.
    #[error("{place}: {key} = {value} is not allowed here: {needs}")]
    Conflict {
        /// Where the value was given.
        place: Origin,
        /// The option.
        key: &'static str,
        /// The value given.
        value: String,
        /// The rule between the options, with the other's value.
        needs: String,
    },
    /// A value whose feature does not exist yet.
    #[error("{place}: {key} = {value} is not supported yet; it waits for {waits_for}")]
    NotSupportedYet {
        /// Where the value was given.
        place: Origin,
        /// The option.
        key: &'static str,
        /// The value given.
        value: String,
        /// The missing feature.
        waits_for: &'static str,
    },
    /// Variables with our prefix that are no options.
    #[error("{}", unknown_variables(.0))]
    UnknownVariables(
        /// Each with the name that was probably meant.
        Vec<(String, Option<String>)>,
    ),
    /// A variable that is not UTF-8.
    #[error("environment variable {} is not valid UTF-8", one_line(name))]
    NotText {
        /// The variable.
        name: String,
    },
    /// A keyword that was an option once.
    #[error("option {} was removed in {release} and is not allowed any more", one_line(name))]
    Removed {
        /// The keyword.
        name: String,
        /// The version that dropped it.
        release: &'static str,
    },
}

fn unknown_variables(names: &[(String, Option<String>)]) -> String {
    let parts: Vec<String> = names
        .iter()
        .map(|(name, meant)| (one_line(name), meant))
        .map(|(name, meant)| match meant {
            Some(meant) => format!("unknown environment variable {name}; did you mean {meant}?"),
            None => format!("unknown environment variable {name}; docs/options.md lists the known ones"),
        })
        .collect();
    parts.join("; ")
}
