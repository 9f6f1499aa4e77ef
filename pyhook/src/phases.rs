//! Core's phase machine as a Python object, for a manager whose model no runtime counts for: what is switched off, and
//! machines without a GPU. Who tells it about forwards is `flextensor/phases.py`.

use flextensor_core::phase::{PhaseCommand, PhaseEvent, PhaseSettings, PhaseState, step};
use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

/// The phases of one model.
#[pyclass(module = "flextensor._native")]
pub(crate) struct Phases {
    state: PhaseState,
}

#[pymethods]
impl Phases {
    #[new]
    #[pyo3(signature = (discovery_iters, profiling_iters, *, skip_discovery=false, compile_warmups=0, enabled=true))]
    fn new(
        discovery_iters: u32,
        profiling_iters: u32,
        skip_discovery: bool,
        compile_warmups: u32,
        enabled: bool,
    ) -> Self {
        let settings =
            PhaseSettings { discovery_iters, profiling_iters, skip_discovery, compile_warmups, enabled };
        Self { state: PhaseState::new(settings) }
    }

    /// The phase as ft_phase numbers it.
    #[getter]
    fn phase(&self) -> i32 {
        self.state.phase().code()
    }

    /// Counted forwards of this phase.
    #[getter]
    fn iterations(&self) -> u32 {
        self.state.iterations()
    }

    /// Whether skip_discovery was honoured; None before the model was ready.
    #[getter]
    fn skip_honored(&self) -> Option<bool> {
        self.state.skip_honored()
    }

    #[getter]
    fn is_suspended(&self) -> bool {
        self.state.is_suspended()
    }

    #[getter]
    fn iters_before_inference(&self) -> u32 {
        self.state.iters_before_inference()
    }

    /// The model's units are known; `owners_known` says whether DISCOVERY can be skipped.
    fn ready(&mut self, owners_known: bool) -> PyResult<()> {
        self.take(PhaseEvent::ModelReady { owners_known })
    }

    /// A forward has ended.
    fn pass_end(&mut self) -> PyResult<()> {
        self.take(PhaseEvent::PassEnd { captured: false })
    }

    fn suspend(&mut self) -> PyResult<()> {
        self.take(PhaseEvent::Suspend)
    }

    fn resume(&mut self) -> PyResult<()> {
        self.take(PhaseEvent::Resume)
    }

    fn clear(&mut self) -> PyResult<()> {
        self.take(PhaseEvent::ClearDurations)
    }

    /// A profile took the place of learning.
    fn profile_loaded(&mut self) -> PyResult<()> {
        self.take(PhaseEvent::ProfileLoaded)
    }
}

impl Phases {
    /// RuntimeError where the event is not allowed now; nothing changed then.
    fn take(&mut self, event: PhaseEvent) -> PyResult<()> {
        let (state, commands) = step(self.state, event);
        for command in commands {
            if let PhaseCommand::Refuse(why) = command {
                return Err(PyRuntimeError::new_err(why.to_string()));
            }
        }
        self.state = state;
        Ok(())
    }
}
