//! What the pager has its caller do: waits, copies and records on streams, in order, and the events and streams that they name. Who performs them is the caller's matter.

use crate::units::UnitId;

/// A stream of the program, by its driver handle.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct StreamId(pub u64);

impl StreamId {
    /// Stands for streams that were destroyed; no driver handle has this value.
    pub(super) const ENDED: StreamId = StreamId(u64::MAX);

    pub(super) fn has_ended(self) -> bool {
        self == Self::ENDED
    }
}

/// An event of the pager's pool; the caller keeps one driver event for each number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct EventId(pub u32);

/// One of the two copy streams, each first in, first out.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum CopyStream {
    /// Copies in plan order.
    Prefetch = 0,
    /// Copies that nobody foresaw.
    Demand = 1,
}

impl CopyStream {
    /// Both, in index order.
    pub const ALL: [CopyStream; 2] = [CopyStream::Prefetch, CopyStream::Demand];

    pub(super) fn other(self) -> Self {
        match self {
            CopyStream::Prefetch => CopyStream::Demand,
            CopyStream::Demand => CopyStream::Prefetch,
        }
    }
}

/// What the caller has to enqueue, in order.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Command {
    /// `stream` waits for `event`.
    WaitOnStream {
        /// Stream of the program.
        stream: StreamId,
        /// Recorded earlier.
        event: EventId,
    },
    /// `copy` waits for `event`.
    WaitOnCopy {
        /// The copy stream that waits.
        copy: CopyStream,
        /// Recorded earlier.
        event: EventId,
    },
    /// Copy pages `first..first + pages` of the unit from its shadow into its addresses.
    CopyIn {
        /// The copy stream that carries it.
        copy: CopyStream,
        /// What is copied.
        unit: UnitId,
        /// First page, counted in the unit's streamed part.
        first: u32,
        /// Number of pages.
        pages: u32,
    },
    /// Copy pages of the unit from its addresses back into its shadow.
    WriteBack {
        /// The copy stream that carries it.
        copy: CopyStream,
        /// What is copied.
        unit: UnitId,
        /// First page, counted in the unit's streamed part.
        first: u32,
        /// Number of pages.
        pages: u32,
    },
    /// Record `event` on a copy stream.
    RecordCopy {
        /// The copy stream.
        copy: CopyStream,
        /// The event.
        event: EventId,
    },
    /// Record `event` on a stream of the program.
    RecordReader {
        /// Stream of the program.
        stream: StreamId,
        /// The event.
        event: EventId,
    },
}

/// Answers whether a recorded event has completed; must not wait.
pub trait Progress {
    /// True if all work before the event's last record is done.
    fn completed(&self, event: EventId) -> bool;
}
