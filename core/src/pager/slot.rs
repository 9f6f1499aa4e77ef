//! What is known of one streamed unit and of one ring page. Who may change what is decided in `load` and in the parent.

use super::events::EventPool;
use super::marks::Marks;
use super::{Command, CopyStream, EventId, StreamId};
use crate::units::UnitId;

/// Ended streams whose last launches a unit remembers.
const MAX_ENDED: usize = 2;

/// One physical page of the ring.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Page {
    /// Slot whose bytes are here or on their way here.
    pub(super) occupant: Option<u32>,
    /// False when the occupant's truth has moved on (rule 7).
    pub(super) valid: bool,
}

/// One streamed unit.
#[derive(Debug)]
pub(super) struct Slot {
    pub(super) unit: UnitId,
    pub(super) start: u32,
    pub(super) pages: u32,
    /// Ring pages occupied, valid or not; events live as long as this is not zero.
    pub(super) occupied: u32,
    /// Ring pages occupied and valid.
    pub(super) present: u32,
    /// Launches in place between check and enqueue.
    pub(super) pins: u32,
    /// Launches pointed at the shadow, between check and enqueue.
    pub(super) redirects: u32,
    /// Those of them that may write.
    pub(super) rewrites: u32,
    pub(super) held: bool,
    /// Prefetched for a coming use.
    pub(super) awaiting: bool,
    /// In use: begun and not ended.
    pub(super) current: bool,
    pub(super) owner: u32,
    /// Launches that showed it in this use, and in the one before.
    pub(super) launches: [u32; 2],
    /// Changed since the shadow was written.
    pub(super) dirty: bool,
    /// The last launch that showed it.
    pub(super) shown_by: u64,
    /// The last launch in which it gave way to another unit of the same launch.
    pub(super) gives_way_in: u64,
    /// Last copy in, on each copy stream, ever.
    pub(super) copies: [Option<EventId>; 2],
    pub(super) readers: Vec<(StreamId, EventId)>,
    /// Which copy stream is ordered behind all readers and the other stream's copies in and back.
    pub(super) guarded: [bool; 2],
    /// Last write-back, on each copy stream.
    pub(super) write_backs: [Option<EventId>; 2],
    /// Launches that were pointed at the shadow.
    pub(super) shadow_users: Vec<(StreamId, EventId)>,
    /// Which copy stream is ordered behind all of those.
    pub(super) shadow_guarded: [bool; 2],
}

impl Slot {
    pub(super) fn new(unit: UnitId, start: u32, pages: u32) -> Self {
        Self {
            unit,
            start,
            pages,
            occupied: 0,
            present: 0,
            pins: 0,
            redirects: 0,
            rewrites: 0,
            held: false,
            awaiting: false,
            current: false,
            owner: u32::MAX,
            launches: [0, 1],
            dirty: false,
            shown_by: 0,
            gives_way_in: 0,
            copies: [None; 2],
            readers: Vec::with_capacity(4),
            guarded: [true; 2],
            write_backs: [None; 2],
            shadow_users: Vec::with_capacity(4),
            shadow_guarded: [true; 2],
        }
    }

    pub(super) fn in_place(&self) -> bool {
        self.present == self.pages
    }

    /// Whether another unit may take its pages now: nobody is about to read them here, nor the shadow that they would be written back to.
    pub(super) fn may_leave(&self) -> bool {
        self.pins == 0 && !self.held && !(self.dirty && self.redirects > 0)
    }

    /// A use begins, which is expected to take as many launches as the one before.
    pub(super) fn begin(&mut self, owner: u32) {
        self.awaiting = false;
        self.current = true;
        self.owner = owner;
        if self.launches[0] > 0 {
            self.launches = [0, self.launches[0]];
        }
    }

    /// One more launch showed the unit: whether its use has had just as many by now as are expected. More of them are marked where the next use begins: each would only move the mark.
    pub(super) fn launched(&mut self) -> bool {
        self.launches[0] = self.launches[0].saturating_add(u32::from(self.current));
        self.current && self.launches[0] == self.launches[1]
    }

    /// This stream's last launch showed the unit: the event that will be recorded behind it marks the stream as a reader.
    pub(super) fn read_on(
        &mut self,
        stream: StreamId,
        (marks, pool): (&mut Marks, &mut EventPool),
        out: &mut Vec<Command>,
    ) {
        self.guarded = [false; 2];
        let known = self.readers.iter().position(|(known, _)| *known == stream);
        if known.is_some_and(|at| marks.is_open(self.readers[at].1)) {
            return;
        }
        let event = marks.behind_launch(stream, self.pages, pool, out);
        match known {
            Some(at) => pool.give_back(std::mem::replace(&mut self.readers[at].1, event)),
            None => self.readers.push((stream, event)),
        }
    }

    /// The event of this stream's last launch that was pointed at the shadow.
    pub(super) fn shadow_event(&mut self, stream: StreamId, pool: &mut EventPool) -> EventId {
        self.shadow_guarded = [false; 2];
        event_of(&mut self.shadow_users, stream, pool)
    }

    /// Launches behind these streams' readers may have read the unit unseen: events behind them take the readers' places.
    pub(super) fn move_readers(
        &mut self,
        which: impl Fn(StreamId) -> bool,
        (marks, pool): (&mut Marks, &mut EventPool),
        out: &mut Vec<Command>,
    ) {
        self.guarded = [false; 2];
        for at in 0..self.readers.len() {
            let stream = self.readers[at].0;
            if !stream.has_ended() && which(stream) {
                self.read_on(stream, (marks, pool), out);
                marks.close(pool, out);
            }
        }
    }

    /// Nobody can meet the readers' events any more: the last page went, and whoever took it waits for them. The copies' events stay:
    /// a launch that writes the shadow waits for them.
    pub(super) fn give_back_events(&mut self, pool: &mut EventPool) {
        for (_, event) in self.readers.drain(..) {
            pool.give_back(event);
        }
        self.guarded = [true; 2];
    }

    /// A new stream may get the same handle: it has waited for nothing, and its records must not replace the old one's.
    /// Where many streams end while the unit stays, both copy streams wait for the oldest at once, so that the lists stay short.
    pub(super) fn forget_stream(&mut self, stream: StreamId, pool: &mut EventPool, out: &mut Vec<Command>) {
        for list in [&mut self.readers, &mut self.shadow_users] {
            for entry in list.iter_mut().filter(|entry| entry.0 == stream) {
                entry.0 = StreamId::ENDED;
            }
            while list.iter().filter(|(s, _)| s.has_ended()).count() > MAX_ENDED {
                let Some(oldest) = list.iter().position(|(s, _)| s.has_ended()) else { break };
                let (_, event) = list.remove(oldest);
                out.extend(CopyStream::ALL.map(|copy| Command::WaitOnCopy { copy, event }));
                pool.give_back(event);
            }
        }
    }
}

fn event_of(list: &mut Vec<(StreamId, EventId)>, stream: StreamId, pool: &mut EventPool) -> EventId {
    if let Some(&(_, event)) = list.iter().find(|(s, _)| *s == stream) {
        return event;
    }
    let event = pool.take();
    list.push((stream, event));
    event
}
