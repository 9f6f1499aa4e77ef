//! Putting the sources together: defaults, then a file, then variables, then keywords. Two readers with two rules for
//! what is on: the preloaded library (being preloaded is consent), and the Python interface (variables alone are not).

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::PathBuf;

use serde_json::{Value, json};

use crate::config::Config;
use crate::environment::{Environment, removed_in, suggest_key};
use crate::error::{ConfigError, Origin};
use crate::file::{ConfigFile, Given};
use crate::options;
use crate::row::Row;
use crate::rules::{self, Reader};
use crate::value::{Raw, convert};
use flextensor_core::units::one_line;

/// The configuration of a process that was started with the library preloaded: its own variables, and the file that
/// `FT_CONFIG_FILE` names. On unless something says otherwise; with `FT_ENABLED=0` nothing else is even looked at.
///
/// # Errors
/// The first thing that is wrong; see [`ConfigError`].
pub fn load_preload() -> Result<Config, ConfigError> {
    load_preload_with(texts(std::env::vars_os())?)
}

/// Our variables as texts. One that is no text does not matter if another switches us off.
fn texts(raw: impl IntoIterator<Item = (OsString, OsString)>) -> Result<Vec<(String, String)>, ConfigError> {
    let mut not_text = None;
    let mut variables = Vec::new();
    for (name, value) in raw {
        match (name.to_string_lossy(), value.into_string()) {
            (name, _) if !name.starts_with("FT_") => {}
            (name, Ok(value)) => variables.push((name.into_owned(), value)),
            (name, Err(_)) => not_text = Some(name.into_owned()),
        }
    }
    match not_text {
        Some(name) if !switched_off(&variables) => Err(ConfigError::NotText { name }),
        _ => Ok(variables),
    }
}

/// [`load_preload`] for variables that the caller gives, as a program about to start another one does. Reads the file.
///
/// # Errors
/// The first thing that is wrong; see [`ConfigError`].
pub fn load_preload_with(
    variables: impl IntoIterator<Item = (String, String)>,
) -> Result<Config, ConfigError> {
    let variables: Vec<(String, String)> = variables.into_iter().collect();
    if switched_off(&variables) {
        return preload(variables, None);
    }
    let file = config_file(variables.iter().cloned())?.map(|path| ConfigFile::read(&path)).transpose()?;
    preload(variables, file.as_ref())
}

/// The preload reader without any access to the machine.
///
/// # Errors
/// The first thing that is wrong; see [`ConfigError`].
pub fn preload(
    variables: impl IntoIterator<Item = (String, String)>,
    file: Option<&ConfigFile>,
) -> Result<Config, ConfigError> {
    let variables: Vec<(String, String)> = variables.into_iter().collect();
    let mut merge = Merge::defaults();
    if switched_off(&variables) {
        merge.set(&Given {
            key: "enabled".to_owned(),
            raw: Raw::Bool(false),
            origin: Origin::Variable("FT_ENABLED".to_owned()),
        })?;
        return merge.finish(Reader::Library);
    }
    let environment = Environment::read(variables)?;
    if let Some(file) = file {
        merge.apply(&file.entries()?)?;
    }
    merge.warnings.extend(environment.warnings);
    merge.apply(&environment.entries)?;
    merge.finish(Reader::Library)
}

/// The Python interface's loader: keywords over variables over file over defaults. Off if there is no file and neither
/// a variable nor a keyword says `enabled`. For a loader without variables pass none.
///
/// # Errors
/// The first thing that is wrong; see [`ConfigError`].
pub fn load_config(
    keywords: &[(String, Raw)],
    variables: impl IntoIterator<Item = (String, String)>,
    file: Option<&ConfigFile>,
) -> Result<Config, ConfigError> {
    let environment = Environment::read(variables)?;
    let mut merge = Merge::for_python();
    match file {
        Some(file) => merge.apply(&file.entries()?)?,
        None => merge.set_default("enabled", json!(false)),
    }
    merge.warnings.extend(environment.warnings);
    merge.apply(&environment.entries)?;
    merge.apply_keywords(keywords)?;
    merge.finish(Reader::Python)
}

/// The Python interface's constructor: keywords over defaults; on by default.
///
/// # Errors
/// The first thing that is wrong; see [`ConfigError`].
pub fn from_keywords(keywords: &[(String, Raw)]) -> Result<Config, ConfigError> {
    let mut merge = Merge::for_python();
    merge.apply_keywords(keywords)?;
    merge.finish(Reader::Python)
}

