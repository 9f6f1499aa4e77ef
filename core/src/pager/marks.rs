//! Events that several launches and units share, so that uses cost few driver calls: launches in a row on one stream, and copies in a row on one copy stream, have one event behind
//! them. A use has one event, however many launches it takes; a second one where it takes more than the one before. What it is recorded behind is later than what one unit needs by at most [`Marks::batch_pages`] pages; what is longer by itself has its own.
//! What has to be waited for is `load`'s and the parent's matter; whether it was waited for already is known here.

use super::events::EventPool;
use super::{Command, CopyStream, EventId, StreamId};

/// An event that is not recorded yet, and the pages of units behind which it will be.
#[derive(Clone, Copy, Debug)]
struct Open {
    event: EventId,
    pages: u32,
}

/// What is known of one stream of the program.
#[derive(Debug)]
struct Lane {
    stream: StreamId,
    /// Number of the last event on it that each copy stream waits for.
    passed: [u64; 2],
    /// Number of the last event on each copy stream that it waits for.
    waited: [u64; 2],
}

/// Marks behind launches and copies.
#[derive(Debug)]
pub(super) struct Marks {
    lanes: Vec<Lane>,
    /// Behind launches of one stream: those of another one begin the next.
    launches: Option<(StreamId, Open)>,
    /// An event behind launches was recorded, or a use with such an event ended, since that was asked last.
    news: bool,
    /// The event behind launches that was closed last, if the caller has not recorded it yet.
    closed: Option<EventId>,
    copies: [Option<Open>; 2],
    batch_pages: u32,
}

impl Marks {
    /// An event is recorded behind every so many pages.
    pub(super) fn new(batch_pages: u32) -> Self {
        let lanes = Vec::with_capacity(8);
        Self {
            lanes,
            launches: None,
            news: false,
            closed: None,
            copies: [None; 2],
            batch_pages: batch_pages.max(1),
        }
    }

    fn lane(&mut self, stream: StreamId) -> &mut Lane {
        let at = self.lanes.iter().position(|lane| lane.stream == stream).unwrap_or_else(|| {
            self.lanes.push(Lane { stream, passed: [0; 2], waited: [0; 2] });
            self.lanes.len() - 1
        });
        &mut self.lanes[at]
    }

    /// The event that will be recorded behind the stream's last launch, for a unit of `pages` pages more, which keeps it.
    pub(super) fn behind_launch(
        &mut self,
        stream: StreamId,
        pages: u32,
        events: &mut EventPool,
        out: &mut Vec<Command>,
    ) -> EventId {
        if self.launches.is_some_and(|(other, _)| other != stream) {
            self.close(events, out);
        }
        let (_, open) =
            self.launches.get_or_insert_with(|| (stream, Open { event: events.take(), pages: 0 }));
        open.pages += pages;
        events.share(open.event);
        open.event
    }

    /// Whether this event is not recorded yet: it will be behind the next launches too, and what the driver says of it means nothing.
    pub(super) fn is_open(&self, event: EventId) -> bool {
        self.launches.is_some_and(|(_, open)| open.event == event)
    }

    /// Whether so many pages are enough for an event of their own.
    pub(super) fn is_enough(&self, pages: u32) -> bool {
        pages >= self.batch_pages
    }

    /// All commands so far have been performed.
    pub(super) fn performed(&mut self) {
        self.closed = None;
    }

    /// Whether what the driver says of this event may still be of its last use.
    pub(super) fn is_just_closed(&self, event: EventId) -> bool {
        self.closed == Some(event)
    }

    /// A use is over, or the next one is about to begin: the launches' event is recorded if it is behind enough. Each further launch of one use would only have moved it.
    pub(super) fn use_ended(&mut self, events: &mut EventPool, out: &mut Vec<Command>) {
        match self.launches {
            Some((_, open)) if !self.is_enough(open.pages) => {}
            Some(_) => self.close(events, out),
            // Recorded behind the last launch already, when the pages were still in use: they are free from now on.
            None => self.news = true,
        }
    }

    /// The launches' event is recorded now, if one waits for that.
    pub(super) fn close(&mut self, events: &mut EventPool, out: &mut Vec<Command>) {
        let Some((stream, Open { event, .. })) = self.launches.take() else { return };
        out.push(Command::RecordReader { stream, event });
        self.news = true;
        self.closed = Some(event);
        events.give_back(event);
    }

    /// Whether nothing has become free since this was asked last but behind an event that is still open: what is free then is better copied over together with what is behind it.
    pub(super) fn is_gathering(&mut self) -> bool {
        !std::mem::take(&mut self.news) && self.launches.is_some()
    }

    /// The copy stream waits for this event of the stream, if it does not yet.
    pub(super) fn order_copy(
        &mut self,
        copy: CopyStream,
        (stream, event): (StreamId, EventId),
        events: &mut EventPool,
        out: &mut Vec<Command>,
    ) {
        if !stream.has_ended() {
            if self.is_open(event) {
                self.close(events, out);
            }
            let passed = &mut self.lane(stream).passed[copy as usize];
            let number = events.number(event);
            if *passed >= number {
                return;
            }
            *passed = number;
        }
        out.push(Command::WaitOnCopy { copy, event });
    }

    /// The event that will be recorded behind the last copy on this copy stream, for a unit that keeps it.
    pub(super) fn behind_copy(&mut self, copy: CopyStream, pages: u32, events: &mut EventPool) -> EventId {
        let open = self.copies[copy as usize].get_or_insert_with(|| Open { event: events.take(), pages: 0 });
        open.pages += pages;
        events.share(open.event);
        open.event
    }

    /// Whether copies up to here have been enough for an event of their own.
    pub(super) fn has_batch(&self, copy: CopyStream) -> bool {
        self.copies[copy as usize].is_some_and(|open| self.is_enough(open.pages))
    }

    /// The copies' event is recorded now, if one waits for that.
    pub(super) fn close_copies(&mut self, copy: CopyStream, events: &mut EventPool, out: &mut Vec<Command>) {
        let Some(Open { event, .. }) = self.copies[copy as usize].take() else { return };
        out.push(Command::RecordCopy { copy, event });
        events.give_back(event);
    }

    /// Rule 1: the stream waits for this event of a copy stream, if it does not yet.
    pub(super) fn order_launch(
        &mut self,
        stream: StreamId,
        (copy, event): (CopyStream, EventId),
        events: &EventPool,
        out: &mut Vec<Command>,
    ) {
        let waited = &mut self.lane(stream).waited[copy as usize];
        let number = events.number(event);
        if *waited < number {
            *waited = number;
            out.push(Command::WaitOnStream { stream, event });
        }
    }

    /// Rule 11: what is noted of the stream does not hold for another one of that name.
    pub(super) fn forget_stream(&mut self, stream: StreamId, events: &mut EventPool, out: &mut Vec<Command>) {
        if self.launches.is_some_and(|(open, _)| open == stream) {
            self.close(events, out);
        }
        self.lanes.retain(|lane| lane.stream != stream);
    }
}
