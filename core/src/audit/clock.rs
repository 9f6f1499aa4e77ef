//! What is ordered before what: streams as lanes whose entries are numbered, and clocks that say how far of each lane is behind somebody.
//! What has to be ordered is the parent's matter.

use std::collections::HashMap;

use crate::pager::{CopyStream, EventId, StreamId};

/// For each lane the last entry that is ordered before.
#[derive(Clone, Debug, Default)]
struct Clock(Vec<u64>);

impl Clock {
    fn of(&self, lane: usize) -> u64 {
        self.0.get(lane).copied().unwrap_or(0)
    }

    fn raise(&mut self, lane: usize, to: u64) {
        if self.0.len() <= lane {
            self.0.resize(lane + 1, 0);
        }
        self.0[lane] = self.0[lane].max(to);
    }

    fn join(&mut self, other: &Clock) {
        for (lane, &at) in other.0.iter().enumerate() {
            self.raise(lane, at);
        }
    }
}

/// One entry of one lane.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Stamp {
    pub(super) lane: usize,
    at: u64,
}

/// Keeps the newest entry of each lane: what is ordered behind that is ordered behind the others.
pub(super) fn keep_newest<T>(list: &mut Vec<(Stamp, T)>, stamp: Stamp, with: T) {
    list.retain(|(known, _)| known.lane != stamp.lane);
    list.push((stamp, with));
}

/// All lanes: the two copy streams, then streams of the program, ended ones included.
#[derive(Debug)]
pub(super) struct Lanes {
    clocks: Vec<Clock>,
    streams: HashMap<StreamId, usize>,
    /// What each event marks; none where it was never recorded.
    events: Vec<Option<Clock>>,
    /// What has ended for certain.
    ended: Clock,
}

impl Lanes {
    pub(super) fn new() -> Self {
        let clocks = CopyStream::ALL.iter().map(|_| Clock::default()).collect();
        Self { clocks, streams: HashMap::new(), events: Vec::new(), ended: Clock::default() }
    }

    pub(super) fn of_copy(copy: CopyStream) -> usize {
        copy as usize
    }

    pub(super) fn is_copy(lane: usize) -> bool {
        lane < CopyStream::ALL.len()
    }

    pub(super) fn of_stream(&mut self, stream: StreamId) -> usize {
        let clocks = &mut self.clocks;
        *self.streams.entry(stream).or_insert_with(|| {
            clocks.push(Clock::default());
            clocks.len() - 1
        })
    }

    /// Whether something may still be submitted to the lane.
    pub(super) fn goes_on(&self, lane: usize) -> bool {
        Self::is_copy(lane) || self.streams.values().any(|&known| known == lane)
    }

    /// The next stream of this name is another one.
    pub(super) fn end_stream(&mut self, stream: StreamId) {
        self.streams.remove(&stream);
    }

    /// One more entry.
    pub(super) fn enter(&mut self, lane: usize) -> Stamp {
        let at = self.clocks[lane].of(lane) + 1;
        self.clocks[lane].raise(lane, at);
        Stamp { lane, at }
    }

    pub(super) fn record(&mut self, lane: usize, event: EventId) {
        let index = event.0 as usize;
        if self.events.len() <= index {
            self.events.resize(index + 1, None);
        }
        self.events[index] = Some(self.clocks[lane].clone());
    }

    /// False where the event was never recorded: nothing is waited for then.
    #[must_use]
    pub(super) fn wait(&mut self, lane: usize, event: EventId) -> bool {
        let Some(Some(marks)) = self.events.get(event.0 as usize) else { return false };
        self.clocks[lane].join(marks);
        true
    }

    /// Whether the entry is ordered before all that comes on the lane from here on.
    pub(super) fn is_behind(&self, lane: usize, entry: Stamp) -> bool {
        self.clocks[lane].of(entry.lane).max(self.ended.of(entry.lane)) >= entry.at
    }

    /// The host has waited for the end of this copy stream, and so for all that it waited for.
    pub(super) fn has_ended(&mut self, copy: CopyStream) {
        let clock = &self.clocks[Self::of_copy(copy)];
        self.ended.join(clock);
    }

    /// The host has waited for the whole GPU.
    pub(super) fn all_have_ended(&mut self) {
        for clock in &self.clocks {
            self.ended.join(clock);
        }
    }
}
