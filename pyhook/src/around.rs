//! What stands around the forwards of one module without being one of its hooks: torch leaves its short way as soon as a module has a hook, which costs
//! more than all that is told here. torch asks a module for compiled code first (`Module.compile`); [`Around`] stands there, and calls what torch would have called.
//!
//! Where it may stand, and when it goes, is decided in `flextensor/around.py`.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyTuple, PyWeakrefMethods, PyWeakrefReference};

use crate::marks::Mark;

/// One side of a pair.
enum Side {
    /// Said without a call of Python.
    Mark(Py<Mark>),
    /// Called: nothing is passed on entering, on leaving the exception that the forward raised or None.
    Call(Py<PyAny>),
}

impl Side {
    fn new(given: &Bound<'_, PyAny>) -> Self {
        match given.cast::<Mark>() {
            Ok(mark) => Self::Mark(mark.clone().unbind()),
            Err(_) => Self::Call(given.clone().unbind()),
        }
    }

    fn enter(&self, py: Python<'_>) -> PyResult<()> {
        match self {
            Self::Mark(mark) => mark.get().say(),
            Self::Call(call) => drop(call.call0(py)?),
        }
        Ok(())
    }

    fn leave(&self, py: Python<'_>, raised: Option<&PyErr>) -> PyResult<()> {
        match self {
            Self::Mark(mark) => mark.get().say(),
            Self::Call(call) => drop(call.call1(py, (raised.map(|error| error.value(py)),))?),
        }
        Ok(())
    }
}

/// Calls a module's forward between pairs of callables, the outermost pair first. Whatever the forward raises, each pair that was entered is left.
#[pyclass(frozen, module = "flextensor._native")]
pub(crate) struct Around {
    module: Py<PyWeakrefReference>,
    pairs: Vec<(Side, Side)>,
    given: Py<PyTuple>,
}

#[pymethods]
impl Around {
    #[new]
    fn new(module: &Bound<'_, PyAny>, pairs: Bound<'_, PyTuple>) -> PyResult<Self> {
        let sides = pairs
            .iter()
            .map(|pair| {
                let (enter, leave): (Bound<'_, PyAny>, Bound<'_, PyAny>) = pair.extract()?;
                Ok((Side::new(&enter), Side::new(&leave)))
            })
            .collect::<PyResult<_>>()?;
        Ok(Self { module: PyWeakrefReference::new(module)?.unbind(), pairs: sides, given: pairs.unbind() })
    }

    /// The pairs that it was made of.
    #[getter]
    fn pairs(&self, py: Python<'_>) -> Py<PyTuple> {
        self.given.clone_ref(py)
    }

    #[pyo3(signature = (*arguments, **keywords))]
    fn __call__<'py>(
        slf: &Bound<'py, Self>,
        arguments: &Bound<'py, PyTuple>,
        keywords: Option<&Bound<'py, PyDict>>,
    ) -> PyResult<Bound<'py, PyAny>> {
        let (py, this) = (slf.py(), slf.get());
        let forward = this.called(slf)?.getattr(intern!(py, "_call_impl"))?;
        let mut entered = 0;
        let mut outcome = Ok(());
        for (enter, _) in &this.pairs {
            outcome = enter.enter(py);
            if outcome.is_err() {
                break;
            }
            entered += 1;
        }
        let mut result = outcome.and_then(|()| forward.call(arguments, keywords));
        for (_, leave) in this.pairs[..entered].iter().rev() {
            // What the forward raised counts for more than what is raised on the way out.
            if let Err(error) = leave.leave(py, result.as_ref().err())
                && result.is_ok()
            {
                result = Err(error);
            }
        }
        result
    }

    /// Another module's copy of its attributes has no compiled code.
    fn __reduce__<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        (py.import("ast")?.getattr("literal_eval")?, ("None",)).into_pyobject(py)
    }
}

impl Around {
    /// The module whose forward is called: mostly the one that this was made for, else one that took over all of its attributes, as replicas do. torch passes none,
    /// so that it is looked up in the caller.
    fn called<'py>(&self, slf: &Bound<'py, Self>) -> PyResult<Bound<'py, PyAny>> {
        static GET_FRAME: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
        let py = slf.py();
        let own = self.module.bind(py).upgrade();
        let frame = GET_FRAME.import(py, "sys", "_getframe")?.call0()?;
        let caller = frame.getattr(intern!(py, "f_locals"))?.get_item(intern!(py, "self")).ok();
        match (caller, own) {
            (Some(caller), Some(own)) if caller.is(&own) => Ok(own),
            (Some(caller), own) => {
                let code = caller.getattr(intern!(py, "_compiled_call_impl")).ok();
                if code.is_some_and(|code| code.is(slf)) { Ok(caller) } else { gone(own) }
            }
            (None, own) => gone(own),
        }
    }
}

/// The module, or an error where it is no more.
fn gone(own: Option<Bound<'_, PyAny>>) -> PyResult<Bound<'_, PyAny>> {
    own.ok_or_else(|| pyo3::exceptions::PyReferenceError::new_err("the module that is called is gone"))
}
