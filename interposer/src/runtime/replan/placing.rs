//! A new plan for everything on a device, thought of and prepared by a thread of its own while the program runs. What the plan is asked for is `standing`'s
//! matter, whether it is worth it `worth`'s, what waits for its moment `prepared`'s; when a plan is wanted is said by the parent.

use std::sync::{Condvar, Mutex, MutexGuard};

use super::super::{passes, pressure};
use super::in_force;
use super::prepared::{self, discard_stale, make_ready};
use super::standing::{Aim, asked};
use super::tables;
use super::ways::{Way, ways};
use super::worth::{Why, is_worth_it};
use crate::ffi::context::Context;
use crate::log;

/// Whether the thread is at work, and who waits for its end.
static THINKING: (Mutex<bool>, Condvar) = (Mutex::new(false), Condvar::new());

fn thinking() -> MutexGuard<'static, bool> {
    THINKING.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// One plan is thought of at a time; dropped when that has ended.
pub(super) struct Thinking;

impl Thinking {
    /// Waits until nobody thinks of a plan, also not of what it would stand on, and keeps others from it.
    pub(super) fn wait() -> Self {
        let mut busy = thinking();
        while *busy {
            busy = THINKING.1.wait(busy).unwrap_or_else(|poisoned| poisoned.into_inner());
        }
        *busy = true;
        Thinking
    }
}

impl Drop for Thinking {
    fn drop(&mut self) {
        *thinking() = false;
        THINKING.1.notify_all();
    }
}

/// Whether anybody thinks of a plan now.
pub(super) fn is_thinking() -> bool {
    *thinking()
}

/// Begins to think of a new plan for a device, unless that is under way. False if it is.
pub(super) fn think(device: i32, why: Why) -> bool {
    let only = {
        let mut thinking = thinking();
        if *thinking || prepared::is_ready(device) {
            return false;
        }
        *thinking = true;
        Thinking
    };
    let work = move || {
        let _only = only;
        let _inside = crate::guard::enter();
        let done = std::panic::catch_unwind(|| prepare(device, why));
        if done.is_err() {
            log::warning!("a new plan for GPU {device} was given up: internal error");
        }
    };
    if let Err(error) = std::thread::Builder::new().name("ft-replan".into()).spawn(work) {
        log::info!("no thread to think of a new plan: {error}");
    }
    true
}

/// Makes the plan and all that can be made while the program runs.
fn prepare(device: i32, why: Why) {
    let Some(asked) = asked(device, Aim::Limit) else { return };
    if tables::go_first(&asked, why) {
        return;
    }
    let ways = match ways(&asked, why) {
        Ok(ways) => ways,
        Err(error) => return log::info!("no new plan for GPU {device}: {error}"),
    };
    let worth = ways.into_iter().find(|way| is_worth_it(&asked, &way.plan, &way.targets, why));
    let Some(Way { plan: made, targets }) = worth else {
        if why == Why::Room {
            pressure::nothing_to_gain(device);
        }
        return log::info!("GPU {device}: the plan stays ({why:?})");
    };
    let prepared = passes::in_context(asked.context, || make_ready(asked, made, targets, why));
    match prepared {
        Some(Ok(prepared)) => {
            prepared::keep(prepared);
            // Whoever has freed weights meanwhile did not find it.
            discard_stale(device);
        }
        Some(Err(error)) => in_force::refused(device, &error),
        None => {}
    }
}

/// The context is about to end: nothing of it may be in anybody's hands. The calling thread holds no lock.
pub(in super::super) fn settle(context: Context) {
    drop(Thinking::wait());
    prepared::discard_of(context);
}
