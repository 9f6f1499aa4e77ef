//! The BudgetFill family: a hard budget is met with the fewest streamed bytes, and of those with the least
//! waiting. The first layer stays.
//!
//! | strategy | searches |
//! | --- | --- |
//! | BudgetFillGreedyStrategy | prefixes of a ranking of tensors, then drops what turned out superfluous |
//! | BudgetFillLayerDEStrategy | the part of every layer, by differential evolution |
//! | BudgetFillTensorDEStrategy | every tensor, by differential evolution; few tensors exhaustively |
//! | BudgetFillStrategy | all of these, the best one wins |

use std::cmp::{Ordering, Reverse};

use super::estimate::{self, streamed_bytes};
use super::evolve::{Effort, SEED};
use super::global_offload::{ASSIGNMENTS, DISTRIBUTION_WEIGHT};
use super::parameters::Reader;
use super::{Assignment, Candidate, Estimate, Question, Selection, Strategy, StrategyError, Window, scale};

pub(super) const FACADE: &str = "BudgetFillStrategy";
pub(super) const GREEDY: &str = "BudgetFillGreedyStrategy";
pub(super) const LAYER_DE: &str = "BudgetFillLayerDEStrategy";
pub(super) const TENSOR_DE: &str = "BudgetFillTensorDEStrategy";

/// Numbers of blocks that are tried where none is asked for.
const BLOCKS: (usize, usize) = (2, 4);
/// Tensors up to which every choice is looked at.
const MOST_EXHAUSTIVE: usize = 10;
/// Layers up to which parts of layers are not searched: a ranking sees all there is.
const FEW_LAYERS: usize = 2;
/// Overheads this close count as equal.
const SAME_OVERHEAD: f64 = 1e-9;

/// Which solvers run.
#[derive(Debug, Clone, Copy)]
struct Solvers {
    greedy: bool,
    layers: Option<Effort>,
    tensors: Option<Effort>,
}

/// All four strategies.
#[derive(Debug)]
pub(super) struct BudgetFill {
    name: &'static str,
    /// Fewest and most blocks.
    blocks: (usize, usize),
    threshold: u64,
    scale: f64,
    optimized: bool,
    distribution_weight: f64,
    solvers: Solvers,
}

impl BudgetFill {
    pub(super) fn read_greedy(reader: &mut Reader<'_>) -> BudgetFill {
        BudgetFill::with(GREEDY, reader, Solvers { greedy: true, layers: None, tensors: None })
    }

    pub(super) fn read_layers(reader: &mut Reader<'_>) -> BudgetFill {
        let layers = Some(read_effort(reader, 20, 60, 20));
        BudgetFill::with(LAYER_DE, reader, Solvers { greedy: false, layers, tensors: None })
    }

    pub(super) fn read_tensors(reader: &mut Reader<'_>) -> BudgetFill {
        let tensors = Some(read_effort(reader, 30, 80, 25));
        BudgetFill::with(TENSOR_DE, reader, Solvers { greedy: false, layers: None, tensors })
    }

    pub(super) fn read(reader: &mut Reader<'_>) -> BudgetFill {
        let layers = reader.flag("enable_layer_de", true);
        let tensors = reader.flag("enable_tensor_de", true);
        let effort = read_effort(reader, 20, 60, 20);
        let solvers =
            Solvers { greedy: true, layers: layers.then_some(effort), tensors: tensors.then_some(effort) };
        BudgetFill::with(FACADE, reader, solvers)
    }

    fn with(name: &'static str, reader: &mut Reader<'_>, solvers: Solvers) -> BudgetFill {
        let blocks = reader.whole("n_blocks", 0, 0);
        reader.require(blocks != 1, "n_blocks", i64::from(blocks), "0 (as few as serve best) or 2 and more");
        let (least, most) = if blocks == 0 { BLOCKS } else { (blocks as usize, blocks as usize) };
        let least = reader.whole("min_blocks", least as u32, 2);
        let most = reader.whole("max_blocks", most as u32, 2);
        let allowed = format!("at most max_blocks, which is {most}");
        reader.require(least <= most, "min_blocks", i64::from(least), &allowed);
        BudgetFill {
            name,
            blocks: (least as usize, most as usize),
            threshold: reader.mebibytes("threshold_mb", 1.0),
            scale: reader.positive("scale", 1.0),
            optimized: reader.choice("assignment_strategy", false, &ASSIGNMENTS),
            distribution_weight: reader.part("distribution_weight", DISTRIBUTION_WEIGHT),
            solvers,
        }
    }

