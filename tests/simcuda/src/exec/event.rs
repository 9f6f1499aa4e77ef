//! Events: a record is a snapshot of a stream's position; a later record makes a new snapshot and leaves waits on the
//! old one alone.

use super::capture::Marker;
use super::clock::Clock;
use super::context::Context;
use super::stream::Stream;
use crate::locks::{lock, wait};
use crate::registry::Registry;
use crate::status::Done;
use std::sync::{Arc, Condvar, Mutex, OnceLock, Weak};
use std::time::Instant;

pub(crate) static EVENTS: Registry<Event> = Registry::new(3);

/// `CU_EVENT_DISABLE_TIMING`.
pub(crate) const DISABLE_TIMING: u32 = 2;

/// One snapshot: happens when the stream gets there.
pub(crate) struct Record {
    happened: Mutex<Option<Instant>>,
    progress: Condvar,
    /// What waiting on it orders; set when the record enters its queue, which is before anybody can see it.
    after: OnceLock<Clock>,
}

impl Record {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { happened: Mutex::new(None), progress: Condvar::new(), after: OnceLock::new() })
    }

    pub(crate) fn happens_after(&self, clock: &Clock) {
        let _ = self.after.set(clock.clone());
    }

    /// Adds what is ordered before the record to `clock`.
    pub(crate) fn order(&self, clock: &mut Clock) {
        if let Some(after) = self.after.get() {
            clock.join(after);
        }
    }

    pub(crate) fn happen(&self) {
        *lock(&self.happened) = Some(Instant::now());
        self.progress.notify_all();
    }

    pub(crate) fn block(&self) {
        let mut happened = lock(&self.happened);
        while happened.is_none() {
            happened = wait(&self.progress, happened);
        }
    }

    /// When it happened; `None` when it has not yet.
    pub(crate) fn time(&self) -> Option<Instant> {
        *lock(&self.happened)
    }
}

/// What an event stands for now.
#[derive(Clone)]
pub(crate) enum State {
    Never,
    Recorded(Arc<Record>),
    /// Last recorded in a capturing stream.
    Captured(Marker),
}

/// An event of the program.
pub(crate) struct Event {
    pub(crate) handle: u64,
    pub(crate) flags: u32,
    context: Weak<Context>,
    pub(crate) state: Mutex<State>,
}

impl Event {
    pub(crate) fn create(flags: u32, context: &Arc<Context>) -> Arc<Self> {
        let context = Arc::downgrade(context);
        EVENTS.insert(|handle| Arc::new(Self { handle, flags, context, state: Mutex::new(State::Never) }))
    }

    /// Whether it can be recorded there: both are of one context.
    pub(crate) fn is_of(&self, stream: &Stream) -> bool {
        Weak::ptr_eq(&self.context, &stream.context)
    }

    /// The error that took its context, whichever one is current.
    pub(crate) fn fault(&self) -> Done {
        self.context.upgrade().map_or(Ok(()), |context| context.fault())
    }

    pub(crate) fn state(&self) -> State {
        lock(&self.state).clone()
    }

    pub(crate) fn set(&self, state: State) {
        *lock(&self.state) = state;
    }
}
