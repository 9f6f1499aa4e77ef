//! The profile file: what one run learnt, as text that a later run, or a what-if question, starts from. Text in, value or named error out.
//!
//! The outer part is `profile.json` of schema 3: labels (repeated blocks) with their tensors, durations and transfers. What the ring's planner
//! needs besides stands under the one key `flextensor` ([`Additions`]). A file without that key is a profile too: units, order and times
//! come from its labels then. Reading and writing files is the interposer's; what a run may take from one, [`fit()`] says.
//!
//! Unknown keys are ignored. Everything that is read is checked: no index, size or time of a file is trusted.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::Value;

mod additions;
mod check;
mod check_additions;
mod error;
mod fit;
mod labels;
mod request;

pub use additions::{
    Additions, FORMAT, LinkId, Patterns, SavedForecast, SavedGpu, SavedModel, SavedOwner, SavedPass,
    SavedPlan, SavedRun, SavedUnit, SavedUse, SavedWeight, Versions,
};
pub use error::SavedError;
pub use fit::{Difference, Here, Taken, fit};
pub use request::shape_of;

/// The only schema that is read and written.
pub const SCHEMA: u64 = 3;

/// Name of the file inside a profile folder.
pub const FILE_NAME: &str = "profile.json";

/// A tensor as labels list it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SavedTensor {
    /// Its number or text; key of [`Saved::tensor_id_to_name_map`].
    pub tensor_id: Value,
    /// Its name in the model.
    pub name: String,
    /// Bytes.
    pub size_bytes: u64,
    /// Milliseconds that copying it takes by itself.
    pub load_time_ms: f64,
}

/// One label with what it uses and how long it computes.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SavedStat {
    /// Module path of the label.
    pub label: String,
    /// What it uses.
    pub tensors: Vec<SavedTensor>,
    /// Milliseconds of compute with everything in place.
    pub duration: f64,
}

/// Shape and stride of a tensor, in elements.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedLayout {
    /// Elements in each dimension.
    pub shape: Vec<u64>,
    /// Elements from one index to the next in each dimension.
    pub stride: Vec<i64>,
}

/// A whole profile file. Field names are the keys of schema 3.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Saved {
    /// [`SCHEMA`].
    pub version: u64,
    /// How the tensors are brought in.
    pub loader_type: String,
    /// Names by tensor id.
    pub tensor_id_to_name_map: BTreeMap<String, String>,
    /// Labels that load into each block, in order of use.
    pub allocation_ordered: BTreeMap<String, Vec<String>>,
    /// Bytes that are brought in while a label runs.
    pub label_to_size_map: BTreeMap<String, u64>,
    /// Bytes of each block.
    pub block_sizes: BTreeMap<String, u64>,
    /// What is brought in while a label runs.
    pub load_strategy: BTreeMap<String, Vec<SavedTensor>>,
    /// What is let go when a label has run.
    pub release_strategy: BTreeMap<String, Vec<SavedTensor>>,
    /// The block that a label loads into.
    pub label_to_block_id: BTreeMap<String, u64>,
    /// Every label in order of use.
    pub stats: Vec<SavedStat>,
    /// By the label that loads: the label that computes with it.
    pub transfer_to_compute_map: BTreeMap<String, String>,
    /// Ids of tensors that are views of others.
    #[serde(default)]
    pub view_tensors_ids: Vec<Value>,
    /// Their names.
    #[serde(default)]
    pub view_tensors_names: Vec<String>,
    /// Names of tensors that stay on the GPU.
    #[serde(default)]
    pub gpu_tensors_names: Vec<String>,
    /// Shared memory of each block, in shared sessions.
    #[serde(default)]
    pub shm_block_name_map: Option<BTreeMap<String, String>>,
    /// Element types by tensor name; the preloaded library knows bytes only, and leaves it empty.
    #[serde(default)]
    pub managed_tensor_dtypes: BTreeMap<String, String>,
    /// Shapes by tensor name; as above.
    #[serde(default)]
    pub managed_tensor_layouts: BTreeMap<String, SavedLayout>,
    /// What only we know; none in files of other writers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub flextensor: Option<Additions>,
}

/// Reads a profile. `file` is only named in errors.
///
/// # Errors
/// [`SavedError`], which names the file, what was found and what is allowed: text that is no JSON object, another version, a missing or
/// wrongly typed key, parts that contradict each other.
pub fn parse(file: &str, text: &str) -> Result<Saved, SavedError> {
    let named = || file.to_owned();
    let not_json = |why: String| SavedError::NotJson { file: named(), why };
    let value: Value = serde_json::from_str(text).map_err(|error| not_json(error.to_string()))?;
    let Value::Object(keys) = &value else {
        return Err(not_json("it holds another kind of value".to_owned()));
    };
    match keys.get("version") {
        None => return Err(SavedError::NoVersion { file: named() }),
        Some(version) if version.as_u64() == Some(SCHEMA) => {}
        Some(version) => return Err(SavedError::OtherVersion { file: named(), found: version.to_string() }),
    }
    let format = keys.get("flextensor").and_then(|ours| ours.get("format"));
    if let Some(format) = format.filter(|format| format.as_u64() != Some(u64::from(FORMAT))) {
        return Err(SavedError::OtherFormat { file: named(), found: format.to_string() });
    }
    // From the text again, so that errors say where.
    let saved: Saved = serde_json::from_str(text)
        .map_err(|error| SavedError::WrongShape { file: named(), why: error.to_string() })?;
    check::check(file, &saved)?;
    if let Some(ours) = &saved.flextensor {
        check_additions::check(file, ours)?;
    }
    Ok(saved)
}

impl Saved {
    /// The text of the file: JSON on indented lines, with a line end.
    #[must_use]
    pub fn to_text(&self) -> String {
        // Every field is a plain value with text keys, so there is nothing that could fail.
        serde_json::to_string_pretty(self).map(|text| text + "\n").unwrap_or_default()
    }
}

/// A tensor id as maps spell it: texts as they are, numbers in digits.
fn id_text(id: &Value) -> String {
    match id {
        Value::String(text) => text.clone(),
        other => other.to_string(),
    }
}
