//! What a strategy is asked: layers with tensors and durations, the link, the budget; and how such a question
//! is made from a request to the planner.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use super::TransferCurve;
use crate::plan::{PassProfile, PlanRequest, UnitInfo};
use crate::units::UnitId;

/// One tensor of a layer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tensor {
    /// The unit that it is.
    pub unit: UnitId,
    /// What people call it.
    pub name: String,
    /// Bytes that would be streamed.
    pub bytes: u64,
}

/// A stretch of a pass whose weights are copied together.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Layer {
    /// What people call it.
    pub label: String,
    /// Its tensors that may be streamed. Every tensor belongs to one layer.
    pub tensors: Vec<Tensor>,
    /// Milliseconds it computes with its weights in place; finite and not negative.
    pub duration_ms: f64,
}

impl Layer {
    /// Bytes of its tensors.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.tensors.iter().map(|tensor| tensor.bytes).sum()
    }
}

/// All that a strategy needs to know.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Question {
    /// The layers of a pass, in order.
    pub layers: Vec<Layer>,
    /// Bytes that always stay.
    pub fixed_bytes: u64,
    /// Bytes of GPU memory that weights may take, blocks included; none = as little as costs no time.
    pub budget: Option<u64>,
    /// The link from host to GPU.
    pub link: TransferCurve,
}

impl Question {
    /// All bytes of weights.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        self.layers.iter().map(Layer::bytes).fold(self.fixed_bytes, u64::saturating_add)
    }

    /// Milliseconds of a pass with every weight in place.
    #[must_use]
    pub fn compute_ms(&self) -> f64 {
        self.layers.iter().map(|layer| layer.duration_ms).sum()
    }

    /// The question behind a request. Layers are the repeated blocks that names tell (`layers.3.`...), else
    /// the owners. Units that must stay or that several layers use are fixed; idle units are left out. Of
    /// several passes of one model the first one counts; passes of several models follow each other.
    #[must_use]
    pub fn of_request(request: &PlanRequest) -> Question {
        let units: BTreeMap<UnitId, &UnitInfo> = request.units.iter().map(|unit| (unit.id, unit)).collect();
        let mut question = Question {
            layers: Vec::new(),
            fixed_bytes: 0,
            budget: request.budget,
            link: TransferCurve::of_link(
                &request.link,
                request.chunk_pages.max(1).saturating_mul(request.page_bytes),
            ),
        };
        let mut readers: BTreeMap<UnitId, Vec<usize>> = BTreeMap::new();
        let mut models = BTreeSet::new();
        for pass in request.passes.iter().filter(|pass| models.insert(pass.model)) {
            add_pass(pass, &units, &mut question.layers, &mut readers);
        }
        let mut streamable_bytes = 0;
        for unit in request.units.iter().filter(|unit| unit.stay.is_none() && unit.pages > 0) {
            let layer = match readers.get(&unit.id).map_or(&[][..], Vec::as_slice) {
                [] => {
                    streamable_bytes += unit.pages.saturating_mul(request.page_bytes);
                    continue;
                }
                [layer] => layer,
                _ => continue,
            };
            let bytes = unit.pages.saturating_mul(request.page_bytes);
            if let Some(layer) = question.layers.get_mut(*layer) {
                layer.tensors.push(Tensor { unit: unit.id, name: unit.name.clone(), bytes });
                streamable_bytes += bytes;
            }
        }
        question.fixed_bytes = request.total_bytes().saturating_sub(streamable_bytes);
        question
    }
}

/// Adds the layers of one pass, and to every unit the layers that read it.
fn add_pass(
    pass: &PassProfile,
    units: &BTreeMap<UnitId, &UnitInfo>,
    layers: &mut Vec<Layer>,
    readers: &mut BTreeMap<UnitId, Vec<usize>>,
) {
    let before = layers.len();
    let mut previous = None;
    for used in &pass.uses {
        let block = units.get(&used.unit).and_then(|unit| block_of(&unit.name));
        let key = block.map_or_else(|| format!("owner {}", used.owner), str::to_owned);
        if previous.as_ref() != Some(&key) {
            layers.push(Layer { label: key.clone(), tensors: Vec::new(), duration_ms: 0.0 });
            previous = Some(key);
        }
        let at = layers.len() - 1;
        let read = readers.entry(used.unit).or_default();
        if read.last() != Some(&at) {
            read.push(at);
        }
        if let Some(layer) = layers.last_mut() {
            layer.duration_ms += clean(used.compute_ms);
        }
    }
    if let Some(last) = layers.get_mut(before..).and_then(<[Layer]>::last_mut) {
        last.duration_ms += clean(pass.tail_ms);
    }
}

/// The outermost repeated block that a name lies in: all up to its first number that stands between dots.
fn block_of(name: &str) -> Option<&str> {
    let mut end = 0;
    for segment in name.split('.') {
        end += segment.len();
        let is_number = !segment.is_empty() && segment.bytes().all(|byte| byte.is_ascii_digit());
        if is_number && end > segment.len() && end < name.len() {
            return name.get(..end);
        }
        end += 1;
    }
    None
}

/// Times that are negative or not numbers count as 0, as they do for the planner.
fn clean(ms: f64) -> f64 {
    if ms.is_finite() && ms >= 0.0 { ms } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_outermost_number_in_a_name_ends_its_block() {
        assert_eq!(block_of("model.layers.3.mlp.experts.7.w1"), Some("model.layers.3"));
        assert_eq!(block_of("lm_head.weight"), None);
        assert_eq!(block_of("layers.3"), None, "the number is the weight itself");
        assert_eq!(block_of("3.weight"), None, "a sequence without a name has no blocks that repeat in it");
        assert_eq!(block_of("h.11.attn.c_attn"), Some("h.11"));
    }
}
