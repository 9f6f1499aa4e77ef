//! A second reading of the page protocol: told what is really enqueued, it says which rule does not hold. It shares nothing with the pager but the vocabulary, so
//! that a mistake there, or on the way from a command to the driver, is found rather than repeated. It allocates, and remembers much: it is for check runs.
//!
//! `docs/page-protocol.md` has the rules. Whose names go into the lines, and what follows from a finding, is the caller's matter.

mod clock;
mod finding;

use std::collections::HashMap;

use crate::pager::{Access, Command, CopyStream, Hit, StreamId, Verdict};
use crate::units::UnitId;
use clock::{Lanes, Stamp, keep_newest};

pub use finding::{Caller, Finding, Kind};

/// One page of the ring.
#[derive(Debug, Default)]
struct Page {
    /// The unit and page whose bytes it holds.
    holds: Option<(UnitId, u32)>,
    /// Who used it last, though what it held may be stale since.
    of: Option<UnitId>,
    loaded: Option<Stamp>,
    users: Vec<(Stamp, Caller)>,
    writers: Vec<(Stamp, Caller)>,
    /// Copies back that read it.
    backs: Vec<(Stamp, ())>,
    dirty: bool,
}

/// One unit.
#[derive(Debug, Default)]
struct Unit {
    start: usize,
    pages: u32,
    /// Launches between check and enqueue: in place, pointed at the shadow, and those of the latter that may write.
    pins: u32,
    redirects: u32,
    rewrites: u32,
    held: bool,
    shadow_writes: Vec<(Stamp, ())>,
    shadow_reads: Vec<(Stamp, ())>,
}

/// The books of one ring.
#[derive(Debug)]
pub struct Audit {
    lanes: Lanes,
    pages: Vec<Page>,
    units: HashMap<UnitId, Unit>,
    /// The launch that is being prepared: commands until it is enqueued are for it.
    subject: Option<(UnitId, Caller)>,
    found: Vec<Finding>,
}

impl Audit {
    /// A ring of so many pages, without units.
    #[must_use]
    pub fn new(ring_pages: u32) -> Self {
        let pages = (0..ring_pages).map(|_| Page::default()).collect();
        Self { lanes: Lanes::new(), pages, units: HashMap::new(), subject: None, found: Vec::new() }
    }

    /// A unit at ring pages `start..start + pages`, modulo the ring; its bytes are in its shadow.
    pub fn add_unit(&mut self, unit: UnitId, start: u32, pages: u32) {
        self.units.insert(unit, Unit { start: start as usize, pages, ..Unit::default() });
    }

    /// The unit has private pages: nothing in the ring is its any more.
    pub fn remove_unit(&mut self, unit: UnitId) {
        self.units.remove(&unit);
        for page in self.pages.iter_mut().filter(|page| page.of == Some(unit)) {
            (page.holds, page.dirty) = (None, false);
        }
    }

    /// What was found since this was asked last.
    pub fn take_findings(&mut self) -> Vec<Finding> {
        std::mem::take(&mut self.found)
    }

    /// Commands from here on are for a launch that shows this unit.
    pub fn prepares(&mut self, unit: Option<UnitId>, caller: Caller) {
        self.subject = unit.map(|unit| (unit, caller));
    }

    /// The command is enqueued now.
    pub fn command(&mut self, command: Command) {
        match command {
            Command::WaitOnStream { stream, event } => {
                let lane = self.lanes.of_stream(stream);
                if !self.lanes.wait(lane, event) {
                    self.report_wait();
                }
            }
            Command::WaitOnCopy { copy, event } => {
                if !self.lanes.wait(Lanes::of_copy(copy), event) {
                    self.report_wait();
                }
            }
            Command::RecordCopy { copy, event } => self.lanes.record(Lanes::of_copy(copy), event),
            Command::RecordReader { stream, event } => {
                let lane = self.lanes.of_stream(stream);
                self.lanes.record(lane, event);
            }
            Command::CopyIn { copy, unit, first, pages } => self.copy_in(copy, unit, first..first + pages),
            Command::WriteBack { copy, unit, first, pages } => {
                self.write_back(copy, unit, first..first + pages);
            }
        }
    }

    /// A launch was checked, and its commands are enqueued: it may be enqueued at any time from here on.
    pub fn checked(&mut self, stream: StreamId, hits: &[Hit], verdicts: &[Verdict], caller: Caller) {
        let lane = self.lanes.of_stream(stream);
        for (hit, verdict) in hits.iter().zip(verdicts) {
            let writes = hit.access == Access::Write;
            if verdict.in_place() {
                self.expect_in_place(lane, hit.unit, caller);
            } else {
                self.expect_shadow_calm(lane, hit.unit, writes, caller);
            }
            let Some(unit) = self.units.get_mut(&hit.unit) else { continue };
            if verdict.in_place() {
                unit.pins += 1;
                unit.held |= hit.hold;
            } else {
                unit.redirects += 1;
                unit.rewrites += u32::from(writes);
            }
        }
    }

