//! The plain calls of the C interface as Python functions.
//!
//! Return codes are passed on as they are (docs/c-api.md names them); what they mean for a model is decided
//! in Python.

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use crate::bridge::{self, Table, Text};

/// The code of a call that was not possible: nothing is preloaded here, or the hook is silent.
const NOT_POSSIBLE: i32 = -1;

fn table() -> PyResult<&'static Table> {
    bridge::table().map_err(PyRuntimeError::new_err)
}

/// Raises RuntimeError with the reason when no usable libflextensor.so is preloaded.
#[pyfunction]
pub(crate) fn connect() -> PyResult<()> {
    table().map(|_| ())
}

/// Starts a library that was loaded after the program began, or waits for its start: 0 when it is at work; -1 when it is switched off; -3 with a reason on
/// stderr: no driver, one that cannot be got in front of, or a start that failed. Other Python threads run meanwhile.
#[pyfunction]
pub(crate) fn attach(py: Python<'_>) -> PyResult<i32> {
    let table = table()?;
    Ok(py.detach(|| table.attach()))
}

/// No call goes out any more; for forked children and after an error of ours.
#[pyfunction]
pub(crate) fn silence() {
    bridge::silence();
}

/// The phase number; -1 when switched off or not preloaded.
#[pyfunction]
pub(crate) fn phase() -> i32 {
    bridge::table().map_or(NOT_POSSIBLE, Table::phase)
}

/// Begins the naming of a model and returns its id; 0 when refused.
#[pyfunction]
pub(crate) fn model_begin(name: &str) -> PyResult<u64> {
    Ok(table()?.model_begin(&Text::new(name)))
}

/// Names an owner; `trap` is the index of its trap or -1.
#[pyfunction]
pub(crate) fn model_owner(model: u64, owner: u32, path: &str, class_name: &str, trap: i32) -> PyResult<i32> {
    Ok(table()?.model_owner(model, owner, &Text::new(path), &Text::new(class_name), trap))
}

/// Names the storage of a weight: `address` and `nbytes` of the whole storage.
#[pyfunction]
pub(crate) fn model_weight(
    model: u64,
    name: &str,
    address: u64,
    nbytes: u64,
    owner: u32,
    flags: u32,
) -> PyResult<i32> {
    Ok(table()?.model_weight(model, &Text::new(name), address, nbytes, owner, flags))
}

/// Ends the naming of a model; other Python threads run meanwhile.
#[pyfunction]
pub(crate) fn model_end(py: Python<'_>, model: u64) -> PyResult<i32> {
    let table = table()?;
    Ok(py.detach(|| table.model_end(model)))
}

/// Who chooses what is streamed of the model, or what was chosen, as JSON; None takes it back.
#[pyfunction]
#[pyo3(signature = (model, json=None))]
pub(crate) fn model_strategy(model: u64, json: Option<&str>) -> i32 {
    let json = json.map(Text::new);
    bridge::table().map_or(NOT_POSSIBLE, |table| table.model_strategy(model, json.as_ref()))
}

/// Asks for a new plan for what the model does now, whatever it gains: the next forward is observed, and the plan follows. 0 if it will; -1 where
/// none is made (no ring, `replan` off, not in INFERENCE); -2 for an unknown model.
#[pyfunction]
pub(crate) fn model_replan(model: u64) -> i32 {
    bridge::table().map_or(NOT_POSSIBLE, |table| table.model_replan(model))
}

/// The model's own counts and profile, before [`model_end`]; `profile`: None = the configured one, an empty text = none,
/// else the folder that it is read from.
#[pyfunction]
pub(crate) fn model_course(
    model: u64,
    discovery: u32,
    profiling: u32,
    warmups: u32,
    skip_discovery: bool,
    profile: Option<&str>,
) -> PyResult<i32> {
    let profile = profile.map(Text::new);
    Ok(table()?.model_course(model, [discovery, profiling, warmups], skip_discovery, profile.as_ref()))
}

/// The phase number of one model; -1 where there is none.
#[pyfunction]
pub(crate) fn model_phase(model: u64) -> i32 {
    bridge::table().map_or(NOT_POSSIBLE, |table| table.model_phase(model))
}

/// What is done to the times that are recorded of a model: 0 suspend, 1 resume, 2 clear.
#[pyfunction]
pub(crate) fn model_profiling(model: u64, what: u32) -> i32 {
    bridge::table().map_or(NOT_POSSIBLE, |table| table.model_profiling(model, what))
}

/// Changes options of the running process: a JSON object of keys and values.
#[pyfunction]
pub(crate) fn configure(json: &str) -> PyResult<i32> {
    Ok(table()?.configure(&Text::new(json)))
}

/// Writes profile.json to a folder; None = the configured one. Other Python threads run meanwhile.
#[pyfunction]
pub(crate) fn profile_save(py: Python<'_>, folder: Option<&str>) -> PyResult<i32> {
    let table = table()?;
    let folder = folder.map(Text::new);
    Ok(py.detach(|| table.profile_save(folder.as_ref())))
}

/// The program let the model go: its ranges become private; other Python threads run meanwhile.
#[pyfunction]
pub(crate) fn model_drop(py: Python<'_>, model: u64) {
    if let Ok(table) = bridge::table() {
        py.detach(|| table.model_drop(model));
    }
}

/// Gives the weight at `address` private pages for good; other Python threads run meanwhile.
#[pyfunction]
pub(crate) fn weight_private(py: Python<'_>, address: u64) -> i32 {
    bridge::table().map_or(NOT_POSSIBLE, |table| py.detach(|| table.weight_private(address)))
}

/// Says that the forward which is going on wrote the weight at `address`; other Python threads run meanwhile.
#[pyfunction]
pub(crate) fn weight_written(py: Python<'_>, address: u64) -> i32 {
    bridge::table().map_or(NOT_POSSIBLE, |table| py.detach(|| table.weight_written(address)))
}

/// The events that a model wants now: 1 owners, 2 traps, 4 owners of stacked experts, 8 weights that its pass
/// writes.
#[pyfunction]
pub(crate) fn wants(model: u64) -> u32 {
    bridge::table().map_or(0, |table| table.wants(model))
}

/// The effective configuration as JSON text.
#[pyfunction]
pub(crate) fn config_json() -> PyResult<String> {
    Ok(table()?.config_json())
}

/// The run report as JSON text.
#[pyfunction]
pub(crate) fn report_json(py: Python<'_>) -> PyResult<String> {
    let table = table()?;
    Ok(py.detach(|| table.report_json()))
}

/// First address and length in bytes of the managed address range; zeros while there is none.
#[pyfunction]
pub(crate) fn arena() -> PyResult<(u64, u64)> {
    Ok(table()?.arena())
}
