//! A plan in force streams less, because there is more room: few units stream nothing any more, and one a part. All others keep their runs.

use std::cmp::Reverse;

use super::resized;
use crate::plan::assemble::Choice;
use crate::plan::fill::take_evenly;
use crate::plan::search::Search;

impl Search<'_> {
    /// Ways to stream so many pages less, of which the best is for the caller to take: evenly over the pass; the smallest units, so that uses become few;
    /// and those that are waited for longest.
    pub(super) fn fewer(&self, start: &Choice, spare: u64) -> Vec<Choice> {
        let mut evenly = start.streamed.clone();
        let left = spare - take_evenly(&mut evenly, self.course.first_uses(), &start.streamed, spare);
        let pages = |unit: usize| start.streamed.get(unit).copied().unwrap_or(0);
        let mut smallest = self.course.first_uses().to_vec();
        smallest.sort_by_key(|&unit| pages(unit));
        let waits = self.waits_ms(start);
        let wait_of = |unit: usize| waits.get(unit).copied().unwrap_or(0.0);
        let mut longest = self.course.first_uses().to_vec();
        longest.sort_by(|&a, &b| wait_of(b).total_cmp(&wait_of(a)));
        let in_turn = |order: &[usize]| take_in_turn(start.streamed.clone(), order, spare);
        let ways = [(evenly, left), in_turn(&smallest), in_turn(&longest)];
        ways.into_iter().map(|(streamed, left)| self.with_fewer(start, streamed, left)).collect()
    }

    /// By position of a unit: the longest that any of its uses waits for copies, in any scenario.
    fn waits_ms(&self, choice: &Choice) -> Vec<f64> {
        let mut longest = vec![0.0; self.request.units.len()];
        let track = self.track(choice.ring_pages, choice.chunk_pages);
        let simulations = self.course.run(&track, &choice.runs, false);
        for (scenario, simulation) in self.course.scenarios().iter().zip(&simulations) {
            for ((unit, _), &wait) in scenario.uses().zip(simulation.waits_ms.iter().flatten()) {
                if let Some(known) = longest.get_mut(unit) {
                    *known = wait.max(*known);
                }
            }
        }
        longest
    }

    /// The same ring with so many pages of each unit, less `left` pages of the one that streams most of those that are used and can be split; timed.
    fn with_fewer(&self, start: &Choice, mut streamed: Vec<u64>, left: u64) -> Choice {
        let splittable = |at: &usize| self.request.units.get(*at).is_some_and(|unit| unit.splittable);
        let used = self.course.first_uses().iter().copied().filter(splittable);
        let most = used.max_by_key(|&at| (streamed.get(at), Reverse(at)));
        if let Some(slot) = most.and_then(|at| streamed.get_mut(at)) {
            *slot = slot.saturating_sub(left);
        }
        let runs = start.runs.iter().zip(&streamed);
        let runs = runs.map(|(run, &pages)| resized(*run, pages, start.ring_pages)).collect();
        self.timed(&Choice { streamed, runs, ..start.clone() }, start.chunk_pages)
    }
}

/// Takes whole units away, in this order, as long as they are within `most`; and what is left of it.
fn take_in_turn(mut streamed: Vec<u64>, order: &[usize], most: u64) -> (Vec<u64>, u64) {
    let mut left = most;
    for &unit in order {
        if let Some(slot) = streamed.get_mut(unit).filter(|pages| **pages <= left) {
            left -= std::mem::take(slot);
        }
    }
    (streamed, left)
}