    /// That launch was enqueued; what records it is not yet.
    pub fn enqueued(&mut self, stream: StreamId, hits: &[Hit], verdicts: &[Verdict], caller: Caller) {
        self.subject = None;
        let lane = self.lanes.of_stream(stream);
        let stamp = self.lanes.enter(lane);
        for (hit, verdict) in hits.iter().zip(verdicts) {
            let writes = hit.access == Access::Write;
            let Some(unit) = self.units.get_mut(&hit.unit) else { continue };
            if verdict.in_place() {
                unit.pins = unit.pins.saturating_sub(1);
                self.use_pages(hit.unit, stamp, writes, caller);
                continue;
            }
            unit.redirects = unit.redirects.saturating_sub(1);
            if writes {
                unit.rewrites = unit.rewrites.saturating_sub(1);
                keep_newest(&mut unit.shadow_writes, stamp, ());
                self.make_stale(hit.unit);
            } else {
                keep_newest(&mut unit.shadow_reads, stamp, ());
            }
        }
    }

    /// The owner of the unit has returned; its readers are recorded again from here on, because launches behind them may have read it.
    pub fn hold_ends(&mut self, unit: UnitId) {
        if self.units.get_mut(&unit).is_some_and(|unit| std::mem::take(&mut unit.held)) {
            self.readers_move(unit, |_| true);
        }
    }

    /// The unit is about to be evicted.
    pub fn evicts(&mut self, unit: UnitId) {
        if self.units.get(&unit).is_some_and(|unit| unit.held) {
            self.readers_move(unit, |_| true);
        }
    }

    /// The program is about to destroy this stream.
    pub fn stream_ends(&mut self, stream: StreamId) {
        let lane = self.lanes.of_stream(stream);
        let held: Vec<UnitId> = self.units.iter().filter(|(_, unit)| unit.held).map(|(&id, _)| id).collect();
        held.into_iter().for_each(|unit| self.readers_move(unit, |reader| reader == lane));
    }

    /// The stream is gone: its name may come back for another one.
    pub fn stream_ended(&mut self, stream: StreamId) {
        self.lanes.end_stream(stream);
    }

    /// The host has waited for this copy stream.
    pub fn waited_for(&mut self, copy: CopyStream) {
        self.lanes.has_ended(copy);
    }

    /// The host has waited for the whole GPU.
    pub fn waited_for_all(&mut self) {
        self.lanes.all_have_ended();
    }

    /// Ring pages were used for something else, while nobody used the ring.
    pub fn forget_bytes(&mut self) {
        self.pages.iter_mut().for_each(|page| page.holds = None);
    }

    /// What the ring page that this page of the unit takes holds now, if that is current.
    #[must_use]
    pub fn held_at(&self, unit: UnitId, page: u32) -> Option<(UnitId, u32)> {
        let unit = self.units.get(&unit)?;
        self.pages[(unit.start + page as usize) % self.pages.len()].holds
    }

    fn report(&mut self, kind: Kind, unit: UnitId, by: Option<UnitId>, caller: Option<Caller>) {
        let finding = Finding { kind, unit: Some(unit), by, caller };
        if !self.found.contains(&finding) {
            self.found.push(finding);
        }
    }

    fn report_wait(&mut self) {
        let (unit, caller) = self.subject.unzip();
        self.found.push(Finding { kind: Kind::UnrecordedWait, unit, by: None, caller });
    }

    fn ring_pages(&self, unit: UnitId) -> impl Iterator<Item = (u32, usize)> + use<> {
        let length = self.pages.len();
        let (start, pages) = self.units.get(&unit).map_or((0, 0), |unit| (unit.start, unit.pages));
        (0..pages).map(move |page| (page, (start + page as usize) % length))
    }

    /// Rule 1.
    fn expect_in_place(&mut self, lane: usize, unit: UnitId, caller: Caller) {
        for (page, at) in self.ring_pages(unit) {
            let known = &self.pages[at];
            let kind = match known.loaded {
                Some(loaded) if known.holds == Some((unit, page)) => {
                    (!self.lanes.is_behind(lane, loaded)).then_some(Kind::LaunchBeforeCopy)
                }
                _ => Some(Kind::NotInPlace),
            };
            if let Some(kind) = kind {
                return self.report(kind, unit, known.of.filter(|&of| of != unit), Some(caller));
            }
        }
    }

    /// Rule 7: order among launches of the program is the program's own.
    fn expect_shadow_calm(&mut self, lane: usize, unit: UnitId, writes: bool, caller: Caller) {
        let Some(known) = self.units.get(&unit) else { return };
        let reads = known.shadow_reads.iter().filter(|_| writes);
        let mut copies =
            known.shadow_writes.iter().chain(reads).filter(|(stamp, ())| Lanes::is_copy(stamp.lane));
        if !copies.all(|&(stamp, ())| self.lanes.is_behind(lane, stamp)) {
            self.report(Kind::ShadowOutOfOrder, unit, None, Some(caller));
        }
    }

    fn use_pages(&mut self, unit: UnitId, stamp: Stamp, writes: bool, caller: Caller) {
        for (_, at) in self.ring_pages(unit) {
            let page = &mut self.pages[at];
            keep_newest(&mut page.users, stamp, caller);
            if writes {
                keep_newest(&mut page.writers, stamp, caller);
                page.dirty = true;
            }
        }
    }

