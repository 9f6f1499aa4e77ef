//! Passes of which nothing is told, because the library says that nothing has to be (`ft_quiet`): no Python runs for them. Each thread remembers how its passes began, so that one
//! that began untold also ends so, whatever has happened meanwhile, and the other way round.
//!
//! One pass in [`EVERY`] is told all the same. What a told pass is, is said in [`crate::marks`]; what it says, in `flextensor/roots.py`.

use std::cell::RefCell;
use std::sync::atomic::{AtomicU32, Ordering};

use crate::bridge;

/// Of so many passes in a row for which nothing has to be told, one is told: times are measured, changed weights are noticed, and what waits for the end of a pass is done.
const EVERY: u32 = 16;

/// A pass of this thread that has begun.
struct Begun {
    key: u64,
    told: bool,
}

#[derive(Default)]
struct Here {
    /// Outermost first.
    begun: Vec<Begun>,
    /// Untold passes by root, since the last one that was told.
    untold: Vec<(u64, u64)>,
}

impl Drop for Here {
    /// The thread ends, and its forwards with it.
    fn drop(&mut self) {
        self.end(0);
    }
}

thread_local! {
    static HERE: RefCell<Here> = RefCell::default();
}

impl Here {
    /// The pass of the root, and all inside it, are over.
    fn end(&mut self, at: usize) {
        let untold = self.begun.drain(at..).filter(|begun| !begun.told).count();
        bridge::count_untold(-(untold as i64));
    }

    fn count(&mut self, key: u64) {
        match self.untold.iter_mut().find(|(of, _)| *of == key) {
            Some((_, count)) => *count += 1,
            None => self.untold.push((key, 1)),
        }
    }
}

/// A pass of the root with this key begins. True if nothing is to be told of it. `turn` counts the root's passes while nothing had to be told; `open`: one that was told goes on in
/// this thread, and whoever begins the next one ends it.
pub(crate) fn begins(key: u64, turn: &AtomicU32, open: bool) -> bool {
    HERE.with_borrow_mut(|here| {
        // What lies there lost its end by a way that no hook sees (an interrupt).
        if let Some(at) = here.begun.iter().position(|begun| begun.key == key) {
            here.end(at);
        }
        let untold = bridge::is_quiet() && !open && turn.fetch_add(1, Ordering::Relaxed) % EVERY != EVERY - 1;
        if untold {
            bridge::count_untold(1);
            here.count(key);
        }
        here.begun.push(Begun { key, told: !untold });
        untold
    })
}

/// The pass ends. True if nothing is to be told of it. Where this thread knows of no begin, somebody else told it.
pub(crate) fn ends(key: u64) -> bool {
    HERE.with_borrow_mut(|here| {
        let Some(at) = here.begun.iter().rposition(|begun| begun.key == key) else { return false };
        let told = here.begun[at].told;
        here.end(at);
        !told
    })
}

/// Whether an untold pass goes on in this thread.
pub(crate) fn is_inside() -> bool {
    HERE.with_borrow(|here| here.begun.iter().any(|begun| !begun.told))
}

/// Passes of the root that this thread has left out since it last told one.
pub(crate) fn left_out(key: u64) -> u64 {
    HERE.with_borrow(|here| here.untold.iter().find(|(of, _)| *of == key).map_or(0, |&(_, count)| count))
}

/// The same, which is told now.
pub(crate) fn take(key: u64) -> u64 {
    HERE.with_borrow_mut(|here| {
        let at = here.untold.iter().position(|&(of, _)| of == key);
        at.map_or(0, |at| here.untold.swap_remove(at).1)
    })
}
