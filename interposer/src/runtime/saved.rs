//! The profile between runs: taken up when a model begins, so that it need not be learnt; written when its plan comes into force, and on request.
//! What a profile says, and what of it a run may take, is core's `saved`; what this run leaves is `kept`'s matter; reading and writing the file is `file`'s, saying what a model is, `describe`'s.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use flextensor_core::link::{LinkCurve, LinkPoint};
use flextensor_core::plan::{Plan, PlanRequest, StayReason};
use flextensor_core::profile::PassRecord;
use flextensor_core::saved::{
    Additions, FILE_NAME, Here, LinkId, Patterns, Saved, SavedGpu, SavedModel, SavedPass, SavedPlan,
    SavedUnit, Taken, fit,
};
use flextensor_core::units::{ModelId, UnitId};

use super::arena::PAGE;
use super::models::ProfileSource;
use super::streaming::ring_of;
use super::world::world;
use super::{chosen, integrated, learn, link};
use crate::ffi::device;
use crate::log;

mod describe;
mod file;
mod kept;

pub(crate) use kept::{Refused, save};
pub(super) use kept::{decided, forget, replanned};

/// First passes in INFERENCE of a model that was not learnt in this run: its owners report in them, which tells uses from stale words.
pub(crate) const GUIDED_PASSES: u32 = 2;

/// One model of this run.
#[derive(Default)]
struct Known {
    /// What the file gave: its place there, and what may be used as it is.
    at: Option<usize>,
    plan: Option<(SavedPlan, SavedModel, Vec<UnitId>)>,
    link: Option<(LinkCurve, Vec<LinkPoint>)>,
    /// What is written of it.
    saved: Option<SavedModel>,
    /// The program has let it go.
    gone: bool,
}

#[derive(Default)]
struct State {
    /// The configured file's content; none before anybody asked.
    read: Option<Option<Arc<Additions>>>,
    /// The file is of another version: somebody else may need it.
    leave: bool,
    models: BTreeMap<ModelId, Known>,
    gpus: BTreeMap<i32, SavedGpu>,
}

static STATE: Mutex<Option<State>> = Mutex::new(None);

/// Runs `work` on the locked state. Nothing else is locked inside.
fn state<T>(work: impl FnOnce(&mut State) -> T) -> T {
    work(STATE.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).get_or_insert_default())
}

/// The file that is read, and written where that is allowed; none where no profile is wanted.
fn path() -> Option<PathBuf> {
    super::config().profile_storage_dir.as_ref().map(|folder| folder.join(FILE_NAME))
}

/// Whether somebody will want to know how fast the link is beside the program's kernels.
pub(super) fn keeps_link() -> bool {
    let config = super::config();
    config.profile_storage_dir.is_some() && !config.profile_read_only
}

/// Whether a profile is wanted for the model.
pub(super) fn is_wanted(id: ModelId) -> bool {
    path_for(id).is_some()
}

/// The file that is read for the model.
fn path_for(id: ModelId) -> Option<PathBuf> {
    match &world().models.get(&id)?.profile {
        ProfileSource::Configured => path(),
        ProfileSource::Nowhere => None,
        ProfileSource::Folder(folder) => Some(folder.join(FILE_NAME)),
    }
}

/// Whether what is learnt of the model is written without being asked for.
fn is_kept_unasked(id: ModelId) -> bool {
    world().models.get(&id).is_some_and(|model| model.profile == ProfileSource::Configured)
}

/// Takes up what an earlier run learnt of the model; false where there is nothing to be taken. Asked once for each model, before its first pass, in
/// its context.
pub(super) fn take_up(id: ModelId) -> bool {
    let Some(path) = path_for(id) else { return false };
    let first = state(|state| state.models.insert(id, Known::default()).is_none());
    let Some(ours) = (if first { content(&path) } else { None }) else { return false };
    let Some((here, ids)) = here(id, &ours) else { return false };
    let used: Vec<usize> = state(|state| {
        state.models.values().filter(|known| !known.gone).filter_map(|known| known.at).collect()
    });
    match fit(&ours, &here, &used) {
        Ok((at, taken)) => {
            announce(&path, &taken);
            keep(id, at, &taken, &ids);
            restore(id, &taken, &ids);
            true
        }
        Err(why) => {
            log::notice!("profile {} is not used: {why}; the model is learnt as usual", path.display());
            false
        }
    }
}

