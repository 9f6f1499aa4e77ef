//! From a selection to a plan: the tensors that a strategy chose are laid around a ring and simulated exactly
//! as our own plans are, so that all can be compared. How long the ring is, is chosen here: strategies know
//! blocks, not rings.

use std::collections::{BTreeMap, BTreeSet};

use super::{Question, Selection, StrategyError};
use crate::error::CoreError;
use crate::layout;
use crate::plan::{Forecast, Placement, Plan, PlanNote, PlanRequest, RingRun, bound_ms};
use crate::simulate::{Course, simulate_shapes};
use crate::units::{ModelId, UnitId};

/// Leads to try beyond what is held at once, in MiB; so many as our own planner looks at.
const LEADS_MIB: [u64; 16] = [0, 4, 8, 16, 20, 24, 32, 40, 48, 64, 80, 112, 144, 208, 272, 528];
/// Predictions this close to the best count as equal; then fewer streamed bytes win.
const SAME_TIME: f64 = 1.001;
/// Lengths of a copy that are tried, each half of the one before.
const CHUNKS: u32 = 5;
/// A bound that counts as one, in milliseconds: ratios to nothing are no measure.
const LEAST_BOUND_MS: f64 = 1e-3;

/// What a strategy makes of a request.
#[derive(Debug, Clone, PartialEq)]
pub struct Planned {
    /// The plan.
    pub plan: Plan,
    /// What found it: the strategy, or the one of its candidates that won.
    pub solver: String,
    /// What was chosen, in layers and blocks; none when our own planner won.
    pub selection: Option<Selection>,
}

/// Asks for a selection and lays it around a ring.
pub(super) fn plan(
    strategy: &'static str,
    request: &PlanRequest,
    select: impl FnOnce(&Question) -> Result<Selection, StrategyError>,
) -> Result<Planned, StrategyError> {
    let course = Course::new(request)?;
    let question = Question::of_request(request);
    let selection = select(&question)?;
    let plan = OnRing::new(request, &course, &question, &selection).plan()?;
    let solver = if selection.solver.is_empty() { strategy.to_owned() } else { selection.solver.clone() };
    Ok(Planned { plan, solver, selection: Some(selection) })
}

/// Lays one selection; vectors are by position of the unit in the request.
#[derive(Debug)]
struct OnRing<'a> {
    request: &'a PlanRequest,
    course: &'a Course,
    /// Pages that the selection streams.
    streamed: Vec<u64>,
    /// Pages of the selection's own blocks.
    block_pages: u64,
    notes: Vec<PlanNote>,
}

impl<'a> OnRing<'a> {
    fn new(request: &'a PlanRequest, course: &'a Course, question: &Question, selection: &Selection) -> Self {
        let mut streamed = vec![0; request.units.len()];
        for (layer, chosen) in question.layers.iter().zip(&selection.streamed) {
            for tensor in chosen.iter().filter_map(|&at| layer.tensors.get(at)) {
                let position = course.position(tensor.unit);
                let unit = position.and_then(|at| request.units.get(at).zip(streamed.get_mut(at)));
                if let Some((unit, slot)) = unit {
                    *slot = unit.pages;
                }
            }
        }
        let block_pages = selection.blocks.total_bytes().div_ceil(request.page_bytes);
        OnRing { request, course, streamed, block_pages, notes: Vec::new() }
    }

    fn plan(mut self) -> Result<Plan, CoreError> {
        if let Some(best) = self.best()? {
            return Ok(self.finished(best));
        }
        // Units that are held several times a pass are the only ones that collide on every ring.
        let mut held: BTreeMap<UnitId, u32> = BTreeMap::new();
        for group in self.groups() {
            group.into_iter().for_each(|unit| *held.entry(unit).or_default() += 1);
        }
        for (unit, slot) in self.request.units.iter().zip(&mut self.streamed) {
            if *slot > 0 && held.get(&unit.id).is_some_and(|count| *count > 1) {
                *slot = 0;
                self.notes.push(PlanNote::KeptApart { unit: unit.id });
            }
        }
        let best = self.best()?.unwrap_or_else(|| self.laid(0));
        Ok(self.finished(best))
    }

