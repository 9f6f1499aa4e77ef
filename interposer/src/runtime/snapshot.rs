//! The run report: everything worth knowing, as data. Its keys are documented in docs/report.md; rendering it is the command line's job.

#![expect(unsafe_code, reason = "registers an exit handler")]

use std::collections::BTreeSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};

use serde_json::{Value, json};

use super::devices::MAX_DEVICES;
use super::replan::Outlook;
use super::streaming::{self, ring_of};
use super::switch::Decided;
use super::world::{Unit, UnitState, World, world};
use super::{check, evidence, hosted, learn, memory, overflow, passes, pinning, pressure, replan, trace};
use crate::account;
use crate::outcome;
use crate::selftest;

/// The report as it stands now.
pub(crate) fn report() -> Value {
    let (hits, doubtful) = learn::recorder(|recorder| (recorder.hits, recorder.doubtful));
    let (looked_at, proven) = evidence::counts();
    let observed =
        json!({ "hits": hits, "doubtful": doubtful, "looked_at_bytes": looked_at, "proven_words": proven });
    let devices: Vec<i32> = world().decided.keys().copied().collect();
    let outlooks: Vec<Outlook> = devices.into_iter().flat_map(replan::outlook).collect();
    let mut world = world();
    let models = models(&mut world, &outlooks);
    let plans: Vec<Value> =
        world.decided.iter().map(|(device, decided)| plan(&world, *device, decided)).collect();
    let placements = placements(&world);
    let weights: u64 = (0..MAX_DEVICES as i32).map(|device| world.private_weight_bytes(device)).sum();
    let in_host: u64 = (0..MAX_DEVICES as i32).map(|device| hosted::weight_bytes(&world, device)).sum();
    let weights = weights.saturating_sub(in_host);
    drop(world);
    let (ring_bytes, host_bytes, counters) = rings();
    json!({
        "version": env!("CARGO_PKG_VERSION"),
        "phase": super::phase().name(),
        "models": models,
        "plan": plans.first().cloned().unwrap_or(Value::Null),
        "plans": plans,
        "placements": placements,
        "learning": observed,
        "counters": counters,
        "hooks": hooks(),
        "quiet": crate::quiet::is_quiet(),
        "check": check::report(),
        "memory": {
            "weights_gpu_bytes": weights + ring_bytes,
            "private_weight_bytes": weights,
            "ring_bytes": ring_bytes,
            "regions_bytes": memory::region_bytes(),
            "host_bytes": host_bytes,
            "host_regions_bytes": overflow::host_bytes(),
            "pinned_bytes": pinning::pinned_bytes(),
            "pageable_bytes": pinning::pageable_bytes(),
            "process": process(),
        },
    })
}

/// What the whole process holds of each GPU, and may hold.
fn process() -> Vec<Value> {
    let held = (0..MAX_DEVICES as i32).map(|device| (device, account::held(device)));
    held.filter(|&(_, bytes)| bytes > 0)
        .map(|(device, bytes)| json!({ "device": device, "held_bytes": bytes, "limit_bytes": account::most(device) }))
        .collect()
}

fn models(world: &mut World, outlooks: &[Outlook]) -> Vec<Value> {
    let outlook = |shape: u64| outlooks.iter().find(|outlook| outlook.shape == shape);
    let decided = world.decided.clone();
    for model in world.models.values_mut() {
        passes::in_context(model.context, || {
            model.measure.collect();
            learn::recorder(learn::Recorder::collect);
        });
    }
    let mut list = Vec::new();
    for (id, model) in &world.models {
        let bound = decided.get(&model.device).map(|decided| decided.plan.bound_ms);
        let measured: Vec<Value> = model
            .measure
            .medians()
            .map(|(shape, ms, count)| {
                json!({
                    "shape": format!("{shape:016x}"),
                    "median_ms": ms,
                    "passes": count,
                    "ratio": bound.filter(|b| *b > 0.0).map(|b| ms / b),
                    "resident_ms": outlook(shape).map(|outlook| outlook.resident_ms),
                    "predicted_ms": outlook(shape).map(|outlook| outlook.predicted_ms),
                })
            })
            .collect();
        list.push(json!({
            "id": id.0,
            "name": model.name,
            "device": model.device,
            "phase": model.phase.phase().name(),
            "weights": model.named.len(),
            "owners": model.owners.len(),
            "units": model.units.len(),
            "fixed_bytes": model.fixed_bytes,
            "passes": model.measure.passes,
            "measured": measured,
            "observed": trace::report(world, *id),
        }));
    }
    list
}

fn plan(world: &World, device: i32, decided: &Decided) -> Value {
    let measured: Vec<f64> = world
        .models
        .values()
        .filter(|m| m.device == device)
        .flat_map(|m| m.measure.medians().map(|(_, ms, _)| ms))
        .collect();
    let plan = &decided.plan;
    json!({
        "device": device,
        "budget_bytes": decided.budget,
        "fixed_bytes": decided.fixed_bytes,
        "total_bytes": decided.total_bytes,
        "resident_bytes": plan.resident_bytes,
        "ring_bytes": plan.ring_bytes,
        "streamed_bytes": plan.streamed_bytes,
        "peak_bytes": plan.peak_bytes,
        "predicted_ms": plan.predicted_ms,
        "bound_ms": plan.bound_ms,
        "resident_ms": decided.resident_ms,
        "link_gb_per_s": decided.link.peak_gb_per_s(),
        "switch_ms": decided.took_ms,
        "gate_closed_ms": decided.closed_ms,
        "measured_ms": measured,
        "refused": decided.refused,
        "notes": plan.notes.iter().map(|note| format!("{note:?}")).collect::<Vec<_>>(),
    })
}

