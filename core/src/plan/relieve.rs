//! Units that the ring would lose between two uses stay resident, as far as the budget allows.
//! How plans for what is left are found is `search`'s matter.
//!
//! A unit that a pass uses several times costs nothing more than others as long as it is used again before
//! others overwrite its pages: only what is used again later is copied again. Which units these are depends on
//! the ring and on the filling, so it is asked of plans: the first one streams what it likes, the next ones keep
//! what the one before copies again. The room for it is taken from units that are copied once, which is a gain:
//! a page that stays and was copied twice saves two copies, and the page that is streamed instead costs one.

use std::cmp::Reverse;

use crate::plan::PlanNote;
use crate::plan::assemble::Choice;
use crate::plan::fill::Stock;
use crate::plan::search::Search;

/// Plans that are made to find the units that should stay, the first one without any. More of them gain less
/// than a hundredth of the time.
const ROUNDS: usize = 3;
/// Times that units which collide in the ring are made resident before the search for a plan is given up.
const SEPARATING_ROUNDS: usize = 6;

/// Units that a round keeps, all different.
#[derive(Debug, Default)]
struct Kept {
    /// Because they collide in the ring.
    apart: Vec<usize>,
    /// Because they would be copied again.
    relieved: Vec<usize>,
}

impl Kept {
    fn units(&self) -> Vec<usize> {
        self.apart.iter().chain(&self.relieved).copied().collect()
    }
}

impl Search<'_> {
    /// The best choice in which any unit may be streamed, unless it collides, and those in which units that the
    /// one before copies again stay, until one scores `enough`.
    pub(super) fn relieved(&self, over: u64, enough: f64) -> Vec<Choice> {
        let mut found: Vec<Choice> = Vec::new();
        let mut kept = Kept::default();
        for left in (0..ROUNDS).rev() {
            let Some(choice) = self.separated(&mut kept, over) else { break };
            // Where the budget is missed, all that can be streamed has to be.
            let ends = left == 0 || choice.missing > 0 || choice.score <= enough;
            let again = if ends { Vec::new() } else { self.copied_again(&choice) };
            found.push(choice);
            if again.is_empty() || !self.keep_more(&mut kept, &again, left, over) {
                break;
            }
        }
        found
    }

    /// The best choice that streams none of these units; units that collide in the ring join them.
    fn separated(&self, kept: &mut Kept, over: u64) -> Option<Choice> {
        for _ in 0..SEPARATING_ROUNDS {
            match self.over_rings(&Stock::new(self.request, self.course, &kept.units()), over) {
                Ok(mut choice) => {
                    let apart = |&unit: &usize| PlanNote::KeptApart { unit: self.course.id(unit) };
                    choice.notes.extend(kept.apart.iter().map(apart));
                    return Some(choice);
                }
                Err(colliding) => kept.apart.extend(colliding),
            }
        }
        None
    }

    /// The units that are copied more than once a cycle, those that are copied most often first.
    fn copied_again(&self, choice: &Choice) -> Vec<usize> {
        let track = self.track(choice.ring_pages, choice.chunk_pages);
        let copies = self.course.copies_of_units(&track, &choice.runs).into_iter().enumerate();
        let mut again: Vec<(usize, usize)> = copies.filter(|(_, copies)| *copies > 1).collect();
        again.sort_by_key(|(_, copies)| Reverse(*copies));
        again.into_iter().map(|(unit, _)| unit).collect()
    }

    /// Keeps a part of these units as well, so that `left` rounds come to all of them in even steps. Where the budget
    /// does not hold all, they stay below what it holds: with the most that it holds all other units would stream
    /// all they can, and nothing would be left to choose. Whether any was added.
    fn keep_more(&self, kept: &mut Kept, again: &[usize], left: usize, over: u64) -> bool {
        let mut wanted = kept.units();
        let before = wanted.len();
        wanted.extend(again);
        let holds = self.most_kept(&wanted, over);
        let steps = if holds < wanted.len() { left + 1 } else { left };
        let more = holds.saturating_sub(before).div_ceil(steps.max(1));
        kept.relieved.extend(again.iter().take(more));
        more > 0
    }
}