/// A configuration in which some options are changed while the program runs: `json` is one object of keys and values. What
/// the Python interface takes is taken.
///
/// # Errors
/// The first thing that is wrong; see [`ConfigError`].
pub fn changed(base: &Config, json: &str) -> Result<Config, ConfigError> {
    let entries = ConfigFile::new("options.json", json).entries()?;
    let all = serde_json::to_value(base).unwrap_or_default();
    let mut merge = Merge::defaults();
    for row in options::all() {
        merge.values.insert(row.key, all[row.key].clone());
    }
    merge.origins = base.origins.clone();
    for given in entries {
        merge.set(&Given { origin: Origin::Keyword, ..given })?;
    }
    merge.finish(Reader::Python)
}

/// The configuration file that the variables name.
///
/// # Errors
/// If a variable with our prefix is unknown.
pub fn config_file(
    variables: impl IntoIterator<Item = (String, String)>,
) -> Result<Option<PathBuf>, ConfigError> {
    Environment::read(variables).map(|environment| environment.config_file)
}

/// Whether `FT_ENABLED` is there and says no.
fn switched_off(variables: &[(String, String)]) -> bool {
    let says_no = |text: &String| {
        let row = options::find("enabled");
        row.is_some_and(|row| convert(row, &Raw::Text(text.clone())) == Ok(Value::Bool(false)))
    };
    variables.iter().any(|(name, value)| name == "FT_ENABLED" && says_no(value))
}

/// Values collected so far, lowest source first.
struct Merge {
    values: BTreeMap<&'static str, Value>,
    origins: BTreeMap<&'static str, Origin>,
    warnings: Vec<String>,
}

impl Merge {
    fn defaults() -> Self {
        let value = |row: &Row| {
            let text = row.default.map_or(Raw::None, |text| Raw::Text(text.to_owned()));
            convert(row, &text).unwrap_or(Value::Null)
        };
        Self {
            values: options::all().map(|row| (row.key, value(row))).collect(),
            origins: options::all().map(|row| (row.key, Origin::Default)).collect(),
            warnings: Vec::new(),
        }
    }

    /// Without patterns the Python interface takes every top-level child as a unit.
    fn for_python() -> Self {
        let mut merge = Self::defaults();
        merge.set_default("include_patterns", json!(["*"]));
        merge
    }

    fn set_default(&mut self, key: &'static str, value: Value) {
        self.values.insert(key, value);
    }

    /// A file's or the environment's entries. What is not an option is said, not refused: the environment has refused
    /// its own already.
    fn apply(&mut self, entries: &[Given]) -> Result<(), ConfigError> {
        entries.iter().try_for_each(|given| self.set(given))
    }

    fn apply_keywords(&mut self, keywords: &[(String, Raw)]) -> Result<(), ConfigError> {
        for (key, raw) in keywords {
            if let Some(release) = removed_in(key) {
                return Err(ConfigError::Removed { name: key.clone(), release });
            }
            self.set(&Given { key: key.clone(), raw: raw.clone(), origin: Origin::Keyword })?;
        }
        Ok(())
    }

    fn set(&mut self, given: &Given) -> Result<(), ConfigError> {
        let Given { key, raw, origin } = given;
        let Some(row) = options::find(key) else {
            let meant = suggest_key(key);
            let named = one_line(key);
            self.warnings.push(match (removed_in(key), meant) {
                (Some(release), _) => {
                    format!("{origin}: option {named} was removed in {release} and is ignored")
                }
                (None, Some(meant)) => {
                    format!("{origin}: unknown option {named} is ignored; did you mean {meant}?")
                }
                (None, None) => format!("{origin}: unknown option {named} is ignored"),
            });
            return Ok(());
        };
        let value = convert(row, raw).map_err(|allowed| ConfigError::Invalid {
            place: origin.clone(),
            key: row.key,
            value: raw.to_string(),
            allowed,
        })?;
        self.values.insert(row.key, value);
        self.origins.insert(row.key, origin.clone());
        Ok(())
    }

    fn finish(self, reader: Reader) -> Result<Config, ConfigError> {
        let object: serde_json::Map<String, Value> =
            self.values.iter().map(|(key, value)| ((*key).to_owned(), value.clone())).collect();
        // `convert` gives each value the type of its field; a test walks every row.
        let mut config: Config =
            serde_json::from_value(Value::Object(object)).map_err(|error| ConfigError::Syntax {
                place: Origin::Default,
                message: format!("option table and configuration differ: {error}"),
            })?;
        config.origins = self.origins;
        config.warnings = self.warnings;
        rules::check(&config)?;
        rules::refuse_unsupported(&self.values, &config.origins, reader)?;
        if reader == Reader::Library {
            config.warnings.extend(rules::without_effect(&self.values, &config));
        }
        Ok(config)
    }
}

#[cfg(test)]
#[path = "load_tests.rs"]
mod tests;
