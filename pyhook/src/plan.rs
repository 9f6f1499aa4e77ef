//! What-if questions for Python: `flextensor plan` and `flextensor plot`. Texts in, texts out; everything is worked
//! out in the crate `flextensor-whatif`. Files and the terminal are left to `plan.py`.

use flextensor_core::units::Bytes;
use flextensor_whatif::answer::Table;
use flextensor_whatif::planner::Planner;
use flextensor_whatif::profile::{Choice, Profile};
use flextensor_whatif::question::Question;
use flextensor_whatif::{WhatIfError, draw, results, sweep, timeline};
use pyo3::exceptions::{PyRuntimeError, PyValueError};
use pyo3::prelude::*;

/// The caller's fault is a ValueError, everything else (the file's, nearly always) a RuntimeError.
fn raise(error: WhatIfError) -> PyErr {
    let text = error.to_string();
    if error.is_usage() { PyValueError::new_err(text) } else { PyRuntimeError::new_err(text) }
}

fn json(value: &impl serde::Serialize) -> PyResult<String> {
    serde_json::to_string(value).map_err(|error| PyRuntimeError::new_err(error.to_string()))
}

/// One question about a profile. RuntimeError when the profile is at fault, ValueError when what is asked is.
#[pyclass(frozen, module = "flextensor._native")]
pub(crate) struct WhatIf {
    question: Question,
    planners: Vec<Planner>,
    /// The first so many of them are drawn.
    drawn: usize,
}

#[pymethods]
impl WhatIf {
    /// `name` is that of the file, `text` what it holds; `strategies` are compared with our planner. Without them
    /// the table has all that there are, and pictures have ours alone.
    #[new]
    #[expect(clippy::too_many_arguments, reason = "keywords of a Python call")]
    #[pyo3(signature = (name, text, *, gpu_mem=None, link=None, device=None, shape=None, latency=false, strategies=None))]
    fn new(
        name: &str,
        text: &str,
        gpu_mem: Option<&str>,
        link: Option<&str>,
        device: Option<i32>,
        shape: Option<usize>,
        latency: bool,
        strategies: Option<Vec<String>>,
    ) -> PyResult<Self> {
        let profile = Profile::read(name, text).map_err(raise)?;
        let mut question = profile.question(Choice { device, shape }).map_err(raise)?;
        if let Some(gpu_mem) = gpu_mem {
            question = question.with_budget(gpu_mem).map_err(raise)?;
        }
        if let Some(link) = link {
            question = question.with_link(link).map_err(raise)?;
        }
        if latency {
            question = question.for_least_memory();
        }
        let planners = Planner::all(strategies.as_deref()).map_err(raise)?;
        let drawn = if strategies.is_some() { planners.len() } else { 1 };
        Ok(WhatIf { question, planners, drawn })
    }

    /// The table of plans as JSON.
    fn table(&self, py: Python<'_>) -> PyResult<String> {
        let table = py.detach(|| Table::new(&self.question, &self.planners)).map_err(raise)?;
        json(&table)
    }

    /// Times over budgets, by our planner and the strategies asked for: as JSON, and as a picture (SVG).
    fn sweep(&self, py: Python<'_>) -> PyResult<(String, String)> {
        let (points, picture) = py.detach(|| self.swept()).map_err(raise)?;
        Ok((json(&points)?, picture))
    }

    /// One steady pass under our plan, as a picture (SVG).
    fn timeline(&self, py: Python<'_>) -> PyResult<String> {
        py.detach(|| self.drawn_pass()).map_err(raise)
    }
}

impl WhatIf {
    fn swept(&self) -> Result<(sweep::Sweeps, String), WhatIfError> {
        let request = &self.question.request;
        let swept = |planner: &Planner| Ok((planner.name().to_owned(), sweep::sweep(request, planner)?));
        let sweeps = self
            .planners
            .iter()
            .take(self.drawn)
            .map(swept)
            .collect::<Result<sweep::Sweeps, WhatIfError>>()?;
        let chart =
            sweep::chart(self.question.heading(), &sweeps, self.question.resident_ms()?, request.budget);
        Ok((sweeps, draw::charts(&[chart])?))
    }

    fn drawn_pass(&self) -> Result<String, WhatIfError> {
        let request = &self.question.request;
        let plan = Planner::ours().plan(request)?;
        let heading = self.question.heading();
        let title = match request.budget {
            Some(budget) => format!("one pass of {heading}, budget {}", Bytes(budget)),
            None => format!("one pass of {heading}, no budget"),
        };
        draw::timeline(&timeline::timeline(request, &plan, title)?)
    }
}

/// Charts of a benchmark's results as SVG: all cases side by side, or one of them. `files` are names and texts.
#[pyfunction]
#[pyo3(signature = (files, case=None))]
pub(crate) fn plot_results(
    py: Python<'_>,
    files: Vec<(String, String)>,
    case: Option<&str>,
) -> PyResult<String> {
    py.detach(|| results::charts(&files, case).and_then(|charts| draw::charts(&charts))).map_err(raise)
}
