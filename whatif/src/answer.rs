//! Answers: what a plan would do, in figures that people compare. The plans themselves are core's.

use flextensor_core::plan::{Forecast, Plan, PlanNote, PlanRequest, limits_ms};
use flextensor_core::units::Bytes;
use serde::Serialize;

use crate::error::WhatIfError;
use crate::planner::Planner;
use crate::profile::Shape;
use crate::question::Question;

/// What one plan would do.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Answer {
    /// Milliseconds of one pass of every model.
    pub predicted_ms: f64,
    /// The least milliseconds that any plan could take.
    pub bound_ms: f64,
    /// `predicted_ms / bound_ms`; none where nothing takes any time.
    pub ratio: Option<f64>,
    /// Most bytes that weights take on the GPU, the ring included.
    pub peak_bytes: u64,
    /// Bytes of the ring.
    pub ring_bytes: u64,
    /// Bytes copied in one pass of every model.
    pub streamed_bytes: u64,
    /// Whether the budget is kept.
    pub met: bool,
    /// What to expect of every input shape; the first one's figures are those above. Tables say it with the shapes.
    #[serde(skip)]
    pub forecasts: Vec<Forecast>,
    /// What should be said about it.
    pub notes: Vec<String>,
}

/// One row of a table of plans: an answer, or why there is none.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Row {
    /// Who planned.
    pub strategy: String,
    /// The figures.
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub answer: Option<Answer>,
    /// Why there are none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub declined: Option<String>,
}

/// All that a question is answered with, as the command line prints it.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Table {
    /// The models.
    pub model: String,
    /// UUID of the GPU that was measured on.
    pub gpu: Option<String>,
    /// The input shapes of the profile.
    pub shapes: Vec<Shape>,
    /// Bytes of all weights.
    pub weights_bytes: u64,
    /// Bytes of these that cannot be moved.
    pub fixed_bytes: u64,
    /// Pieces that are placed by themselves.
    pub units: usize,
    /// The budget; none = no limit.
    pub budget_bytes: Option<u64>,
    /// The link at its best, in GB/s.
    pub link_gb_per_s: f64,
    /// Where its speed comes from.
    pub link: String,
    /// Milliseconds with everything resident.
    pub resident_ms: f64,
    /// Milliseconds below which no plan can stay, because the ring takes a part of the budget, or because what is used
    /// in a row is more than the budget holds; never below the bound.
    pub limit_ms: f64,
    /// A row for each planner.
    pub plans: Vec<Row>,
}

impl Table {
    /// Asks every planner.
    ///
    /// # Errors
    /// [`WhatIfError::Core`].
    pub fn new(question: &Question, planners: &[Planner]) -> Result<Self, WhatIfError> {
        let request = &question.request;
        let plans: Vec<Row> =
            planners.iter().map(|planner| planner.row(question)).collect::<Result<_, _>>()?;
        let ours = plans.first().and_then(|row| row.answer.as_ref());
        let forecasts = ours.map(|answer| answer.forecasts.as_slice()).unwrap_or_default();
        let bound_ms = ours.map_or(0.0, |answer| answer.bound_ms);
        Ok(Table {
            model: question.title.clone(),
            gpu: question.gpu.clone(),
            shapes: question.shapes.iter().map(|shape| shape.clone().with(forecasts)).collect(),
            weights_bytes: request.total_bytes(),
            fixed_bytes: request.fixed_bytes,
            units: request.units.len(),
            budget_bytes: request.budget,
            link_gb_per_s: request.link.peak_bytes_per_ms() / 1e6,
            link: question.link_words.clone(),
            resident_ms: question.resident_ms()?,
            limit_ms: limits_ms(request)?.first().copied().unwrap_or_default().max(bound_ms),
            plans,
        })
    }
}

impl Answer {
    /// The figures of a plan for this request.
    #[must_use]
    pub fn new(request: &PlanRequest, plan: &Plan) -> Self {
        Answer {
            predicted_ms: plan.predicted_ms,
            bound_ms: plan.bound_ms,
            ratio: (plan.bound_ms > 0.0).then(|| plan.predicted_ms / plan.bound_ms),
            peak_bytes: plan.peak_bytes,
            ring_bytes: plan.ring_bytes,
            streamed_bytes: plan.streamed_bytes,
            met: request.budget.is_none_or(|budget| plan.peak_bytes <= budget),
            forecasts: plan.forecasts.clone(),
            notes: plan.notes.iter().filter_map(|note| words(request, note)).collect(),
        }
    }
}

/// A note for people.
fn words(request: &PlanRequest, note: &PlanNote) -> Option<String> {
    Some(match note {
        PlanNote::BudgetMissed { smallest_budget, asked } => format!(
            "a budget of {} cannot be met: the smallest that this plan can meet is {}",
            Bytes(*asked),
            Bytes(*smallest_budget)
        ),
        PlanNote::RingOverrideChanged { asked, used } => {
            format!("a ring of {} would not do; it has {}", Bytes(*asked), Bytes(*used))
        }
        PlanNote::TimesCleaned { count } => {
            format!("{count} times in the profile were negative or no numbers and count as 0")
        }
        PlanNote::KeptApart { unit } => {
            let name = request.units.iter().find(|known| known.id == *unit).map(|known| known.name.as_str());
            format!("{} stays: it is held together with another that has its place in the ring", name?)
        }
        // Notes of later versions of core.
        _ => return None,
    })
}
