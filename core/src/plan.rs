//! What a plan is made of and what it says: which pages of which weights stay, which are streamed, and where
//! in the ring they land. How a plan is found is in `plan::search` (it stands on `plan::fill` and `plan::idle`),
//! where runs lie is in `layout`, how long it takes is in `simulate`.
//!
//! Words. A *page* is a piece of GPU memory of [`PlanRequest::page_bytes`]. A *unit* is the smallest thing
//! that is streamed as a whole. A plan streams a *suffix* of a unit's pages; the pages before it stay
//! resident. The *ring* is a cycle of pages that all streamed suffixes share; each has its own *run* of
//! consecutive ring pages for good. A *pass* is one forward of one model. A unit that no pass uses is *idle*.

use serde::{Deserialize, Serialize};

use crate::error::CoreError;
use crate::link::LinkCurve;
use crate::units::{ModelId, UnitId};

/// Why a unit must stay resident.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[non_exhaustive]
pub enum StayReason {
    /// The user's patterns leave it out.
    Excluded,
    /// No launch ever showed its address.
    Hidden,
    /// Its address went to device memory, where launches cannot be watched.
    Escaped,
    /// Its storage is shared in a way that cannot be followed.
    Shared,
    /// A captured graph reads it.
    GraphHeld,
    /// It covers no whole page.
    Partial,
    /// It is smaller than what is worth streaming.
    TooSmall,
    /// It was read outside its owner's forward.
    ReadElsewhere,
    /// Forwards read single rows of it, in host memory.
    Rows,
    /// Forwards read single rows of it, and these would take longer from host memory than its memory saves ([`rows_pay`]).
    RowsOnGpu,
    /// Forwards write it.
    Written,
    /// The program asked for private pages (`ft_weight_private`).
    Private,
}

/// One unit as the planner sees it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnitInfo {
    /// Its name in uses, placements and runs; unique in the request.
    pub id: UnitId,
    /// What people call it.
    pub name: String,
    /// Bytes of its weights.
    pub bytes: u64,
    /// Whole pages that only its weights cover; only these can be streamed.
    pub pages: u64,
    /// Whether a part of its pages can be streamed; otherwise all of them or none.
    pub splittable: bool,
    /// Why it must stay resident, if it must. A unit that no pass uses and that need not stay is *idle*: it is
    /// the first to be streamed.
    pub stay: Option<StayReason>,
}

impl UnitInfo {
    /// GPU bytes it takes when all of it is resident: its weights, or its whole pages where these are more
    /// (the rounded end of its allocation).
    #[must_use]
    pub fn footprint(&self, page_bytes: u64) -> u64 {
        self.bytes.max(self.pages.saturating_mul(page_bytes))
    }
}

/// One use of one unit in a pass.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct UseInfo {
    /// What is used.
    pub unit: UnitId,
    /// Milliseconds from the end of the previous use (the first: from the start of the pass) to the end of
    /// this one, with the weight already in place.
    pub compute_ms: f64,
    /// Who uses it. Consecutive uses of one owner are held together: from the first one's copy to the last
    /// one's end their streamed pages must not be overwritten.
    pub owner: u32,
}

/// One pass of one model in one shape.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PassProfile {
    /// The model.
    pub model: ModelId,
    /// Hash of the shapes of its inputs.
    pub shape: u64,
    /// Every use, in order. A unit may appear more than once.
    pub uses: Vec<UseInfo>,
    /// Milliseconds from the end of the last use to the end of the pass.
    pub tail_ms: f64,
    /// Milliseconds of the whole pass with every weight resident. Less than the sum of its parts, or 0 when
    /// unknown: the sum is taken.
    pub resident_ms: f64,
    /// Milliseconds from the beginning of the pass until it returned to the program, with every weight resident: what the host takes to launch it, if nothing in it
    /// waits for the GPU. 0 = unknown.
    #[serde(default)]
    pub host_ms: f64,
}

/// What a plan is to achieve, once the budget is met.
#[derive(Debug, Clone, Copy, PartialEq, Default, Serialize, Deserialize)]
pub enum Objective {
    /// Stream no more than the budget asks for, and be as fast as possible.
    #[default]
    LeastTime,
    /// Latency mode: stream whatever is free, so that weights take as little GPU memory as possible.
    LeastMemory {
        /// By how much every shape may be slower than with all weights resident: 0.01 = 1 %. What is negative or not a
        /// number counts as 0.
        slowdown: f64,
    },
}

