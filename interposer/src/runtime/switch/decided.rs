//! What was decided for a device: said in the log, and remembered for the report and for later plans.

use std::collections::BTreeMap;

use flextensor_core::link::LinkCurve;
use flextensor_core::plan::{Plan, PlanNote};
use flextensor_core::units::Bytes;

use super::super::world::world;
use super::super::{config, saved};
use super::request::Request;
use crate::log;

/// What was decided for a device, for the report.
#[derive(Clone, Debug)]
pub(crate) struct Decided {
    pub(crate) plan: Plan,
    pub(crate) budget: Option<u64>,
    pub(crate) link: LinkCurve,
    /// Bytes of weights that are in no unit of the plan.
    pub(crate) fixed_bytes: u64,
    pub(crate) total_bytes: u64,
    pub(crate) resident_ms: f64,
    /// Milliseconds from the plan to the opening of the gate: all, and with the gate closed.
    pub(crate) took_ms: f64,
    pub(crate) closed_ms: f64,
    /// Why nothing was switched, if so.
    pub(crate) refused: Option<String>,
    /// Its ring is gone, with all that was in it.
    pub(crate) retired: bool,
}

/// Plans by device.
pub(crate) type Decisions = BTreeMap<i32, Decided>;

pub(super) fn announce(request: &Request, plan: &Plan) {
    if request.early {
        return log::info!("{} are streamed while the model is learnt", Bytes(plan.streamed_bytes));
    }
    let budget = request.plan.budget.map_or("none".to_owned(), |bytes| Bytes(bytes).to_string());
    log::notice!(
        "INFERENCE on GPU {}: budget {budget}, resident {}, ring {}, streamed {} a pass, expected {:.1} ms, bound {:.1} ms",
        request.device,
        Bytes(plan.resident_bytes + request.plan.fixed_bytes),
        Bytes(plan.ring_bytes),
        Bytes(plan.streamed_bytes),
        plan.predicted_ms,
        plan.bound_ms
    );
    for note in &plan.notes {
        match note {
            PlanNote::BudgetMissed { smallest_budget, asked } => log::warning!(
                "the budget of {} cannot be met; the smallest that can is {} (weights below {} each, and weights in shared pages, stay resident)",
                Bytes(*asked),
                Bytes(*smallest_budget),
                Bytes(config().managed_min_bytes)
            ),
            other => log::info!("plan: {other:?}"),
        }
    }
}

pub(super) fn remember(request: &Request, plan: Plan, took_ms: f64, closed_ms: f64, refused: Option<String>) {
    if !request.early {
        saved::decided(request.id, &request.plan, refused.is_none().then_some(&plan), request.ring_before);
    }
    let mut world = world();
    let before = world.decided.remove(&request.device);
    let before = before.filter(|before| before.plan.ring_pages > 0 && !before.retired);
    let decided = Decided {
        plan: match before {
            Some(before) => before.plan.with_increment(plan),
            None => plan,
        },
        budget: request.plan.budget,
        link: request.plan.link.clone(),
        fixed_bytes: request.plan.fixed_bytes,
        total_bytes: request.plan.total_bytes(),
        resident_ms: request.resident_ms,
        took_ms,
        closed_ms,
        refused,
        retired: false,
    };
    world.decided.insert(request.device, decided);
}
