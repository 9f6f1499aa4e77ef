//! The configuration crate for Python: checking a set of variables before a program starts, the option table,
//! and patterns.
//!
//! What the running process was configured with comes from the interposer ([`crate::calls::config_json`]),
//! not from here.

use flextensor_config::patterns::{Module, Selection};
use flextensor_config::row::Support;
use flextensor_config::{load_preload_with, options};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::collections::BTreeMap;

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
    }
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
    let modules: Vec<Module> = modules
        .into_iter()
        .map(|(path, class_name, class_full_name, parameters)| Module {
            path,
            class_name,
            class_full_name,
            parameters,
        })
        .collect();
    let selected = selection.apply(&modules);
    Ok((selected.traps, selected.excluded, selected.streamable))
}
