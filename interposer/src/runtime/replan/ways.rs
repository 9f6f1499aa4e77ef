//! The plans that a change may lead to: one from scratch, and the standing one with little changed. Whether any is worth its change is `worth`'s matter.

use flextensor_core::plan::Plan;

use super::super::planned;
use super::standing::Asked;
use super::target::{Target, targets};
use super::worth::{Why, cost_ms, mean_ms};
use crate::log;

/// Passes that a plan is reckoned to last, where the dearer change leads to the faster one; and where memory runs short, because it may run short again.
const LASTS: f64 = 300.0;
const LASTS_IN_A_SHORTAGE: f64 = 100.0;

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
    let lasts = if why == Why::Pressure { LASTS_IN_A_SHORTAGE } else { LASTS };
    let ways = std::iter::once(scratch).chain(amended).map(|plan| {
        let targets = targets(asked, &plan);
        let (cost_ms, pass_ms) = (cost_ms(asked, &targets), mean_ms(&plan));
        log::debug!("GPU {}: {cost_ms:.1} ms to a plan of {pass_ms:.1} ms a pass", asked.device);
        (cost_ms + lasts * pass_ms, Way { plan, targets })
    });
    let mut ways: Vec<_> = ways.collect();
    ways.sort_by(|(one, _), (other, _)| one.total_cmp(other));
    Ok(ways.into_iter().map(|(_, way)| way).collect())
}
