//! The program's own streams, so that a wait for all of a context is one for what the program submitted, and not for weights that are on their way for its next pass.
//!
//! The driver's `cuCtxSynchronize` waits for our copies too: up to the time that the link takes for the whole ring, at the end of every forward of a program that waits for its device. So while copies are under way we
//! wait for the program's streams one by one. Every stream but the default ones is made by a call that we see. What nobody can name from here is waited for by the driver, together with all else: per-thread default
//! streams and green contexts, streams that were made before we came, work that a destroyed stream left behind, captures. What is copied when, and who waits for that, is the pager's matter.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::graphs;
use super::streaming::ring_of;
use crate::ffi::context::{self, Context};
use crate::ffi::event::{self, Event};
use crate::ffi::stream::{self, Stream};
use crate::late;

/// The program's streams that are alive.
struct Known {
    made: Vec<(Context, Stream)>,
    /// Contexts in which a stream was destroyed that had work left, and which destruction it was.
    left: Vec<(Context, u64)>,
    destroyed: u64,
}

static KNOWN: Mutex<Known> = Mutex::new(Known { made: Vec::new(), left: Vec::new(), destroyed: 0 });

/// Work has been submitted, or may be, by names that only the driver can follow.
static UNNAMED: AtomicBool = AtomicBool::new(false);

fn known() -> MutexGuard<'static, Known> {
    KNOWN.lock().unwrap_or_else(PoisonError::into_inner)
}

/// From now on only the driver knows where all of the program's work is.
#[inline]
pub(crate) fn cannot_be_named() {
    if !UNNAMED.load(Ordering::Relaxed) {
        UNNAMED.store(true, Ordering::Relaxed);
    }
}

/// The program made a stream in the current context.
pub(crate) fn made(stream: Stream) {
    match context::current() {
        Ok(context) => known().made.push((context, stream)),
        Err(_) => cannot_be_named(),
    }
}

/// The program is about to destroy the stream. The driver lets its work end.
pub(crate) fn ends(stream: Stream) {
    // A stream that captures may be asked nothing.
    let idle = !graphs::is_capturing(stream) && stream::query(stream).unwrap_or(false);
    let mut known = known();
    let Some(at) = known.made.iter().position(|&(_, made)| made == stream) else { return };
    let (context, _) = known.made.swap_remove(at);
    if !idle {
        known.destroyed += 1;
        let destroyed = known.destroyed;
        known.left.retain(|&(other, _)| other != context);
        known.left.push((context, destroyed));
    }
}

/// The context is gone with its streams.
pub(crate) fn forget_context(context: Context) {
    let mut known = known();
    known.made.retain(|&(other, _)| other != context);
    known.left.retain(|&(other, _)| other != context);
}

/// Runs `count`, which says that a capture begins, at a moment when no stream is being marked: the mark would be the capture's.
pub(crate) fn while_none_is_marked(count: impl FnOnce()) {
    let _none = known();
    count();
}

/// Waits for all that the program submitted in the current context. False: the driver has to, because there is nothing of ours to leave out, or because it alone can.
pub(crate) fn wait_for_the_programs() -> bool {
    if UNNAMED.load(Ordering::Relaxed) || late::came_late() || !copies_are_under_way() {
        return false;
    }
    let Some(marks) = context::current().ok().and_then(marks_behind) else { return false };
    // Its own streams never wait for ours but where they read what is copied; the default one neither.
    let waited = stream::synchronize(Stream::LEGACY).is_ok();
    // One that failed leaves the others to be given back; what failed, the driver says.
    marks.into_iter().fold(waited, |waited, mark| {
        let ended = event::synchronize(mark).is_ok();
        let _ = event::destroy(mark);
        waited && ended
    })
}

/// What is waited for by the driver now is not left behind any more.
pub(crate) struct Left {
    context: Context,
    destroyed: u64,
}

impl Left {
    /// Before the driver is asked.
    pub(crate) fn before() -> Left {
        Left { context: context::current().unwrap_or(Context::NONE), destroyed: known().destroyed }
    }

    /// The driver has waited.
    pub(crate) fn has_ended(self) {
        let is_older =
            |&(context, destroyed): &(Context, u64)| context != self.context || destroyed > self.destroyed;
        known().left.retain(is_older);
    }
}

/// Whether the device's copies are of the current context, and have not ended.
fn copies_are_under_way() -> bool {
    let Ok(device) = context::device() else { return false };
    let ring = ring_of(device);
    ring.as_ref().is_some_and(|ring| ring.serves_current_context() == Ok(true) && ring.is_copying())
}

/// Events behind what the context's streams still have to do; none if that cannot be told.
fn marks_behind(context: Context) -> Option<Vec<Event>> {
    let known = known();
    if graphs::any_capture() || known.left.iter().any(|&(left, _)| left == context) {
        return None;
    }
    let mut marks = Vec::new();
    for &(_, stream) in known.made.iter().filter(|&&(made, _)| made == context) {
        let marked = match stream::query(stream) {
            Ok(true) => continue,
            Ok(false) => event::behind(stream),
            Err(error) => Err(error),
        };
        match marked {
            Ok(mark) => marks.push(mark),
            Err(_) => {
                marks.into_iter().for_each(|mark| {
                    let _ = event::destroy(mark);
                });
                return None;
            }
        }
    }
    Some(marks)
}
