//! The plan for a request: by our planner, or by the strategy that the user named, in the configuration or at run time (`chosen`). What it is asked for is `switch`'s and `replan`'s matter.

use flextensor_config::choices::MemoryMode;
use flextensor_core::plan::{Objective, Plan, PlanRequest, plan};
use flextensor_core::strategy::{self, StrategyError};

use super::chosen;
use crate::log;

/// What plans of this process are to reach.
pub(super) fn objective() -> Objective {
    match super::config().mode {
        MemoryMode::Latency => Objective::LATENCY,
        _ => Objective::default(),
    }
}

/// Makes the plan. A strategy that has no answer to such a request leaves it to our planner, with one line.
///
/// # Errors
/// A sentence.
pub(super) fn planned(request: &PlanRequest) -> Result<Plan, String> {
    let config = super::config();
    let ours = || plan(request).map_err(|error| error.to_string());
    let made = match (chosen::strategy_for(request), &config.load_strategy) {
        (Some(strategy), _) => strategy.plan(request),
        (None, Some(name)) => strategy::from_options(name, &config.strategy_options())
            .and_then(|strategy| strategy.plan(request)),
        (None, None) => return ours(),
    };
    match made {
        Ok(made) => Ok(made.plan),
        Err(error @ StrategyError::NotApplicable { .. }) => {
            log::warning!("{error}: our own planner makes the plan");
            ours()
        }
        Err(error) => Err(error.to_string()),
    }
}
