//! Latency mode: the least memory at which no shape is noticeably slower than with all weights resident.
//! How a plan for a given amount of memory is found is `search`'s matter.

use crate::plan::PlanRequest;
use crate::plan::assemble::Choice;
use crate::plan::search::Search;
use crate::simulate::Course;

/// The search ends when it knows the amount up to this part of all weights.
const PRECISION: u64 = 512;

/// Saves at least `over` pages, and as many more as cost no shape more than `slowdown` times its resident
/// time.
pub(super) fn least_memory(
    search: &Search<'_>,
    course: &Course,
    request: &PlanRequest,
    over: u64,
    slowdown: f64,
) -> Choice {
    let most_slower = 1.0 + if slowdown.is_finite() { slowdown.max(0.0) } else { 0.0 };
    let is_free = |choice: &Choice| {
        let times = course.scenarios().iter().zip(&choice.cycles);
        choice.missing == 0
            && times.into_iter().all(|(scenario, cycle)| cycle.ms <= scenario.resident_ms * most_slower)
    };
    let mut best = search.best(over);
    if !is_free(&best) {
        return best;
    }
    let total = request.total_bytes() / request.page_bytes;
    let step = (total / PRECISION).max(1);
    let everything = search.best(total);
    let (mut free, mut dear) = (over, total - everything.missing + 1);
    while dear - free > step {
        let middle = free.midpoint(dear);
        let choice = search.best(middle);
        if is_free(&choice) {
            (free, best) = (middle, choice);
        } else {
            dear = middle;
        }
    }
    best
}
