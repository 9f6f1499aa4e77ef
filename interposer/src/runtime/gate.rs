//! The gate between calls that show managed memory and the remapping of weights in it: whoever remaps closes it and waits until no launch is
//! half-way. While the process is quiet (`crate::quiet`) launches do not come here: whoever closes the gate ends that first. Memory that means nothing to a launch counts too: a resident weight becomes a streamed one behind the closed gate. Who remaps, and what has to be drained on the GPU besides, is left to `switch` and `private`.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard};

use crate::quiet;

/// One thread's count of launches between check and enqueue. Leaked, so that a thread may end while it is being looked at.
struct Passage {
    inside: AtomicU32,
}

static CLOSED: AtomicBool = AtomicBool::new(false);
static OPENINGS: AtomicU64 = AtomicU64::new(0);
static PASSAGES: Mutex<Vec<&'static Passage>> = Mutex::new(Vec::new());
static CLOSER: Mutex<()> = Mutex::new(());
static OPENING: (Mutex<()>, Condvar) = (Mutex::new(()), Condvar::new());

thread_local! {
    static PASSAGE: Cell<Option<&'static Passage>> = const { Cell::new(None) };
    static CLOSING: Cell<bool> = const { Cell::new(false) };
}

fn passage() -> &'static Passage {
    let known = PASSAGE.try_with(Cell::get).ok().flatten();
    known.unwrap_or_else(|| {
        let made: &'static Passage = Box::leak(Box::new(Passage { inside: AtomicU32::new(0) }));
        PASSAGES.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push(made);
        let _ = PASSAGE.try_with(|cell| cell.set(Some(made)));
        made
    })
}

/// A launch between its check and its enqueueing. The gate does not close while one is alive.
pub(crate) struct Inside(&'static Passage);

impl Drop for Inside {
    fn drop(&mut self) {
        self.0.inside.fetch_sub(1, Ordering::SeqCst);
    }
}

/// How often the gate has opened. What was looked up before it was entered still stands if this has not changed since.
pub(crate) fn openings() -> u64 {
    OPENINGS.load(Ordering::SeqCst)
}

/// Enters; waits while the gate is closed by another thread.
pub(crate) fn enter() -> Inside {
    let passage = passage();
    loop {
        passage.inside.fetch_add(1, Ordering::SeqCst);
        if !CLOSED.load(Ordering::SeqCst) || CLOSING.try_with(Cell::get).unwrap_or(false) {
            return Inside(passage);
        }
        passage.inside.fetch_sub(1, Ordering::SeqCst);
        let mut guard = OPENING.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        while CLOSED.load(Ordering::SeqCst) {
            guard = OPENING.1.wait(guard).unwrap_or_else(|poisoned| poisoned.into_inner());
        }
    }
}

/// The closed gate: no launch that shows a weight is between check and enqueue, and none gets there until this is dropped.
pub(crate) struct Closed {
    _only: MutexGuard<'static, ()>,
    _loud: quiet::Loud,
}

/// Closes the gate. The calling thread must not be [`Inside`].
pub(crate) fn close() -> Closed {
    let only = CLOSER.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    // Before: whoever passed meanwhile comes to the gate from now on.
    let loud = quiet::hold();
    CLOSED.store(true, Ordering::SeqCst);
    let _ = CLOSING.try_with(|cell| cell.set(true));
    let passages: Vec<_> = PASSAGES.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).clone();
    for passage in passages {
        while passage.inside.load(Ordering::SeqCst) > 0 {
            std::thread::yield_now();
        }
    }
    Closed { _only: only, _loud: loud }
}

impl Drop for Closed {
    fn drop(&mut self) {
        let _ = CLOSING.try_with(|cell| cell.set(false));
        let _opening = OPENING.0.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        OPENINGS.fetch_add(1, Ordering::SeqCst);
        CLOSED.store(false, Ordering::SeqCst);
        OPENING.1.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::AtomicUsize;
    use std::time::Duration;

    use crate::ffi::types::CUresult;

    #[test]
    fn nobody_is_inside_while_the_gate_is_closed() {
        let inside = Arc::new(AtomicUsize::new(0));
        let stop = Arc::new(AtomicBool::new(false));
        let threads: Vec<_> = (0..3)
            .map(|_| {
                let (inside, stop) = (Arc::clone(&inside), Arc::clone(&stop));
                std::thread::spawn(move || {
                    while !stop.load(Ordering::SeqCst) {
                        let here = enter();
                        inside.fetch_add(1, Ordering::SeqCst);
                        std::thread::yield_now();
                        inside.fetch_sub(1, Ordering::SeqCst);
                        drop(here);
                    }
                })
            })
            .collect();
        for _ in 0..50 {
            let closed = close();
            assert_eq!(inside.load(Ordering::SeqCst), 0);
            std::thread::sleep(Duration::from_micros(200));
            assert_eq!(inside.load(Ordering::SeqCst), 0);
            drop(closed);
        }
        stop.store(true, Ordering::SeqCst);
        for thread in threads {
            thread.join().expect("a thread that only enters and leaves");
        }
    }

    #[test]
    fn nobody_passes_by_the_closed_gate() {
        let (inside, passed) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let stop = AtomicBool::new(false);
        let pass = || {
            while !stop.load(Ordering::SeqCst) {
                quiet::straight(|| {
                    inside.fetch_add(1, Ordering::SeqCst);
                    std::thread::yield_now();
                    inside.fetch_sub(1, Ordering::SeqCst);
                    passed.fetch_add(1, Ordering::SeqCst);
                    CUresult(0)
                });
                std::thread::yield_now();
            }
        };
        /// Also where the test fails.
        struct End<'a>(&'a AtomicBool);
        impl Drop for End<'_> {
            fn drop(&mut self) {
                self.0.store(true, Ordering::SeqCst);
            }
        }
        std::thread::scope(|scope| {
            let _end = End(&stop);
            (0..2).for_each(|_| drop(scope.spawn(pass)));
            for _ in 0..20 {
                // Quiet, until somebody has passed; others may end that at any time.
                let before = passed.load(Ordering::SeqCst);
                while passed.load(Ordering::SeqCst) == before {
                    quiet::moment().map(quiet::begin);
                    std::thread::yield_now();
                }
                let closed = close();
                let here = (inside.load(Ordering::SeqCst), passed.load(Ordering::SeqCst));
                assert_eq!(here.0, 0);
                // Nothing becomes quiet meanwhile.
                assert_eq!(quiet::moment(), None);
                (0..20).for_each(|_| std::thread::yield_now());
                assert_eq!((inside.load(Ordering::SeqCst), passed.load(Ordering::SeqCst)), here);
                drop(closed);
            }
        });
    }
}