/// What the file says; the configured one is read once. Whatever is wrong with it is said when it is read.
fn content(file_path: &Path) -> Option<Arc<Additions>> {
    let is_configured = path().is_some_and(|configured| configured == file_path);
    if let Some(read) = state(|state| state.read.clone()).filter(|_| is_configured) {
        return read;
    }
    let path = file_path;
    let (mut ours, mut leave) = (None, false);
    match file::read(path) {
        Ok(None) => log::info!("no profile at {} yet", path.display()),
        Ok(Some(Saved { flextensor: Some(additions), .. })) => ours = Some(Arc::new(additions)),
        Ok(Some(_)) => log::notice!(
            "profile {} is of another writer and names no uses of single weights; the model is learnt as usual",
            path.display()
        ),
        Err(error) => {
            leave = error.is_of_another_version();
            let then = if leave { ", and the file is left as it is" } else { "" };
            log::warning!("{error}; the model is learnt as usual{then}");
        }
    }
    if is_configured {
        state(|state| {
            state.read = Some(ours.clone());
            state.leave = leave;
        });
    }
    ours
}

/// What this run is, and the ids of its units in order.
fn here(id: ModelId, ours: &Additions) -> Option<(Here, Vec<UnitId>)> {
    let config = super::config();
    let (model, ids, fixed_bytes) = describe::learning(id)?;
    let number = model.device;
    let total = device::total_memory(number).map_or(0, |bytes| bytes as u64);
    let uuid = device::uuid(number).unwrap_or_default();
    let mut link = link::identity(number);
    if ours.gpus.iter().any(|gpu| gpu.uuid == uuid && gpu.link != link) {
        link = link::identity_awake(number);
    }
    let ring_before = ring_of(number).as_ref().map_or(0, |ring| ring.ring.len() as u64);
    let here = Here {
        uuid,
        link,
        patterns: patterns(),
        model,
        budget: config.max_gpu_mem_for(number.unsigned_abs(), total),
        fixed_bytes,
        ring_override: config.ring_bytes,
        settings: settings(id),
        page_bytes: PAGE,
        ring_before,
    };
    Some((here, ids))
}

fn patterns() -> Patterns {
    let config = super::config();
    Patterns { include: config.include_patterns.clone(), exclude: config.exclude_patterns.clone() }
}

/// The option that names who chooses.
const STRATEGY: &str = "load_strategy";

/// Options besides budget, patterns and ring that plans depend on.
const PLANNED_BY: [&str; 6] =
    ["mode", STRATEGY, "host_embeddings", "transfer_budget_scale", "num_blocks", "min_blocks"];

fn settings(id: ModelId) -> BTreeMap<String, String> {
    let all = serde_json::to_value(super::config()).unwrap_or_default();
    let configured = PLANNED_BY.iter().map(|&key| (key.to_owned(), all[key].to_string().replace('"', "")));
    let mut settings: BTreeMap<String, String> = configured.collect();
    // What was said of the model counts instead.
    settings.extend(chosen::text_of(id).map(|text| (STRATEGY.to_owned(), text)));
    settings
}

fn announce(path: &Path, taken: &Taken<'_>) {
    let path = path.display();
    if taken.plan.is_some() {
        log::notice!("profile {path}: its plan is used, without learning passes");
        return;
    }
    let why: Vec<String> = taken.differences.iter().map(ToString::to_string).collect();
    let measured = if taken.link { "" } else { ", and the link is measured anew" };
    log::notice!("profile {path}: its times are used, but a new plan is made{measured}: {}", why.join("; "));
}

fn keep(id: ModelId, at: usize, taken: &Taken<'_>, ids: &[UnitId]) {
    let link = taken.link.then(|| (LinkCurve::new(taken.gpu.idle.clone()), taken.gpu.busy.clone()));
    let plan = taken.plan.map(|plan| (plan.clone(), taken.model.clone(), ids.to_vec()));
    state(|state| {
        state.models.insert(id, Known { at: Some(at), plan, link, ..Known::default() });
    });
}

