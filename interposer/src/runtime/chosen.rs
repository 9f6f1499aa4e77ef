//! What a program said at run time about who chooses what is streamed of its models: a strategy of ours with parameters, or the weights that a strategy
//! of its own chose. Without a word the configuration counts (`planned`). When new plans are made is `replan`'s matter.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use flextensor_core::plan::PlanRequest;
use flextensor_core::strategy::{self, Chosen, Parameters, Strategy};
use flextensor_core::units::{ModelId, UnitId};
use xxhash_rust::xxh3::xxh3_64;

use super::world::{Unit, world};

/// One word.
#[derive(Clone, Debug)]
struct Choice {
    /// A name and a checksum: plans that were saved under another one are not this one's.
    text: String,
    by: By,
}

#[derive(Clone, Debug)]
enum By {
    Strategy(Arc<dyn Strategy>),
    /// Names of weights.
    Weights(BTreeSet<String>),
}

/// A leaf in the order of locks.
static CHOICES: Mutex<BTreeMap<ModelId, Choice>> = Mutex::new(BTreeMap::new());

/// Devices for whose models somebody has chosen since a plan was last thought of there, and whether there are any.
static NEWS: Mutex<BTreeSet<i32>> = Mutex::new(BTreeSet::new());
static ANY_NEWS: AtomicBool = AtomicBool::new(false);

fn news() -> MutexGuard<'static, BTreeSet<i32>> {
    NEWS.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

fn choices() -> MutexGuard<'static, BTreeMap<ModelId, Choice>> {
    CHOICES.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// The model's word from now on; none takes it back. Plans that are in force follow soon. False for an unknown model.
///
/// # Errors
/// A sentence about what is wrong with it.
pub(crate) fn choose(id: ModelId, text: Option<&str>) -> Result<bool, String> {
    let choice = text.map(read).transpose()?;
    let living: BTreeMap<ModelId, i32> =
        world().models.iter().map(|(&model, is)| (model, is.device)).collect();
    let Some(&device) = living.get(&id) else { return Ok(false) };
    let mut choices = choices();
    choices.retain(|model, _| living.contains_key(model));
    match choice {
        Some(choice) => choices.insert(id, choice),
        None => choices.remove(&id),
    };
    drop(choices);
    add_news(device);
    Ok(true)
}

/// Reads `{"name": ..., "parameters": {...}}` or `{"name": ..., "weights": [...]}`.
fn read(text: &str) -> Result<Choice, String> {
    #[derive(serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    struct Said {
        name: String,
        parameters: Option<Parameters>,
        weights: Option<BTreeSet<String>>,
    }
    let said: Said = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let by = match (said.weights, said.parameters) {
        (Some(_), Some(_)) => return Err("it has both `parameters` and `weights`: allowed is one".to_owned()),
        (Some(weights), None) => By::Weights(weights),
        (None, parameters) => {
            let made = strategy::by_name(&said.name, &parameters.unwrap_or_default());
            By::Strategy(Arc::from(made.map_err(|error| error.to_string())?))
        }
    };
    Ok(Choice { text: format!("{} ({:016x})", said.name, xxh3_64(text.as_bytes())), by })
}

/// Whether somebody has chosen for a model on this device since this was last asked.
pub(super) fn take_news(device: i32) -> bool {
    if !ANY_NEWS.load(Ordering::Acquire) {
        return false;
    }
    let mut news = news();
    let taken = news.remove(&device);
    ANY_NEWS.store(!news.is_empty(), Ordering::Release);
    taken
}

/// A new plan is to be thought of on this device.
pub(super) fn add_news(device: i32) {
    let mut news = news();
    news.insert(device);
    ANY_NEWS.store(true, Ordering::Release);
}

/// What was said of a model: another text, another plan.
pub(super) fn text_of(id: ModelId) -> Option<String> {
    choices().get(&id).map(|choice| choice.text.clone())
}

/// Who chooses for this request, if a program said so of any model in it. Weights that were chosen come first, of all models together; of several
/// strategies the one of the oldest model. The calling thread holds no lock.
pub(super) fn strategy_for(request: &PlanRequest) -> Option<Arc<dyn Strategy>> {
    if choices().is_empty() {
        return None;
    }
    let world = world();
    let choices = choices();
    let units: Vec<&Unit> = request.units.iter().filter_map(|unit| world.unit(unit.id)).collect();
    let models: BTreeSet<ModelId> =
        units.iter().flat_map(|unit| unit.members.iter().map(|member| member.model)).collect();
    let said: Vec<(ModelId, &Choice)> =
        models.iter().filter_map(|id| Some((*id, choices.get(id)?))).collect();
    let weights: BTreeMap<ModelId, &BTreeSet<String>> = said
        .iter()
        .filter_map(|(id, choice)| match &choice.by {
            By::Weights(weights) => Some((*id, weights)),
            By::Strategy(_) => None,
        })
        .collect();
    if weights.is_empty() {
        return said.iter().find_map(|(_, choice)| match &choice.by {
            By::Strategy(strategy) => Some(Arc::clone(strategy)),
            By::Weights(_) => None,
        });
    }
    let chosen: BTreeSet<UnitId> =
        units.iter().filter(|unit| is_chosen(unit, &weights)).map(|unit| unit.id).collect();
    Some(Arc::new(Chosen::new(chosen)))
}

/// Weights on shared pages go together: where most of their bytes were chosen, all are.
fn is_chosen(unit: &Unit, weights: &BTreeMap<ModelId, &BTreeSet<String>>) -> bool {
    let mut of: BTreeMap<u64, (u64, bool)> = BTreeMap::new();
    for member in &unit.members {
        let chosen = weights.get(&member.model).is_some_and(|names| names.contains(&member.name));
        let known = of.entry(member.address).or_insert((member.bytes, false));
        known.1 |= chosen;
    }
    let all: u64 = of.values().map(|(bytes, _)| bytes).sum();
    let chosen: u64 = of.values().filter(|(_, chosen)| *chosen).map(|(bytes, _)| bytes).sum();
    chosen > 0 && 2 * chosen >= all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_strategy_of_ours_is_made_and_checked_at_once() {
        let made = read(r#"{"name": "NthLayerStrategy", "parameters": {"nth_layer": 3}}"#).unwrap();
        assert!(matches!(&made.by, By::Strategy(strategy) if strategy.name() == "NthLayerStrategy"));
        for (text, named) in [
            (r#"{"name": "Mine"}"#, "`Mine`"),
            (r#"{"name": "GreedyStrategy", "parameters": {"scale": 0}}"#, "`scale`"),
            (r#"{"name": "Mine", "weights": [], "parameters": {}}"#, "both"),
            (r#"{"name": "Mine", "wieghts": []}"#, "wieghts"),
            ("[]", "invalid"),
        ] {
            let refused = read(text).unwrap_err();
            assert!(refused.contains(named), "{refused}");
        }
    }

    #[test]
    fn weights_may_be_chosen_under_any_name() {
        let made = read(r#"{"name": "Mine", "weights": ["a", "b", "a"]}"#).unwrap();
        assert!(matches!(&made.by, By::Weights(weights) if weights.len() == 2));
    }
}