    /// The fastest ring within the budget, of equally fast ones the one with the fewest copied bytes, then the
    /// shortest. Where no ring keeps the budget: the lowest peak. None if units collide on every ring.
    fn best(&self) -> Result<Option<Plan>, CoreError> {
        let budget = self.request.budget.unwrap_or(u64::MAX);
        let selected: u64 = self.streamed.iter().sum();
        let fits = self.request.budget.is_none() || self.request.total_bytes() <= budget;
        let lengths = if selected == 0 && fits { vec![0] } else { self.lengths() };
        let mut plans: Vec<Plan> = lengths.into_iter().map(|ring| self.laid(ring)).collect();
        plans.sort_by_key(|plan| plan.peak_bytes);
        // What keeps the budget is tried; where nothing does, the lowest peak that runs is taken.
        let within = plans.iter().take_while(|plan| plan.peak_bytes <= budget).count();
        let over = plans.split_off(within);
        let mut timed = self.timed(plans)?;
        for plan in over {
            if timed.is_empty() {
                timed = self.timed(vec![plan])?;
            }
        }
        let fastest = timed.iter().map(worst).fold(f64::INFINITY, f64::min);
        timed.retain(|plan| worst(plan) <= fastest * SAME_TIME);
        let best = timed.into_iter().min_by_key(|plan| (plan.streamed_bytes, plan.ring_pages));
        best.map(|best| self.rechunked(best)).transpose()
    }

    /// The plan with the best length of a copy.
    fn rechunked(&self, plan: Plan) -> Result<Plan, CoreError> {
        if plan.ring_pages == 0 {
            return Ok(plan);
        }
        let most = self.request.chunk_pages.max(1);
        let lengths = (0..CHUNKS).map(|halvings| most >> halvings).filter(|pages| *pages > 0);
        let tried = lengths.map(|chunk_pages| Plan { chunk_pages, ..plan.clone() }).collect();
        let tried = self.timed(tried)?;
        let best = tried.into_iter().min_by(|a, b| worst(a).total_cmp(&worst(b)));
        Ok(best.unwrap_or(plan))
    }

    /// Lengths of the ring worth trying.
    fn lengths(&self) -> Vec<u64> {
        let page = self.request.page_bytes;
        let pages = |unit: UnitId| self.course.position(unit).and_then(|at| self.streamed.get(at)).copied();
        let held = self.groups().into_iter().map(|group| group.into_iter().filter_map(pages).sum::<u64>());
        let least = held.max().unwrap_or(0);
        if let Some(asked) = self.request.ring_override {
            return vec![(asked / page).max(least)];
        }
        let selected: u64 = self.streamed.iter().sum();
        let leads = LEADS_MIB.map(|lead| least + (lead << 20).div_ceil(page));
        let idle = self.course.unused().iter().map(|&at| self.idle_pages(at, u64::MAX)).max().unwrap_or(0);
        let mut lengths = Vec::new();
        for ring in leads.into_iter().chain([self.block_pages.max(least), idle.max(least)]) {
            // A ring around which a pass goes a whole number of times loses no lead at the pass's end.
            let laps = (selected / ring.max(1)).max(1);
            lengths.extend([ring, selected.div_ceil(laps).max(ring)]);
        }
        // Without a budget the strategy's own blocks say how much memory is worth spending.
        if self.request.budget.is_none() {
            let most = self.block_pages.max(least);
            lengths.retain(|ring| *ring <= most);
        }
        lengths.retain(|ring| *ring > 0);
        lengths.sort_unstable();
        lengths.dedup();
        lengths
    }

    /// The units of uses that are held together, without repetition.
    fn groups(&self) -> Vec<BTreeSet<UnitId>> {
        let passes = self.request.passes.iter();
        let groups = passes.flat_map(|pass| pass.uses.chunk_by(|a, b| a.owner == b.owner));
        groups.map(|group| group.iter().map(|used| used.unit).collect()).collect()
    }

    /// Pages that an idle unit streams through a ring of this length: it costs no pass anything.
    fn idle_pages(&self, at: usize, ring: u64) -> u64 {
        match self.request.units.get(at) {
            Some(unit) if unit.stay.is_some() => 0,
            Some(unit) if unit.pages <= ring => unit.pages,
            Some(unit) if unit.splittable => ring,
            _ => 0,
        }
    }

