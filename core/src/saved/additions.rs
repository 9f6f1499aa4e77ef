//! What a profile file holds under the key `flextensor`: the GPU and its link, and for each model its weights, units, passes and plan.
//! Lists refer to each other by position. Their own types, so that the file stays readable when the planner's change.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::link::LinkPoint;
use crate::plan::StayReason;

/// The only format of the additions that is read and written.
pub const FORMAT: u32 = 1;

/// Everything beyond schema 3.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Additions {
    /// [`FORMAT`].
    pub format: u32,
    /// Who wrote it.
    pub versions: Versions,
    /// Where it was measured; one entry for each GPU that a model runs on.
    pub gpus: Vec<SavedGpu>,
    /// What the user chose to stream.
    pub patterns: Patterns,
    /// The models of the run, in the order in which they began.
    pub models: Vec<SavedModel>,
}

/// Versions of the parts that took part.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Versions {
    /// Ours.
    pub flextensor: String,
    /// The driver's, as it gives it (12080 = 12.8); 0 = unknown.
    #[serde(default)]
    pub driver: u32,
}

/// Generation and width of a PCIe link; 0 where the system does not tell.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct LinkId {
    /// 5 = 32 GT/s.
    pub generation: u32,
    /// Lanes.
    pub width: u32,
}

/// A GPU and the link to it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SavedGpu {
    /// Its number in the run.
    pub device: i32,
    /// Its UUID as tools print it: `GPU-01234567-89ab-cdef-0123-456789abcdef`; empty = unknown.
    pub uuid: String,
    /// Bytes of its memory.
    pub total_bytes: u64,
    /// Generation and width.
    pub link: LinkId,
    /// Throughput by copy size with nothing else running.
    pub idle: Vec<LinkPoint>,
    /// The same beside the program's own kernels, as far as it was measured.
    #[serde(default)]
    pub busy: Vec<LinkPoint>,
}

/// Which modules and parameters may be streamed, as configured.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Patterns {
    /// None = found automatically.
    #[serde(default)]
    pub include: Option<Vec<String>>,
    /// Applied after `include`.
    #[serde(default)]
    pub exclude: Vec<String>,
}

/// An innermost module that holds weights.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedOwner {
    /// Its number in the run; other lists name owners by it.
    pub owner: u32,
    /// Module path.
    pub path: String,
    /// Class name.
    pub class: String,
    /// The enclosing repeated block, or -1.
    pub trap: i32,
    /// Whether its forward was entered while the model was learnt.
    pub ran: bool,
}

/// One weight as the program named it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedWeight {
    /// Its name.
    pub name: String,
    /// Bytes of its storage.
    pub bytes: u64,
    /// Who holds it.
    pub owner: u32,
    /// Flags of `ft_model_weight`: 1 = may be streamed, 2 = may be read through pointers.
    pub flags: u32,
    /// Position of the weight that has the same storage and stands before it, if there is one.
    #[serde(default)]
    pub tied: Option<u32>,
}

/// Weights that are streamed together: the pages of one weight, or of all weights of one region.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedUnit {
    /// Positions of its weights.
    pub weights: Vec<u32>,
    /// Bytes of its weights, each storage once.
    pub bytes: u64,
    /// Whole pages.
    pub pages: u64,
    /// Whether a part of it can be streamed.
    pub splittable: bool,
    /// Whether a launch showed it in its owner's forward.
    pub shown: bool,
    /// Why it stays, if it must.
    #[serde(default)]
    pub stay: Option<StayReason>,
}

/// One use in a pass.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct SavedUse {
    /// Position of the unit.
    pub unit: u32,
    /// Who uses it.
    pub owner: u32,
    /// Milliseconds from the end of the previous use to the end of this one.
    pub ms: f64,
}

