//! Tables of rows that wait on the GPU go to host memory where a plan without them is worth its change: between two forwards, as plans come into force, with what the program has enqueued waited for before
//! the gate closes. Amid a forward that could hang: what a stream carries may end only after the program has launched elsewhere. Which tables wait is `rows::waiting`'s matter.

use std::sync::{Mutex, MutexGuard};

use super::super::rows::waiting::{self, Waiting};
use super::super::switch::SWITCHING;
use super::super::world::world;
use super::super::{graphs, passes};
use super::placing;
use super::relay::is_calm;
use super::standing::{Aim, Asked, asked};
use super::ways::{Way, ways};
use super::worth::{Why, is_worth_it};
use crate::ffi::context;

/// Devices whose tables should go, and why a plan was thought of.
static DUE: Mutex<Vec<(i32, Why)>> = Mutex::new(Vec::new());

fn due() -> MutexGuard<'static, Vec<(i32, Why)>> {
    DUE.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Whether tables that wait should make room for weights first: where the budget is exceeded, or a plan without them is worth its change. They go when the next forward has ended, and a plan is
/// thought of again then.
pub(super) fn go_first(asked: &Asked, why: Why) -> bool {
    let waiting = waiting::on(asked.device, asked.context, &asked.request);
    let first = waiting.is_some_and(|waiting| should_go(asked, &waiting, why));
    if first {
        due().push((asked.device, why));
    }
    first
}

fn should_go(asked: &Asked, waiting: &Waiting, why: Why) -> bool {
    let gone = Asked { request: waiting.gone_from(&asked.request), ..asked.clone() };
    let worth = |ways: Vec<Way>| ways.iter().any(|way| is_worth_it(&gone, &way.plan, &way.targets, why));
    asked.over_budget || (waiting.pay(&gone.request) && ways(&gone, why).is_ok_and(worth))
}

/// A forward has ended, and the calling thread holds nothing: tables that should go do. Those that cannot are weights like any others from now on, or no plan would ever follow.
pub(super) fn between_forwards(device: i32) {
    let Some(why) = due().iter().find(|(on, _)| *on == device).map(|(_, why)| *why) else { return };
    if graphs::any_capture() {
        return;
    }
    {
        let Ok(_only) = SWITCHING.try_lock() else { return };
        let asked = asked(device, Aim::Limit);
        let waiting = asked.as_ref().and_then(|asked| waiting::on(device, asked.context, &asked.request));
        if let (Some(asked), Some(waiting)) = (&asked, &waiting) {
            let calm = passes::in_context(asked.context, || {
                let calm = context::synchronize().is_ok() && is_calm(&world(), device);
                if calm && waiting.go() == 0 {
                    waiting.give_up();
                }
                calm
            });
            if calm == Some(false) {
                // Not at this moment: after the next forward.
                return;
            }
        }
        due().retain(|(on, _)| *on != device);
    }
    placing::think(device, why);
}
