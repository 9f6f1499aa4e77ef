//! Callables that stand as forward hooks in a module: small, fast, and never the reason why a forward fails.
//!
//! They are not Python functions on purpose: no frame for a compiler to look into, and under half a
//! microsecond a call. Which module gets which is decided in `flextensor/hook.py`.

use std::cell::RefCell;
use std::sync::atomic::AtomicU32;

use pyo3::exceptions::PyException;
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyTuple};

use crate::bridge;
use crate::shape;
use crate::untold;

thread_local! {
    /// The passes that this thread is inside of, outermost first: the root's key and the models told about
    /// it.
    static PASSES: RefCell<Vec<(u64, Vec<u64>)>> = const { RefCell::new(Vec::new()) };
}

#[derive(Clone, Copy)]
enum Event {
    OwnerEnter,
    OwnerExit,
    TrapEnter,
    TrapExit,
}

/// Tells the interposer that one owner or trap was entered or left.
#[pyclass(frozen, module = "flextensor._native")]
pub(crate) struct Mark {
    event: Event,
    model: u64,
    index: u32,
}

#[pymethods]
impl Mark {
    #[staticmethod]
    fn owner_enter(model: u64, index: u32) -> Self {
        Self { event: Event::OwnerEnter, model, index }
    }

    #[staticmethod]
    fn owner_exit(model: u64, index: u32) -> Self {
        Self { event: Event::OwnerExit, model, index }
    }

    #[staticmethod]
    fn trap_enter(model: u64, index: u32) -> Self {
        Self { event: Event::TrapEnter, model, index }
    }

    #[staticmethod]
    fn trap_exit(model: u64, index: u32) -> Self {
        Self { event: Event::TrapExit, model, index }
    }

    #[pyo3(signature = (*_arguments))]
    fn __call__(&self, _arguments: &Bound<'_, PyTuple>) {
        self.say();
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        inert(py)
    }
}

impl Mark {
    /// Says it.
    pub(crate) fn say(&self) {
        let Ok(table) = bridge::table() else { return };
        match self.event {
            Event::OwnerEnter => table.owner_enter(self.model, self.index),
            Event::OwnerExit => table.owner_exit(self.model, self.index),
            Event::TrapEnter => table.trap_enter(self.model, self.index),
            Event::TrapExit => table.trap_exit(self.model, self.index),
        }
    }
}

/// A root's forward hook, whose work is done in Python: `call` gets the signature of the inputs before a forward
/// and 0 after it; `failed` gets whatever `call` raised.
#[pyclass(frozen, module = "flextensor._native")]
pub(crate) struct PassHook {
    call: Py<PyAny>,
    failed: Py<PyAny>,
    before: bool,
    /// The root's key, where passes may go untold.
    key: Option<u64>,
    turn: AtomicU32,
}

#[pymethods]
impl PassHook {
    /// For the side before the forward it wants to be registered with keywords, for the side after it without. With the root's `key`, which both sides
    /// must have, nothing is done in Python for passes of which nothing has to be told.
    #[new]
    #[pyo3(signature = (call, failed, before, key = None))]
    fn new(call: Py<PyAny>, failed: Py<PyAny>, before: bool, key: Option<u64>) -> Self {
        Self { call, failed, before, key, turn: AtomicU32::new(0) }
    }

    #[pyo3(signature = (_module, arguments, rest = None, _output = None))]
    fn __call__(
        &self,
        py: Python<'_>,
        _module: &Bound<'_, PyAny>,
        arguments: &Bound<'_, PyAny>,
        rest: Option<&Bound<'_, PyAny>>,
        _output: Option<&Bound<'_, PyAny>>,
    ) -> PyResult<()> {
        let untold = self.key.is_some_and(|key| match self.before {
            true => untold::begins(key, &self.turn, is_open(key)),
            false => untold::ends(key),
        });
        if untold {
            return Ok(());
        }
        let keywords = rest.and_then(|value| value.cast::<PyDict>().ok());
        let signature = if self.before { shape::hash_inputs(arguments, keywords) } else { 0 };
        shielded(py, &self.failed, self.call.call1(py, (signature,)))
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        inert(py)
    }
}