/// The recorder and the units know what they would have learnt.
fn restore(id: ModelId, taken: &Taken<'_>, ids: &[UnitId]) {
    let number = |unit: u32| {
        let now = taken.units.get(unit as usize).copied().flatten()?;
        ids.get(now as usize).copied()
    };
    let mut world = world();
    for (at, unit) in (0..).zip(&taken.model.units) {
        if let Some(reason) = unit.stay.filter(|&reason| lasts(reason))
            && let Some(known) = number(at).and_then(|id| world.unit_mut(id))
        {
            known.stay = known.stay.or(Some(reason));
        }
    }
    if let Some(model) = world.models.get_mut(&id) {
        model.guided = GUIDED_PASSES;
    }
    drop(world);
    let ran = taken.model.owners.iter().filter(|owner| owner.ran).map(|owner| owner.owner);
    let shown = (0..).zip(&taken.model.units).filter(|(_, unit)| unit.shown);
    let shown = shown.filter_map(|(at, _)| number(at));
    // What was no table of rows then may have been read whole: that is not learnt again.
    let table = |unit: &SavedUnit| matches!(unit.stay, Some(StayReason::Rows | StayReason::RowsOnGpu));
    let others = (0..).zip(&taken.model.units).filter(|(_, unit)| !table(unit));
    let others: Vec<UnitId> = others.filter_map(|(at, _)| number(at)).collect();
    let passes = taken.model.passes.iter();
    let passes = passes.map(|pass| (record(id, pass, number), pass.passes, pass.host_ms)).collect();
    learn::recorder(|recorder| recorder.restore(id, ran, (shown, others.into_iter()), passes));
}

/// Reasons to stay that come of what the program does, and will come again; the others are found anew.
fn lasts(reason: StayReason) -> bool {
    matches!(
        reason,
        StayReason::Written
            | StayReason::Escaped
            | StayReason::Shared
            | StayReason::GraphHeld
            | StayReason::ReadElsewhere
    )
}

fn record(id: ModelId, pass: &SavedPass, number: impl Fn(u32) -> Option<UnitId>) -> PassRecord {
    let profile = pass.profile(id, number);
    let mut record = if pass.timed {
        PassRecord::timed(id, profile.shape)
    } else {
        PassRecord::order_only(id, profile.shape)
    };
    for used in &profile.uses {
        record.record(used.unit, used.owner, used.compute_ms);
    }
    record.finish(profile.tail_ms)
}

/// The link's curve: the profile's where GPU and link are the same, or measured now; assumed for a GPU that nothing is copied to. The model's context is current.
pub(super) fn link_curve(id: ModelId) -> LinkCurve {
    if world().models.get(&id).is_some_and(|model| integrated::is(model.device)) {
        return LinkCurve::default();
    }
    let kept = state(|state| state.models.get(&id).and_then(|known| known.link.clone()));
    let (curve, busy) = match kept {
        Some(kept) => kept,
        None => {
            // First what was copied beside the program's kernels, so that nothing of ours runs any more.
            let busy = link::busy();
            match link::measure() {
                Ok(curve) => (curve, busy),
                Err(error) => {
                    log::info!("the link could not be measured ({error}); assuming a PCIe 5.0 x16 one");
                    return LinkCurve::default();
                }
            }
        }
    };
    let number = world().models.get(&id).map(|model| model.device);
    if let Some(number) = number {
        let gpu = gpu(number, &curve, busy);
        state(|state| state.gpus.insert(number, gpu));
    }
    curve
}

fn gpu(number: i32, curve: &LinkCurve, busy: Vec<LinkPoint>) -> SavedGpu {
    let link: LinkId = link::identity(number);
    SavedGpu {
        device: number,
        uuid: device::uuid(number).unwrap_or_default(),
        total_bytes: device::total_memory(number).map_or(0, |bytes| bytes as u64),
        link,
        idle: curve.points().to_vec(),
        busy,
    }
}

/// The profile's plan for exactly these units, where nothing is different from when it was made.
/// `ring_before`: pages of the ring that turns by now; another model may have brought it since the profile was taken up.
pub(super) fn plan(id: ModelId, request: &PlanRequest, ring_before: u64) -> Option<Plan> {
    let (plan, model, ids) = state(|state| state.models.get(&id).and_then(|known| known.plan.clone()))?;
    let asked: BTreeSet<UnitId> = request.units.iter().map(|unit| unit.id).collect();
    // What lay in host memory for good when the plan was made must lie there now, and nothing else.
    let lay_there = |saved: &SavedUnit| saved.stay == Some(StayReason::Rows);
    let all = || ids.iter().copied().zip(&model.units);
    let placed: BTreeSet<UnitId> = all().filter(|(_, saved)| !lay_there(saved)).map(|(id, _)| id).collect();
    let lies_there = |id: UnitId| world().unit(id).is_some_and(|unit| unit.in_host);
    let the_same = plan.ring_before == ring_before
        && asked == placed
        && all().all(|(id, saved)| !lay_there(saved) || lies_there(id));
    the_same.then(|| plan.plan(&model, id, &ids))
}
