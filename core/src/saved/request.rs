//! From a profile to what the planner reads: a request for what-if questions, passes, and the saved plan as a plan.

use std::collections::BTreeMap;

use super::{Saved, SavedForecast, SavedModel, SavedPass, SavedPlan, id_text};
use crate::link::LinkCurve;
use crate::plan::{
    Forecast, PassProfile, Placement, Plan, PlanNote, PlanRequest, RingRun, StayReason, UnitInfo, UseInfo,
};
use crate::units::{ModelId, UnitId};

/// Weights of this many bytes are memory of their own, and rounded up to whole pages; smaller ones share pages.
const OWN_SEGMENT: u64 = 10 << 20;

/// The number of a shape signature in 16 hexadecimal digits.
#[must_use]
pub fn shape_of(text: &str) -> Option<u64> {
    let digits = text.len() == 16 && text.bytes().all(|digit| digit.is_ascii_hexdigit());
    digits.then(|| u64::from_str_radix(text, 16).ok()).flatten()
}

impl Saved {
    /// The link as it was measured; the default curve where the file does not say.
    #[must_use]
    pub fn link(&self) -> LinkCurve {
        let gpu = self.flextensor.as_ref().and_then(|ours| ours.gpus.first());
        gpu.map_or_else(LinkCurve::default, |gpu| LinkCurve::new(gpu.idle.clone()))
    }

    /// What a plan for the models of one device is asked for. Units are numbered through all of them, from 0; models from 1, as they stand in
    /// the file. A file without additions has one model, a unit for each tensor, and each label's time shared among its tensors by bytes.
    #[must_use]
    pub fn request(&self, device: i32, budget: Option<u64>, link: LinkCurve) -> PlanRequest {
        let Some(ours) = &self.flextensor else { return self.request_of_labels(budget, link) };
        let mut request = PlanRequest { budget, link, ..PlanRequest::default() };
        let mut first = 0;
        for (at, model) in ours.models.iter().enumerate().filter(|(_, model)| model.device == device) {
            let number = |unit: u32| Some(UnitId(first + unit)).filter(|_| !model.is_in_host(unit));
            request.fixed_bytes = request.fixed_bytes.saturating_add(model.fixed_bytes);
            request.units.extend(model.unit_infos(number));
            let id = ModelId(at as u64 + 1);
            request.passes.extend(model.passes.iter().map(|pass| pass.profile(id, number)));
            first += model.units.len() as u32;
        }
        request
    }

    fn request_of_labels(&self, budget: Option<u64>, link: LinkCurve) -> PlanRequest {
        let mut request = PlanRequest { budget, link, ..PlanRequest::default() };
        let mut ids: BTreeMap<String, UnitId> = BTreeMap::new();
        let mut uses = Vec::new();
        let mut carried = 0.0;
        for (owner, stat) in (0..).zip(&self.stats) {
            let all: f64 = stat.tensors.iter().map(|tensor| tensor.size_bytes as f64).sum();
            let mut left = stat.duration + std::mem::take(&mut carried);
            for tensor in stat.tensors.iter().filter(|tensor| tensor.size_bytes > 0) {
                let next = UnitId(ids.len() as u32);
                let unit = *ids.entry(id_text(&tensor.tensor_id)).or_insert(next);
                if unit == next {
                    request.units.push(unit_of_tensor(unit, &tensor.name, tensor.size_bytes));
                }
                let compute_ms = (stat.duration * tensor.size_bytes as f64 / all).min(left);
                left -= compute_ms;
                uses.push(UseInfo { unit, compute_ms, owner });
            }
            // What rounding left over, and labels without tensors, count before the next use.
            carried = left;
        }
        let resident_ms = self.stats.iter().map(|stat| stat.duration).sum();
        let pass =
            PassProfile { model: ModelId(1), shape: 0, uses, tail_ms: carried, resident_ms, host_ms: 0.0 };
        request.passes.push(pass);
        request
    }
}

fn unit_of_tensor(id: UnitId, name: &str, bytes: u64) -> UnitInfo {
    let page = PlanRequest::PAGE_BYTES;
    let pages = if bytes >= OWN_SEGMENT { bytes.div_ceil(page) } else { bytes / page };
    UnitInfo { id, name: name.to_owned(), bytes, pages, splittable: true, stay: None }
}

impl SavedModel {
    /// Whether the unit at a position lay in host memory for good: it takes no part in plans.
    fn is_in_host(&self, unit: u32) -> bool {
        self.units.get(unit as usize).is_some_and(|unit| unit.stay == Some(StayReason::Rows))
    }

