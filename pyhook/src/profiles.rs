//! Profile files for Python: core reads and checks them; what becomes of them is decided in `python/flextensor/`.

use flextensor_core::saved;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// A profile's text, read and checked by core, and written anew. `file` is only named in errors: ValueError with
/// what was found and what is allowed.
#[pyfunction]
pub(crate) fn profile_checked(file: &str, text: &str) -> PyResult<String> {
    let saved = saved::parse(file, text).map_err(|error| PyValueError::new_err(error.to_string()))?;
    Ok(saved.to_text())
}
