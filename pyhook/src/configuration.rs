//! The configuration crate for Python: checking a set of variables before a program starts, putting together what a
//! Python program says, the option table, and patterns.
//!
//! What the running process was configured with comes from the interposer ([`crate::calls::config_json`]),
//! not from here.

use flextensor_config::patterns::{Module, Selection};
use flextensor_config::row::Support;
use flextensor_config::{
    ConfigError, ConfigFile, Raw, from_keywords, load_config, load_preload_with, options,
};
use pyo3::exceptions::{PyFileNotFoundError, PyOSError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyList, PyString, PyTuple};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// The configuration that a program started with these environment variables will have, as JSON. Reads the
/// file that FT_CONFIG_FILE names; raises ValueError with what is wrong.
#[pyfunction]
pub(crate) fn check_configuration(variables: BTreeMap<String, String>) -> PyResult<String> {
    let ours = variables.into_iter().filter(|(name, _)| name.starts_with("FT_"));
    match load_preload_with(ours) {
        Ok(config) => Ok(config.to_json()),
        Err(error) => Err(PyValueError::new_err(error.to_string())),
    }
}

/// Keywords over variables over file over defaults, as JSON. With neither variables nor a file it is what the
/// constructor does: on by default. FileNotFoundError or OSError for the file, ValueError for anything else.
#[pyfunction]
#[pyo3(signature = (keywords, variables = None, file = None))]
pub(crate) fn resolve_configuration(
    keywords: Vec<(String, Bound<'_, PyAny>)>,
    variables: Option<BTreeMap<String, String>>,
    file: Option<PathBuf>,
) -> PyResult<String> {
    let keywords: Vec<(String, Raw)> =
        keywords.iter().map(|(key, value)| (key.clone(), raw(value, DEPTH))).collect();
    let resolved = if variables.is_none() && file.is_none() {
        from_keywords(&keywords)
    } else {
        let file = file.map(|path| ConfigFile::read(&path)).transpose().map_err(raise)?;
        load_config(&keywords, variables.unwrap_or_default(), file.as_ref())
    };
    resolved.map(|config| config.to_json()).map_err(raise)
}

fn raise(error: ConfigError) -> PyErr {
    let text = error.to_string();
    match error {
        ConfigError::Unreadable { source, .. } if source.kind() == std::io::ErrorKind::NotFound => {
            PyFileNotFoundError::new_err(text)
        }
        ConfigError::Unreadable { .. } => PyOSError::new_err(text),
        _ => PyValueError::new_err(text),
    }
}

/// A list inside a list is nothing that an option takes.
const DEPTH: u32 = 1;

/// A Python value as the configuration crate reads it. What says that it is a number (numpy's) is one.
fn raw(value: &Bound<'_, PyAny>, depth: u32) -> Raw {
    let items =
        |items: Vec<Bound<'_, PyAny>>| Raw::List(items.iter().map(|item| raw(item, depth - 1)).collect());
    if value.is_none() {
        Raw::None
    } else if let Ok(value) = value.cast::<PyBool>() {
        Raw::Bool(value.is_true())
    } else if let Ok(value) = value.cast::<PyString>() {
        Raw::Text(value.to_string())
    } else if let (Ok(list), true) = (value.cast::<PyList>(), depth > 0) {
        items(list.iter().collect())
    } else if let (Ok(tuple), true) = (value.cast::<PyTuple>(), depth > 0) {
        items(tuple.iter().collect())
    } else if let Ok(number) = value.extract::<i128>() {
        Raw::Int(number)
    } else if let Ok(number) = value.extract::<f64>() {
        Raw::Float(number)
    } else {
        Raw::Other("an object")
    }
}

/// A row of the option table for Python.
type OptionRow = (&'static str, String, Option<&'static str>, String, &'static str, Option<String>);

/// The option table: key, environment variable, default as text, allowed values, one line of documentation, and
/// what is refused in this version, if anything is.
#[pyfunction]
pub(crate) fn option_table() -> Vec<OptionRow> {
    options::all()
        .map(|row| (row.key, row.env_name(), row.default, row.allowed(), row.doc, limit(row.support)))
        .collect()
}

/// What is not supported yet of an option.
fn limit(support: Support) -> Option<String> {
    match support {
        Support::Supported => None,
        Support::Later(waits_for) => {
            Some(format!("NOT SUPPORTED YET (waits for {waits_for}): any value but the default is refused."))
        }
        Support::ValuesLater(values, waits_for) => {
            Some(format!("NOT SUPPORTED YET: {} (waits for {waits_for}).", values.join(", ")))
        }
        Support::PythonOnly => Some("Only in programs that use the Python interface.".to_owned()),
        Support::PythonTakes(waits_for) => Some(format!(
            "NOT SUPPORTED YET (waits for {waits_for}): the Python interface takes it without effect."
        )),
    }
}

/// Include and exclude patterns, as given, that match nothing of these modules (described as for [`select`]).
#[pyfunction]
pub(crate) fn unmatched_patterns(
    modules: Vec<(String, String, String, Vec<String>)>,
    include: Option<Vec<String>>,
    exclude: Vec<String>,
) -> PyResult<Vec<String>> {
    let selection = Selection::parse(include.as_deref(), &exclude)
        .map_err(|error| PyValueError::new_err(error.to_string()))?;
    Ok(selection.apply(&described(modules)).unmatched)
}

fn described(modules: Vec<(String, String, String, Vec<String>)>) -> Vec<Module> {
    let one = |(path, class_name, class_full_name, parameters)| Module {
        path,
        class_name,
        class_full_name,
        parameters,
    };
    modules.into_iter().map(one).collect()
}

/// What [`select`] answers: trap modules by index, for each module whether it is excluded, and for each of
/// its tensors whether it may be streamed.
type Selected = (Vec<usize>, Vec<bool>, Vec<Vec<bool>>);

/// Applies patterns to modules given as (path, class, full class name, own tensor names), the root first with
/// an empty path.
#[pyfunction]
pub(crate) fn select(
    modules: Vec<(String, String, String, Vec<String>)>,
    include: Option<Vec<String>>,
    exclude: Vec<String>,
) -> PyResult<Selected> {
    let selection = Selection::parse(include.as_deref(), &exclude)
        .map_err(|error| PyValueError::new_err(error.to_string()))?;
    let selected = selection.apply(&described(modules));
    Ok((selected.traps, selected.excluded, selected.streamable))
}
