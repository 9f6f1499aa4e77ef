//! The passes of a request in dense, cleaned form: what every simulated candidate has in common.
//! Walking a ring with them and timing that is the job of `simulate::lap`.
//!
//! Several passes of one model are its *shapes*: one after the other in different forwards, never in the same
//! cycle. A *scenario* takes one shape of every model: the first of each, the second of each, and so on; models
//! with fewer shapes repeat their last one.

use std::collections::BTreeMap;

use crate::error::CoreError;
use crate::plan::{PassProfile, PlanRequest, UseInfo};
use crate::simulate::clock::DenseUse;
use crate::units::{ModelId, UnitId};

/// Part of a pass from which on what the host takes for it counts beside what the GPU takes.
const HOST_BOUND: f64 = 0.75;

/// All scenarios of a request, and the order in which its units lie around a ring.
#[derive(Debug)]
pub(crate) struct Course {
    ids: Vec<UnitId>,
    positions: BTreeMap<UnitId, usize>,
    scenarios: Vec<Scenario>,
    /// Units in order of first use: as the first scenario uses them, then what the next ones use besides.
    first_uses: Vec<usize>,
    /// Units that no pass uses, in the order of the request.
    unused: Vec<usize>,
    /// Milliseconds of the first scenario with all weights resident.
    pub(crate) resident_ms: f64,
    /// Times that were negative or not numbers.
    pub(crate) cleaned: u64,
}

/// One cycle: a pass of every model, each in one shape.
#[derive(Debug, Default)]
pub(crate) struct Scenario {
    pub(super) uses: Vec<DenseUse>,
    /// Uses of each pass.
    pub(super) pass_lengths: Vec<usize>,
    /// The uses that are held together, in order. Groups in a row that hold the same units are one: weights that share
    /// pages are used one after the other.
    pub(crate) groups: Vec<Group>,
    /// Which model runs in which shape.
    pub(crate) shapes: Vec<(ModelId, u64)>,
    /// Milliseconds with all weights resident.
    pub(crate) resident_ms: f64,
    /// Milliseconds that the host takes for it with all weights resident, as far as known.
    pub(super) host_ms: f64,
}

impl Course {
    /// Checks and cleans a request.
    pub(crate) fn new(request: &PlanRequest) -> Result<Course, CoreError> {
        if request.page_bytes == 0 {
            return Err(CoreError::ZeroPageSize);
        }
        let mut positions = BTreeMap::new();
        for (at, unit) in request.units.iter().enumerate() {
            if positions.insert(unit.id, at).is_some() {
                return Err(CoreError::DuplicateUnit { unit: unit.id });
            }
        }
        let mut course = Course {
            ids: request.units.iter().map(|unit| unit.id).collect(),
            positions,
            scenarios: Vec::new(),
            first_uses: Vec::new(),
            unused: Vec::new(),
            resident_ms: 0.0,
            cleaned: request.passes.iter().map(cleaned).sum(),
        };
        for passes in by_scenario(&request.passes) {
            let scenario = course.scenario(&passes)?;
            course.scenarios.push(scenario);
        }
        course.resident_ms = course.scenarios.first().map_or(0.0, |scenario| scenario.resident_ms);
        course.order_units(request.units.len());
        Ok(course)
    }

    fn scenario(&self, passes: &[&PassProfile]) -> Result<Scenario, CoreError> {
        let mut scenario = Scenario::default();
        for pass in passes {
            let units = pass
                .uses
                .iter()
                .map(|used| self.position(used.unit).ok_or(CoreError::UnknownUnit { unit: used.unit }));
            scenario.add_pass(pass, &units.collect::<Result<Vec<usize>, CoreError>>()?);
        }
        scenario.group();
        Ok(scenario)
    }

    fn order_units(&mut self, units: usize) {
        let mut seen = vec![false; units];
        for used in self.scenarios.iter().flat_map(|scenario| &scenario.uses) {
            if let Some(first) = seen.get_mut(used.unit).filter(|seen| !**seen) {
                *first = true;
                self.first_uses.push(used.unit);
            }
        }
        self.unused = (0..units).filter(|&at| seen.get(at) == Some(&false)).collect();
    }

    /// The scenarios: at least one, unless there is no pass.
    pub(crate) fn scenarios(&self) -> &[Scenario] {
        &self.scenarios
    }

    /// The position of a unit in the request.
    pub(crate) fn position(&self, unit: UnitId) -> Option<usize> {
        self.positions.get(&unit).copied()
    }

    /// The unit at a position of the request.
    pub(crate) fn id(&self, position: usize) -> UnitId {
        self.ids.get(position).copied().unwrap_or(UnitId(u32::MAX))
    }

    /// Units in order of first use; units that no pass uses are not in it.
    pub(crate) fn first_uses(&self) -> &[usize] {
        &self.first_uses
    }

    /// Units that no pass uses, in the order of the request.
    pub(crate) fn unused(&self) -> &[usize] {
        &self.unused
    }

    /// All units in the order in which they lie around a ring: as they are used, then those that no pass uses.
    pub(crate) fn ring_order(&self) -> impl Iterator<Item = usize> {
        self.first_uses.iter().chain(&self.unused).copied()
    }

