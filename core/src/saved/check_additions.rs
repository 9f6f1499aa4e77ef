//! Whether our additions to a profile are sound: positions in range, sizes that add up, times that are times, runs inside the ring.

use std::collections::BTreeSet;

use super::check::time;
use super::error::bad;
use super::{Additions, SavedError, SavedGpu, SavedModel, SavedPass, SavedPlan, SavedUnit};
use crate::link::LinkPoint;

/// More pages than any GPU has, and larger ones: their product, and sums of millions of them, do not overflow.
const MOST_PAGES: u64 = 1 << 24;
const LARGEST_PAGE: u64 = 1 << 30;

/// Checks all of it.
pub(super) fn check(file: &str, ours: &Additions) -> Result<(), SavedError> {
    for (at, gpu) in ours.gpus.iter().enumerate() {
        check_gpu(file, &format!("flextensor.gpus[{at}]"), gpu)?;
    }
    for (at, model) in ours.models.iter().enumerate() {
        let field = format!("flextensor.models[{at}]");
        if !ours.gpus.iter().any(|gpu| gpu.device == model.device) {
            return bad(file, format!("{field}.device"), model.device, "a device of `flextensor.gpus`");
        }
        check_model(file, &field, model)?;
    }
    Ok(())
}

fn check_gpu(file: &str, field: &str, gpu: &SavedGpu) -> Result<(), SavedError> {
    if gpu.idle.is_empty() {
        return bad(file, format!("{field}.idle"), "empty", "at least one measured point");
    }
    for (points, name) in [(&gpu.idle, "idle"), (&gpu.busy, "busy")] {
        let wrong = |point: &&LinkPoint| {
            point.copy_bytes == 0 || !point.gb_per_s.is_finite() || point.gb_per_s <= 0.0
        };
        if let Some(point) = points.iter().find(wrong) {
            let found = format!("{} GB/s for copies of {} bytes", point.gb_per_s, point.copy_bytes);
            return bad(file, format!("{field}.{name}"), found, "speeds and sizes above 0");
        }
    }
    Ok(())
}

fn check_model(file: &str, field: &str, model: &SavedModel) -> Result<(), SavedError> {
    let owners: BTreeSet<u32> = model.owners.iter().map(|owner| owner.owner).collect();
    if owners.len() != model.owners.len() {
        return bad(file, format!("{field}.owners"), "a list with a number twice", "every number once");
    }
    for (at, weight) in model.weights.iter().enumerate() {
        if weight.bytes == 0 {
            return bad(file, format!("{field}.weights[{at}].bytes"), 0, "above 0");
        }
        if let Some(first) = weight.tied.filter(|&first| first as usize >= at) {
            let allowed = format!("a position below {at}");
            return bad(file, format!("{field}.weights[{at}].tied"), first, allowed);
        }
    }
    let mut taken = BTreeSet::new();
    for (at, unit) in model.units.iter().enumerate() {
        check_unit(file, &format!("{field}.units[{at}]"), model, unit, &mut taken)?;
    }
    for (at, pass) in model.passes.iter().enumerate() {
        check_pass(file, &format!("{field}.passes[{at}]"), model, pass)?;
    }
    let shapes: BTreeSet<&str> = model.passes.iter().map(|pass| pass.shape.as_str()).collect();
    if shapes.len() != model.passes.len() {
        return bad(file, format!("{field}.passes"), "a list with a shape twice", "every shape once");
    }
    model.plan.as_ref().map_or(Ok(()), |plan| check_plan(file, &format!("{field}.plan"), model, plan))
}

fn check_unit(
    file: &str,
    field: &str,
    model: &SavedModel,
    unit: &SavedUnit,
    taken: &mut BTreeSet<u32>,
) -> Result<(), SavedError> {
    if unit.weights.is_empty() {
        return bad(file, format!("{field}.weights"), "empty", "at least one position");
    }
    for &weight in &unit.weights {
        if weight as usize >= model.weights.len() || !taken.insert(weight) {
            let allowed = "positions in `weights`, each in one unit";
            return bad(file, format!("{field}.weights"), weight, allowed);
        }
    }
    if unit.pages == 0 || unit.pages > MOST_PAGES {
        return bad(file, format!("{field}.pages"), unit.pages, format!("1 to {MOST_PAGES}"));
    }
    let own = unit.weights.iter().filter_map(|&at| model.weights.get(at as usize));
    let most = own.fold(0u64, |sum, weight| sum.saturating_add(weight.bytes));
    if unit.bytes == 0 || unit.bytes > most {
        return bad(
            file,
            format!("{field}.bytes"),
            unit.bytes,
            format!("1 to {most}, the bytes of its weights"),
        );
    }
    Ok(())
}

