//! Which passes are going on, on which thread, and how long they are believed: what is proven of kernels holds inside forwards only (rule 8), and a proof counts
//! from the end of the forwards that it was made in.
//!
//! An end may come on another thread than its begin, and may never come: an interrupt leaves a forward by a way that nothing of ours sees. So whoever ends a pass
//! ends it on the thread that began it, and a pass that goes on for far longer than any before is no longer taken for one. What passes are for is `passes`' matter.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock};
use std::time::Instant;

use flextensor_core::units::ModelId;

/// A pass is believed for so many nanoseconds, and twice the longest one before.
const PATIENCE_NS: u64 = 1_000_000_000;

/// The first pass of all loads kernels and what not.
const FIRST_NS: u64 = 60 * PATIENCE_NS;

/// Passes that were never ended, and that are remembered: their ends may still come.
const MAX_LOST: usize = 64;

/// Passes for which weights are looked at after a launch whose words were not all proven.
const CURIOUS: u64 = 8;

/// What a thread's launches ask about its passes; written under the table's lock only.
#[derive(Debug, Default)]
struct Here {
    /// Nanoseconds of our clock until which it is inside a forward; 0 = it is not.
    until: AtomicU64,
    /// The number of its innermost pass whose weights the caller watches; 0 = some pass of this thread is not watched.
    watched: AtomicU64,
}

thread_local! {
    static HERE: Arc<Here> = Arc::default();
}

struct Pass {
    number: u64,
    model: ModelId,
    thread: Arc<Here>,
    began: u64,
    until: u64,
    watched: bool,
    learning: bool,
}

/// The longest passes of a model, in nanoseconds of the host.
#[derive(Clone, Copy, Default)]
struct Longest {
    learning: u64,
    later: u64,
}

#[derive(Default)]
struct Table {
    passes: Vec<Pass>,
    longest: BTreeMap<ModelId, Longest>,
}

static TABLE: Mutex<Option<Table>> = Mutex::new(None);

/// Number of the pass that begins next; they count from 1.
static NEXT: AtomicU64 = AtomicU64::new(1);

/// Number of the oldest pass that goes on, or of the next one.
static OLDEST: AtomicU64 = AtomicU64::new(1);

/// Number of the pass that began next when a launch with a word in question was last made.
static QUESTION: AtomicU64 = AtomicU64::new(0);

fn table<T>(work: impl FnOnce(&mut Table) -> T) -> T {
    let mut table: MutexGuard<'_, Option<Table>> =
        TABLE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    work(table.get_or_insert_default())
}

/// Nanoseconds since some moment; never 0.
fn now() -> u64 {
    static START: OnceLock<Instant> = OnceLock::new();
    START.get_or_init(Instant::now).elapsed().as_nanos() as u64 + 1
}

/// A pass begins on this thread. `learning`: its model is being learnt, so that its weights are to be watched.
pub(super) fn begin(model: ModelId, learning: bool) {
    let Ok(thread) = HERE.try_with(Arc::clone) else { return };
    table(|table| {
        let began = now();
        let longest = table.longest.get(&model).copied().unwrap_or_default();
        let longest = if longest.later > 0 { longest.later } else { longest.learning };
        let until = began + if longest > 0 { PATIENCE_NS + 2 * longest } else { FIRST_NS };
        let number = NEXT.fetch_add(1, Ordering::AcqRel);
        let asked = QUESTION.load(Ordering::Relaxed);
        let watched = learning || (asked > 0 && number <= asked + CURIOUS);
        table.passes.push(Pass {
            number,
            model,
            thread: Arc::clone(&thread),
            began,
            until,
            watched,
            learning,
        });
        table.forget_lost(began);
        table.tell(&thread);
    });
}

/// A pass of the model has ended: this thread's last one, or where it has none another thread's. `whole`: how long it took is how long such passes take.
pub(super) fn end(model: ModelId, whole: bool) {
    let here = HERE.try_with(Arc::clone).ok();
    table(|table| {
        let of_model = |pass: &Pass| pass.model == model;
        let mine =
            |pass: &Pass| of_model(pass) && here.as_ref().is_some_and(|here| Arc::ptr_eq(here, &pass.thread));
        let at = table.passes.iter().rposition(mine).or_else(|| table.passes.iter().rposition(of_model));
        let Some(at) = at else { return };
        let pass = table.passes.remove(at);
        let took = now() - pass.began;
        if whole {
            let longest = table.longest.entry(model).or_default();
            let kind = if pass.learning { &mut longest.learning } else { &mut longest.later };
            *kind = took.max(*kind);
        }
        table.tell(&pass.thread);
    });
}

/// The model is gone: none of its passes goes on.
pub(super) fn forget(model: ModelId) {
    table(|table| {
        table.longest.remove(&model);
        let (gone, left): (Vec<_>, Vec<_>) =
            std::mem::take(&mut table.passes).into_iter().partition(|pass| pass.model == model);
        table.passes = left;
        gone.iter().for_each(|pass| table.tell(&pass.thread));
    });
}

