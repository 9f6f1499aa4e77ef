//! The shape signature of a forward: one number for the shapes of its tensor arguments.
//!
//! It only has to tell passes of different cost apart (prefill from decode), so masks are left out: they grow
//! with every decoded token while the work stays the same.

use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyList, PyTuple, PyType};

static TENSOR: PyOnceLock<Py<PyType>> = PyOnceLock::new();

const SEED: u64 = 0xcbf2_9ce4_8422_2325;
const PRIME: u64 = 0x0100_0000_01b3;
/// Containers inside containers are looked into this far.
const DEPTH: u32 = 3;

/// Says which type counts as a tensor.
#[pyfunction]
pub(crate) fn set_tensor_type(py: Python<'_>, tensor: Bound<'_, PyType>) {
    // A second call would name the same type: there is one torch in a process.
    let _already_set = TENSOR.set(py, tensor.unbind());
}

/// A hash of the shapes in `arguments` and, in their order, of the keyword arguments that are no masks.
#[pyfunction]
#[pyo3(signature = (arguments, keywords = None))]
pub(crate) fn hash_inputs(arguments: &Bound<'_, PyAny>, keywords: Option<&Bound<'_, PyDict>>) -> u64 {
    let Some(tensor) = TENSOR.get(arguments.py()) else { return SEED };
    let tensor = tensor.bind(arguments.py());
    let mut hash = mix_value(SEED, arguments, tensor, DEPTH);
    for (name, value) in keywords.into_iter().flatten() {
        if !name.to_string().contains("mask") {
            hash = mix_value(hash, &value, tensor, DEPTH);
        }
    }
    hash
}

fn mix_value(hash: u64, value: &Bound<'_, PyAny>, tensor: &Bound<'_, PyType>, depth: u32) -> u64 {
    if value.is_instance(tensor).unwrap_or(false) {
        let Ok(dimensions) = value.getattr("shape").and_then(|shape| shape.extract::<Vec<i64>>()) else {
            return hash;
        };
        return dimensions
            .iter()
            .fold(mix(hash, dimensions.len() as u64 ^ PRIME), |hash, &size| mix(hash, size.cast_unsigned()));
    }
    if depth == 0 {
        return hash;
    }
    if let Ok(items) = value.cast::<PyTuple>() {
        items.iter().fold(hash, |hash, item| mix_value(hash, &item, tensor, depth - 1))
    } else if let Ok(items) = value.cast::<PyList>() {
        items.iter().fold(hash, |hash, item| mix_value(hash, &item, tensor, depth - 1))
    } else if let Ok(items) = value.cast::<PyDict>() {
        items.iter().fold(hash, |hash, (_, item)| mix_value(hash, &item, tensor, depth - 1))
    } else {
        hash
    }
}

fn mix(hash: u64, word: u64) -> u64 {
    (hash ^ word).wrapping_mul(PRIME).rotate_left(23)
}
