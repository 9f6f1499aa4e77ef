//! What a run may take from a profile: everything, times only, or nothing; and why not more. Measuring what is missing, and saying so, is
//! the interposer's.

use std::collections::BTreeMap;
use std::fmt;

use super::{Additions, LinkId, Patterns, SavedGpu, SavedModel, SavedPlan, SavedWeight};
use crate::units::{Bytes, one_line};

/// What the run is, as far as a plan depends on it.
#[derive(Debug, Clone, PartialEq)]
pub struct Here {
    /// UUID of the model's GPU; empty = unknown.
    pub uuid: String,
    /// Its link.
    pub link: LinkId,
    /// What the user chose to stream.
    pub patterns: Patterns,
    /// The model as it was named, without passes and plan.
    pub model: SavedModel,
    /// Budget for weights, in bytes.
    pub budget: Option<u64>,
    /// Bytes of weights on the GPU that are in none of the model's units.
    pub fixed_bytes: u64,
    /// The ring's size as the user wants it.
    pub ring_override: Option<u64>,
    /// The other options that plans depend on, by key.
    pub settings: BTreeMap<String, String>,
    /// Bytes of a page.
    pub page_bytes: u64,
    /// Pages of the ring that turns already; 0 = none.
    pub ring_before: u64,
}

/// One thing that is not as it was.
#[derive(Debug, Clone, PartialEq)]
pub enum Difference {
    /// No model of the file has these weights; the nearest one differs so.
    Model(String),
    /// Another GPU.
    Gpu {
        /// UUID in the file.
        was: String,
        /// UUID of this run's.
        is: String,
    },
    /// Another link to the GPU.
    Link {
        /// In the file.
        was: LinkId,
        /// In this run.
        is: LinkId,
    },
    /// Other patterns.
    Patterns,
    /// Another budget.
    Budget {
        /// In the file.
        was: Option<u64>,
        /// In this run.
        is: Option<u64>,
    },
    /// Another value of an option that plans depend on.
    Setting {
        /// Its key.
        key: String,
        /// In the file.
        was: String,
        /// In this run.
        is: String,
    },
    /// The weights lie otherwise in GPU memory, or more weights lie beside them.
    Units,
    /// The ring is wanted in another size, or another one turns already.
    Ring,
    /// The file holds no plan.
    NoPlan,
    /// The plan takes more than the budget, and does not say so.
    OverBudget,
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let budget = |bytes: &Option<u64>| bytes.map_or("none".to_owned(), |bytes| Bytes(bytes).to_string());
        match self {
            Difference::Model(how) => write!(f, "the model is another one ({})", one_line(how)),
            Difference::Gpu { was, is } => {
                write!(f, "the GPU is {}, not {}", one_line(or_unknown(is)), one_line(or_unknown(was)))
            }
            Difference::Link { was, is } => write!(f, "the link is {is}, not {was}"),
            Difference::Patterns => write!(f, "the patterns are others"),
            Difference::Budget { was, is } => {
                write!(f, "the budget is {}, not {}", budget(is), budget(was))
            }
            Difference::Setting { key, was, is } => {
                write!(f, "{} is {}, not {}", one_line(key), one_line(is), one_line(was))
            }
            Difference::Units => {
                write!(f, "weights lie otherwise in GPU memory, or more of them beside these")
            }
            Difference::Ring => write!(f, "the ring is another one"),
            Difference::NoPlan => write!(f, "it holds no plan"),
            Difference::OverBudget => write!(f, "its plan takes more than the budget"),
        }
    }
}

impl fmt::Display for LinkId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            LinkId { generation: 0, .. } => write!(f, "unknown"),
            LinkId { generation, width } => write!(f, "PCIe {generation}.0 x{width}"),
        }
    }
}

fn or_unknown(text: &str) -> &str {
    if text.is_empty() { "unknown" } else { text }
}

/// What may be taken.
#[derive(Debug, Clone, PartialEq)]
pub struct Taken<'a> {
    /// The model of the file.
    pub model: &'a SavedModel,
    /// Its GPU in the file.
    pub gpu: &'a SavedGpu,
    /// For each unit of the file, the unit of this run that holds its first weight.
    pub units: Vec<Option<u32>>,
    /// The plan, where it may be used as it is; its units are then this run's, one for one.
    pub plan: Option<&'a SavedPlan>,
    /// Whether the link's curve may be used; otherwise it is to be measured.
    pub link: bool,
    /// What is not as it was; empty where the plan may be used.
    pub differences: Vec<Difference>,
}

/// Finds what this run may take from a profile. Of several models that fit, those of `used` positions are passed over.
///
/// # Errors
/// The difference to the nearest model, when no model of the file is this one: then nothing may be taken.
pub fn fit<'a>(ours: &'a Additions, here: &Here, used: &[usize]) -> Result<(usize, Taken<'a>), Difference> {
    let free = ours.models.iter().enumerate().filter(|(at, _)| !used.contains(at));
    let mut nearest = None;
    for (at, model) in free {
        match other_weights(model, &here.model) {
            None => return Ok((at, take(ours, model, here)?)),
            Some(how) if nearest.is_none() || model.name == here.model.name => nearest = Some(how),
            Some(_) => {}
        }
    }
    Err(Difference::Model(nearest.unwrap_or_else(|| "the file holds no other".to_owned())))
}