/// The usual pass of one shape.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SavedPass {
    /// The shape signature in 16 hexadecimal digits.
    pub shape: String,
    /// Passes that were seen.
    pub passes: u64,
    /// Whether the times were measured.
    pub timed: bool,
    /// Uses in order.
    pub uses: Vec<SavedUse>,
    /// Milliseconds from the end of the last use to the end of the pass.
    pub tail_ms: f64,
    /// Milliseconds of the whole pass with everything in place; 0 = unknown.
    pub resident_ms: f64,
    /// Milliseconds until the forward returned to the program, with everything in place; 0 = unknown.
    #[serde(default)]
    pub host_ms: f64,
}

/// A streamed unit's place in the ring.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct SavedRun {
    /// Position of the unit.
    pub unit: u32,
    /// The last so many of its pages are streamed.
    pub pages: u64,
    /// First ring page.
    pub start: u64,
}

/// The plan that was put in force for a model.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SavedPlan {
    /// The budget it was made for; none = no limit.
    #[serde(default)]
    pub budget_bytes: Option<u64>,
    /// Bytes of weights that were in none of the model's units.
    pub fixed_bytes: u64,
    /// The ring's size as the user wanted it.
    #[serde(default)]
    pub ring_override: Option<u64>,
    /// Bytes of a page.
    pub page_bytes: u64,
    /// Pages of the ring that turned before; 0 = this plan made it.
    pub ring_before: u64,
    /// Pages of the ring.
    pub ring_pages: u64,
    /// Streamed units, in the order in which they lie.
    pub runs: Vec<SavedRun>,
    /// Bytes that a pass copies.
    pub streamed_bytes: u64,
    /// Predicted milliseconds of a pass.
    pub predicted_ms: f64,
    /// The least milliseconds that any plan could take.
    pub bound_ms: f64,
    /// The smallest budget that could be met, where this one could not.
    #[serde(default)]
    pub smallest_budget: Option<u64>,
    /// Longest single copy, in pages; 0 = the usual one.
    #[serde(default)]
    pub chunk_pages: u64,
    /// The other options that plans depend on, by key.
    #[serde(default)]
    pub settings: BTreeMap<String, String>,
    /// What to expect of each shape; the first one's times are the plan's.
    #[serde(default)]
    pub forecasts: Vec<SavedForecast>,
}

/// What a plan means for passes of one shape.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SavedForecast {
    /// The shape signature in 16 hexadecimal digits.
    pub shape: String,
    /// Milliseconds with everything in place.
    pub resident_ms: f64,
    /// Predicted milliseconds.
    pub predicted_ms: f64,
    /// The least milliseconds that any plan could take.
    pub bound_ms: f64,
    /// Bytes copied.
    pub copied_bytes: u64,
}

impl SavedUnit {
    /// What people call it: its first weight's name, and how many more there are.
    #[must_use]
    pub fn name(&self, weights: &[SavedWeight]) -> String {
        let named = |at: &u32| weights.get(*at as usize);
        let own = self
            .weights
            .iter()
            .filter_map(named)
            .filter(|weight| weight.tied.is_none_or(|first| !self.weights.contains(&first)));
        let names: Vec<&str> = own.map(|weight| weight.name.as_str()).collect();
        match names.as_slice() {
            [] => "nothing".to_owned(),
            [only] => (*only).to_owned(),
            [first, rest @ ..] => format!("{first} and {} more", rest.len()),
        }
    }
}

/// One model: what it is, what its passes showed, and what was decided.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SavedModel {
    /// What the program calls it.
    pub name: String,
    /// The GPU it runs on.
    pub device: i32,
    /// Its innermost modules that hold weights.
    pub owners: Vec<SavedOwner>,
    /// Its weights, in the order in which they were named.
    pub weights: Vec<SavedWeight>,
    /// What can be streamed as a whole.
    pub units: Vec<SavedUnit>,
    /// Bytes of weights that are in no unit.
    pub fixed_bytes: u64,
    /// The usual pass of each shape; what the plan serves stands first.
    pub passes: Vec<SavedPass>,
    /// What was put in force; none before there was a plan.
    #[serde(default)]
    pub plan: Option<SavedPlan>,
}
