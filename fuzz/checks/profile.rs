//! What must hold of every text that is given as a profile: it is refused by name in one line, or all that is made of it can be made. Shared by the fuzz target and the test that
//! replays its corpus.

use std::collections::BTreeMap;

use flextensor_core::plan::{PlanRequest, plan};
use flextensor_core::saved::{Additions, Here, Saved, SavedModel, fit, parse};
use flextensor_core::units::{ModelId, UnitId};
use serde_json::Value;

/// Larger questions are the planner's own tests' matter.
const MOST_UNITS: usize = 24;
const MOST_PAGES: u64 = 4096;

/// A profile's text.
pub(crate) fn check(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let saved = match parse("given.json", text) {
        Ok(saved) => saved,
        Err(error) => return is_one_line(&error.to_string()),
    };
    let written = saved.to_text();
    let again = parse("given.json", &written).unwrap_or_else(|error| panic!("{error}: {written}"));
    let (again, was): (Value, Value) = (value(&again), value(&saved));
    assert!(are_alike(&again, &was), "{again} was {was}");
    if let Some(ours) = &saved.flextensor {
        ours.models.iter().for_each(|model| take_up(ours, model));
    }
    for device in [0, 1] {
        ask(&saved.request(device, None, saved.link()));
        ask(&saved.request(device, Some(8 << 20), saved.link()));
    }
}

fn value(saved: &Saved) -> Value {
    serde_json::to_value(saved).expect("a profile is plain values")
}

/// Equal, but for the last digit of a fraction: reading rounds.
fn are_alike(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Number(a), Value::Number(b)) => {
            let (x, y) = (a.as_f64().unwrap_or(0.0), b.as_f64().unwrap_or(0.0));
            a == b || (a.is_f64() && (x - y).abs() <= x.abs().max(y.abs()) * 1e-15)
        }
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| are_alike(a, b))
        }
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(key, a)| b.get(key).is_some_and(|b| are_alike(a, b)))
        }
        (a, b) => a == b,
    }
}

/// A run with the same model, and one that is not quite the same.
fn take_up(ours: &Additions, model: &SavedModel) {
    let plan = model.plan.as_ref();
    let gpu = ours.gpus.first();
    let here = Here {
        uuid: gpu.map_or_else(String::new, |gpu| gpu.uuid.clone()),
        link: gpu.map_or_else(Default::default, |gpu| gpu.link),
        patterns: ours.patterns.clone(),
        model: SavedModel { passes: Vec::new(), plan: None, ..model.clone() },
        budget: plan.and_then(|plan| plan.budget_bytes),
        fixed_bytes: plan.map_or(0, |plan| plan.fixed_bytes),
        ring_override: plan.and_then(|plan| plan.ring_override),
        settings: plan.map_or_else(BTreeMap::new, |plan| plan.settings.clone()),
        page_bytes: plan.map_or(2 << 20, |plan| plan.page_bytes),
        ring_before: plan.map_or(0, |plan| plan.ring_before),
    };
    let mut other = Here { budget: Some(6 << 20), ring_before: 3, ..here.clone() };
    other.model.units.pop();
    for here in [here, other] {
        match fit(ours, &here, &[]) {
            Ok((_, taken)) => {
                taken.differences.iter().for_each(|difference| is_one_line(&difference.to_string()));
                if let Some(plan) = taken.plan {
                    let ids: Vec<UnitId> = (0..taken.model.units.len() as u32).map(UnitId).collect();
                    let made = plan.plan(taken.model, ModelId(1), &ids);
                    assert_eq!(made.placements.len(), ids.len());
                }
            }
            Err(difference) => is_one_line(&difference.to_string()),
        }
    }
}

/// A question of a size that can be answered at once has an answer, or a reason why not.
fn ask(request: &PlanRequest) {
    let pages = request.units.iter().fold(0u64, |sum, unit| sum.saturating_add(unit.pages));
    let uses: usize = request.passes.iter().map(|pass| pass.uses.len()).sum();
    if request.units.len() > MOST_UNITS || uses > 4 * MOST_UNITS || pages > MOST_PAGES {
        return;
    }
    match plan(request) {
        Ok(plan) => assert!(plan.placements.len() <= request.units.len()),
        Err(error) => is_one_line(&error.to_string()),
    }
}

/// A message is a line: it goes to stderr among others.
fn is_one_line(message: &str) {
    assert!(!message.is_empty() && !message.contains(['\n', '\r']), "{message:?}");
}