    /// As a candidate among others: parts of layers are searched, single tensors are not.
    pub(super) fn candidate(blocks: (usize, usize), threshold: u64, scale: f64) -> BudgetFill {
        let effort = Effort { population: 20, epochs: 60, patience: 20, seed: SEED };
        let solvers = Solvers { greedy: true, layers: Some(effort), tensors: None };
        BudgetFill {
            name: FACADE,
            blocks,
            threshold,
            scale,
            optimized: false,
            distribution_weight: DISTRIBUTION_WEIGHT,
            solvers,
        }
    }

    fn assignments(&self) -> Vec<Assignment> {
        let (least, most) = self.blocks;
        if self.optimized {
            let distribution_weight = self.distribution_weight;
            return vec![Assignment::OptimizedRoundRobin { least, most, distribution_weight }];
        }
        (least..=most).map(|blocks| Assignment::StrictRoundRobin { blocks }).collect()
    }
}

/// How much a search by differential evolution may cost.
fn read_effort(reader: &mut Reader<'_>, population: u32, epochs: u32, patience: u32) -> Effort {
    Effort {
        population: reader.whole("pop_size", population, 4),
        epochs: reader.whole("epoch", epochs, 1),
        patience: reader.whole("max_early_stop", patience, 1),
        seed: reader.seed(SEED),
    }
}

impl Strategy for BudgetFill {
    fn name(&self) -> &'static str {
        self.name
    }

    fn select(&self, question: &Question) -> Result<Selection, StrategyError> {
        let refuse = |reason| StrategyError::NotApplicable { strategy: self.name, reason };
        if question.budget.is_none() {
            return Err(refuse("it fills a budget, and none is set"));
        }
        if question.layers.len() < 2 {
            return Err(refuse("it needs at least two layers, because the first one stays"));
        }
        // The ranking is cheap, so it finds the number of blocks for the other solvers too.
        let fills = self.assignments().into_iter().map(|assignment| {
            let fill = Fill::new(question, self.threshold, self.scale, assignment);
            let ranked = fill.ranked();
            let estimate = fill.estimate(&ranked);
            (fill, ranked, estimate)
        });
        let fewest_blocks = fills.min_by(|a, b| fewest(&a.2, &b.2));
        let (fill, ranked, _) = fewest_blocks.ok_or(refuse("it has no blocks"))?;
        let mut found = Vec::new();
        if let Some(effort) = self.solvers.layers {
            found.push((LAYER_DE, fill.by_layer(effort, &ranked)));
        }
        if let Some(effort) = self.solvers.tensors {
            found.push((TENSOR_DE, fill.by_tensor(effort, &ranked)));
        }
        if self.solvers.greedy {
            found.insert(0, (GREEDY, ranked));
        }
        let found = found.into_iter().map(|(solver, chosen)| fill.selection(solver, &chosen));
        let found: Vec<Selection> = found.collect();
        let candidates = found
            .iter()
            .map(|selection| Candidate { solver: selection.solver.clone(), estimate: selection.estimate });
        let candidates: Vec<Candidate> = candidates.collect();
        let best = found.into_iter().min_by(|a, b| fewest(&a.estimate, &b.estimate));
        best.map(|best| Selection { candidates, ..best }).ok_or(refuse("no solver is enabled"))
    }
}

