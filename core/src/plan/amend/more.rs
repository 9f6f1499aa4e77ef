//! A plan in force streams more, because there is less room: idle units first, then few that were resident, evenly over the pass, each where the ring loses least by it;
//! last of all tails grow, where they are or at another place. All others keep their runs.

use super::resized;
use crate::layout::{self, Run};
use crate::plan::assemble::Choice;
use crate::plan::search::{Search, total};

/// Places of a new run that are tried: behind the run of the streamed unit that is used before it, and of so many that follow.
const PLACES: usize = 5;
/// Longest tails that are tried, in quarters of the longest that there is.
const LEVELS: [u64; 4] = [4, 5, 6, 8];
/// Units of which the one is taken that costs least.
const SAMPLE: usize = 16;
/// Uses that are simulated in all, for each length of tails; with more of them to look at, a plan from scratch is the better one.
const MOST_USES: usize = 1_200_000;

impl Search<'_> {
    /// Ways to stream so many pages more around this ring, of which the best is for the caller to take: with tails no longer than the longest that there is, and with longer ones.
    pub(super) fn more(&self, start: &Choice, missing: u64) -> Vec<Choice> {
        let longest = start.streamed.iter().copied().max().unwrap_or(0);
        let mut found: Vec<Choice> = Vec::new();
        for quarters in LEVELS {
            let level = (longest * quarters / 4).min(start.ring_pages);
            found.extend(self.more_within(start, missing, level));
        }
        found
    }

    /// So many pages more in tails of at most `level` pages, if there is room for them.
    fn more_within(&self, start: &Choice, missing: u64, level: u64) -> Option<Choice> {
        let mut choice = start.clone();
        let mut left = missing;
        for &unit in self.course.unused() {
            left -= self.stream_idle(&mut choice, unit, left);
        }
        let streams = |unit: &&usize| choice.streamed.get(**unit).is_some_and(|pages| *pages > 0);
        let (streamed, resident): (Vec<usize>, Vec<usize>) =
            self.course.first_uses().iter().partition(streams);
        let grows = level - start.streamed.iter().copied().max().unwrap_or(0).min(level);
        let mut turns = evenly_first(&resident, left.div_ceil(level.max(1)));
        turns.extend(evenly_first(&streamed, left.div_ceil(grows.max(1))));
        let uses: usize = self.course.scenarios().iter().map(|scenario| scenario.uses().count()).sum();
        for _ in 0..MOST_USES / (uses.max(1) * SAMPLE * (PLACES + 1)) {
            if left == 0 || turns.is_empty() {
                break;
            }
            if let Some(better) = self.with_one_more(&choice, &mut turns, (left, level)) {
                left = left.saturating_sub(total(&better.streamed) - total(&choice.streamed));
                choice = better;
            }
        }
        (left == 0).then(|| self.timed(&choice, choice.chunk_pages))
    }

    /// The choice with more of that unit among the next ones that costs least. It and those that have no place are taken out of the turns.
    fn with_one_more(&self, choice: &Choice, turns: &mut Vec<usize>, wanted: (u64, u64)) -> Option<Choice> {
        let (mut found, mut out) = (Vec::new(), Vec::new());
        for &unit in turns.iter().take(SAMPLE) {
            match self.with_more_of(choice, unit, wanted) {
                Some(other) => found.push((unit, other)),
                None => out.push(unit),
            }
        }
        // By page, or those of few pages would always be the cheapest.
        let cost = |other: &Choice| {
            (other.score - choice.score) / (total(&other.streamed) - total(&choice.streamed)) as f64
        };
        let best = found.into_iter().min_by(|(_, a), (_, b)| cost(a).total_cmp(&cost(b)));
        out.extend(best.as_ref().map(|(unit, _)| *unit));
        turns.retain(|unit| !out.contains(unit));
        best.map(|(_, choice)| choice)
    }

    /// Streams an idle unit, if it does not yet; returns the pages. Nobody waits for it, so it lies anywhere.
    fn stream_idle(&self, choice: &mut Choice, unit: usize, most: u64) -> u64 {
        let pages = match choice.streamed.get(unit) {
            Some(0) if most > 0 => self.part_of(unit, most, choice.ring_pages),
            _ => 0,
        };
        if let (Some(slot), Some(run)) = (choice.streamed.get_mut(unit), choice.runs.get_mut(unit))
            && pages > 0
        {
            (*slot, *run) = (pages, Run { start: 0, pages });
        }
        pages.min(most)
    }

    /// How many pages of a unit can be streamed in one run of at most `level` pages, where `most` are wanted: more only if it cannot be split.
    fn part_of(&self, unit: usize, most: u64, level: u64) -> u64 {
        let Some(unit) = self.request.units.get(unit).filter(|unit| unit.stay.is_none()) else { return 0 };
        match unit.splittable {
            true => unit.pages.min(level).min(most),
            false if unit.pages <= level => unit.pages,
            false => 0,
        }
    }

    /// The choice with up to so many pages more of this unit, at the place where that costs least; none where no place is free of collisions.
    fn with_more_of(&self, choice: &Choice, unit: usize, (most, level): (u64, u64)) -> Option<Choice> {
        let now = *choice.streamed.get(unit)?;
        let pages = self.part_of(unit, now + most, level);
        if pages <= now {
            return None;
        }
        let ring = choice.ring_pages;
        let longer = resized(*choice.runs.get(unit)?, pages, ring);
        let elsewhere = self.places(choice, unit).into_iter().map(|start| Run { start, pages });
        let places = elsewhere.chain((now > 0).then_some(longer));
        let timed = places.filter_map(|run| {
            let mut next = choice.clone();
            (*next.streamed.get_mut(unit)?, *next.runs.get_mut(unit)?) = (pages, run);
            let free = layout::conflicts(self.course, &next.runs, ring).is_empty();
            free.then(|| self.timed(&next, choice.chunk_pages))
        });
        timed.min_by(|a, b| a.score.total_cmp(&b.score).then(a.link_ms().total_cmp(&b.link_ms())))
    }

    /// Where a run for this unit may begin: behind the runs of the streamed units that are used around it.
    fn places(&self, choice: &Choice, unit: usize) -> Vec<u64> {
        let order = self.course.first_uses();
        let here = order.iter().position(|&other| other == unit).unwrap_or(0);
        let around = order.iter().cycle().skip(here).take(order.len());
        let run = |unit: &usize| choice.runs.get(*unit).copied().filter(|run| run.pages > 0);
        let mut behind: Vec<Run> = around.filter_map(run).collect();
        // The last one that is met on the way round is the one before it.
        if !behind.is_empty() {
            behind.rotate_right(1);
        }
        let mut places: Vec<u64> =
            behind.into_iter().take(PLACES).map(|run| (run.start + run.pages) % choice.ring_pages).collect();
        places.dedup();
        places
    }
}

/// The units in turn, with so many that lie evenly over them in front.
fn evenly_first(units: &[usize], wanted: u64) -> Vec<usize> {
    let wanted = (wanted as usize).min(units.len());
    let chosen = (0..wanted).map(|at| (2 * at + 1) * units.len() / (2 * wanted));
    let mut first: Vec<usize> = chosen.filter_map(|at| units.get(at).copied()).collect();
    let others: Vec<usize> = units.iter().copied().filter(|unit| !first.contains(unit)).collect();
    first.extend(others);
    first
}
