//! The way past us while the process is *quiet*: no call of the program needs to be looked at, so launches and the like go to the driver without being read, and without a
//! word that other threads write. What makes a process quiet is `runtime/stillness`'s matter; who leaves the quiet state, everybody's who is about to change something.
//!
//! The promise is that of the gate (`runtime/gate`), which holds before it closes: once [`hold`] has returned, no launch that went this way is between its check and its enqueueing, and none gets there
//! while the [`Loud`] lives. Why it holds, though a launch only stores, reads and stores:
//!
//! - A launch (A) stores that its thread is inside, (B) reads the word, and enqueues only if it says quiet. The compiler keeps A before B (`compiler_fence`); the processor
//!   alone may let B read before A is seen by others.
//! - [`hold`] (C) clears the word, (D) has every running thread of the process pass a full barrier (`membarrier`, private and expedited), and (E) reads every thread's mark until
//!   it is clear. A thread that does not run has passed one when it was switched away.
//! - Where a thread's barrier falls before its B, B reads what C stored, and the launch takes the long way. Where it falls behind its B, A came before that, and E sees the mark:
//!   it waits until the launch has been enqueued, and reads with it (acquire, release) what the launch left behind.
//! - A thread that makes its first launch enters the list of marks under a lock. If E read the list before, what C stored is seen by that thread's B.
//!
//! A word that is cleared stays so until [`begin`], which does nothing where anybody held since its caller began to look: what it looked at may have changed meanwhile.
//! Where the kernel has no such barrier, the quiet state never begins.
//!
//! Nobody waits for us in a passage but the driver, so that waiting for one ends when the driver's call does. A thread inside one counts as inside a hook: what the driver calls
//! meanwhile goes straight to it, as ever.

#![expect(unsafe_code, reason = "asks the kernel for barriers")]

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering, compiler_fence};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use crate::ffi::types::CUresult;
use crate::{guard, log};

/// A word on a line that nothing else is on. Other libraries of the process use it too.
#[repr(align(64))]
pub(crate) struct Word(AtomicU32);

/// What every launch reads (`ft_quiet`).
static WORD: Word = Word(AtomicU32::new(0));

/// Forwards that are going on and were not told, because the process was quiet when they began. Counted by whoever did not tell them (`ft_untold`).
static UNTOLD: Word = Word(AtomicU32::new(0));

/// A thread's mark, on a line of its own. Leaked, so that a thread may end while it is being looked at.
#[repr(align(64))]
pub(crate) struct Passage(AtomicBool);

/// The marks of all threads that ever passed.
static PASSAGES: Mutex<Vec<&'static Passage>> = Mutex::new(Vec::new());

/// Who keeps the process from being quiet.
struct State {
    holders: u32,
    /// Times that somebody began to.
    held: u64,
    /// Whoever passed while it was last quiet may still be inside.
    passing: bool,
}

static STATE: Mutex<State> = Mutex::new(State { holders: 0, held: 0, passing: false });

/// The kernel took a barrier back that it had promised.
static REFUSED: AtomicBool = AtomicBool::new(false);

fn state() -> MutexGuard<'static, State> {
    STATE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The address of the word: not 0 while the process is quiet.
pub(crate) fn word() -> *const u32 {
    WORD.0.as_ptr()
}

/// The address of the count of forwards that go on untold.
pub(crate) fn untold() -> *mut u32 {
    UNTOLD.0.as_ptr()
}

/// Whether a forward goes on that was not told.
pub(crate) fn any_untold() -> bool {
    UNTOLD.0.load(Ordering::Relaxed) != 0
}

/// Whether nothing has to be looked at. Whoever acts on it without [`straight`] may be overtaken.
#[inline]
pub(crate) fn is_quiet() -> bool {
    WORD.0.load(Ordering::Relaxed) != 0
}

/// Makes the call if the process is quiet, and the thread is in no hook. None: it was not made, and has to be looked at.
#[inline]
pub(crate) fn straight(call: impl FnOnce() -> CUresult) -> Option<CUresult> {
    if !is_quiet() {
        return None;
    }
    guard::here(|here| {
        if here.inside.get() {
            return None;
        }
        let passage = own(&here.passage);
        passage.0.store(true, Ordering::Relaxed);
        compiler_fence(Ordering::SeqCst);
        let code = is_quiet().then(|| {
            here.inside.set(true);
            let code = call();
            here.inside.set(false);
            code
        });
        passage.0.store(false, Ordering::Release);
        code
    })
}

