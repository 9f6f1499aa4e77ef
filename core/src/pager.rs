//! The page protocol as a state machine: launches and passes in, commands for streams and events out.
//!
//! `docs/page-protocol.md` is the reference; rule numbers in comments are its rules. Nothing here waits, allocates in
//! steady state or talks to a driver: the caller performs the commands in order, under the lock that guards the pager.

mod command;
mod counters;
mod events;
mod hit;
mod load;
mod marks;
mod order;
mod slot;
mod together;

use crate::units::{ModelId, UnitId};
use events::EventPool;
use load::MAX_STRAYS;
use marks::Marks;
use order::Orders;
use slot::{Page, Slot};

pub use command::{Command, CopyStream, EventId, Progress, StreamId};
pub use counters::{Counters, PassTally};
pub use hit::{Access, Certainty, Hit, Verdict};
pub use order::{KEPT_SHAPES, NEAR_USES};

/// The ring, its units and the learnt order of one device.
#[derive(Debug)]
pub struct Pager {
    pages: Vec<Page>,
    slots: Vec<Slot>,
    /// Slot of each unit by its number; `u32::MAX` where the unit is not streamed.
    slot_of: Vec<u32>,
    orders: Orders,
    events: EventPool,
    marks: Marks,
    chunk_pages: u32,
    /// Slots whose use has begun and not ended.
    current: Vec<u32>,
    /// Number of the launch being checked; marks the slots that it shows.
    launch: u64,
    /// Uses in a row that were not the expected one and moved nothing.
    strays: u32,
    counters: Counters,
    /// The counters as the last pass began.
    at_begin: Counters,
}

impl Pager {
    /// A ring of `ring_pages` pages without units; copies carry at most `chunk_pages` pages each.
    #[must_use]
    pub fn new(ring_pages: u32, chunk_pages: u32) -> Self {
        Self {
            pages: vec![Page::default(); ring_pages as usize],
            slots: Vec::new(),
            slot_of: Vec::new(),
            orders: Orders::default(),
            events: EventPool::default(),
            marks: Marks::new(1),
            chunk_pages: chunk_pages.max(1),
            current: Vec::new(),
            launch: 0,
            strays: 0,
            counters: Counters::default(),
            at_begin: Counters::default(),
        }
    }

    /// Small units that follow each other share events until these are behind `pages` pages. 1 without this: each has its own.
    #[must_use]
    pub fn with_shared_events(mut self, pages: u32) -> Self {
        self.marks = Marks::new(pages);
        self
    }

    /// Adds a unit that owns ring pages `start..start + pages`, modulo the ring. Its bytes are in its shadow.
    ///
    /// # Panics
    /// If the run is empty or longer than the ring: a plan never has such a run.
    pub fn add_unit(&mut self, unit: UnitId, start: u32, pages: u32) {
        let ring = self.pages.len() as u32;
        assert!(pages > 0 && pages <= ring, "run of {pages} pages in a ring of {ring}");
        let index = unit.0 as usize;
        if self.slot_of.len() <= index {
            self.slot_of.resize(index + 1, u32::MAX);
        }
        self.slot_of[index] = self.slots.len() as u32;
        self.slots.push(Slot::new(unit, start % ring, pages));
    }

    /// Sets the order of streamed uses `(unit, owner)` of one pass of `model`, in shapes that have no order of their own; units that are not
    /// streamed are left out.
    pub fn set_order(&mut self, model: ModelId, uses: &[(UnitId, u32)]) {
        let uses = self.streamed_uses(uses);
        self.orders.set(model, uses);
        self.realign();
    }

    /// The same for passes in one shape, up to [`KEPT_SHAPES`] of them; the shape that ran longest ago gives way. False if it was known.
    pub fn set_shape_order(&mut self, model: ModelId, shape: u64, uses: &[(UnitId, u32)]) -> bool {
        let uses = self.streamed_uses(uses);
        let new = self.orders.set_shape(model, shape, uses);
        if new {
            self.realign();
        }
        new
    }

