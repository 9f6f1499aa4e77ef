//! Profiles for tests: a small model as a run would save it, and random ones.
#![allow(dead_code, reason = "each test binary uses a part of it")]

use std::collections::BTreeMap;

use flextensor_core::link::{LinkCurve, LinkPoint};
use flextensor_core::plan::{Plan, PlanRequest, plan};
use flextensor_core::saved::{
    Additions, FORMAT, Here, LinkId, Patterns, Saved, SavedForecast, SavedGpu, SavedModel, SavedOwner,
    SavedPass, SavedPlan, SavedRun, SavedUnit, SavedUse, SavedWeight, Versions,
};
use flextensor_core::units::{ModelId, UnitId};

pub(crate) const MIB: u64 = 1 << 20;
pub(crate) const UUID: &str = "GPU-01234567-89ab-cdef-0123-456789abcdef";
pub(crate) const LINK: LinkId = LinkId { generation: 5, width: 16 };

/// `layers` blocks of two weights of `mib` MiB each, and an embedding that is tied to the head.
pub(crate) fn model(layers: u32, mib: u64) -> SavedModel {
    let mut owners = vec![owner(0, "embed", -1)];
    let mut weights = vec![weight("embed.weight", 12 * MIB, 0)];
    for layer in 0..layers {
        for part in ["up", "down"] {
            let number = owners.len() as u32;
            owners.push(owner(number, &format!("layers.{layer}.{part}"), layer as i32));
            weights.push(weight(&format!("layers.{layer}.{part}.weight"), mib * MIB, number));
        }
    }
    let head = owners.len() as u32;
    owners.push(owner(head, "head", -1));
    let units: Vec<SavedUnit> = (0..weights.len() as u32)
        .map(|at| SavedUnit {
            weights: if at == 0 { vec![0, head] } else { vec![at] },
            bytes: weights[at as usize].bytes,
            pages: weights[at as usize].bytes.div_ceil(2 * MIB),
            splittable: true,
            shown: true,
            stay: None,
        })
        .collect();
    weights.push(SavedWeight { tied: Some(0), ..weight("head.weight", 12 * MIB, head) });
    let mut uses: Vec<SavedUse> =
        (0..units.len() as u32).map(|unit| SavedUse { unit, owner: unit, ms: 0.25 }).collect();
    uses.push(SavedUse { unit: 0, owner: head, ms: 0.5 });
    let resident_ms = uses.iter().map(|used| used.ms).sum::<f64>() + 0.125;
    let pass = SavedPass {
        shape: "00000000000000a1".to_owned(),
        passes: 10,
        timed: true,
        uses,
        tail_ms: 0.125,
        resident_ms,
        host_ms: 0.75,
    };
    SavedModel {
        name: "toy".to_owned(),
        device: 0,
        owners,
        weights,
        units,
        fixed_bytes: 0,
        passes: vec![pass],
        plan: None,
    }
}

fn owner(number: u32, path: &str, trap: i32) -> SavedOwner {
    SavedOwner { owner: number, path: path.to_owned(), class: "Linear".to_owned(), trap, ran: true }
}

fn weight(name: &str, bytes: u64, owner: u32) -> SavedWeight {
    SavedWeight { name: name.to_owned(), bytes, owner, flags: 1, tied: None }
}

/// The model with the plan that our planner makes for it.
pub(crate) fn planned(mut model: SavedModel, budget: Option<u64>) -> SavedModel {
    let made = our_plan(&model, budget);
    model.plan = Some(saved_plan(&made, budget, model.fixed_bytes));
    model
}

pub(crate) fn our_plan(model: &SavedModel, budget: Option<u64>) -> Plan {
    let ours = additions(vec![model.clone()]);
    let request = Saved::of(ours).request(0, budget, LinkCurve::default());
    plan(&request).expect("the request is sound")
}

pub(crate) fn saved_plan(made: &Plan, budget: Option<u64>, fixed_bytes: u64) -> SavedPlan {
    SavedPlan {
        budget_bytes: budget,
        fixed_bytes,
        ring_override: None,
        page_bytes: PlanRequest::PAGE_BYTES,
        ring_before: 0,
        ring_pages: made.ring_pages,
        runs: made
            .layout
            .iter()
            .map(|run| SavedRun { unit: run.unit.0, pages: run.pages, start: run.start })
            .collect(),
        streamed_bytes: made.streamed_bytes,
        predicted_ms: made.predicted_ms,
        bound_ms: made.bound_ms,
        smallest_budget: made.budget_missed(),
        chunk_pages: made.chunk_pages,
        settings: settings(),
        forecasts: made.forecasts.iter().filter_map(|of| SavedForecast::from_plan(of, ModelId(1))).collect(),
    }
}

pub(crate) fn additions(models: Vec<SavedModel>) -> Additions {
    Additions {
        format: FORMAT,
        versions: Versions { flextensor: "0.1.0".to_owned(), driver: 13000 },
        gpus: vec![SavedGpu {
            device: 0,
            uuid: UUID.to_owned(),
            total_bytes: 80 << 30,
            link: LINK,
            idle: vec![point(MIB, 48.0), point(32 * MIB, 55.0)],
            busy: vec![point(8 * MIB, 52.0)],
        }],
        patterns: Patterns { include: None, exclude: vec!["name:head.*".to_owned()] },
        models,
    }
}

pub(crate) fn point(copy_bytes: u64, gb_per_s: f64) -> LinkPoint {
    LinkPoint { copy_bytes, gb_per_s }
}

/// A run in which everything is as in the profile of [`additions`] with this model.
pub(crate) fn here(model: &SavedModel, budget: Option<u64>) -> Here {
    let mut model = model.clone();
    (model.passes, model.plan) = (Vec::new(), None);
    Here {
        uuid: UUID.to_owned(),
        link: LINK,
        patterns: Patterns { include: None, exclude: vec!["name:head.*".to_owned()] },
        fixed_bytes: model.fixed_bytes,
        model,
        budget,
        ring_override: None,
        settings: settings(),
        page_bytes: PlanRequest::PAGE_BYTES,
        ring_before: 0,
    }
}

fn settings() -> BTreeMap<String, String> {
    BTreeMap::from([("mode".to_owned(), "auto".to_owned())])
}

/// Ids as a run might give them.
pub(crate) fn ids(model: &SavedModel, first: u32) -> Vec<UnitId> {
    (0..model.units.len() as u32).map(|at| UnitId(first + at)).collect()
}

pub(crate) const MODEL: ModelId = ModelId(7);
