//! What fillings of a ring are worth: laid around it, timed in every scenario, and compared.
//! Which ones are tried is `search`'s decision.

use crate::layout;
use crate::plan::assemble::{Choice, Cycle};
use crate::plan::fill::Stock;
use crate::plan::search::{Colliding, Search, total};
use crate::plan::stretch;
use crate::simulate::Track;

/// Predictions this close to the best count as equal; then the shorter time of the link wins.
pub(super) const SAME_TIME: f64 = 1.001;
/// What plans mostly take where the order of uses is what costs time, as a multiple of what it costs at least:
/// their rings cost besides.
const NEAR_THE_LEAST: f64 = 1.005;
/// Parts of a ring that a copy may fill while rings are compared.
const CHUNKS_OF_A_RING: [u64; 3] = [2, 3, 8];
/// Shorter copies than these, in pages, are left to requests that ask for nothing longer.
const SHORTEST_CHUNK: u64 = 4;
/// Lengths of a copy to try in the end: the longest, half of it, and so on.
const HALVED_CHUNKS: u32 = 3;
/// Longer copies are taken if they cost no more than this part of the time.
const SAME_LENGTH: f64 = 1.0002;
/// Pacing is tried where computing takes at least this part of the link's time.
const PACED: f64 = 0.5;

impl Search<'_> {
    /// Lays a filling around the ring and times it.
    pub(super) fn judge(
        &self,
        stock: &Stock,
        ring_pages: u64,
        streamed: Vec<u64>,
    ) -> Result<Choice, Colliding> {
        let runs = match self.shared {
            Some(shared) => layout::lay_runs(self.course, &streamed, ring_pages, shared.cursor),
            None => layout::lay_laps(self.course, &streamed, ring_pages, &self.leaders),
        };
        let colliding: Colliding = layout::conflicts(self.course, &runs, ring_pages)
            .into_iter()
            .map(|(first, second)| if stock.is_shared(second) { second } else { first })
            .collect();
        if !colliding.is_empty() {
            return Err(colliding);
        }
        let choice = Choice { ring_pages, streamed, runs, ..Choice::resident(self.request, self.course) };
        let timed = self.chunks(ring_pages).into_iter().map(|chunk_pages| self.timed(&choice, chunk_pages));
        Ok(fastest(timed.collect()).unwrap_or(choice))
    }

    /// A ring of this length, and copies of at most so many pages.
    pub(super) fn track(&self, ring_pages: u64, chunk_pages: u64) -> Track<'_> {
        Track { link: &self.request.link, page_bytes: self.request.page_bytes, chunk_pages, ring_pages }
    }

    /// The choice with copies of at most this many pages.
    pub(super) fn timed(&self, choice: &Choice, chunk_pages: u64) -> Choice {
        let track = self.track(choice.ring_pages, chunk_pages);
        let simulations = self.course.run(&track, &choice.runs, false);
        let cycles = simulations.iter().map(|simulation| Cycle {
            ms: simulation.cycle_ms,
            link_ms: simulation.link_ms,
            bytes: simulation.copied_bytes,
        });
        let cycles: Vec<Cycle> = cycles.collect();
        // A host that waits for the GPU in its forward looks as if it bound it: what it hides of the GPU's time counts as much as what it takes itself.
        let weighed = simulations.iter().map(|simulation| (simulation.cycle_ms + simulation.gpu_ms) / 2.0);
        let score = score(weighed.zip(&self.bounds_ms).map(|(ms, bound)| ms / bound));
        Choice { chunk_pages, cycles, score, ..choice.clone() }
    }

    /// The choice with the best length of a copy; all copies around a ring are cut alike.
    pub(super) fn rechunked(&self, choice: Choice) -> Choice {
        if self.shared.is_some_and(|shared| shared.chunk_pages > 0) || choice.ring_pages == 0 {
            return choice;
        }
        let most = self.request.chunk_pages.max(1);
        let others = (0..HALVED_CHUNKS).map(|halvings| (most >> halvings).max(1));
        let mut found: Vec<Choice> = others.map(|chunk_pages| self.timed(&choice, chunk_pages)).collect();
        found.push(choice);
        fastest(found).unwrap_or_else(|| Choice::resident(self.request, self.course))
    }

    /// Lengths of a copy, in pages, with which rings of this length are compared: long copies waste less of
    /// the link, short ones less of a short ring.
    pub(super) fn chunks(&self, ring_pages: u64) -> Vec<u64> {
        let most = self.request.chunk_pages.max(1);
        match self.shared {
            Some(shared) if shared.chunk_pages > 0 => vec![shared.chunk_pages],
            Some(_) => vec![most],
            None => {
                let mut chunks =
                    CHUNKS_OF_A_RING.map(|part| (ring_pages / part).max(SHORTEST_CHUNK).min(most)).to_vec();
                chunks.dedup();
                chunks
            }
        }
    }

    /// By number of pages streamed: how much longer their copies take than copies without end would.
    pub(super) fn cost_of_copies(&self, ring: u64) -> impl Fn(u64) -> f64 + use<> {
        let chunk_pages = self.chunks(ring).into_iter().max().unwrap_or(1);
        let page_ms = self.request.page_bytes as f64 / self.request.link.peak_bytes_per_ms();
        let copies_ms = self.request.link.copies_ms(chunk_pages, self.request.page_bytes);
        move |pages: u64| {
            let copy_ms = |pages: u64| copies_ms.get(pages as usize).copied().unwrap_or(0.0);
            let whole_ms = (pages / chunk_pages) as f64 * copy_ms(chunk_pages);
            (whole_ms + copy_ms(pages % chunk_pages)) / (pages as f64 * page_ms)
        }
    }

    /// The least score that any layout of this filling around this ring could reach: every scenario computes, and
    /// copies at this cost what another run overwrites.
    pub(super) fn least_score(&self, streamed: &[u64], ring: u64, cost: impl Fn(u64) -> f64) -> f64 {
        let page_ms = self.request.page_bytes as f64 / self.request.link.peak_bytes_per_ms();
        score(self.course.scenarios().iter().zip(&self.bounds_ms).map(|(scenario, bound)| {
            let mut counted = vec![false; streamed.len()];
            let (mut copies_ms, mut all) = (0.0, 0);
            for (unit, _) in scenario.uses() {
                let Some(counted) = counted.get_mut(unit).filter(|counted| !**counted) else { continue };
                *counted = true;
                let pages = streamed.get(unit).copied().unwrap_or(0);
                if pages > 0 {
                    copies_ms += pages as f64 * page_ms * cost(pages);
                    all += pages;
                }
            }
            scenario.resident_ms.max(copies_ms * part_overwritten(all, ring)) / bound
        }))
    }

    /// The score of a plan that costs no time.
    pub(super) fn resident_score(&self) -> f64 {
        let scenarios = self.course.scenarios().iter().zip(&self.bounds_ms);
        score(scenarios.map(|(scenario, bound)| scenario.resident_ms / bound))
    }

    /// Choices with this score or less are as good as any that save so many pages: they cost no time, or little more
    /// than the order of uses does.
    pub(super) fn enough(&self, over: u64) -> f64 {
        let free = self.resident_score();
        let scenarios = self.course.scenarios().iter().zip(&self.bounds_ms);
        let least = match self.shared {
            // A ring that others share already is memory besides.
            Some(_) => free,
            None => score(
                scenarios.map(|(scenario, bound)| stretch::least_ms(self.request, scenario, over) / bound),
            ),
        };
        if least > free { least * NEAR_THE_LEAST } else { free * SAME_TIME }
    }

    /// Whether what computes is long enough to matter beside what is copied.
    pub(super) fn computes(&self, streamed: &[u64]) -> bool {
        let page_ms = self.request.page_bytes as f64 / self.request.link.peak_bytes_per_ms();
        let link_ms = total(streamed) as f64 * page_ms;
        self.course.scenarios().iter().any(|scenario| scenario.resident_ms >= PACED * link_ms)
    }
}