#[inline]
fn own(cell: &Cell<Option<&'static Passage>>) -> &'static Passage {
    match cell.get() {
        Some(passage) => passage,
        None => enter_the_list(cell),
    }
}

#[cold]
fn enter_the_list(cell: &Cell<Option<&'static Passage>>) -> &'static Passage {
    let made: &'static Passage = Box::leak(Box::new(Passage(AtomicBool::new(false))));
    PASSAGES.lock().unwrap_or_else(PoisonError::into_inner).push(made);
    cell.set(Some(made));
    made
}

/// While one lives the process is not quiet. Afterwards it is not either, until somebody has looked.
#[must_use]
pub(crate) struct Loud(());

impl Drop for Loud {
    fn drop(&mut self) {
        state().holders -= 1;
    }
}

impl State {
    fn leave(&mut self) -> Loud {
        self.holders += 1;
        self.held += 1;
        WORD.0.store(0, Ordering::SeqCst);
        Loud(())
    }
}

/// Leaves the quiet state. Launches that are ordered behind this by the program are looked at; others may still be passing. The calling thread may hold any lock of ours.
pub(crate) fn loud() -> Loud {
    state().leave()
}

/// The same, and waits for whoever is passing: when this returns, nobody is. Not to be called from inside a passage.
pub(crate) fn hold() -> Loud {
    let mut state = state();
    let loud = state.leave();
    // With the lock held: who comes second must not go on before the passages are empty either.
    if state.passing {
        wait_for_passages();
        state.passing = false;
    }
    loud
}

fn wait_for_passages() {
    if !barrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED) {
        // Registered and refused all the same: somebody forbade the call meanwhile. What a processor has stored is seen by others long before this is over.
        if !REFUSED.swap(true, Ordering::Relaxed) {
            log::warning!(
                "the kernel refuses barriers that it had promised: every launch is looked at from now on"
            );
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    let passages: Vec<_> = PASSAGES.lock().unwrap_or_else(PoisonError::into_inner).clone();
    for passage in passages {
        while passage.0.load(Ordering::Acquire) {
            std::thread::yield_now();
        }
    }
}

/// A moment from which on nobody has held, if that is so now and the process is not quiet yet: to be taken before looking whether it may be.
pub(crate) fn moment() -> Option<u64> {
    let state = state();
    (state.holders == 0 && !is_quiet()).then_some(state.held)
}

/// The process is quiet from now on, if nobody has held since that moment. False if it is not.
pub(crate) fn begin(moment: u64) -> bool {
    static REGISTERED: OnceLock<bool> = OnceLock::new();
    let registered = *REGISTERED.get_or_init(|| {
        let registered = barrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED);
        if !registered {
            log::info!("the kernel has no membarrier: every launch is looked at");
        }
        registered
    });
    if !registered || REFUSED.load(Ordering::Relaxed) {
        return false;
    }
    let mut state = state();
    let may = state.holders == 0 && state.held == moment;
    if may {
        state.passing = true;
        WORD.0.store(1, Ordering::Release);
    }
    may
}

// As linux/membarrier.h has them, since Linux 4.14.
const MEMBARRIER_CMD_PRIVATE_EXPEDITED: libc::c_int = 1 << 3;
const MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED: libc::c_int = 1 << 4;

fn barrier(command: libc::c_int) -> bool {
    // SAFETY: takes numbers only, and touches no memory of ours.
    unsafe { libc::syscall(libc::SYS_membarrier, command, 0, 0) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicU64;

    const DRIVER: CUresult = CUresult(1002);

    /// Quiet for as long as no other test holds.
    fn become_quiet() {
        while !is_quiet() {
            if let Some(moment) = moment() {
                begin(moment);
            }
            std::thread::yield_now();
        }
    }

    /// Threads that pass as often as they can, each changing two words that are equal whenever nobody is inside.
    struct Passing {
        stop: Arc<AtomicBool>,
        words: Vec<Arc<[AtomicU64; 2]>>,
        threads: Vec<std::thread::JoinHandle<()>>,
    }

    impl Passing {
        fn begin(threads: usize) -> Self {
            let stop = Arc::new(AtomicBool::new(false));
            let words: Vec<Arc<[AtomicU64; 2]>> = (0..threads).map(|_| Arc::default()).collect();
            let passing = |words: &Arc<[AtomicU64; 2]>| {
                let (stop, words) = (Arc::clone(&stop), Arc::clone(words));
                std::thread::spawn(move || {
                    let mut passed = 0_u32;
                    while !stop.load(Ordering::Relaxed) {
                        straight(|| {
                            let next = words[0].load(Ordering::Relaxed) + 1;
                            words[0].store(next, Ordering::Relaxed);
                            // Some are switched away inside.
                            passed = passed.wrapping_add(1);
                            if passed.is_multiple_of(64) {
                                std::thread::yield_now();
                            }
                            words[1].store(next, Ordering::Relaxed);
                            DRIVER
                        });
                    }
                })
            };
            let threads = words.iter().map(passing).collect();
            Self { stop, words, threads }
        }

        fn seen(&self) -> Vec<[u64; 2]> {
            self.words.iter().map(|pair| [0, 1].map(|at| pair[at].load(Ordering::Relaxed))).collect()
        }

        /// Waits until each thread has passed since.
        fn wait_for_all(&self, since: &[[u64; 2]]) {
            while self.seen().iter().zip(since).any(|(now, since)| now[1] <= since[1]) {
                become_quiet();
            }
        }

        fn end(self) {
            self.stop.store(true, Ordering::Relaxed);
            self.threads.into_iter().for_each(|thread| thread.join().expect("a thread that only passes"));
        }
    }

    #[test]
    fn nobody_passes_while_somebody_holds() {
        let passing = Passing::begin(3);
        let mut before = passing.seen();
        for _ in 0..50 {
            passing.wait_for_all(&before);
            let loud = hold();
            let held = passing.seen();
            assert!(held.iter().all(|[first, second]| first == second), "somebody was half-way: {held:?}");
            (0..20).for_each(|_| std::thread::yield_now());
            assert_eq!(passing.seen(), held, "somebody passed");
            drop(loud);
            before = held;
        }
        passing.end();
    }

    #[test]
    fn a_second_holder_waits_for_the_passages_as_well() {
        let passing = Passing::begin(1);
        let mut before = passing.seen();
        for _ in 0..20 {
            passing.wait_for_all(&before);
            let halves = || {
                let loud = hold();
                let held = passing.seen();
                drop(loud);
                held
            };
            let both = std::thread::scope(|scope| {
                let other = scope.spawn(halves);
                [halves(), other.join().expect("it only holds")]
            });
            assert!(both.iter().flatten().all(|[first, second]| first == second), "{both:?}");
            before = passing.seen();
        }
        passing.end();
    }

    #[test]
    fn who_leaves_without_waiting_leaves_the_waiting_to_the_next_one() {
        let passing = Passing::begin(3);
        let mut before = passing.seen();
        for _ in 0..20 {
            passing.wait_for_all(&before);
            let first = loud();
            let second = hold();
            let held = passing.seen();
            assert!(held.iter().all(|[first, second]| first == second), "somebody was half-way: {held:?}");
            drop((first, second));
            before = held;
        }
        passing.end();
    }

    /// A launch's half and a leaver's, once in each round and as near to each other as can be: how often neither saw what the other had stored. `between` stands between the
    /// leaver's store and its look.
    fn missed_each_other(rounds: u32, between: impl Fn()) -> usize {
        let [go, mark, word, saw, done] = [const { Word(AtomicU32::new(0)) }; 5];
        let wait = |for_it: &Word, round: u32| {
            while for_it.0.load(Ordering::Acquire) != round {
                std::thread::yield_now();
            }
        };
        // One of both is a little later, each by turns.
        let dawdle = |steps: u32| (0..steps).for_each(|_| std::hint::spin_loop());
        std::thread::scope(|scope| {
            scope.spawn(|| {
                for round in 1..=rounds {
                    wait(&go, round);
                    dawdle(round % 5);
                    mark.0.store(round, Ordering::Relaxed);
                    compiler_fence(Ordering::SeqCst);
                    saw.0.store(word.0.load(Ordering::Relaxed), Ordering::Relaxed);
                    done.0.store(round, Ordering::Release);
                }
            });
            let missed = |round: &u32| {
                go.0.store(*round, Ordering::Release);
                dawdle(round / 5 % 40);
                word.0.store(*round, Ordering::Relaxed);
                between();
                let seen = mark.0.load(Ordering::Relaxed);
                wait(&done, *round);
                seen != *round && saw.0.load(Ordering::Relaxed) != *round
            };
            (1..=rounds).filter(missed).count()
        })
    }

    #[test]
    fn behind_the_kernels_barrier_a_mark_is_seen_or_the_word_was() {
        assert!(barrier(MEMBARRIER_CMD_REGISTER_PRIVATE_EXPEDITED), "this kernel has none");
        let missed = missed_each_other(20_000, || {
            barrier(MEMBARRIER_CMD_PRIVATE_EXPEDITED);
        });
        assert_eq!(missed, 0);
    }

    #[test]
    fn what_was_looked_at_before_somebody_held_makes_nothing_quiet() {
        let loud = hold();
        assert_eq!(moment(), None, "somebody holds");
        drop(loud);
        let moment = loop {
            if let Some(moment) = moment() {
                break moment;
            }
            drop(hold());
        };
        drop(hold());
        assert!(!begin(moment));
    }

    #[test]
    fn a_call_from_inside_a_hook_is_not_taken_and_one_from_inside_a_passage_counts_as_such() {
        become_quiet();
        let inside = guard::enter();
        assert_eq!(straight(|| DRIVER), None);
        drop(inside);
        let mut inner = None;
        while inner.is_none() {
            become_quiet();
            straight(|| {
                inner = Some((guard::enter().is_none(), straight(|| DRIVER)));
                DRIVER
            });
        }
        assert_eq!(inner, Some((true, None)));
        assert!(guard::enter().is_some());
    }
}