    /// The groups of uses that are held together in any scenario.
    pub(crate) fn groups(&self) -> impl Iterator<Item = &Group> {
        self.scenarios.iter().flat_map(|scenario| &scenario.groups)
    }
}

/// Uses that are held together.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Group {
    /// Its units, ascending, each once.
    pub(crate) units: Vec<usize>,
    /// The one that is used first.
    pub(crate) first: usize,
    /// Milliseconds from the start of the last use that may wait for a copy to the end: as long, all of the group
    /// is held and nothing of it can be overwritten.
    pub(crate) last_ms: f64,
}

impl Scenario {
    fn add_pass(&mut self, pass: &PassProfile, units: &[usize]) {
        let before = self.uses.len();
        let mut pass_ms = 0.0;
        for ((at, used), &unit) in pass.uses.iter().enumerate().zip(units) {
            let compute_ms = clean(used.compute_ms);
            pass_ms += compute_ms;
            let index = before + at;
            let continues = at > 0
                && pass.uses.get(at - 1).is_some_and(|previous: &UseInfo| previous.owner == used.owner);
            let group_first = match self.uses.last() {
                Some(previous) if continues => previous.group_first,
                _ => index,
            };
            self.uses.push(DenseUse { unit, compute_ms, tail_ms: 0.0, group_first, group_last: index });
        }
        let resident_ms = clean(pass.resident_ms).max(pass_ms + clean(pass.tail_ms));
        self.close_groups(before);
        // Time that no use accounts for passes at the end of the pass.
        if let Some(last) = self.uses.get_mut(before..).and_then(<[DenseUse]>::last_mut) {
            last.tail_ms = resident_ms - pass_ms;
        }
        self.pass_lengths.push(pass.uses.len());
        self.shapes.push((pass.model, pass.shape));
        self.resident_ms += resident_ms;
        // Longer than the pass it cannot take.
        self.host_ms += clean(pass.host_ms).min(resident_ms);
    }

    /// Whether the host takes nearly all of the time that the pass takes with all weights resident.
    pub(crate) fn is_bound_by_host(&self) -> bool {
        self.host_ms >= HOST_BOUND * self.resident_ms && self.host_ms > 0.0
    }

    /// Tells every use from `first` on where its group ends.
    fn close_groups(&mut self, first: usize) {
        let mut last = (usize::MAX, 0);
        for used in self.uses.get_mut(first..).unwrap_or_default().iter_mut().rev() {
            if used.group_first != last.0 {
                last = (used.group_first, used.group_last);
            }
            used.group_last = last.1;
        }
    }

    /// The units and times of all uses, in order.
    pub(crate) fn uses(&self) -> impl Iterator<Item = (usize, f64)> {
        self.uses.iter().map(|used| (used.unit, used.compute_ms + used.tail_ms))
    }

    /// The unit of every use in order, the milliseconds of the use itself, and those after it until its pass ends.
    pub(crate) fn uses_and_tails(&self) -> impl Iterator<Item = (usize, f64, f64)> {
        self.uses.iter().map(|used| (used.unit, used.compute_ms, used.tail_ms))
    }

    /// Takes uses that are held together into groups.
    fn group(&mut self) {
        for uses in self.uses.chunk_by(|a, b| a.group_first == b.group_first) {
            let mut units: Vec<usize> = uses.iter().map(|used| used.unit).collect();
            units.sort_unstable();
            units.dedup();
            let ms = |used: &DenseUse| used.compute_ms;
            match self.groups.last_mut().filter(|last| last.units == units) {
                Some(last) => last.last_ms += uses.iter().map(ms).sum::<f64>(),
                None => self.groups.push(Group {
                    first: uses.first().map_or(usize::MAX, |used| used.unit),
                    units,
                    last_ms: uses.last().map_or(0.0, ms),
                }),
            }
        }
    }
}

/// The passes of every scenario.
fn by_scenario(passes: &[PassProfile]) -> Vec<Vec<&PassProfile>> {
    let mut models: Vec<(ModelId, Vec<&PassProfile>)> = Vec::new();
    for pass in passes {
        match models.iter_mut().find(|(model, _)| *model == pass.model) {
            Some((_, shapes)) => shapes.push(pass),
            None => models.push((pass.model, vec![pass])),
        }
    }
    let most = models.iter().map(|(_, shapes)| shapes.len()).max().unwrap_or(0);
    let of =
        |number: usize| models.iter().filter_map(move |(_, shapes)| shapes.get(number).or(shapes.last()));
    (0..most).map(|number| of(number).copied().collect()).collect()
}

/// How many times of a pass make no sense.
fn cleaned(pass: &PassProfile) -> u64 {
    let times = pass.uses.iter().map(|used| used.compute_ms);
    let times = times.chain([pass.tail_ms, pass.resident_ms, pass.host_ms]);
    times.filter(|ms| !makes_sense(*ms)).count() as u64
}

fn clean(ms: f64) -> f64 {
    if makes_sense(ms) { ms } else { 0.0 }
}

fn makes_sense(ms: f64) -> bool {
    ms.is_finite() && ms >= 0.0
}