/// Whether the caller of the C interface should look at the model's weights in the pass that it has just begun.
pub(super) fn is_watched(model: ModelId) -> bool {
    let here = HERE.try_with(Arc::clone).ok();
    table(|table| {
        let mine = |pass: &&Pass| here.as_ref().is_some_and(|here| Arc::ptr_eq(here, &pass.thread));
        let last = table.passes.iter().rev().find(|pass| pass.model == model && mine(pass));
        last.is_some_and(|pass| pass.watched)
    })
}

/// Whether this thread is inside a pass of any model, as far as that can be believed.
pub(super) fn is_here() -> bool {
    HERE.try_with(|here| {
        let until = here.until.load(Ordering::Acquire);
        until != 0 && now() < until
    })
    .unwrap_or(false)
}

/// The number of this thread's pass if its weights are watched: what its launches leave unchanged counts as left alone. None outside of passes.
pub(super) fn watched_here() -> Option<u64> {
    if !is_here() {
        return None;
    }
    HERE.try_with(|here| here.watched.load(Ordering::Acquire)).ok().filter(|&number| number > 0)
}

/// A launch in a pass had a word that is not proven: passes that begin soon are watched.
pub(super) fn ask() {
    QUESTION.store(NEXT.load(Ordering::Relaxed), Ordering::Relaxed);
}

/// Stands for this moment in [`has_settled`]; also the number of a pass that begins later.
pub(super) fn moment() -> u64 {
    NEXT.load(Ordering::Acquire)
}

/// Whether all passes that went on at that moment have ended: what their caller had to say of their weights has been said.
pub(super) fn has_settled(moment: u64) -> bool {
    OLDEST.load(Ordering::Acquire) >= moment
}

impl Table {
    /// Writes down what the thread asks about its passes, and which pass is the oldest.
    fn tell(&self, thread: &Arc<Here>) {
        let now = now();
        let mine = || self.passes.iter().filter(|pass| Arc::ptr_eq(&pass.thread, thread) && now < pass.until);
        let watched = mine().all(|pass| pass.watched).then(|| mine().map(|pass| pass.number).max());
        thread.watched.store(watched.flatten().unwrap_or(0), Ordering::Release);
        thread.until.store(mine().map(|pass| pass.until).max().unwrap_or(0), Ordering::Release);
        let believed = self.passes.iter().filter(|pass| now < pass.until).map(|pass| pass.number).min();
        OLDEST.store(believed.unwrap_or(NEXT.load(Ordering::Acquire)), Ordering::Release);
    }

    fn forget_lost(&mut self, now: u64) {
        while self.passes.iter().filter(|pass| pass.until <= now).count() > MAX_LOST {
            let Some(oldest) = self.passes.iter().position(|pass| pass.until <= now) else { return };
            let lost = self.passes.remove(oldest);
            self.tell(&lost.thread);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The table is one for all tests of a process; models tell them apart.
    fn on_a_thread<T: Send>(work: impl FnOnce() -> T + Send) -> T {
        std::thread::scope(|scope| scope.spawn(work).join().expect("a thread that only marks passes"))
    }

    #[test]
    fn a_pass_that_another_thread_ends_is_over_where_it_began() {
        on_a_thread(|| {
            begin(ModelId(1001), false);
            assert!(is_here());
            on_a_thread(|| end(ModelId(1001), true));
            assert!(!is_here());
        });
    }

    #[test]
    fn a_thread_ends_its_own_pass_first() {
        on_a_thread(|| {
            begin(ModelId(1002), false);
            on_a_thread(|| {
                begin(ModelId(1002), false);
                end(ModelId(1002), true);
                assert!(!is_here());
            });
            assert!(is_here());
            end(ModelId(1002), true);
            assert!(!is_here());
        });
    }

    #[test]
    fn a_pass_that_never_ends_is_believed_for_a_while() {
        on_a_thread(|| {
            begin(ModelId(1003), false);
            end(ModelId(1003), true);
            begin(ModelId(1003), false);
            assert!(is_here());
            let until = HERE.with(|here| here.until.load(Ordering::Acquire));
            assert!(until < now() + FIRST_NS, "it is believed as long as the first one");
            // As if that had passed.
            HERE.with(|here| here.until.store(now() - 1, Ordering::Release));
            assert!(!is_here());
            assert_eq!(watched_here(), None);
            end(ModelId(1003), false);
        });
    }

    #[test]
    fn a_moment_settles_when_the_passes_of_that_time_have_ended() {
        on_a_thread(|| {
            begin(ModelId(1004), false);
            let then = moment();
            assert!(!has_settled(then));
            end(ModelId(1004), true);
            // Other tests' passes end too.
            while !has_settled(then) {
                std::thread::yield_now();
            }
        });
    }

    #[test]
    fn a_pass_is_watched_while_its_model_is_learnt_or_somebody_asked() {
        on_a_thread(|| {
            begin(ModelId(1005), true);
            assert!(is_watched(ModelId(1005)) && watched_here().is_some());
            end(ModelId(1005), true);
            ask();
            begin(ModelId(1005), false);
            assert!(is_watched(ModelId(1005)));
            end(ModelId(1005), true);
        });
    }
}
