//! AdaptiveStrategy: asks several strategies and takes the best answer. Made into a plan, it has our own
//! planner as one more candidate.

use super::budget_fill::BudgetFill;
use super::evolve::{Effort, SEED};
use super::global_offload::{GlobalOffload, optimized};
use super::knapsack::{Knapsack, LOADERS, best};
use super::on_ring::{self, Planned};
use super::parameters::Reader;
use super::tensor_selection::TensorSelection;
use super::{Assignment, Question, Selection, Strategy, StrategyError, Window};
use crate::plan::{self, Plan, PlanRequest};

pub(super) const NAME: &str = "AdaptiveStrategy";
/// What our own planner is called among the candidates.
const OUR_PLANNER: &str = "planner";
/// Predictions this close count as equal.
const SAME_TIME: f64 = 1.001;

#[derive(Debug)]
pub(super) struct Adaptive {
    candidates: Vec<Box<dyn Strategy>>,
}

impl Adaptive {
    pub(super) fn read(reader: &mut Reader<'_>) -> Adaptive {
        let scale = reader.positive("scale", 1.0);
        let has_blocks = reader.choice("loader_type", true, &LOADERS);
        let cyclic = reader.flag("cyclic", false);
        let group = reader.whole("group_size", 1, 1) as usize;
        let threshold = reader.mebibytes("threshold_mb", 0.1);
        let least = reader.whole("min_blocks", 2, 2);
        let most = reader.whole("n_blocks", 4, 2);
        let extra = reader.flag("extra_optimization", false);
        let allowed = format!("at most n_blocks, which is {most}");
        reader.require(least <= most, "min_blocks", i64::from(least), &allowed);
        let (least, most) = (least as usize, most.max(least) as usize);
        if !has_blocks {
            return Adaptive {
                candidates: vec![Box::new(Knapsack::candidate(threshold, group, cyclic, scale, most))],
            };
        }
        let strict = Assignment::StrictRoundRobin { blocks: most };
        let mut candidates: Vec<Box<dyn Strategy>> = vec![
            Box::new(Knapsack::block_candidate(threshold, group, scale, most)),
            Box::new(GlobalOffload { assignment: optimized(least, most), scale, threshold }),
            Box::new(GlobalOffload { assignment: strict, scale, threshold }),
            Box::new(BudgetFill::candidate((least, most), threshold, scale)),
        ];
        if extra {
            let effort = Effort { population: 50, epochs: 200, patience: 25, seed: SEED };
            for anneals in [false, true] {
                candidates.push(Box::new(TensorSelection {
                    scale,
                    most_scale: None,
                    threshold,
                    effort,
                    anneals,
                    seed_ratio: 0.25,
                    assignment: optimized(least, most),
                    window: Window::SingleLayer,
                }));
            }
        }
        Adaptive { candidates }
    }
}

impl Strategy for Adaptive {
    fn name(&self) -> &'static str {
        NAME
    }

    /// What has no answer (filling a budget where none is set) is no candidate.
    fn select(&self, question: &Question) -> Result<Selection, StrategyError> {
        best(NAME, self.candidates.iter().filter_map(|candidate| candidate.select(question).ok()).collect())
    }

    fn plan(&self, request: &PlanRequest) -> Result<Planned, StrategyError> {
        let theirs = on_ring::plan(NAME, request, |question| self.select(question))?;
        let ours = plan::plan(request)?;
        if is_better(&ours, &theirs.plan, request.budget) {
            return Ok(Planned { plan: ours, solver: OUR_PLANNER.to_owned(), selection: None });
        }
        Ok(theirs)
    }
}

/// Whether a plan is better than another: one that keeps the budget, then the faster one, then the one that
/// streams less; without a budget less memory is what is asked for, so then the lower peak.
fn is_better(a: &Plan, b: &Plan, budget: Option<u64>) -> bool {
    let misses = |plan: &Plan| plan.peak_bytes.saturating_sub(budget.unwrap_or(u64::MAX));
    if misses(a) != misses(b) {
        return misses(a) < misses(b);
    }
    if a.predicted_ms > b.predicted_ms * SAME_TIME || b.predicted_ms > a.predicted_ms * SAME_TIME {
        return a.predicted_ms < b.predicted_ms;
    }
    match budget {
        Some(_) => (a.streamed_bytes, a.peak_bytes) < (b.streamed_bytes, b.peak_bytes),
        None => (a.peak_bytes, a.streamed_bytes) < (b.peak_bytes, b.streamed_bytes),
    }
}
