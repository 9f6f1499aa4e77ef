//! Strategies for Python: core's, asked in JSON. Layers, tensors and results become Python objects in
//! `python/flextensor/strategy/`; nothing is decided here.

use std::fmt::Display;

use flextensor_core::strategy::{
    self, Assignment, Blocks, Parameters, Question, Selection, StrategyError, Transfer, TransferCurve, Window,
};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use serde::Deserialize;

/// A question without an answer is a RuntimeError, everything else the caller's fault: a ValueError.
fn raise(error: StrategyError) -> PyErr {
    match error {
        StrategyError::NotApplicable { .. } => PyRuntimeError::new_err(error.to_string()),
        error => wrong(error),
    }
}

fn wrong(error: impl Display) -> PyErr {
    PyValueError::new_err(error.to_string())
}

fn read<'a, T: Deserialize<'a>>(text: &'a str) -> PyResult<T> {
    serde_json::from_str(text).map_err(wrong)
}

fn made(name: &str, parameters: &str) -> PyResult<Box<dyn strategy::Strategy>> {
    let parameters: Parameters = read(parameters)?;
    strategy::by_name(name, &parameters).map_err(raise)
}

/// The names of all strategies.
#[pyfunction]
pub(crate) fn strategy_names() -> Vec<&'static str> {
    strategy::names()
}

/// Raises ValueError when there is no such strategy, or its parameters (a JSON object) are not allowed.
#[pyfunction]
pub(crate) fn strategy_check(name: &str, parameters: &str) -> PyResult<()> {
    made(name, parameters).map(|_| ())
}

/// What a strategy selects: JSON in (core's `Question`), JSON out (core's `Selection`; an endless overhead is null).
/// RuntimeError when it has no answer to such a question.
#[pyfunction]
pub(crate) fn strategy_select(
    py: Python<'_>,
    name: &str,
    parameters: &str,
    question: &str,
) -> PyResult<String> {
    let strategy = made(name, parameters)?;
    let question: Question = read(question)?;
    let selection = py.detach(|| strategy.select(&question)).map_err(raise)?;
    serde_json::to_string(&selection).map_err(wrong)
}

/// A selection that was made elsewhere.
#[derive(Deserialize)]
struct Given {
    streamed: Vec<Vec<usize>>,
    blocks: Blocks,
    starts: Vec<Option<usize>>,
}

/// What a selection that was made elsewhere costs: JSON in (core's `Question`; streamed, blocks and starts by
/// layer), JSON out (core's `Selection`).
#[pyfunction]
pub(crate) fn strategy_judge(question: &str, given: &str) -> PyResult<String> {
    let question: Question = read(question)?;
    let Given { streamed, blocks, starts } = read(given)?;
    let selection = Selection::given("", &question, streamed, blocks, starts);
    serde_json::to_string(&selection).map_err(wrong)
}

/// The block of each of these layers, in order; `assignment` is core's `Assignment` as JSON. The layers repeat
/// nothing across passes.
#[pyfunction]
pub(crate) fn assign_blocks(assignment: &str, sizes: Vec<u64>) -> PyResult<Vec<usize>> {
    let assignment: Assignment = read(assignment)?;
    // A first layer that stays keeps the last one's choice free of the round's end; empty layers take part.
    let bytes: Vec<u64> = [0].into_iter().chain(sizes.into_iter().map(|bytes| bytes.max(1))).collect();
    Ok(assignment.assign(&bytes).of_layer.into_iter().flatten().collect())
}

/// Layers into blocks of limited capacity; None where there is no way.
#[pyfunction]
#[pyo3(signature = (sizes, blocks, capacity=None))]
pub(crate) fn allocate_blocks(
    py: Python<'_>,
    sizes: Vec<u64>,
    blocks: usize,
    capacity: Option<u64>,
) -> Option<Vec<usize>> {
    py.detach(|| strategy::allocate(&sizes, blocks, capacity))
}

/// Milliseconds of the window of a layer; `window` is core's `Window` by name.
#[pyfunction]
pub(crate) fn window_ms(
    window: &str,
    layer: usize,
    bytes: Vec<u64>,
    durations_ms: Vec<f64>,
) -> PyResult<f64> {
    let window = match window {
        "SingleLayer" => Window::SingleLayer,
        "GapAware" => Window::GapAware,
        other => {
            return Err(wrong(format!("window `{other}` does not exist: allowed are SingleLayer, GapAware")));
        }
    };
    Ok(window.ms(layer, &bytes, &durations_ms))
}

/// New starts of transfers, each given as (start, reader, block) by positions of layers.
#[pyfunction]
pub(crate) fn rearrange_transfers(transfers: Vec<(usize, usize, usize)>, gap: usize) -> Vec<usize> {
    let transfers: Vec<Transfer> =
        transfers.into_iter().map(|(start, reader, block)| Transfer { start, reader, block }).collect();
    strategy::rearrange(&transfers, gap)
}

/// Copy times by size, from measured points.
#[pyclass(frozen, module = "flextensor._native")]
pub(crate) struct TransferTimes(TransferCurve);

#[pymethods]
impl TransferTimes {
    /// `points`: bytes and milliseconds. Without any that say something, the default link's.
    #[new]
    fn new(points: Vec<(u64, f64)>) -> Self {
        TransferTimes(TransferCurve::new(points))
    }

    /// Milliseconds of one copy of so many bytes.
    fn milliseconds(&self, nbytes: u64) -> f64 {
        self.0.ms(nbytes)
    }

    /// Bytes of the largest copy that takes at most so many milliseconds.
    fn nbytes(&self, milliseconds: f64) -> u64 {
        self.0.bytes_within(milliseconds)
    }
}
