//! The plans that a change may lead to: one from scratch, and the standing one with little changed. Whether any is worth its change is `worth`'s matter.

use flextensor_core::plan::Plan;

use super::super::planned;
use super::standing::Asked;
use super::target::{Target, targets};
use super::worth::{Why, cost_ms, mean_ms};
use crate::log;

/// Passes that a plan is reckoned to last. What follows a shortage is for good: the next thought of it would find nothing to gain. Memory that runs short may do so again soon.
fn lasts(why: Why) -> f64 {
    match why {
        Why::Pressure => 100.0,
        Why::Room => 3000.0,
        _ => 300.0,
    }
}

/// A plan, and what it moves.
pub(super) struct Way {
    pub(super) plan: Plan,
    pub(super) targets: Vec<Target>,
}

/// The one first that costs least with all passes that it lasts.
///
/// # Errors
/// A sentence where no plan can be made.
pub(super) fn ways(asked: &Asked, why: Why) -> Result<Vec<Way>, String> {
    let scratch = planned::planned(&asked.request)?;
    // Whoever chose anew, or takes a choice back, does not want the old one with changes.
    let amended = (why != Why::Chosen).then(|| planned::amended(&asked.standing, &asked.request)).flatten();
    let ways = std::iter::once(scratch).chain(amended).map(|plan| {
        let targets = targets(asked, &plan);
        let (cost_ms, pass_ms) = (cost_ms(asked, &targets), mean_ms(&plan));
        log::debug!("GPU {}: {cost_ms:.1} ms to a plan of {pass_ms:.1} ms a pass", asked.device);
        (whole_ms(why, cost_ms, pass_ms), Way { plan, targets })
    });
    let mut ways: Vec<_> = ways.collect();
    ways.sort_by(|(one, _), (other, _)| one.total_cmp(other));
    Ok(ways.into_iter().map(|(_, way)| way).collect())
}

/// Milliseconds of a change and all passes that follow.
fn whole_ms(why: Why, cost_ms: f64, pass_ms: f64) -> f64 {
    cost_ms + lasts(why) * pass_ms
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A change that maps all tails, and leads to passes that take 2 ms less than what little leads to.
    #[test]
    fn what_follows_a_shortage_is_the_faster_plan_and_what_answers_one_the_cheaper_change() {
        let is_first = |why| whole_ms(why, 320.0, 200.0) < whole_ms(why, 20.0, 202.0);
        assert!(is_first(Why::Room) && !is_first(Why::Pressure));
        // Of plans that are as fast the cheaper change is first, whenever it comes.
        assert!(whole_ms(Why::Room, 20.0, 200.0) < whole_ms(Why::Room, 320.0, 200.0));
    }
}
