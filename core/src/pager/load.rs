//! Who may take which page, and what has to be waited for (rules 3 to 6, 9). Events and order are the siblings' matter.

use super::slot::Page;
use super::{Certainty, Command, CopyStream, EventId, NEAR_USES, Pager, Progress, StreamId};

/// Uses that moved nothing before the expectation follows them anyway.
pub(super) const MAX_STRAYS: u32 = 3;

impl Pager {
    /// Rule 5: copies in what comes next, as far as pages are to be had. `stream` is where the asking launch stands. All earlier commands have been performed.
    pub fn prefetch(&mut self, stream: StreamId, progress: &dyn Progress, out: &mut Vec<Command>) {
        self.marks.performed();
        if self.current.is_empty() {
            self.marks.use_ended(&mut self.events, out);
        }
        if self.marks.is_gathering() && !self.orders.is_empty_ahead() {
            return;
        }
        self.prefetch_while_free(stream, progress, out);
        self.marks.close_copies(CopyStream::Prefetch, &mut self.events, out);
    }

    fn prefetch_while_free(&mut self, stream: StreamId, progress: &dyn Progress, out: &mut Vec<Command>) {
        while let Some(next) = self.orders.next_prefetch() {
            let slot = next.slot as usize;
            if self.slots[slot].current || self.slots[slot].awaiting {
                return;
            }
            if !self.slots[slot].in_place() {
                // A launch that will write the shadow is not enqueued yet: nothing could be ordered behind it.
                if self.slots[slot].rewrites > 0 {
                    return;
                }
                let allowed = self.free_prefix(slot, stream, progress);
                self.load(slot, CopyStream::Prefetch, allowed, out);
            }
            if !self.slots[slot].in_place() {
                return;
            }
            self.slots[slot].awaiting = true;
            self.orders.advance_cursor();
        }
    }

    /// Rule 6: brings the whole unit in, or takes nothing.
    pub(super) fn load_now(&mut self, slot: usize, copy: CopyStream, out: &mut Vec<Command>) -> bool {
        let pages = self.slots[slot].pages;
        if !(0..pages).all(|page| self.demand_may_take(slot, page)) {
            return false;
        }
        self.load(slot, copy, pages, out);
        self.marks.close_copies(copy, &mut self.events, out);
        true
    }

    /// Rule 9: a use begins, so many uses ahead of the expected one (0: its copy belongs to the prefetch stream); none if the hit moves nothing.
    pub(super) fn begin_use(
        &mut self,
        slot: usize,
        certainty: Certainty,
        out: &mut Vec<Command>,
    ) -> Option<usize> {
        if self.slots[slot].current {
            // Its next use may follow before this one is known to have ended.
            if self.orders.expected_slot() == Some(slot as u32) {
                self.orders.take(0);
            }
            self.counters.visits += 1;
            return None;
        }
        let near = self.orders.distance(slot as u32, self.near_uses());
        let distance = match (near, certainty) {
            (Some(0), _) => Some(0),
            (Some(near), Certainty::Live | Certainty::Owner) => Some(near),
            (None, _) if certainty == Certainty::Owner || self.strays >= MAX_STRAYS => {
                self.orders.distance(slot as u32, self.orders.cycle())
            }
            _ => None,
        };
        let Some(distance) = distance else {
            self.strays += u32::from(certainty > Certainty::Unknown);
            self.counters.visits += 1;
            return None;
        };
        let taken = self.orders.take(distance)?;
        self.counters.uses += 1;
        self.counters.mispredictions += u64::from(distance > 0);
        self.strays = 0;
        self.marks.use_ended(&mut self.events, out);
        self.end_others(taken.owner);
        self.slots[slot].begin(taken.owner);
        self.current.push(slot as u32);
        if distance > 0 {
            self.realign();
        }
        Some(distance)
    }

    /// How far ahead is near: in a short order, what lies behind must not count as ahead by going round.
    pub(super) fn near_uses(&self) -> usize {
        NEAR_USES.min(self.orders.cycle().div_ceil(2)).max(1)
    }

    /// What was prefetched counts for the new expectation only (rule 9).
    pub(super) fn realign(&mut self) {
        for slot in &mut self.slots {
            slot.awaiting = false;
        }
        self.orders.reset_cursor();
    }

    fn end_others(&mut self, owner: u32) {
        let slots = &mut self.slots;
        self.current.retain(|&slot| {
            let state = &mut slots[slot as usize];
            state.current = state.owner == owner || state.held;
            state.current
        });
    }

    pub(super) fn end_all(&mut self) {
        let slots = &mut self.slots;
        self.current.retain(|&slot| {
            let state = &mut slots[slot as usize];
            state.current = state.held;
            state.current
        });
    }

    pub(super) fn end_slot(&mut self, slot: usize) {
        self.slots[slot].current = false;
        self.current.retain(|&s| s != slot as u32);
    }

    /// Rule 7: the ring's bytes of this unit are no longer the truth.
    pub(super) fn invalidate(&mut self, slot: usize) {
        for page in 0..self.slots[slot].pages {
            let ring = self.ring_page(slot, page);
            if self.pages[ring].occupant == Some(slot as u32) {
                self.pages[ring].valid = false;
            }
        }
        self.slots[slot].present = 0;
        if self.slots[slot].awaiting {
            self.realign();
        }
    }

