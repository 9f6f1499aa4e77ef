//! What this run leaves for the next one: models as their plans come into force, written at once where that is wanted, and on request.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use flextensor_core::plan::{Plan, PlanRequest, UnitInfo};
use flextensor_core::saved::{
    Additions, FILE_NAME, FORMAT, Saved, SavedForecast, SavedGpu, SavedModel, SavedPlan, SavedRun, Versions,
};
use flextensor_core::units::{ModelId, UnitId};

use super::{Known, describe, file, is_kept_unasked, path, patterns, settings, state};
use crate::ffi::device;
use crate::log;
use crate::runtime::config;

/// Models that a file holds; of more, those that are gone longest are left out.
const MOST_MODELS: usize = 64;

/// The plan came into force; none where it was refused. `ring_before`: pages of the ring that turned already. Writes the file, if there is news.
pub(in super::super) fn decided(id: ModelId, request: &PlanRequest, plan: Option<&Plan>, ring_before: u64) {
    let mut ids: Vec<UnitId> =
        request.units.iter().map(|unit| unit.id).chain(describe::in_host(id)).collect();
    ids.sort_unstable();
    let Some(mut model) = describe::placed(id, &ids) else { return };
    let asked: BTreeMap<UnitId, &UnitInfo> = request.units.iter().map(|unit| (unit.id, unit)).collect();
    for (unit, id) in model.units.iter_mut().zip(&ids) {
        if let Some(asked) = asked.get(id) {
            unit.stay = unit.stay.or(asked.stay);
            unit.splittable = asked.splittable;
        }
    }
    model.plan = plan.map(|plan| saved_plan(id, request, plan, ring_before, &ids));
    let refused = plan.is_none();
    let news = state(|state| {
        tidy(&mut state.models, &model);
        let known = state.models.entry(id).or_default();
        known.saved = Some(model);
        // A plan that is used is there already, and one that was refused takes no other's place.
        known.plan.is_none() && !(refused && known.at.is_some())
    });
    if news && is_kept_unasked(id) {
        write_unasked();
    }
}

/// Writes the file where that is wanted and allowed.
fn write_unasked() {
    if let Some(path) = path().filter(|_| !config().profile_read_only)
        && !state(|state| state.leave)
    {
        let _ = write(&path);
    }
}

/// A new plan for everything on a device came into force. The next run starts with it where it is for one model; one for several needs all of
/// them at once, and follows there again. Writes the file.
pub(in super::super) fn replanned(request: &PlanRequest, plan: &Plan) {
    let models: BTreeSet<ModelId> = request.passes.iter().map(|pass| pass.model).collect();
    let (Some(&id), 1) = (models.first(), models.len()) else { return };
    let saved = state(|state| state.models.get(&id).and_then(|known| known.saved.clone()));
    let Some((mut fresh, ids)) = saved.and_then(|saved| describe::refreshed(id, saved)) else { return };
    let asked: BTreeMap<UnitId, &UnitInfo> = request.units.iter().map(|unit| (unit.id, unit)).collect();
    for (unit, id) in fresh.units.iter_mut().zip(&ids) {
        unit.splittable = asked.get(id).map_or(unit.splittable, |asked| asked.splittable);
    }
    let mut now = saved_plan(id, request, plan, 0, &ids);
    // What has left its units since stays in them, and was counted there.
    now.fixed_bytes = fresh.plan.as_ref().map_or(now.fixed_bytes, |before| before.fixed_bytes);
    let streamed: u64 = now.runs.iter().map(|run| run.pages).sum();
    if now.runs.len() != plan.layout.len() || now.ring_pages > streamed {
        return;
    }
    fresh.plan = Some(now);
    state(|state| state.models.entry(id).or_default().saved = Some(describe::without_stale_plan(fresh)));
    if is_kept_unasked(id) {
        write_unasked();
    }
}