    fn streamed_uses(&self, uses: &[(UnitId, u32)]) -> Vec<(u32, u32)> {
        uses.iter().filter_map(|&(unit, owner)| Some((self.slot(unit)? as u32, owner))).collect()
    }

    /// Whether the unit has a place in the ring.
    #[must_use]
    pub fn streams(&self, unit: UnitId) -> bool {
        self.slot(unit).is_some()
    }

    /// Whether the unit is in use and in place, and no launch is about to write its shadow: a launch that shows it now is served there, whatever is thought of its words.
    #[must_use]
    pub fn is_in_use(&self, unit: UnitId) -> bool {
        let slot = self.slot(unit).map(|slot| &self.slots[slot]);
        slot.is_some_and(|slot| slot.current && slot.in_place() && slot.rewrites == 0)
    }

    /// Pages of the ring.
    #[must_use]
    pub fn ring_pages(&self) -> u32 {
        self.pages.len() as u32
    }

    /// Pages that a copy carries at most.
    #[must_use]
    pub fn chunk_pages(&self) -> u32 {
        self.chunk_pages
    }

    /// Events that the pool ever handed out: the caller needs that many driver events.
    #[must_use]
    pub fn events(&self) -> u32 {
        self.events.made()
    }

    /// What happened so far.
    #[must_use]
    pub fn counters(&self) -> Counters {
        self.counters
    }

    /// Rules 1, 6 and 7: prepares a launch on `stream` that shows `hits`; `verdicts` gets one answer for each hit.
    /// Units that are in place are pinned until [`Pager::launched`] is called with the same hits and verdicts.
    pub fn acquire(
        &mut self,
        stream: StreamId,
        hits: &[Hit],
        verdicts: &mut [Verdict],
        out: &mut Vec<Command>,
    ) {
        self.launch += 1;
        for hit in hits {
            if let Some(slot) = self.slot(hit.unit) {
                self.slots[slot].shown_by = self.launch;
            }
        }
        let some_give_way = hits.len() > 1 && self.let_some_give_way(hits);
        self.acquire_each(stream, (hits, false), verdicts, out);
        if some_give_way {
            self.acquire_each(stream, (hits, true), verdicts, out);
        }
    }

    /// The hits that give way, or all others. The others come first: they find pages, and what was changed there is on its way to the shadow before the launch is pointed at it.
    fn acquire_each(
        &mut self,
        stream: StreamId,
        (hits, giving_way): (&[Hit], bool),
        verdicts: &mut [Verdict],
        out: &mut Vec<Command>,
    ) {
        for (hit, verdict) in hits.iter().zip(verdicts) {
            match self.slot(hit.unit) {
                Some(slot) if self.gives_way(slot) != giving_way => {}
                Some(slot) => *verdict = self.acquire_one(stream, slot, *hit, out),
                None => *verdict = Verdict::Ready,
            }
        }
    }

    fn acquire_one(&mut self, stream: StreamId, slot: usize, hit: Hit, out: &mut Vec<Command>) -> Verdict {
        let state = &self.slots[slot];
        let writes = hit.access == Access::Write;
        // Launches that may write at the same time must write at the same place, or one write is lost; and no copy in can be
        // ordered behind a write to the shadow that is not enqueued yet.
        let elsewhere = state.rewrites > 0 && (writes || hit.hold || !state.in_place());
        // What is changed in the ring, or about to be needed there, is better served in place than behind the link.
        let here = state.dirty || (state.in_place() && (state.awaiting || (writes && state.pins > 0)));
        if elsewhere || (hit.can_redirect && !here && self.is_doubtful(slot, hit.certainty)) {
            self.redirect(stream, slot, writes, out);
            return if hit.can_redirect { Verdict::Redirect } else { Verdict::Conflict };
        }
        let distance = self.begin_use(slot, hit.certainty, out);
        if !self.slots[slot].in_place() {
            let copy = if distance == Some(0) { CopyStream::Prefetch } else { CopyStream::Demand };
            if !self.load_now(slot, copy, out) {
                self.counters.conflicts += 1;
                self.redirect(stream, slot, writes, out);
                return if self.gives_way(slot) { Verdict::Redirect } else { Verdict::Conflict };
            }
            if copy == CopyStream::Demand {
                self.counters.demand_loads += 1;
            }
        }
        self.order_behind_copies(stream, slot, out);
        self.slots[slot].pins += 1;
        self.slots[slot].held |= hit.hold;
        if distance.is_some() { Verdict::Began } else { Verdict::Ready }
    }

