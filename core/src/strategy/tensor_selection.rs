//! GlobalTensorSelectionStrategy: searches over every tensor at once, whether it is streamed, and over the
//! scale. Begins at what filling layers one by one gives, so it is never worse.

use super::estimate::{self, streamed_bytes};
use super::evolve::{Effort, SEED};
use super::global_offload::{largest_first, read_assignment};
use super::parameters::Reader;
use super::scale::{self, Scaled};
use super::{Assignment, Candidate, Estimate, Question, Selection, Strategy, StrategyError, Window};

pub(super) const NAME: &str = "GlobalTensorSelectionStrategy";
/// What one full pass of waiting costs, counted in models' worth of memory.
const WAITING: f64 = 10.0;
/// What streaming the whole model costs, counted the same way: less memory is what is looked for.
const STREAMING: f64 = 0.1;
/// What a broken rule costs.
const BROKEN: f64 = 1000.0;

#[derive(Debug)]
pub(super) struct TensorSelection {
    pub(super) scale: f64,
    pub(super) most_scale: Option<f64>,
    pub(super) threshold: u64,
    pub(super) effort: Effort,
    pub(super) anneals: bool,
    pub(super) seed_ratio: f64,
    pub(super) assignment: Assignment,
    pub(super) window: Window,
}

impl TensorSelection {
    pub(super) fn read(reader: &mut Reader<'_>) -> TensorSelection {
        let strategy = TensorSelection {
            scale: reader.positive("scale", 1.0),
            most_scale: reader.positive_or_none("scale_ub"),
            threshold: reader.mebibytes("threshold_mb", 0.1),
            effort: Effort {
                population: reader.whole("pop_size", 50, 4),
                epochs: reader.whole("epoch", 200, 1),
                patience: reader.whole("max_early_stop", 25, 1),
                seed: reader.seed(SEED),
            },
            anneals: reader.choice("optimizer", false, &[("DE", false), ("SA", true)]),
            seed_ratio: reader.part("seed_ratio", 0.25),
            assignment: read_assignment(reader),
            window: reader.choice("transfer_window", Window::SingleLayer, &Window::CHOICES),
        };
        let reaches = strategy.most_scale.is_none_or(|most| most >= strategy.scale);
        reader.require_number(
            reaches,
            "scale_ub",
            strategy.most_scale.unwrap_or_default(),
            "a number not below scale",
        );
        strategy
    }
}

impl Strategy for TensorSelection {
    fn name(&self) -> &'static str {
        NAME
    }

    fn select(&self, question: &Question) -> Result<Selection, StrategyError> {
        let search = Search::new(self, question);
        let finish = |streamed| Selection::new(NAME, question, streamed, self.assignment, self.window);
        let filled = Scaled::new(question, self.scale)
            .search(|scale| finish(largest_first(question, self.threshold, scale)));
        let mut starts = search.starts(&filled.streamed);
        let cost = |point: &[f64]| search.cost(&search.streamed(point));
        let dimensions = search.tensors.len() + 1;
        let point = if self.anneals {
            self.effort.anneal(dimensions, starts, cost)
        } else {
            starts.truncate(((f64::from(self.effort.population) * self.seed_ratio) as usize).max(1));
            self.effort.evolve(dimensions, starts, cost)
        };
        let found = finish(search.streamed(&point));
        let candidates = [&filled, &found]
            .map(|selection| Candidate { solver: NAME.to_owned(), estimate: selection.estimate });
        let better = found.estimate.rank(&filled.estimate).is_lt();
        Ok(Selection { candidates: candidates.to_vec(), ..if better { found } else { filled } })
    }
}

/// The space that is searched: one coordinate for each tensor (above a half = streamed), one for the scale.
#[derive(Debug)]
struct Search<'a> {
    strategy: &'a TensorSelection,
    question: &'a Question,
    /// Layer and position of every tensor that may be streamed, those of a layer by falling size.
    tensors: Vec<(usize, usize)>,
    most_scale: f64,
    /// A cheap assignment for the search itself; the one asked for is used for what was found.
    assignment: Assignment,
}

