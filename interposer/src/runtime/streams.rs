//! The program's own streams, so that a wait for all of a context is one for what the program submitted, and not for weights that are on their way for its next pass.
//!
//! The driver's `cuCtxSynchronize` waits for our copies too: up to the time that the link takes for the whole ring, at the end of every forward of a program that waits for its device. So while copies are under way we
//! wait for the program's streams one by one. Every stream but the default ones is made by a call that we see. What nobody can name from here is waited for by the driver, together with all else: per-thread default
//! streams and green contexts, streams that were made past us, work that a destroyed stream left behind, captures. What is copied when, and who waits for that, is the pager's matter.
//!
//! Nothing is submitted for a wait, and no lock is held while one blocks: a thread that fills what another one waits for is never kept from it. A stream that is destroyed meanwhile goes when nobody waits for it any more.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::graphs;
use super::streaming::ring_of;
use crate::ffi::context::{self, Context};
use crate::ffi::stream::{self, Stream};
use crate::late;

/// A stream of the program's that is alive.
struct Made {
    context: Context,
    stream: Stream,
    /// Threads that wait for it.
    waiting: u32,
    /// The program has destroyed it; the last one that waits for it has the driver do so.
    ends: bool,
}

/// What is known of the program's streams.
struct Known {
    made: Vec<Made>,
    /// Contexts in which a stream was destroyed that had work left, and which destruction it was.
    left: Vec<(Context, u64)>,
    destroyed: u64,
}

static KNOWN: Mutex<Known> = Mutex::new(Known { made: Vec::new(), left: Vec::new(), destroyed: 0 });

/// Work has been submitted, or may be, by names that only the driver can follow.
static UNNAMED: AtomicBool = AtomicBool::new(false);

/// Held for moments: nobody submits anything or waits for the GPU meanwhile.
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
        Ok(context) => lives(context, stream),
        Err(_) => cannot_be_named(),
    }
}

/// The stream is alive, or still is where the driver did not destroy it.
pub(crate) fn lives(context: Context, stream: Stream) {
    let mut known = known();
    // What had its handle before ended in a way that we did not see.
    known.made.retain(|made| made.stream != stream);
    known.made.push(Made { context, stream, waiting: 0, ends: false });
}

/// What became of a stream that the program destroys.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ends {
    /// Somebody waits for it, and has the driver destroy it then.
    Later,
    /// The driver destroys it; it was made in this context, if we know it.
    Now(Option<Context>),
}

/// The program is about to destroy the stream. The driver lets its work end.
pub(crate) fn ends(stream: Stream) -> Ends {
    let mut known = known();
    let Some(at) = known.made.iter().position(|made| made.stream == stream) else { return Ends::Now(None) };
    if known.made[at].waiting > 0 {
        known.made[at].ends = true;
        return Ends::Later;
    }
    let context = known.made.swap_remove(at).context;
    // A stream that captures may be asked nothing.
    let idle = !graphs::is_capturing(stream) && stream::query(stream).unwrap_or(false);
    if !idle {
        known.destroyed += 1;
        let destroyed = known.destroyed;
        known.left.retain(|&(other, _)| other != context);
        known.left.push((context, destroyed));
    }
    Ends::Now(Some(context))
}

/// The context is gone with its streams.
pub(crate) fn forget_context(context: Context) {
    let mut known = known();
    known.made.retain(|made| made.context != context);
    known.left.retain(|&(other, _)| other != context);
}

/// Runs `count`, which says that a capture begins, at a moment when no stream is being asked: that would end the capture.
pub(crate) fn while_none_is_asked(count: impl FnOnce()) {
    let _none = known();
    count();
}

/// Waits for all that the program submitted in the current context. False: the driver has to, because there is nothing of ours to leave out, or because it alone can.
pub(crate) fn wait_for_the_programs() -> bool {
    if UNNAMED.load(Ordering::Relaxed) || late::came_late() || !copies_are_under_way() {
        return false;
    }
    let Some(busy) = context::current().ok().and_then(busy_streams) else { return false };
    // What fails, the driver says when it is asked; whoever is waited for must be let go all the same.
    busy.into_iter().fold(true, |waited, stream| {
        let ended = stream::synchronize(stream).is_ok();
        let_go(stream);
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
        let stays =
            |&(context, destroyed): &(Context, u64)| context != self.context || destroyed > self.destroyed;
        known().left.retain(stays);
    }
}

/// Whether the device's copies are of the current context, and have not ended.
fn copies_are_under_way() -> bool {
    let Ok(device) = context::device() else { return false };
    let ring = ring_of(device);
    ring.as_ref().is_some_and(|ring| ring.serves_current_context() == Ok(true) && ring.is_copying())
}

/// The context's streams that still have something to do; those that the program made are waited for from here on. None if that cannot be told.
fn busy_streams(context: Context) -> Option<Vec<Stream>> {
    let mut known = known();
    if graphs::any_capture() || known.left.iter().any(|&(left, _)| left == context) {
        return None;
    }
    let made = known.made.iter().filter(|made| made.context == context).map(|made| made.stream);
    let mut busy = Vec::new();
    for stream in made.chain([Stream::LEGACY]) {
        if !stream::query(stream).ok()? {
            busy.push(stream);
        }
    }
    for made in known.made.iter_mut().filter(|made| busy.contains(&made.stream)) {
        made.waiting += 1;
    }
    Some(busy)
}

/// The thread waits for the stream no longer.
fn let_go(stream: Stream) {
    let mut known = known();
    let Some(at) = known.made.iter().position(|made| made.stream == stream) else { return };
    let made = &mut known.made[at];
    made.waiting = made.waiting.saturating_sub(1);
    if made.ends && made.waiting == 0 {
        known.made.swap_remove(at);
        drop(known);
        let _ = stream::destroy(stream);
    }
}