fn placements(world: &World) -> Vec<Value> {
    let living = world.units.iter().filter(|unit| unit.state != UnitState::Gone);
    living
        .map(|unit| {
            let models: BTreeSet<u64> = unit.members.iter().map(|member| member.model.0).collect();
            json!({
                "name": unit.name(),
                "models": models,
                "owner": owner(world, unit),
                "device": unit.device,
                "bytes": unit.bytes(),
                "pages": unit.pages,
                "streamed_bytes": unit.streamed * super::arena::PAGE,
                "state": format!("{:?}", unit.state),
                "in_host": unit.in_host,
                "stay": unit.stay.map(|reason| format!("{reason:?}")),
            })
        })
        .collect()
}

/// Path and class of the module that holds the unit's first weight.
fn owner(world: &World, unit: &Unit) -> Option<String> {
    let first = unit.members.first()?;
    let owner = world.models.get(&first.model)?.owners.get(&first.owner)?;
    Some(format!("{} ({})", owner.path, owner.class))
}

/// Ring bytes, shadow bytes, and the sum of all rings' counters.
fn rings() -> (u64, u64, Value) {
    let (mut ring_bytes, mut host_bytes) = (0, 0);
    let mut sum = streaming::counted_by_gone_rings();
    let mut failed: Vec<String> = Vec::new();
    let (mut streamed_units, mut views) = (0, 0);
    for device in 0..MAX_DEVICES as i32 {
        let ring = ring_of(device);
        let Some(ring) = ring.as_ref() else { continue };
        let (units, with_view) = ring.units_and_views();
        (streamed_units, views) = (streamed_units + units, views + with_view);
        ring_bytes += ring.ring_bytes();
        host_bytes += ring.host_bytes();
        failed.extend(ring.failed.iter().map(|(_, what)| what.clone()));
        sum.iter_mut().zip(ring.counted()).for_each(|(all, one)| *all += one);
    }
    let [
        uses,
        visits,
        redirects,
        mispredictions,
        demand_loads,
        conflicts,
        pages_in,
        pages_back,
        bytes_in,
        bytes_back,
    ] = sum;
    let (replans, given_up) = replan::counts();
    let pressure = pressure::counts();
    let counters = json!({
        "uses": uses, "visits": visits, "redirects": redirects, "doubtful": redirects, "mispredictions": mispredictions,
        "demand_loads": demand_loads, "conflicts": conflicts, "pages_in": pages_in, "pages_back": pages_back,
        "bytes_in": bytes_in, "bytes_back": bytes_back, "failed": failed,
        "streamed_units": streamed_units, "views": views, "replans": replans, "replans_given_up": given_up,
        "shortages_refused": pressure.refused, "shortages_unanswered": pressure.unanswered,
        "demotions": pressure.demotions, "demoted_bytes": pressure.demoted_bytes,
        "promotions": pressure.promotions, "promoted_bytes": pressure.promoted_bytes,
    });
    (ring_bytes, host_bytes, counters)
}

fn hooks() -> Value {
    let (failures, panics) = outcome::failures();
    let bypasses: serde_json::Map<String, Value> =
        outcome::bypasses().map(|(key, calls)| (key.to_owned(), json!(calls))).collect();
    json!({ "routes": selftest::report(), "bypasses": bypasses, "failures": failures, "panics": panics })
}

static WRITTEN: AtomicBool = AtomicBool::new(false);

/// The report as it stood before the last model was let go, or its context: at the end of a program nothing is left to be told.
static BEFORE: Mutex<Option<Value>> = Mutex::new(None);

/// A model, or its context, is about to be let go.
pub(crate) fn remember() {
    if super::config().report.is_some() {
        let now = report();
        *BEFORE.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = Some(now);
    }
}

fn last_word() -> Value {
    let none_left = world().models.values().all(|model| model.context.is_none());
    let before = BEFORE.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clone();
    before.filter(|_| none_left).unwrap_or_else(report)
}

/// Writes the report to the configured path, whole or not at all.
pub(crate) fn write() {
    let Some(path) = super::config().report.as_ref() else { return };
    WRITTEN.store(true, Ordering::Relaxed);
    let temporary = path.with_extension(format!("{}.tmp", std::process::id()));
    let text = format!("{:#}\n", last_word());
    let written = std::fs::write(&temporary, text).and_then(|()| std::fs::rename(&temporary, path));
    if let Err(error) = written {
        crate::log::warning!("the report could not be written to {}: {error}", path.display());
    }
}

/// The process writes its report when it exits, unless somebody who knew better did before: an interpreter lets its models go earlier.
pub(crate) fn write_at_exit() {
    extern "C" fn at_exit() {
        if crate::init::active() && !WRITTEN.load(Ordering::Relaxed) {
            let _inside = crate::guard::enter();
            let _ = std::panic::catch_unwind(write);
        }
    }
    // SAFETY: the handler stays loaded: the library is never unloaded.
    unsafe { libc::atexit(at_exit) };
}