fn take<'a>(ours: &'a Additions, model: &'a SavedModel, here: &Here) -> Result<Taken<'a>, Difference> {
    let Some(gpu) = ours.gpus.iter().find(|gpu| gpu.device == model.device) else {
        return Err(Difference::Model("its GPU is not described".to_owned()));
    };
    let mut differences = Vec::new();
    // A GPU that does not say which one it is may be any.
    if gpu.uuid != here.uuid || here.uuid.is_empty() {
        differences.push(Difference::Gpu { was: gpu.uuid.clone(), is: here.uuid.clone() });
    } else if gpu.link != here.link {
        differences.push(Difference::Link { was: gpu.link, is: here.link });
    }
    let link = differences.is_empty();
    if ours.patterns != here.patterns || flags(model) != flags(&here.model) {
        differences.push(Difference::Patterns);
    }
    match &model.plan {
        None => differences.push(Difference::NoPlan),
        Some(plan) => differences.extend(other_plan(model, plan, here)),
    }
    let units = units_now(model, &here.model);
    let plan = model.plan.as_ref().filter(|_| differences.is_empty());
    Ok(Taken { model, gpu, units, plan, link, differences })
}

/// Why the plan is not one for this run.
fn other_plan(model: &SavedModel, plan: &SavedPlan, here: &Here) -> Option<Difference> {
    if plan.budget_bytes != here.budget {
        return Some(Difference::Budget { was: plan.budget_bytes, is: here.budget });
    }
    for key in plan.settings.keys().chain(here.settings.keys()) {
        let of =
            |settings: &BTreeMap<String, String>| settings.get(key).cloned().unwrap_or("unset".to_owned());
        let (was, is) = (of(&plan.settings), of(&here.settings));
        if was != is {
            return Some(Difference::Setting { key: key.clone(), was, is });
        }
    }
    // Reasons to stay that came up since count, as do those that the file knows: what streams may not have one here.
    let same = |(a, b): (&super::SavedUnit, &super::SavedUnit)| {
        a.weights == b.weights && a.pages == b.pages && (a.splittable == b.splittable || !a.splittable)
    };
    let streams_here = |run: &super::SavedRun| {
        here.model.units.get(run.unit as usize).is_some_and(|unit| unit.stay.is_none())
    };
    if model.units.len() != here.model.units.len()
        || !model.units.iter().zip(&here.model.units).all(same)
        || !plan.runs.iter().all(streams_here)
        || here.fixed_bytes > plan.fixed_bytes
    {
        return Some(Difference::Units);
    }
    let wanted = (plan.ring_override, plan.page_bytes, plan.ring_before);
    if wanted != (here.ring_override, here.page_bytes, here.ring_before) {
        return Some(Difference::Ring);
    }
    let ids: Vec<crate::units::UnitId> = (0..model.units.len() as u32).map(crate::units::UnitId).collect();
    let ring = here.ring_before * here.page_bytes;
    let peak = plan.plan(model, crate::units::ModelId(0), &ids).peak_bytes.saturating_add(ring);
    let over = here.budget.is_some_and(|budget| peak > budget);
    (over && plan.smallest_budget.is_none()).then_some(Difference::OverBudget)
}

fn flags(model: &SavedModel) -> Vec<u32> {
    model.weights.iter().map(|weight| weight.flags).collect()
}

/// How the weights of two models differ; none if they are the same.
fn other_weights(was: &SavedModel, is: &SavedModel) -> Option<String> {
    let key = |weight: &SavedWeight| (weight.name.clone(), weight.bytes, weight.tied);
    for (a, b) in was.weights.iter().zip(&is.weights) {
        if a.name != b.name {
            return Some(format!("weight `{}` stands where the file has `{}`", b.name, a.name));
        }
        if a.bytes != b.bytes {
            return Some(format!("weight `{}` has {} bytes, in the file {}", b.name, b.bytes, a.bytes));
        }
        if key(a) != key(b) || a.owner != b.owner {
            return Some(format!("weight `{}` is held by others than in the file", b.name));
        }
    }
    if was.weights.len() != is.weights.len() {
        return Some(format!("{} weights, in the file {}", is.weights.len(), was.weights.len()));
    }
    let owner = |model: &SavedModel| {
        let owners = model.owners.iter();
        owners
            .map(|owner| (owner.owner, owner.path.clone(), owner.class.clone(), owner.trap))
            .collect::<Vec<_>>()
    };
    (owner(was) != owner(is)).then(|| "its modules differ".to_owned())
}

/// For each unit of `was`, the unit of `is` that holds its first weight.
fn units_now(was: &SavedModel, is: &SavedModel) -> Vec<Option<u32>> {
    let mut of: BTreeMap<u32, u32> = BTreeMap::new();
    for (unit, known) in (0..).zip(&is.units) {
        of.extend(known.weights.iter().map(|&weight| (weight, unit)));
    }
    was.units.iter().map(|unit| unit.weights.first().and_then(|weight| of.get(weight)).copied()).collect()
}
