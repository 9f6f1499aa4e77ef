//! Who makes a plan: our planner, or a strategy by name and parameters.

use flextensor_core::plan::{Plan, PlanRequest, plan};
use flextensor_core::strategy::{self, Parameters, Strategy, StrategyError, Value};

use crate::answer::{Answer, Row};
use crate::error::WhatIfError;
use crate::question::Question;

/// The name of our planner.
pub const OURS: &str = "flextensor";

/// Our planner, or a strategy.
#[derive(Debug)]
pub struct Planner {
    name: String,
    way: Way,
}

/// How it plans.
#[derive(Debug)]
enum Way {
    Ours,
    By(Box<dyn Strategy>),
    /// A strategy that cannot be made without parameters, and why.
    Not(StrategyError),
}

impl Planner {
    /// Our planner.
    #[must_use]
    pub fn ours() -> Self {
        Planner { name: OURS.into(), way: Way::Ours }
    }

    /// A strategy as people write it: `NthLayerStrategy`, or `NthLayerStrategy:nth_layer=2,n_blocks=3`.
    ///
    /// # Errors
    /// [`WhatIfError::Strategy`] and [`WhatIfError::BadParameter`].
    pub fn named(text: &str) -> Result<Self, WhatIfError> {
        let (name, rest) = text.split_once(':').unwrap_or((text, ""));
        if name == OURS && rest.is_empty() {
            return Ok(Planner::ours());
        }
        let mut parameters = Parameters::new();
        for given in rest.split(',').filter(|given| !given.trim().is_empty()) {
            let Some((key, value)) = given.split_once('=') else {
                return Err(WhatIfError::BadParameter { given: given.to_owned() });
            };
            parameters.insert(key.trim().to_owned(), Value::parse(value));
        }
        let strategy = strategy::by_name(name, &parameters)?;
        Ok(Planner { name: text.to_owned(), way: Way::By(strategy) })
    }

    /// Ours and the named strategies, in this order, each once; without names, ours and all that there are.
    ///
    /// # Errors
    /// As [`Planner::named`].
    pub fn all(names: Option<&[String]>) -> Result<Vec<Self>, WhatIfError> {
        let mut planners = vec![Planner::ours()];
        if let Some(names) = names {
            for name in names {
                let planner = Planner::named(name)?;
                if planners.iter().all(|known| known.name != planner.name) {
                    planners.push(planner);
                }
            }
            return Ok(planners);
        }
        planners.extend(strategy::names().into_iter().map(|name| {
            let way = strategy::by_name(name, &Parameters::new()).map_or_else(Way::Not, Way::By);
            Planner { name: name.to_owned(), way }
        }));
        Ok(planners)
    }

    /// What it is called.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Its plan for this request.
    ///
    /// # Errors
    /// [`WhatIfError::Declined`] when it has no answer to such a request; [`WhatIfError::Core`] when the request
    /// contradicts itself.
    pub fn plan(&self, request: &PlanRequest) -> Result<Plan, WhatIfError> {
        let planned = match &self.way {
            Way::Ours => return Ok(plan(request)?),
            Way::By(strategy) => strategy.plan(request),
            Way::Not(error) => Err(error.clone()),
        };
        planned.map(|planned| planned.plan).map_err(|error| match error {
            StrategyError::Core(error) => WhatIfError::Core(error),
            other => WhatIfError::Declined { why: other.to_string() },
        })
    }

    /// Its row in a table.
    ///
    /// # Errors
    /// [`WhatIfError::Core`].
    pub fn row(&self, question: &Question) -> Result<Row, WhatIfError> {
        let (answer, declined) = match self.plan(&question.request) {
            Ok(plan) => (Some(Answer::new(&question.request, &plan)), None),
            Err(WhatIfError::Declined { why }) => (None, Some(why)),
            Err(error) => return Err(error),
        };
        Ok(Row { strategy: self.name.clone(), answer, declined })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_names_there_is_ours_and_every_strategy() {
        let planners = Planner::all(None).expect("all can be listed");
        let names: Vec<_> = planners.iter().map(Planner::name).collect();
        assert_eq!(names[0], OURS);
        assert_eq!(names[1..], strategy::names());
    }

    #[test]
    fn names_that_are_given_come_after_ours_and_only_once() {
        let given = ["GreedyStrategy", "flextensor", "GreedyStrategy"].map(str::to_owned);
        let planners = Planner::all(Some(&given)).expect("both exist");
        assert_eq!(planners.iter().map(Planner::name).collect::<Vec<_>>(), [OURS, "GreedyStrategy"]);
    }

    #[test]
    fn a_wrong_name_or_parameter_is_named_with_what_is_allowed() {
        for (text, words) in [
            ("Foo", "`Foo`"),
            ("", "``"),
            ("NthLayerStrategy:every=2", "`every`"),
            ("NthLayerStrategy:nth_layer", "`nth_layer`"),
            ("NthLayerStrategy:nth_layer=zero", "nth_layer"),
        ] {
            let error = Planner::named(text).expect_err(text);
            let message = error.to_string();
            assert!(message.contains(words) && message.contains("allowed"), "{message}");
            assert!(error.is_usage());
        }
    }
}