fn check_pass(file: &str, field: &str, model: &SavedModel, pass: &SavedPass) -> Result<(), SavedError> {
    if super::request::shape_of(&pass.shape).is_none() {
        let found = format!("`{}`", pass.shape);
        return bad(file, format!("{field}.shape"), found, "16 hexadecimal digits");
    }
    let owners: BTreeSet<u32> = model.owners.iter().map(|owner| owner.owner).collect();
    for (at, used) in pass.uses.iter().enumerate() {
        if used.unit as usize >= model.units.len() {
            let allowed = format!("a position below {}, the number of units", model.units.len());
            return bad(file, format!("{field}.uses[{at}].unit"), used.unit, allowed);
        }
        if !owners.contains(&used.owner) {
            return bad(file, format!("{field}.uses[{at}].owner"), used.owner, "a number of `owners`");
        }
        time(file, &format!("{field}.uses[{at}].ms"), used.ms)?;
    }
    time(file, &format!("{field}.tail_ms"), pass.tail_ms)?;
    time(file, &format!("{field}.resident_ms"), pass.resident_ms)?;
    time(file, &format!("{field}.host_ms"), pass.host_ms)
}

fn check_plan(file: &str, field: &str, model: &SavedModel, plan: &SavedPlan) -> Result<(), SavedError> {
    if plan.page_bytes == 0 || plan.page_bytes > LARGEST_PAGE {
        return bad(file, format!("{field}.page_bytes"), plan.page_bytes, format!("1 to {LARGEST_PAGE}"));
    }
    if plan.ring_pages > MOST_PAGES {
        return bad(file, format!("{field}.ring_pages"), plan.ring_pages, format!("at most {MOST_PAGES}"));
    }
    if plan.ring_before != 0 && plan.ring_before != plan.ring_pages {
        let allowed = format!("0, or {} as `ring_before` says", plan.ring_before);
        return bad(file, format!("{field}.ring_pages"), plan.ring_pages, allowed);
    }
    let mut seen = BTreeSet::new();
    let mut streamed = 0u64;
    for (at, run) in plan.runs.iter().enumerate() {
        let field = format!("{field}.runs[{at}]");
        let Some(unit) = model.units.get(run.unit as usize).filter(|_| seen.insert(run.unit)) else {
            return bad(file, format!("{field}.unit"), run.unit, "positions in `units`, each once");
        };
        if let Some(stay) = unit.stay {
            return bad(file, format!("{field}.unit"), run.unit, format!("no unit that stays ({stay:?})"));
        }
        let most = unit.pages.min(plan.ring_pages);
        let whole = unit.splittable || run.pages == unit.pages;
        if run.pages == 0 || run.pages > most || !whole {
            let allowed = if unit.splittable { format!("1 to {most}") } else { format!("{}", unit.pages) };
            return bad(file, format!("{field}.pages"), run.pages, allowed);
        }
        if run.start >= plan.ring_pages {
            let allowed = format!("below {}, the pages of the ring", plan.ring_pages);
            return bad(file, format!("{field}.start"), run.start, allowed);
        }
        streamed += run.pages;
    }
    // The ring is made of the pages of what is streamed.
    if plan.ring_before == 0 && plan.ring_pages > streamed {
        let allowed = format!("at most {streamed}, the pages that are streamed");
        return bad(file, format!("{field}.ring_pages"), plan.ring_pages, allowed);
    }
    if plan.chunk_pages > MOST_PAGES {
        return bad(file, format!("{field}.chunk_pages"), plan.chunk_pages, format!("at most {MOST_PAGES}"));
    }
    for (at, of) in plan.forecasts.iter().enumerate() {
        let field = format!("{field}.forecasts[{at}]");
        if super::request::shape_of(&of.shape).is_none() {
            return bad(file, format!("{field}.shape"), format!("`{}`", of.shape), "16 hexadecimal digits");
        }
        for (ms, name) in
            [(of.resident_ms, "resident_ms"), (of.predicted_ms, "predicted_ms"), (of.bound_ms, "bound_ms")]
        {
            time(file, &format!("{field}.{name}"), ms)?;
        }
    }
    time(file, &format!("{field}.predicted_ms"), plan.predicted_ms)?;
    time(file, &format!("{field}.bound_ms"), plan.bound_ms)
}