    /// Its units as the planner sees them. `number`: the id of the unit at a position; none leaves it out.
    pub fn unit_infos(&self, number: impl Fn(u32) -> Option<UnitId>) -> Vec<UnitInfo> {
        let numbered = (0..).zip(&self.units).filter_map(|(at, unit)| Some((number(at)?, unit)));
        numbered
            .map(|(id, unit)| UnitInfo {
                id,
                name: unit.name(&self.weights),
                bytes: unit.bytes,
                pages: unit.pages,
                splittable: unit.splittable,
                stay: unit.stay,
            })
            .collect()
    }
}

impl SavedPass {
    /// The pass as a profile. Uses of units without a number are left out; their time goes to the next use. A use that repeats the one before it
    /// (units that became one) is joined with it.
    pub fn profile(&self, model: ModelId, number: impl Fn(u32) -> Option<UnitId>) -> PassProfile {
        let mut uses: Vec<UseInfo> = Vec::with_capacity(self.uses.len());
        let mut carried = 0.0;
        for used in &self.uses {
            carried += used.ms;
            let Some(unit) = number(used.unit) else { continue };
            let compute_ms = std::mem::take(&mut carried);
            match uses.last_mut().filter(|last| (last.unit, last.owner) == (unit, used.owner)) {
                Some(last) => last.compute_ms += compute_ms,
                None => uses.push(UseInfo { unit, compute_ms, owner: used.owner }),
            }
        }
        PassProfile {
            model,
            shape: shape_of(&self.shape).unwrap_or(0),
            uses,
            tail_ms: self.tail_ms + carried,
            resident_ms: self.resident_ms,
            host_ms: self.host_ms,
        }
    }
}

impl SavedPlan {
    /// The saved plan for these units, in the order of the model's. `ids`: what each position is called now. Bytes are counted anew, and its
    /// notes are those of the budget only.
    #[must_use]
    pub fn plan(&self, model: &SavedModel, id: ModelId, ids: &[UnitId]) -> Plan {
        let streamed: BTreeMap<u32, u64> = self.runs.iter().map(|run| (run.unit, run.pages)).collect();
        let of = |at: u32| streamed.get(&at).copied().unwrap_or(0);
        let placements = (0..).zip(ids).map(|(at, &unit)| Placement { unit, streamed_pages: of(at) });
        let name = |unit: u32| ids.get(unit as usize).copied();
        let layout = self
            .runs
            .iter()
            .filter_map(|run| Some(RingRun { unit: name(run.unit)?, start: run.start, pages: run.pages }));
        let uses = model.passes.first().map(|pass| pass.uses.as_slice()).unwrap_or_default();
        let order = uses.iter().filter(|used| of(used.unit) > 0).filter_map(|used| name(used.unit));
        let on_gpu = (0..).zip(&model.units).filter(|&(at, _)| !model.is_in_host(at));
        let footprints = on_gpu.map(|(_, unit)| unit.bytes.max(unit.pages * self.page_bytes));
        let all = footprints.fold(0, u64::saturating_add);
        let resident_bytes = all.saturating_sub(streamed.values().sum::<u64>() * self.page_bytes);
        let ring_bytes = if self.ring_before > 0 { 0 } else { self.ring_pages * self.page_bytes };
        let missed = self.smallest_budget.zip(self.budget_bytes);
        let note = missed.map(|(smallest_budget, asked)| PlanNote::BudgetMissed { smallest_budget, asked });
        Plan {
            placements: placements.collect(),
            ring_pages: self.ring_pages,
            layout: layout.collect(),
            orders: vec![(id, order.collect())],
            resident_bytes,
            ring_bytes,
            streamed_bytes: self.streamed_bytes,
            predicted_ms: self.predicted_ms,
            bound_ms: self.bound_ms,
            peak_bytes: self.fixed_bytes.saturating_add(resident_bytes).saturating_add(ring_bytes),
            chunk_pages: self.chunk_pages,
            forecasts: self.forecasts.iter().map(|forecast| forecast.of(id)).collect(),
            notes: note.into_iter().collect(),
        }
    }
}

impl SavedForecast {
    /// What a plan says of one of the model's shapes; none where other models take part.
    #[must_use]
    pub fn from_plan(forecast: &Forecast, id: ModelId) -> Option<SavedForecast> {
        let [(model, shape)] = forecast.shapes.as_slice() else { return None };
        (*model == id).then(|| SavedForecast {
            shape: format!("{shape:016x}"),
            resident_ms: forecast.resident_ms,
            predicted_ms: forecast.predicted_ms,
            bound_ms: forecast.bound_ms,
            copied_bytes: forecast.copied_bytes,
        })
    }

    fn of(&self, id: ModelId) -> Forecast {
        Forecast {
            shapes: vec![(id, shape_of(&self.shape).unwrap_or(0))],
            resident_ms: self.resident_ms,
            predicted_ms: self.predicted_ms,
            bound_ms: self.bound_ms,
            copied_bytes: self.copied_bytes,
        }
    }
}