    /// Rule 7's test. A unit in use, held, or next in order, is never doubtful; one that a live word shows is, unless its use is near or such
    /// hits come in a row: words that were live once also carry stale addresses, between uses that come as expected.
    fn is_doubtful(&mut self, slot: usize, certainty: Certainty) -> bool {
        let state = &self.slots[slot];
        if state.current || state.held || self.orders.expected_slot() == Some(slot as u32) {
            return false;
        }
        match certainty {
            Certainty::Owner => false,
            Certainty::Unknown => true,
            Certainty::Live if self.orders.distance(slot as u32, self.near_uses()).is_some() => false,
            Certainty::Live => {
                self.strays += 1;
                self.strays <= MAX_STRAYS
            }
        }
    }

    /// Rule 1: the stream waits once for each load.
    fn order_behind_copies(&mut self, stream: StreamId, slot: usize, out: &mut Vec<Command>) {
        let copies = self.slots[slot].copies;
        for (copy, event) in CopyStream::ALL.into_iter().zip(copies) {
            if let Some(event) = event {
                self.marks.order_launch(stream, (copy, event), &self.events, out);
            }
        }
    }

    /// Rule 7: the launch reads the shadow, which a write-back may still be filling; or writes it.
    fn redirect(&mut self, stream: StreamId, slot: usize, writes: bool, out: &mut Vec<Command>) {
        self.counters.redirects += 1;
        let slot = &mut self.slots[slot];
        slot.redirects += 1;
        slot.rewrites += u32::from(writes);
        out.extend(slot.write_backs.iter().flatten().map(|&event| Command::WaitOnStream { stream, event }));
        // Copies in may still be reading the shadow, also for pages that went to others since.
        if writes {
            out.extend(slot.copies.iter().flatten().map(|&event| Command::WaitOnStream { stream, event }));
        }
    }

    /// Rule 2: the launch that [`Pager::acquire`] prepared is enqueued (or was refused by the driver, which changes nothing).
    pub fn launched(&mut self, stream: StreamId, hits: &[Hit], verdicts: &[Verdict], out: &mut Vec<Command>) {
        let mut over = false;
        for (hit, verdict) in hits.iter().zip(verdicts) {
            let Some(index) = self.slot(hit.unit) else { continue };
            if verdict.in_place() {
                let slot = &mut self.slots[index];
                over |= slot.launched() && self.marks.is_enough(slot.pages);
                slot.read_on(stream, (&mut self.marks, &mut self.events), out);
                slot.pins = slot.pins.saturating_sub(1);
                slot.dirty |= hit.access == Access::Write;
            } else {
                let event = self.slots[index].shadow_event(stream, &mut self.events);
                out.push(Command::RecordReader { stream, event });
                let slot = &mut self.slots[index];
                slot.redirects = slot.redirects.saturating_sub(1);
                slot.rewrites = slot.rewrites.saturating_sub(u32::from(hit.access == Access::Write));
                if hit.access == Access::Write {
                    self.invalidate(index);
                }
            }
        }
        // What the stream carries from here on would only keep the pages from the next copy.
        if over {
            self.marks.use_ended(&mut self.events, out);
        }
    }