/// The global pre-hook of the search for root modules: `seen(module, arguments)` for forwards outside every
/// known pass.
#[pyclass(frozen, module = "flextensor._native")]
pub(crate) struct SearchHook {
    seen: Py<PyAny>,
    failed: Py<PyAny>,
}

#[pymethods]
impl SearchHook {
    #[new]
    fn new(seen: Py<PyAny>, failed: Py<PyAny>) -> Self {
        Self { seen, failed }
    }

    #[pyo3(signature = (module, arguments, *_rest))]
    fn __call__(
        &self,
        py: Python<'_>,
        module: &Bound<'_, PyAny>,
        arguments: &Bound<'_, PyAny>,
        _rest: &Bound<'_, PyTuple>,
    ) -> PyResult<()> {
        if bridge::table().is_err() || inside_a_pass() {
            return Ok(());
        }
        shielded(py, &self.failed, self.seen.call1(py, (module, arguments)))
    }

    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        inert(py)
    }
}

/// Whether this thread is inside the forward of a known root.
#[pyfunction]
pub(crate) fn inside_a_pass() -> bool {
    PASSES.with_borrow(|passes| !passes.is_empty()) || untold::is_inside()
}

/// Whether a pass of the root with this key was told to begin on this thread, and not to end.
fn is_open(key: u64) -> bool {
    PASSES.with_borrow(|passes| passes.iter().any(|(of, _)| *of == key))
}

/// Passes of the root with this key that this thread left untold since it last told one.
#[pyfunction]
pub(crate) fn passes_left_out(key: u64) -> u64 {
    untold::left_out(key)
}

/// The root with this key begins a forward: tells every model named under it that is not inside a pass of
/// this thread already (a root within a root). Can take seconds when phases switch, so the interpreter is
/// free meanwhile.
#[pyfunction]
pub(crate) fn pass_begin(py: Python<'_>, key: u64, mut models: Vec<u64>, shape: u64) {
    let Ok(table) = bridge::table() else { return };
    // A pass of this root that never ended was left by something that no hook sees (an interrupt): end it
    // first.
    pass_end(py, key);
    let untold = untold::take(key);
    if untold > 0 {
        models.iter().for_each(|&model| table.passes_untold(model, untold));
    }
    PASSES
        .with_borrow(|passes| models.retain(|model| !passes.iter().any(|(_, begun)| begun.contains(model))));
    py.detach(|| models.iter().for_each(|&model| table.pass_begin(model, shape)));
    PASSES.with_borrow_mut(|passes| passes.push((key, models)));
}

/// The forward of the root with this key has returned, and with it every pass inside that lost its own end.
/// Nothing happens when this thread never began it.
#[pyfunction]
pub(crate) fn pass_end(py: Python<'_>, key: u64) {
    let ended = PASSES.with_borrow_mut(|passes| match passes.iter().rposition(|(of, _)| *of == key) {
        Some(at) => passes.split_off(at),
        None => Vec::new(),
    });
    if ended.is_empty() {
        return;
    }
    let Ok(table) = bridge::table() else { return };
    py.detach(|| ended.iter().rev().flat_map(|(_, models)| models).for_each(|&model| table.pass_end(model)));
}

/// Keeps an exception of ours away from the program: it goes to `failed`, which logs it and switches the hook
/// off. Interrupts are the program's and pass through.
fn shielded(py: Python<'_>, failed: &Py<PyAny>, outcome: PyResult<Py<PyAny>>) -> PyResult<()> {
    match outcome {
        Ok(_) => Ok(()),
        Err(error) if error.is_instance_of::<PyException>(py) => failed.call1(py, (error,)).map(|_| ()),
        Err(error) => Err(error),
    }
}

/// How a hook is copied and pickled: as a standard-library callable that takes anything and does nothing, so
/// that a copied or saved model neither marks for its original nor needs this package to be loaded.
fn inert(py: Python<'_>) -> PyResult<Bound<'_, PyTuple>> {
    let nothing = py.import("contextlib")?.getattr("nullcontext")?.call0()?;
    let getattr = py.import("builtins")?.getattr("getattr")?;
    (getattr, (nothing, "__exit__")).into_pyobject(py)
}