/// Less is better: what is valid before what is not, then fewer streamed bytes, less waiting, a lower peak;
/// where nothing is valid only the peak counts.
fn fewest(a: &Estimate, b: &Estimate) -> Ordering {
    let peak = a.peak_bytes.cmp(&b.peak_bytes);
    if !a.valid || !b.valid {
        return b.valid.cmp(&a.valid).then(peak);
    }
    let waiting = if (a.overhead - b.overhead).abs() <= SAME_OVERHEAD {
        Ordering::Equal
    } else {
        a.overhead.total_cmp(&b.overhead)
    };
    a.streamed_bytes.cmp(&b.streamed_bytes).then(waiting).then(peak)
}

/// Which of the tensors of a [`Fill`] are streamed.
type Chosen = Vec<bool>;

/// One tensor that may be streamed.
#[derive(Debug, Clone, Copy)]
struct Item {
    layer: usize,
    tensor: usize,
    bytes: u64,
}

/// One question with one assignment of blocks.
#[derive(Debug)]
struct Fill<'a> {
    question: &'a Question,
    assignment: Assignment,
    scale: f64,
    /// By layer, those of a layer by falling size.
    items: Vec<Item>,
}

impl<'a> Fill<'a> {
    fn new(question: &'a Question, threshold: u64, scale: f64, assignment: Assignment) -> Self {
        let mut items = Vec::new();
        for (at, layer) in question.layers.iter().enumerate().skip(1) {
            let bytes = |tensor: usize| layer.tensors.get(tensor).map_or(0, |tensor| tensor.bytes);
            let eligible = scale::eligible(layer, threshold).into_iter();
            let mut tensors: Vec<Item> =
                eligible.map(|tensor| Item { layer: at, tensor, bytes: bytes(tensor) }).collect();
            tensors.sort_by_key(|item| Reverse(item.bytes));
            items.extend(tensors);
        }
        Fill { question, assignment, scale, items }
    }

    fn streamed(&self, chosen: &Chosen) -> Vec<Vec<usize>> {
        let mut streamed = vec![Vec::new(); self.question.layers.len()];
        for (item, _) in self.items.iter().zip(chosen).filter(|(_, chosen)| **chosen) {
            if let Some(layer) = streamed.get_mut(item.layer) {
                layer.push(item.tensor);
            }
        }
        streamed.iter_mut().for_each(|layer| layer.sort_unstable());
        streamed
    }

    fn selection(&self, solver: &str, chosen: &Chosen) -> Selection {
        Selection::new(solver, self.question, self.streamed(chosen), self.assignment, Window::SingleLayer)
    }

    fn estimate(&self, chosen: &Chosen) -> Estimate {
        let bytes = streamed_bytes(self.question, &self.streamed(chosen));
        let blocks = self.assignment.assign(&bytes);
        let starts = estimate::starts(self.question, &bytes, &blocks, Window::SingleLayer);
        estimate::estimate(self.question, &bytes, &blocks, &starts)
    }

    /// A number that is lower where [`fewest`] is.
    fn cost(&self, chosen: &Chosen) -> f64 {
        let Estimate { valid, overhead, peak_bytes, streamed_bytes } = self.estimate(chosen);
        let total = self.question.total_bytes().max(1) as f64;
        if !valid {
            return 10.0 + peak_bytes as f64 / total;
        }
        // Waiting only decides between equal bytes.
        streamed_bytes as f64 / total + 1e-9 * overhead.min(1e6)
    }

    /// Tensors in the order in which they are given up: those that their window still hides first, of these
    /// and of the others the larger ones first; equal ones spread over the pass.
    fn ranking(&self) -> Vec<usize> {
        let mut order: Vec<(usize, &Item)> = self.items.iter().enumerate().collect();
        let mut seen = vec![0usize; self.question.layers.len()];
        let turn: Vec<usize> = self
            .items
            .iter()
            .map(|item| seen.get_mut(item.layer).map_or(0, |seen| std::mem::replace(seen, *seen + 1)))
            .collect();
        order.sort_by_key(|(at, item)| {
            (Reverse(item.bytes), turn.get(*at).copied(), (item.layer as u64).reverse_bits())
        });
        let before = self.question.layers.iter().map(|layer| scale::granted(layer.duration_ms) * self.scale);
        let mut left: Vec<u64> =
            [0].into_iter().chain(before.map(|ms| self.question.link.bytes_within(ms))).collect();
        let (hidden, shown): (Vec<_>, Vec<_>) = order.into_iter().partition(|(_, item)| {
            let Some(left) = left.get_mut(item.layer).filter(|left| item.bytes <= **left) else {
                return false;
            };
            *left -= item.bytes;
            true
        });
        hidden.into_iter().chain(shown).map(|(at, _)| at).collect()
    }