impl<'a> Search<'a> {
    fn new(strategy: &'a TensorSelection, question: &'a Question) -> Self {
        let mut tensors = Vec::new();
        for (at, layer) in question.layers.iter().enumerate().skip(1) {
            let mut eligible = scale::eligible(layer, strategy.threshold);
            eligible.sort_by_key(|&tensor| {
                std::cmp::Reverse(layer.tensors.get(tensor).map(|tensor| tensor.bytes))
            });
            tensors.extend(eligible.into_iter().map(|tensor| (at, tensor)));
        }
        // Only a budget is a reason to grant more time than was asked for.
        let enough = match question.budget {
            Some(_) => Scaled::new(question, strategy.scale).everything(),
            None => strategy.scale,
        };
        let blocks = match strategy.assignment {
            Assignment::OptimizedRoundRobin { least, .. } => least,
            Assignment::StrictRoundRobin { blocks } | Assignment::FewestLabels { blocks } => blocks,
        };
        Search {
            strategy,
            question,
            tensors,
            most_scale: strategy.most_scale.unwrap_or(enough),
            assignment: Assignment::StrictRoundRobin { blocks },
        }
    }

    /// What a point streams: the tensors that it names, as far as the scale that it names grants them time.
    fn streamed(&self, point: &[f64]) -> Vec<Vec<usize>> {
        let part = point.last().copied().unwrap_or(0.0);
        let scale = self.strategy.scale + part * (self.most_scale - self.strategy.scale);
        let mut streamed = vec![Vec::new(); self.question.layers.len()];
        let mut left = (usize::MAX, 0);
        for (&(at, tensor), _) in self.tensors.iter().zip(point).filter(|(_, value)| **value > 0.5) {
            if left.0 != at {
                let before = at.checked_sub(1).and_then(|before| self.question.layers.get(before));
                let ms = before.map_or(0.0, |before| scale::granted(before.duration_ms));
                left = (at, self.question.link.bytes_within(ms * scale));
            }
            let bytes = self.question.layers.get(at).and_then(|layer| layer.tensors.get(tensor));
            let bytes = bytes.map_or(u64::MAX, |tensor| tensor.bytes);
            if let Some(layer) = streamed.get_mut(at).filter(|_| bytes <= left.1) {
                layer.push(tensor);
                left.1 -= bytes;
            }
        }
        streamed.iter_mut().for_each(|layer| layer.sort_unstable());
        streamed
    }

    fn cost(&self, streamed: &[Vec<usize>]) -> f64 {
        let bytes = streamed_bytes(self.question, streamed);
        let blocks = self.assignment.assign(&bytes);
        let starts = estimate::starts(self.question, &bytes, &blocks, self.strategy.window);
        let Estimate { valid, overhead, peak_bytes, streamed_bytes } =
            estimate::estimate(self.question, &bytes, &blocks, &starts);
        let total = self.question.total_bytes().max(1) as f64;
        let over = peak_bytes.saturating_sub(self.question.budget.unwrap_or(u64::MAX));
        let broken = if valid { 0.0 } else { 1.0 + over as f64 / total };
        let waiting = overhead.min(BROKEN);
        peak_bytes as f64 / total
            + STREAMING * streamed_bytes as f64 / total
            + WAITING * waiting
            + BROKEN * broken
    }

    /// Points to begin with: what was found layer by layer, and fillings at scales in between.
    fn starts(&self, filled: &[Vec<usize>]) -> Vec<Vec<f64>> {
        let chosen = |streamed: &[Vec<usize>], part: f64| {
            let named = self.tensors.iter().map(|(at, tensor)| {
                if streamed.get(*at).is_some_and(|layer| layer.contains(tensor)) { 0.9 } else { 0.1 }
            });
            named.chain([part]).collect::<Vec<f64>>()
        };
        let count = (f64::from(self.strategy.effort.population) * self.strategy.seed_ratio) as u32;
        let mut starts = vec![chosen(filled, 1.0)];
        for step in 0..count.saturating_sub(1) {
            let part = f64::from(step) / f64::from(count.max(2) - 1);
            let scale = self.strategy.scale + part * (self.most_scale - self.strategy.scale);
            starts.push(chosen(&largest_first(self.question, self.strategy.threshold, scale), part));
        }
        starts
    }
}