fn saved_plan(
    id: ModelId,
    request: &PlanRequest,
    plan: &Plan,
    ring_before: u64,
    ids: &[UnitId],
) -> SavedPlan {
    let positions: BTreeMap<UnitId, u32> = ids.iter().copied().zip(0..).collect();
    let position = |unit: UnitId| positions.get(&unit).copied();
    let runs = plan
        .layout
        .iter()
        .filter_map(|run| Some(SavedRun { unit: position(run.unit)?, pages: run.pages, start: run.start }));
    SavedPlan {
        budget_bytes: request.budget,
        fixed_bytes: request.fixed_bytes,
        ring_override: request.ring_override,
        page_bytes: request.page_bytes,
        ring_before,
        ring_pages: plan.ring_pages,
        runs: runs.collect(),
        streamed_bytes: plan.streamed_bytes,
        predicted_ms: plan.predicted_ms,
        bound_ms: plan.bound_ms,
        smallest_budget: plan.budget_missed(),
        chunk_pages: plan.chunk_pages,
        settings: settings(id),
        forecasts: plan.forecasts.iter().filter_map(|of| SavedForecast::from_plan(of, id)).collect(),
    }
}

/// Writes what this run knows by now to a folder; none = the configured one.
///
/// # Errors
/// One sentence: no folder, saving is switched off, no model is in INFERENCE yet, or what the system says.
pub(crate) fn save(folder: Option<&Path>) -> Result<(), Refused> {
    let folder = folder.map(Path::to_owned).or_else(|| config().profile_storage_dir.clone());
    let folder = folder.ok_or_else(|| {
        Refused::Argument("no folder was given, and profile_storage_dir is not set".to_owned())
    })?;
    if config().profile_read_only {
        return Err(Refused::Argument("profile_read_only is on".to_owned()));
    }
    let models: Vec<(ModelId, SavedModel)> = state(|state| {
        let saved = state.models.iter().filter_map(|(id, known)| Some((*id, known.saved.clone()?)));
        saved.collect()
    });
    for (id, model) in models {
        if let Some((fresh, _)) = describe::refreshed(id, model) {
            let fresh = describe::without_stale_plan(fresh);
            state(|state| state.models.entry(id).or_default().saved = Some(fresh));
        }
    }
    write(&folder.join(FILE_NAME))
}

/// Why a profile was not saved.
pub(crate) enum Refused {
    /// It may never be, the way it was asked for.
    Argument(String),
    /// No model is in INFERENCE yet.
    TooEarly,
    /// The system refused; one line was logged.
    Failed,
}

fn write(path: &Path) -> Result<(), Refused> {
    let (models, gpus): (Vec<SavedModel>, Vec<SavedGpu>) = state(|state| {
        let models = state.models.values().filter_map(|known| known.saved.clone());
        let described = models.filter(|model| state.gpus.contains_key(&model.device)).collect();
        (described, state.gpus.values().cloned().collect())
    });
    if models.is_empty() {
        return Err(Refused::TooEarly);
    }
    let versions =
        Versions { flextensor: env!("CARGO_PKG_VERSION").to_owned(), driver: device::driver_version() };
    let saved = Saved::of(Additions { format: FORMAT, versions, gpus, patterns: patterns(), models });
    match file::write(path, &saved.to_text()) {
        Ok(()) => {
            log::info!("profile saved to {}", path.display());
            Ok(())
        }
        Err(error) => {
            log::warning!("the profile could not be saved to {}: {error}", path.display());
            Err(Refused::Failed)
        }
    }
}

/// The model is gone. What was saved of it stays so, until the program makes the same model again.
pub(in super::super) fn forget(id: ModelId) {
    state(|state| match state.models.get_mut(&id) {
        Some(known) if known.saved.is_some() => {
            *known = Known { saved: known.saved.take(), gone: true, ..Known::default() };
        }
        _ => {
            state.models.remove(&id);
        }
    });
}

/// Forgets models that are gone and come again, and the oldest of too many.
fn tidy(models: &mut BTreeMap<ModelId, Known>, came: &SavedModel) {
    let same = |known: &Known| {
        known
            .saved
            .as_ref()
            .is_some_and(|saved| (&saved.weights, &saved.owners) == (&came.weights, &came.owners))
    };
    models.retain(|_, known| !known.gone || !same(known));
    while models.len() > MOST_MODELS {
        let Some(oldest) = models.iter().find(|(_, known)| known.gone).map(|(&id, _)| id) else { return };
        models.remove(&oldest);
    }
}