/// The part of so many streamed pages that must share pages of the ring with others: none of them where they fit in
/// side by side, all of them from two laps on. In between every page beyond the first lap overwrites one of it.
fn part_overwritten(pages: u64, ring: u64) -> f64 {
    let beyond = pages.saturating_sub(ring);
    if beyond >= ring { 1.0 } else { 2.0 * beyond as f64 / pages.max(1) as f64 }
}

/// What a plan is judged by, from the times of its scenarios as multiples of their bounds: half the worst one,
/// half the mean, so that no shape pays for the others and none is given away.
fn score(ratios: impl Iterator<Item = f64>) -> f64 {
    let (count, sum, worst) = ratios
        .fold((0.0, 0.0, 0.0_f64), |(count, sum, worst), ratio| (count + 1.0, sum + ratio, worst.max(ratio)));
    if count > 0.0 { (worst + sum / count) / 2.0 } else { 1.0 }
}

/// The best choice by score. Of those that are as good the one that would be fastest if nothing were computed,
/// because shapes that nobody has seen yet mostly compute little; then the one with the shortest ring.
pub(super) fn pick(mut found: Vec<Choice>) -> Option<Choice> {
    let best = found.iter().map(|choice| choice.score).fold(f64::INFINITY, f64::min);
    found.retain(|choice| choice.score <= best * SAME_TIME);
    found.into_iter().min_by(|a, b| {
        let link = a.link_ms().total_cmp(&b.link_ms()).then(a.ring_pages.cmp(&b.ring_pages));
        link.then(a.score.total_cmp(&b.score))
    })
}

/// Of choices that differ in the length of their copies only: the one with the longest copies that is as fast as
/// any, because every copy costs the host a call.
fn fastest(mut found: Vec<Choice>) -> Option<Choice> {
    let best = found.iter().map(|choice| choice.score).fold(f64::INFINITY, f64::min);
    found.retain(|choice| choice.score <= best * SAME_LENGTH);
    found.into_iter().max_by_key(|choice| choice.chunk_pages)
}