    /// Launches from here on share no event with those before, which is recorded now: later their stream may not be reached, or carry something else.
    pub fn close_marks(&mut self, out: &mut Vec<Command>) {
        self.marks.close(&mut self.events, out);
    }

    /// The unit's owner has returned. Launches behind a held unit's readers may have read it without showing it: the readers' events move here.
    pub fn end_use(&mut self, unit: UnitId, out: &mut Vec<Command>) {
        let Some(index) = self.slot(unit) else { return };
        if std::mem::take(&mut self.slots[index].held) {
            self.slots[index].move_readers(|_| true, (&mut self.marks, &mut self.events), out);
        }
        self.end_slot(index);
        self.marks.use_ended(&mut self.events, out);
    }

    /// A pass of `model` in this shape begins: the expectation moves to its first use, and the order follows the one that ran before.
    pub fn pass_begin(&mut self, model: ModelId, shape: u64) {
        self.at_begin = self.counters;
        if self.orders.enter(model, shape) {
            self.end_all();
            self.realign();
        }
    }

    /// A pass of `model` ended: all uses have ended, and the order that followed last time is expected. What the pass was like is said of the
    /// time since a pass began last; passes that overlap blur it.
    pub fn pass_end(&mut self, model: ModelId) -> PassTally {
        self.end_all();
        let left = self.orders.leave(model);
        if left.moved {
            self.realign();
        }
        PassTally {
            followed: left.followed,
            demand_loads: self.counters.demand_loads - self.at_begin.demand_loads,
            redirects: self.counters.redirects - self.at_begin.redirects,
        }
    }

    /// Rule 11: the program is about to destroy the stream; the commands must be performed while it still exists.
    pub fn forget_stream(&mut self, stream: StreamId, out: &mut Vec<Command>) {
        for slot in &mut self.slots {
            if slot.held {
                slot.move_readers(|reader| reader == stream, (&mut self.marks, &mut self.events), out);
            }
        }
        self.marks.forget_stream(stream, &mut self.events, out);
        for slot in &mut self.slots {
            slot.forget_stream(stream, &mut self.events, out);
        }
    }

    /// Rule 12, first half: orders the demand stream behind all users of the unit and writes it back if dirty.
    /// The caller must let no launch show the unit from here on, and wait for both copy streams: pages that were taken from
    /// the unit may still be waited for there. False while a launch that shows the unit is between check and enqueue.
    /// Nothing else changes: a caller that finds no private pages lets launches in again.
    pub fn evict(&mut self, unit: UnitId, out: &mut Vec<Command>) -> bool {
        let Some(index) = self.slot(unit) else { return true };
        if self.slots[index].pins > 0 || self.slots[index].redirects > 0 {
            return false;
        }
        if self.slots[index].held {
            self.slots[index].move_readers(|_| true, (&mut self.marks, &mut self.events), out);
        }
        self.guard_shadow(index, CopyStream::Demand, out);
        self.guard(index, CopyStream::Demand, out);
        true
    }

    /// Rule 12, second half: the unit has private pages now; no later hit is the pager's.
    pub fn remove(&mut self, unit: UnitId) {
        let Some(index) = self.slot(unit) else { return };
        self.slot_of[unit.0 as usize] = u32::MAX;
        self.orders.remove(index as u32);
        self.slots[index].held = false;
        self.end_slot(index);
        self.realign();
    }

    /// Every unit has to be copied in again: ring pages were used for something else, while nobody used the ring and nothing in it was changed.
    pub fn forget_bytes(&mut self) {
        (0..self.slots.len()).for_each(|slot| self.invalidate(slot));
        self.realign();
    }

    fn slot(&self, unit: UnitId) -> Option<usize> {
        match self.slot_of.get(unit.0 as usize) {
            Some(&slot) if slot != u32::MAX => Some(slot as usize),
            _ => None,
        }
    }
}
