//! The pool of event numbers (rule 10). Who holds a number is the slots' matter.

use super::EventId;

/// Numbers in use are dense, so that the caller's table of driver events stays small.
#[derive(Debug, Default)]
pub(super) struct EventPool {
    free: Vec<EventId>,
    made: u32,
}

impl EventPool {
    pub(super) fn take(&mut self) -> EventId {
        self.free.pop().unwrap_or_else(|| {
            self.made += 1;
            EventId(self.made - 1)
        })
    }

    pub(super) fn give_back(&mut self, event: EventId) {
        debug_assert!(!self.free.contains(&event), "event {event:?} given back twice");
        self.free.push(event);
    }

    pub(super) fn made(&self) -> u32 {
        self.made
    }
}