    /// The shadow is newer than the ring.
    fn make_stale(&mut self, unit: UnitId) {
        for (_, at) in self.ring_pages(unit) {
            let page = &mut self.pages[at];
            page.holds = page.holds.filter(|(of, _)| *of != unit);
        }
    }

    /// Launches behind the last ones that showed the unit may have read it: an entry of each reader's lane stands for them.
    fn readers_move(&mut self, unit: UnitId, which: impl Fn(usize) -> bool) {
        let mut readers: Vec<(usize, Caller)> = Vec::new();
        for (_, at) in self.ring_pages(unit) {
            let users = self.pages[at].users.iter().map(|(stamp, caller)| (stamp.lane, *caller));
            for user in users.filter(|(lane, _)| which(*lane) && self.lanes.goes_on(*lane)) {
                if !readers.iter().any(|known| known.0 == user.0) {
                    readers.push(user);
                }
            }
        }
        for (lane, caller) in readers {
            let stamp = self.lanes.enter(lane);
            self.use_pages(unit, stamp, false, caller);
        }
    }

    /// Rules 3, 4 and 6.
    fn copy_in(&mut self, copy: CopyStream, unit: UnitId, pages: std::ops::Range<u32>) {
        let lane = Lanes::of_copy(copy);
        let stamp = self.lanes.enter(lane);
        let Some(known) = self.units.get_mut(&unit) else { return };
        let writes_come = known.rewrites > 0;
        let behind = |(stamp, ()): &(Stamp, ())| self.lanes.is_behind(lane, *stamp);
        let calm = known.shadow_writes.iter().all(behind);
        keep_newest(&mut known.shadow_reads, stamp, ());
        if writes_come || !calm {
            self.report(Kind::ShadowOutOfOrder, unit, None, None);
        }
        let ring: Vec<_> = self.ring_pages(unit).filter(|(page, _)| pages.contains(page)).collect();
        for (page, at) in ring {
            self.expect_free(lane, at, unit);
            let known = &mut self.pages[at];
            *known =
                Page { holds: Some((unit, page)), of: Some(unit), loaded: Some(stamp), ..Page::default() };
        }
    }

    /// Nobody uses the page, nor what is in it, beyond what the lane is behind.
    fn expect_free(&mut self, lane: usize, at: usize, by: UnitId) {
        let page = &self.pages[at];
        let Some(of) = page.of else { return };
        // A unit that came back elsewhere has nothing on this page any more, whatever lay there before it left.
        let is_here = self.ring_pages(of).any(|(_, here)| here == at);
        let owner = self.units.get(&of).filter(|_| is_here);
        let late = page.users.iter().find(|(stamp, _)| !self.lanes.is_behind(lane, *stamp));
        let loaded = page.loaded.is_none_or(|stamp| self.lanes.is_behind(lane, stamp));
        let backs = page.backs.iter().all(|(stamp, ())| self.lanes.is_behind(lane, *stamp));
        let caller = late.map(|(_, caller)| *caller);
        let kinds = [
            (late.is_some() || !loaded || !backs, Kind::OverwrittenInUse),
            (owner.is_some_and(|unit| unit.pins > 0), Kind::OverwrittenUnrecorded),
            (owner.is_some_and(|unit| unit.held), Kind::OverwrittenHeld),
            (page.dirty, Kind::LostWrite),
        ];
        let caller = caller.or_else(|| page.users.last().map(|(_, caller)| *caller));
        for (_, kind) in kinds.into_iter().filter(|(is_so, _)| *is_so) {
            self.report(kind, of, Some(by), caller);
        }
    }

    /// Rules 3 and 4.
    fn write_back(&mut self, copy: CopyStream, unit: UnitId, pages: std::ops::Range<u32>) {
        let lane = Lanes::of_copy(copy);
        let stamp = self.lanes.enter(lane);
        let Some(known) = self.units.get_mut(&unit) else { return };
        let users = known.shadow_writes.iter().chain(&known.shadow_reads);
        let calm = users.clone().all(|(stamp, ())| self.lanes.is_behind(lane, *stamp));
        let redirects_come = known.redirects > 0;
        keep_newest(&mut known.shadow_writes, stamp, ());
        if !calm || redirects_come {
            self.report(Kind::ShadowOutOfOrder, unit, None, None);
        }
        let ring: Vec<_> = self.ring_pages(unit).filter(|(page, _)| pages.contains(page)).collect();
        for (page, at) in ring {
            let known = &self.pages[at];
            let late = known.writers.iter().find(|(stamp, _)| !self.lanes.is_behind(lane, *stamp));
            let loaded = known.loaded.is_some_and(|stamp| self.lanes.is_behind(lane, stamp));
            if late.is_some() || !loaded || known.holds != Some((unit, page)) {
                let caller = late.map(|(_, caller)| *caller);
                self.report(Kind::WriteBackOutOfOrder, unit, None, caller);
            }
            let known = &mut self.pages[at];
            keep_newest(&mut known.backs, stamp, ());
            known.dirty = false;
        }
    }
}