    /// Everything laid around a ring of this length, without times.
    fn laid(&self, ring_pages: u64) -> Plan {
        let page = self.request.page_bytes;
        let mut streamed = self.streamed.clone();
        for &at in self.course.unused() {
            if let Some(slot) = streamed.get_mut(at) {
                *slot = self.idle_pages(at, ring_pages);
            }
        }
        let runs = layout::lay_runs(self.course, &streamed, ring_pages, 0);
        let layout = self.course.ring_order().filter_map(|at| {
            let run = runs.get(at).filter(|run| run.pages > 0)?;
            Some(RingRun { unit: self.course.id(at), start: run.start, pages: run.pages })
        });
        let ring_bytes = ring_pages * page;
        let stays = self.request.total_bytes() - streamed.iter().sum::<u64>() * page;
        let placements = self.request.units.iter().zip(&streamed);
        Plan {
            layout: layout.collect(),
            placements: placements
                .map(|(unit, pages)| Placement { unit: unit.id, streamed_pages: *pages })
                .collect(),
            ring_pages,
            ring_bytes,
            resident_bytes: stays - self.request.fixed_bytes,
            peak_bytes: stays + ring_bytes,
            ..Plan::default()
        }
    }

    /// Simulates plans in every shape; those in which units that are held together collide are left out.
    fn timed(&self, plans: Vec<Plan>) -> Result<Vec<Plan>, CoreError> {
        let mut timed = Vec::with_capacity(plans.len());
        for mut plan in plans {
            match simulate_shapes(self.request, &plan, false) {
                Ok(simulations) => {
                    let scenarios = self.course.scenarios().iter().zip(&simulations);
                    let forecasts = scenarios.map(|(scenario, simulation)| Forecast {
                        shapes: scenario.shapes.clone(),
                        resident_ms: scenario.resident_ms,
                        predicted_ms: simulation.cycle_ms,
                        bound_ms: bound_ms(self.request, scenario),
                        copied_bytes: simulation.copied_bytes,
                    });
                    plan.forecasts = forecasts.collect();
                    let first = plan.forecasts.first().cloned().unwrap_or_default();
                    plan.predicted_ms = first.predicted_ms;
                    plan.bound_ms = first.bound_ms;
                    plan.streamed_bytes = first.copied_bytes;
                    timed.push(plan);
                }
                Err(CoreError::HeldTogetherOverlap { .. } | CoreError::RunExceedsRing { .. }) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(timed)
    }

    /// Adds what a plan says beyond its layout and times: orders and notes.
    fn finished(self, mut plan: Plan) -> Plan {
        plan.orders = self.orders(&plan);
        plan.notes = self.notes;
        if let Some(asked) = self.request.budget.filter(|asked| *asked < plan.peak_bytes) {
            plan.notes.push(PlanNote::BudgetMissed { smallest_budget: plan.peak_bytes, asked });
        }
        let page = self.request.page_bytes;
        if let Some(asked) = self.request.ring_override.filter(|asked| *asked / page != plan.ring_pages) {
            plan.notes.push(PlanNote::RingOverrideChanged { asked, used: plan.ring_bytes });
        }
        if self.course.cleaned > 0 {
            plan.notes.push(PlanNote::TimesCleaned { count: self.course.cleaned });
        }
        plan
    }

    /// The streamed uses of every model, in order; of several passes of one model the first one counts.
    fn orders(&self, plan: &Plan) -> Vec<(ModelId, Vec<UnitId>)> {
        let streamed: BTreeSet<UnitId> = plan.layout.iter().map(|run| run.unit).collect();
        let mut orders: Vec<(ModelId, Vec<UnitId>)> = Vec::new();
        for pass in &self.request.passes {
            if orders.iter().all(|(model, _)| *model != pass.model) {
                let uses = pass.uses.iter().map(|used| used.unit).filter(|unit| streamed.contains(unit));
                orders.push((pass.model, uses.collect()));
            }
        }
        orders
    }
}

/// How far from its bound a plan is in the shape in which that is farthest.
fn worst(plan: &Plan) -> f64 {
    let ratio = |of: &Forecast| of.predicted_ms / of.bound_ms.max(LEAST_BOUND_MS);
    plan.forecasts.iter().map(ratio).fold(0.0, f64::max)
}
