//! The re-entry guard: a driver call made inside a hook, by us or by the driver itself, goes straight to the original.
//! One flag for each thread, without a destructor, so that it also works in constructors, exit handlers and dying threads.

use std::cell::Cell;
use std::marker::PhantomData;

use crate::quiet::Passage;

/// What a thread has of its own, in one place: to find it is what costs.
pub(crate) struct Here {
    /// It is inside a hook.
    pub(crate) inside: Cell<bool>,
    /// Its mark, once it has passed while nothing had to be looked at (`quiet`).
    pub(crate) passage: Cell<Option<&'static Passage>>,
}

thread_local! {
    static HERE: Here = const { Here { inside: Cell::new(false), passage: Cell::new(None) } };
}

/// Shows the calling thread what it has.
#[inline]
pub(crate) fn here<T>(work: impl FnOnce(&Here) -> T) -> T {
    HERE.with(work)
}

/// The calling thread is inside a hook while this lives. Stays on its thread.
pub(crate) struct Inside(PhantomData<*const ()>);

/// Marks the thread as inside a hook; `None` if it already is.
pub(crate) fn enter() -> Option<Inside> {
    here(|here| if here.inside.replace(true) { None } else { Some(Inside(PhantomData)) })
}

/// True while the calling thread is inside a hook.
#[cfg(test)]
pub(crate) fn is_inside() -> bool {
    here(|here| here.inside.get())
}

impl Drop for Inside {
    fn drop(&mut self) {
        here(|here| here.inside.set(false));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_enters_once_and_may_enter_again_after_leaving() {
        let first = enter();
        assert!(first.is_some() && is_inside());
        assert!(enter().is_none(), "the second entry must be refused while the first lives");
        drop(first);
        assert!(!is_inside() && enter().is_some());
    }

    #[test]
    fn other_threads_are_not_inside() {
        let _here = enter();
        assert!(std::thread::spawn(|| enter().is_some()).join().expect("the thread ends"));
    }
}