    /// The shortest prefix of the ranking that meets the budget, without what turns out superfluous.
    fn ranked(&self) -> Chosen {
        let mut chosen = vec![false; self.items.len()];
        let mut best = (chosen.clone(), self.estimate(&chosen));
        let ranking = self.ranking();
        for &at in &ranking {
            if best.1.valid {
                break;
            }
            if let Some(slot) = chosen.get_mut(at) {
                *slot = true;
            }
            let estimate = self.estimate(&chosen);
            if fewest(&estimate, &best.1).is_lt() {
                best = (chosen.clone(), estimate);
            }
        }
        let (mut chosen, mut estimate) = best;
        for &at in ranking.iter().rev() {
            if chosen.get(at) != Some(&true) {
                continue;
            }
            let mut without = chosen.clone();
            if let Some(slot) = without.get_mut(at) {
                *slot = false;
            }
            let dropped = self.estimate(&without);
            if fewest(&dropped, &estimate).is_lt() {
                (chosen, estimate) = (without, dropped);
            }
        }
        chosen
    }

    /// Searches the part of every layer that is streamed; at least as good as `ranked`.
    fn by_layer(&self, effort: Effort, ranked: &Chosen) -> Chosen {
        let layers = self.question.layers.len().saturating_sub(1);
        let mut all = vec![0u64; layers];
        let mut taken = vec![0u64; layers];
        for (item, chosen) in self.items.iter().zip(ranked) {
            let at = item.layer - 1;
            if let (Some(all), Some(taken)) = (all.get_mut(at), taken.get_mut(at)) {
                *all += item.bytes;
                *taken += if *chosen { item.bytes } else { 0 };
            }
        }
        if all.iter().filter(|bytes| **bytes > 0).count() <= FEW_LAYERS {
            return ranked.clone();
        }
        let decode = |point: &[f64]| {
            let mut left: Vec<u64> =
                all.iter().zip(point).map(|(bytes, part)| (*bytes as f64 * part).round() as u64).collect();
            let items = self.items.iter().map(|item| {
                let left = left.get_mut(item.layer - 1).filter(|left| item.bytes <= **left);
                left.map(|left| *left -= item.bytes).is_some()
            });
            items.collect::<Chosen>()
        };
        let parts = all.iter().zip(&taken).map(|(all, taken)| *taken as f64 / (*all).max(1) as f64);
        let starts = vec![parts.collect(), vec![1.0; layers], vec![0.0; layers]];
        let point = effort.evolve(layers, starts, |point| self.cost(&decode(point)));
        self.better(decode(&point), ranked)
    }

    /// Searches every tensor; at least as good as `ranked`.
    fn by_tensor(&self, effort: Effort, ranked: &Chosen) -> Chosen {
        let count = self.items.len();
        if count <= MOST_EXHAUSTIVE {
            let every =
                (0u32..1 << count).map(|bits| (0..count).map(|at| bits >> at & 1 == 1).collect::<Chosen>());
            let best = every.min_by(|a, b| fewest(&self.estimate(a), &self.estimate(b)));
            return best.unwrap_or_default();
        }
        let decode = |point: &[f64]| point.iter().map(|value| *value > 0.5).collect::<Chosen>();
        let start = ranked.iter().map(|chosen| if *chosen { 0.9 } else { 0.1 }).collect();
        let point = effort.evolve(count, vec![start], |point| self.cost(&decode(point)));
        self.better(decode(&point), ranked)
    }

    fn better(&self, found: Chosen, ranked: &Chosen) -> Chosen {
        let better = fewest(&self.estimate(&found), &self.estimate(ranked)).is_lt();
        if better { found } else { ranked.clone() }
    }
}