impl Objective {
    /// What counts as free in latency mode: 1 %.
    pub const LATENCY: Objective = Objective::LeastMemory { slowdown: 0.01 };
}

/// All the planner needs to know.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PlanRequest {
    /// Bytes of one page; above 0.
    pub page_bytes: u64,
    /// Bytes of GPU memory that weights may take, ring included; none = no limit.
    pub budget: Option<u64>,
    /// Bytes of weights that are no unit here and always stay.
    pub fixed_bytes: u64,
    /// The units of all models.
    pub units: Vec<UnitInfo>,
    /// The passes of all models, in the order in which these usually follow each other. Several passes of one
    /// model are its shapes, the most frequent one first: one placement serves them all.
    pub passes: Vec<PassProfile>,
    /// The link from host to GPU.
    pub link: LinkCurve,
    /// Bytes of the ring as the user wants it; none = the planner chooses.
    pub ring_override: Option<u64>,
    /// Longest single copy that may be planned, in pages; 0 counts as 1.
    pub chunk_pages: u64,
    /// What the plan is to achieve within the budget.
    #[serde(default)]
    pub objective: Objective,
}

impl PlanRequest {
    /// Bytes of a page on today's GPUs: 2 MiB.
    pub const PAGE_BYTES: u64 = 2 << 20;
    /// Longest copies that are worth while: 32 MiB in pages of 2 MiB. Each copy costs the link 2.5 us (measured on
    /// one H200): 0.8 % of 16 MiB, 0.4 % of 32 MiB.
    pub const CHUNK_PAGES: u64 = 16;

    /// All bytes of weights: fixed and units.
    #[must_use]
    pub fn total_bytes(&self) -> u64 {
        let footprints = self.units.iter().map(|unit| unit.footprint(self.page_bytes));
        footprints.fold(self.fixed_bytes, u64::saturating_add)
    }
}

impl Default for PlanRequest {
    /// An empty request: no units, no budget, today's page size, the default link.
    fn default() -> Self {
        PlanRequest {
            page_bytes: Self::PAGE_BYTES,
            budget: None,
            fixed_bytes: 0,
            units: Vec::new(),
            passes: Vec::new(),
            link: LinkCurve::default(),
            ring_override: None,
            chunk_pages: Self::CHUNK_PAGES,
            objective: Objective::LeastTime,
        }
    }
}

/// How much of one unit is streamed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Placement {
    /// The unit.
    pub unit: UnitId,
    /// The last so many of its pages are streamed; 0 = resident.
    pub streamed_pages: u64,
}

/// Where in the ring one unit's streamed pages lie: ring pages `start .. start + pages`, counted on past the
/// end of the ring from its page 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct RingRun {
    /// The unit.
    pub unit: UnitId,
    /// First ring page, below the length of the ring.
    pub start: u64,
    /// Number of ring pages, from 1 to the length of the ring.
    pub pages: u64,
}

/// Something the user or the report should know about a plan.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub enum PlanNote {
    /// No plan meets the budget; this one comes nearest.
    BudgetMissed {
        /// Bytes of the smallest budget that can be met.
        smallest_budget: u64,
        /// Bytes that were asked for.
        asked: u64,
    },
    /// The wanted ring cannot hold what must be held together, or leaves nothing to gain; another was taken.
    RingOverrideChanged {
        /// Bytes that were asked for.
        asked: u64,
        /// Bytes that were taken.
        used: u64,
    },
    /// Times that are negative or not numbers counted as 0.
    TimesCleaned {
        /// How many.
        count: u64,
    },
    /// A unit is resident although its pages could be streamed, because two of its holders would collide in
    /// the ring.
    KeptApart {
        /// The unit.
        unit: UnitId,
    },
}

/// What a plan means for one cycle: a pass of every model, each in one shape.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Forecast {
    /// Which model runs in which shape.
    pub shapes: Vec<(ModelId, u64)>,
    /// Milliseconds with every weight resident.
    pub resident_ms: f64,
    /// Predicted milliseconds at steady state.
    pub predicted_ms: f64,
    /// The least milliseconds that any plan could take ([`Plan::bound_ms`]).
    pub bound_ms: f64,
    /// Bytes copied.
    pub copied_bytes: u64,
}