    /// Copies in the missing pages among the first `limit` of the unit, in chunks.
    fn load(&mut self, slot: usize, copy: CopyStream, limit: u32, out: &mut Vec<Command>) {
        let mut page = 0;
        let mut loaded = 0;
        while page < limit {
            if self.has(slot, page) {
                page += 1;
                continue;
            }
            let first = page;
            while page < limit && page - first < self.chunk_pages && !self.has(slot, page) {
                self.take_page(slot, page, copy, out);
                page += 1;
            }
            if loaded == 0 {
                self.guard_shadow(slot, copy, out);
            }
            let pages = page - first;
            loaded += pages;
            self.counters.pages_in += u64::from(pages);
            out.push(Command::CopyIn { copy, unit: self.slots[slot].unit, first, pages });
        }
        if loaded > 0 {
            let event = self.marks.behind_copy(copy, loaded, &mut self.events);
            let state = &mut self.slots[slot];
            state.guarded[copy.other() as usize] = false;
            if let Some(before) = state.copies[copy as usize].replace(event) {
                self.events.give_back(before);
            }
            if self.marks.has_batch(copy) {
                self.marks.close_copies(copy, &mut self.events, out);
            }
        }
    }

    fn take_page(&mut self, slot: usize, page: u32, copy: CopyStream, out: &mut Vec<Command>) {
        let ring = self.ring_page(slot, page);
        let Page { occupant, valid } = self.pages[ring];
        self.pages[ring] = Page { occupant: Some(slot as u32), valid: true };
        if let Some(old) = occupant.map(|old| old as usize) {
            self.guard(old, copy, out);
            let state = &mut self.slots[old];
            state.occupied -= 1;
            state.present -= u32::from(valid);
            state.awaiting = false;
            if state.occupied == 0 {
                state.give_back_events(&mut self.events);
            }
        }
        let state = &mut self.slots[slot];
        state.occupied += 1;
        state.present += 1;
    }

    /// Rule 3: the copy stream may overwrite this unit's pages behind what is emitted here.
    pub(super) fn guard(&mut self, slot: usize, copy: CopyStream, out: &mut Vec<Command>) {
        let state = &mut self.slots[slot];
        if !state.guarded[copy as usize] {
            state.guarded[copy as usize] = true;
            for &reader in &state.readers {
                self.marks.order_copy(copy, reader, &mut self.events, out);
            }
            let other = copy.other() as usize;
            let elsewhere = [state.copies[other], state.write_backs[other]];
            out.extend(elsewhere.into_iter().flatten().map(|event| Command::WaitOnCopy { copy, event }));
        }
        if state.dirty {
            // The write left both marks clear: the other copy stream waits for the write-back before it takes any page.
            self.write_back(slot, copy, out);
        }
    }

    fn write_back(&mut self, slot: usize, copy: CopyStream, out: &mut Vec<Command>) {
        self.guard_shadow(slot, copy, out);
        let state = &mut self.slots[slot];
        state.dirty = false;
        let (unit, pages) = (state.unit, state.pages);
        for first in (0..pages).step_by(self.chunk_pages as usize) {
            let pages = self.chunk_pages.min(pages - first);
            out.push(Command::WriteBack { copy, unit, first, pages });
        }
        self.counters.pages_back += u64::from(pages);
        let event = *state.write_backs[copy as usize].get_or_insert_with(|| self.events.take());
        state.shadow_guarded[copy.other() as usize] = false;
        out.push(Command::RecordCopy { copy, event });
    }

    /// Rule 4: the copy stream may read or write this unit's shadow behind what is emitted here.
    pub(super) fn guard_shadow(&mut self, slot: usize, copy: CopyStream, out: &mut Vec<Command>) {
        let state = &mut self.slots[slot];
        if !state.shadow_guarded[copy as usize] {
            state.shadow_guarded[copy as usize] = true;
            out.extend(state.shadow_users.iter().map(|&(_, event)| Command::WaitOnCopy { copy, event }));
            out.extend(
                state.write_backs[copy.other() as usize].map(|event| Command::WaitOnCopy { copy, event }),
            );
        }
    }

    /// How many pages from the unit's first on prefetch may have now.
    fn free_prefix(&self, slot: usize, stream: StreamId, progress: &dyn Progress) -> u32 {
        let pages = self.slots[slot].pages;
        (0..pages).find(|&page| !self.prefetch_may_take(slot, page, stream, progress)).unwrap_or(pages)
    }

    fn prefetch_may_take(&self, slot: usize, page: u32, stream: StreamId, progress: &dyn Progress) -> bool {
        if self.has(slot, page) {
            return true;
        }
        let Some(old) = self.pages[self.ring_page(slot, page)].occupant else { return true };
        let old = &self.slots[old as usize];
        let free = old.may_leave() && !old.current && !old.awaiting;
        let is_behind = |&(reader, event): &(StreamId, EventId)| match self.marks.is_open(event) {
            // Recorded now it would stand behind launches that have nothing to do with it; that is better only than having nothing ahead.
            true => reader == stream && self.orders.is_empty_ahead(),
            false => reader == stream || (!self.marks.is_just_closed(event) && progress.completed(event)),
        };
        free && old.readers.iter().all(is_behind)
    }

    fn demand_may_take(&self, slot: usize, page: u32) -> bool {
        if self.has(slot, page) {
            return true;
        }
        let Some(old) = self.pages[self.ring_page(slot, page)].occupant else { return true };
        let old = old as usize;
        let needed = self.slots[old].shown_by == self.launch && old != slot && !self.gives_way(old);
        self.slots[old].may_leave() && !needed
    }

    fn has(&self, slot: usize, page: u32) -> bool {
        let page = self.pages[self.ring_page(slot, page)];
        page.valid && page.occupant == Some(slot as u32)
    }

    fn ring_page(&self, slot: usize, page: u32) -> usize {
        let slot = &self.slots[slot];
        ((slot.start + page) as usize) % self.pages.len()
    }
}
