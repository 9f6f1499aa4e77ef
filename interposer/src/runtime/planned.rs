//! The plan for a request: by our planner, or by the strategy that the user named, in the configuration or at run time (`chosen`). What it is asked for is `switch`'s and `replan`'s matter.

use std::collections::BTreeSet;
use std::sync::Mutex;

use flextensor_config::choices::MemoryMode;
use flextensor_core::plan::{self, Objective, Plan, PlanRequest, plan};
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
            say_once(&error.to_string());
            ours()
        }
        Err(error) => Err(error.to_string()),
    }
}

/// Whether a strategy that the user or the program named makes the plan.
pub(super) fn is_by_a_strategy(request: &PlanRequest) -> bool {
    super::config().load_strategy.is_some() || chosen::strategy_for(request).is_some()
}

/// The plan in force, changed as little as the request's budget asks for; none where there is no such plan, or where another one than our planner's was asked for.
pub(super) fn amended(standing: &Plan, request: &PlanRequest) -> Option<Plan> {
    if is_by_a_strategy(request) || request.objective != Objective::LeastTime {
        return None;
    }
    let amended = plan::amended(standing, request).unwrap_or_else(|error| {
        log::debug!("the plan in force cannot be amended: {error}");
        None
    });
    amended.filter(|amended| amended.budget_missed().is_none())
}

/// Each reason once: programs that choose anew and again would be told the same for every plan.
fn say_once(why: &str) {
    static SAID: Mutex<BTreeSet<String>> = Mutex::new(BTreeSet::new());
    if SAID.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).insert(why.to_owned()) {
        log::warning!("{why}: our own planner makes the plan");
    } else {
        log::info!("{why}: our own planner makes the plan");
    }
}