/// What is resident, what is streamed, and how.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Plan {
    /// One entry for each unit, in the order of the request.
    pub placements: Vec<Placement>,
    /// Pages of the ring; 0 when nothing is streamed.
    pub ring_pages: u64,
    /// The runs of all streamed units, in order of first use; idle units follow, in the order of the request.
    pub layout: Vec<RingRun>,
    /// For each model: its streamed units in order of use, one entry for each use.
    pub orders: Vec<(ModelId, Vec<UnitId>)>,
    /// Bytes of units that stay resident (fixed bytes not included).
    pub resident_bytes: u64,
    /// Bytes of the ring.
    pub ring_bytes: u64,
    /// Bytes that one pass of every model copies, in all.
    pub streamed_bytes: u64,
    /// Predicted milliseconds of one pass of every model, in all, at steady state.
    pub predicted_ms: f64,
    /// The least milliseconds that any plan could take: what is resident needs this long, or the link does for
    /// the bytes that passes read and the budget does not hold (idle units are not read).
    pub bound_ms: f64,
    /// Fixed, resident and ring bytes together.
    pub peak_bytes: u64,
    /// Longest single copy, in pages, with which the times were predicted: at most what was asked for. 0 in
    /// plans that were not made here: what was asked for.
    #[serde(default)]
    pub chunk_pages: u64,
    /// What to expect of every shape: the first of every model, the second of every model, and so on. The
    /// first one's times are the plan's.
    #[serde(default)]
    pub forecasts: Vec<Forecast>,
    /// What should be said about it.
    pub notes: Vec<PlanNote>,
}

impl Plan {
    /// Streamed pages of one unit; 0 when it is resident or unknown.
    #[must_use]
    pub fn streamed_pages(&self, unit: UnitId) -> u64 {
        self.placements.iter().find(|p| p.unit == unit).map_or(0, |p| p.streamed_pages)
    }

    /// The run of one unit, if it is streamed.
    #[must_use]
    pub fn run(&self, unit: UnitId) -> Option<RingRun> {
        self.layout.iter().find(|run| run.unit == unit).copied()
    }

    /// The smallest budget that could be met, when this plan misses the one asked for.
    #[must_use]
    pub fn budget_missed(&self) -> Option<u64> {
        self.notes.iter().find_map(|note| match note {
            PlanNote::BudgetMissed { smallest_budget, .. } => Some(*smallest_budget),
            _ => None,
        })
    }
}

mod amend;
mod assemble;
mod fill;
mod idle;
mod increment;
mod judge;
mod latency;
mod limit;
mod relieve;
mod rows;
mod search;
mod stretch;

pub(crate) use assemble::bound_ms;
pub use rows::{Table, rows_pay};

/// Makes the plan for a request.
///
/// # Errors
/// [`CoreError`] when the request contradicts itself: page size 0, a unit id given twice, a pass that uses an
/// unknown unit.
pub fn plan(request: &PlanRequest) -> Result<Plan, CoreError> {
    search::plan(request)
}

/// Makes the plan for a model that arrives when `existing` is already in force. The request describes the new
/// model only, and its budget is what is left for it: the whole budget less the peak of the existing plan.
/// The ring stays as it is; its bytes are not counted again. What the ring cannot hold together stays
/// resident, with a [`PlanNote::BudgetMissed`] whose figures are those of the new model alone. Where nothing
/// is streamed yet, a ring is made within the budget. Join both with [`Plan::with_increment`].
///
/// # Errors
/// As [`plan`].
pub fn plan_increment(existing: &Plan, request: &PlanRequest) -> Result<Plan, CoreError> {
    increment::plan(existing, request)
}

/// The plan `standing`, which is in force, for a request that asks for more or less memory: few units stream more, or less, or nothing. The ring stays, and so do the ring pages of all
/// other units, so that little has to be mapped anew; a plan from scratch may be faster. None where nothing would change so, or where nothing has to be streamed any more.
///
/// # Errors
/// As [`plan`].
pub fn amended(standing: &Plan, request: &PlanRequest) -> Result<Option<Plan>, CoreError> {
    amend::plan(standing, request)
}

/// For every shape (in the order of [`Plan::forecasts`]): milliseconds below which no plan can stay, because
/// the ring takes part of the budget and a weight that computes holds part of the ring, or because weights that
/// follow each other are more than the budget holds and compute less than their copies take. Between the bound
/// and what a plan reaches; for requests without a budget the resident time. Lengths of copies and weights that
/// cannot be split are not counted, so some plans cannot reach it either.
///
/// # Errors
/// As [`plan`].
pub fn limits_ms(request: &PlanRequest) -> Result<Vec<f64>, CoreError> {
    limit::limits_ms(request)
}
