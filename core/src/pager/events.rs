//! The pool of event numbers (rule 10), and what is known of each: how many keep it, and which of two on one stream is the later one.
//! Who shares a number with whom, and whether it is recorded yet, is `marks`' matter.

use super::EventId;

#[derive(Debug, Default)]
struct State {
    /// Who keeps it.
    users: u32,
    /// Of two events that were taken for one stream, the later one has the higher number.
    number: u64,
}

/// Numbers in use are dense, so that the caller's table of driver events stays small.
#[derive(Debug, Default)]
pub(super) struct EventPool {
    free: Vec<EventId>,
    states: Vec<State>,
    taken: u64,
}

impl EventPool {
    /// An event that nobody has recorded yet, for one user.
    pub(super) fn take(&mut self) -> EventId {
        let event = self.free.pop().unwrap_or_else(|| {
            self.states.push(State::default());
            EventId(self.states.len() as u32 - 1)
        });
        self.taken += 1;
        self.states[event.0 as usize] = State { users: 1, number: self.taken };
        event
    }

    /// One user more.
    pub(super) fn share(&mut self, event: EventId) {
        debug_assert!(self.state(event).users > 0, "event {event:?} is nobody's");
        self.states[event.0 as usize].users += 1;
    }

    /// One user less; the last one gives it back.
    pub(super) fn give_back(&mut self, event: EventId) {
        debug_assert!(self.state(event).users > 0, "event {event:?} given back twice");
        let state = &mut self.states[event.0 as usize];
        state.users -= 1;
        if state.users == 0 {
            self.free.push(event);
        }
    }

    pub(super) fn number(&self, event: EventId) -> u64 {
        self.state(event).number
    }

    pub(super) fn made(&self) -> u32 {
        self.states.len() as u32
    }

    fn state(&self, event: EventId) -> &State {
        &self.states[event.0 as usize]
    }
}
