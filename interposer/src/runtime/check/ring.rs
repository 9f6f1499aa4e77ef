//! What check mode does about one ring: tells the audit what is enqueued, and makes our own copies with poison before them and checksums around them.
//! Which lines that gives is `lines`' matter.

#![expect(unsafe_code, reason = "copies between our pinned memory and addresses that we mapped")]

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use flextensor_core::audit::Audit;
use flextensor_core::pager::{Access, Command, CopyStream, Hit, StreamId, Verdict};
use flextensor_core::units::UnitId;

use super::super::arena::PAGE;
use super::super::shadow::{self, Shadow, Wanted};
use super::super::streaming::StreamedUnit;
use super::super::touched::Touched;
use super::super::verify;
use super::alias::{self, Alias};
use super::callers::{By, caller_of};
use super::flight::{self, Flight};
use super::lines;
#[cfg(feature = "seeded-faults")]
use super::seeds::{self, Seed};
use super::shield::{self, Shield};
use super::sums::{Sums, Task};
use super::{LOOKED, count};
use crate::ffi::copy;
use crate::ffi::result::{CudaError, CudaResult};
use crate::ffi::stream::{self, Stream};
use crate::ffi::vmm::Handle;
use crate::log;

/// What released pages are filled with: not a number in every float format.
const POISON: u8 = 0xff;

/// One streamed unit.
struct Unit {
    address: u64,
    ring_start: u64,
    shadow: Shadow,
    sums: Arc<Sums>,
    shield: Shield,
}

/// Consecutive ring pages of a unit as our own copies reach them.
struct Run {
    /// Of the first byte in the unit.
    offset: u64,
    bytes: u64,
    at: u64,
}

impl Run {
    fn address_of(&self, offset: u64) -> u64 {
        self.at + (offset - self.offset)
    }
}

/// Pages of the unit: by the ring's second address, where there is one, since access by the unit's own is changed while copies are on their way.
fn runs(alias: Option<&Alias>, unit: &Unit, first: u64, pages: u64) -> Vec<Run> {
    let Some(alias) = alias else {
        let (offset, bytes) = (first * PAGE, pages * PAGE);
        return vec![Run { offset, bytes, at: unit.address + offset }];
    };
    let mut offset = first * PAGE;
    let one = |(pages, at)| {
        let run = Run { offset, bytes: pages * PAGE, at };
        offset += run.bytes;
        run
    };
    alias.runs(unit.ring_start + first, pages).map(one).collect()
}

/// One ring's checks.
pub(crate) struct RingCheck {
    device: i32,
    /// Tells it from other rings of the device.
    number: u64,
    copies: [Stream; 2],
    /// Pages of the longest copy.
    chunk_pages: u64,
    audit: Audit,
    units: HashMap<UnitId, Unit>,
    /// Names of units that have left: findings may still speak of them.
    names: HashMap<UnitId, String>,
    alias: Option<Alias>,
    /// Host memory for a copy's worth of ring pages on each copy stream.
    scratch: Vec<Shadow>,
    flight: Flight,
    /// What the ring pages that the next copy takes hold: (unit, page), in the copy's order.
    leaving: Vec<Option<(UnitId, u32)>>,
}

impl RingCheck {
    /// Of a ring that has no pages yet.
    pub(crate) fn new(device: i32, copies: [Stream; 2], pages: u32, chunk_pages: u32) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let chunk_pages = u64::from(chunk_pages.max(1).min(pages.max(1)));
        Self {
            device,
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            copies,
            chunk_pages,
            audit: Audit::new(pages),
            units: HashMap::new(),
            names: HashMap::new(),
            alias: None,
            scratch: Vec::new(),
            flight: Flight::default(),
            leaving: Vec::new(),
        }
    }

    /// The ring has its pages. Nobody uses them: what is in them is poisoned.
    pub(crate) fn attach(&mut self, ring: &[Handle]) {
        alias::note_ring(self.device, self.number, ring);
        if ring.is_empty() {
            return;
        }
        let wanted = [Wanted { prefix: 0, pages: self.chunk_pages, hangs_over: false }; 2];
        match shadow::make(&wanted, Touched::default()) {
            Ok(scratch) => self.scratch = scratch,
            Err(error) => log::warning!("check: ring pages are not compared with shadows: {error}"),
        }
        #[cfg(feature = "seeded-faults")]
        if seeds::is(Seed::Unprotected) {
            return;
        }
        let made = Alias::of(ring, self.device).and_then(|alias| {
            let on = self.copies[CopyStream::Demand as usize];
            let runs = alias.runs(0, ring.len() as u64);
            self.alias = Some(alias);
            runs.into_iter()
                .try_for_each(|(pages, at)| copy::fill_async(at, POISON, (pages * PAGE) as usize, on))?;
            stream::synchronize(on)
        });
        if let Err(error) = made {
            log::warning!(
                "check: the ring has no second address, so weights are not write-protected: {error}"
            );
        }
    }

    /// A unit comes into the ring; it is mapped, and its shadow complete.
    pub(crate) fn add(&mut self, id: UnitId, unit: &StreamedUnit, name: String) {
        self.audit.add_unit(id, unit.ring_start as u32, unit.pages as u32);
        let shield = Shield::new(self.device, unit.address, unit.pages * PAGE, self.alias.is_some());
        let sums = Sums::of(name.clone(), &unit.shadow, unit.pages);
        self.names.insert(id, name);
        let (address, ring_start, shadow) = (unit.address, unit.ring_start, unit.shadow);
        self.units.insert(id, Unit { address, ring_start, shadow, sums, shield });
    }

    /// A unit has left the ring.
    pub(crate) fn remove(&mut self, id: UnitId) {
        self.audit.remove_unit(id);
        if let Some(mut unit) = self.units.remove(&id) {
            unit.shield.close();
        }
    }

    /// Commands from here on are for a launch that shows these units.
    pub(crate) fn prepares(&mut self, hits: &[Hit], by: By) {
        self.audit.prepares(hits.first().map(|hit| hit.unit), caller_of(by));
    }

    /// The command is about to be performed.
    pub(crate) fn command(&mut self, command: Command) {
        if let Command::CopyIn { unit, first, pages, .. } = command {
            self.leaving.clear();
            self.leaving.extend((first..first + pages).map(|page| self.audit.held_at(unit, page)));
            count(&LOOKED.copies, 1);
        }
        self.audit.command(command);
        self.say();
    }

    /// A launch was checked; opens what it may write.
    pub(crate) fn checked(
        &mut self,
        stream: StreamId,
        hits: &[Hit],
        verdicts: &[Verdict],
        by: By,
    ) -> CudaResult<()> {
        self.audit.checked(stream, hits, verdicts, caller_of(by));
        self.say();
        for (hit, verdict) in hits.iter().zip(verdicts) {
            let Some(unit) = self.units.get_mut(&hit.unit) else { continue };
            let writes = hit.access == Access::Write;
            if verdict.in_place() {
                unit.shield.before(writes, hit.hold)?;
            } else if writes {
                unit.sums.forget();
            }
        }
        Ok(())
    }

    /// It was enqueued.
    pub(crate) fn enqueued(
        &mut self,
        (stream, id): (Stream, StreamId),
        hits: &[Hit],
        verdicts: &[Verdict],
        by: By,
    ) {
        let caller = caller_of(by);
        self.audit.enqueued(id, hits, verdicts, caller);
        for (hit, verdict) in hits.iter().zip(verdicts) {
            let Some(unit) = self.units.get_mut(&hit.unit).filter(|_| verdict.in_place()) else { continue };
            count(&LOOKED.launches, 1);
            unit.shield.after(stream, id);
            if unit.shield.is_shut() {
                self.flight.note(stream, hit.unit, caller);
            }
        }
        shield::note_enqueued(self.device);
        self.look_once_more();
    }

    /// Whether launches that show the unit were checked and are not enqueued yet, while it is shut.
    pub(crate) fn is_between(&self, unit: UnitId) -> bool {
        self.units.get(&unit).is_some_and(|unit| unit.shield.is_between())
    }

    /// The owner of a unit that is read through pointers returned.
    pub(crate) fn hold_ends(&mut self, unit: UnitId) {
        self.audit.hold_ends(unit);
        if let Some(unit) = self.units.get_mut(&unit) {
            unit.shield.hold_ends();
        }
    }

    /// The program is about to destroy this stream.
    pub(crate) fn stream_ends(&mut self, stream: StreamId) {
        self.audit.stream_ends(stream);
        self.units.values_mut().for_each(|unit| unit.shield.stream_ends(stream));
    }

    /// Whether a launch that was noted earlier has lost the context.
    pub(crate) fn look_once_more(&mut self) {
        if let Some((error, suspects)) = self.flight.settle() {
            lines::of_a_fault(&self.names, error, &suspects);
        }
    }

    /// A command was refused.
    pub(crate) fn failed(&mut self, error: CudaError) {
        if flight::is_fault(error)
            && let Some(suspects) = self.flight.blame()
        {
            lines::of_a_fault(&self.names, error, &suspects);
        }
    }

    /// What the pager is told, the audit is told.
    pub(crate) fn audit(&mut self) -> &mut Audit {
        &mut self.audit
    }

    fn say(&mut self) {
        for finding in self.audit.take_findings() {
            lines::of_an_audit(&self.names, &finding);
        }
    }

    /// Our own copy in: what leaves is compared, what comes too, and poison is what anybody sees who does not wait.
    pub(crate) fn copy_in(&mut self, copy: CopyStream, id: UnitId, first: u64, pages: u64) -> CudaResult<()> {
        self.compare_leaving(copy)?;
        let on = self.copies[copy as usize];
        let Some(unit) = self.units.get_mut(&id) else { return Ok(()) };
        unit.shield.shut();
        unit.sums.enqueue(Task::Compare, unit.shadow, first..first + pages, on)?;
        let runs = runs(self.alias.as_ref(), unit, first, pages);
        for run in &runs {
            copy::fill_async(run.at, POISON, run.bytes as usize, on)?;
        }
        count(&LOOKED.poisoned_pages, pages);
        for run in runs {
            for (offset, bytes, host) in unit.shadow.pieces(run.offset, run.bytes) {
                // SAFETY: the unit keeps its shadow until its last copy has ended.
                unsafe { copy::to_device_async(run.address_of(offset), host, bytes as usize, on) }?;
            }
        }
        Ok(())
    }

    /// Our own copy out, of what is in the ring.
    pub(crate) fn copy_out(&self, copy: CopyStream, id: UnitId, first: u64, pages: u64) -> CudaResult<()> {
        let on = self.copies[copy as usize];
        let Some(unit) = self.units.get(&id) else { return Ok(()) };
        for run in runs(self.alias.as_ref(), unit, first, pages) {
            for (offset, bytes, host) in unit.shadow.pieces(run.offset, run.bytes) {
                let from = run.address_of(offset);
                // SAFETY: as in `copy_in`; the protocol keeps everybody else from these bytes meanwhile.
                unsafe { copy::to_host_async(host.cast_mut(), from, bytes as usize, on) }?;
            }
        }
        Ok(())
    }

    /// Behind a write-back: these are the shadow's sums, and the ring must still hold the same.
    pub(crate) fn wrote_back(
        &mut self,
        copy: CopyStream,
        id: UnitId,
        first: u64,
        pages: u64,
    ) -> CudaResult<()> {
        let on = self.copies[copy as usize];
        let Some(unit) = self.units.get(&id) else { return Ok(()) };
        unit.sums.enqueue(Task::Take, unit.shadow, first..first + pages, on)?;
        self.compare_ring(copy, id, first, pages)
    }

    /// Ring pages that the copy which comes now takes, each with the shadow of whom it held.
    fn compare_leaving(&mut self, copy: CopyStream) -> CudaResult<()> {
        let leaving = std::mem::take(&mut self.leaving);
        let mut at = 0;
        while at < leaving.len() {
            let run = leaving[at..].iter().enumerate();
            let follows = |(more, held): &(usize, &Option<(UnitId, u32)>)| {
                **held == leaving[at].map(|(unit, page)| (unit, page + *more as u32))
            };
            let pages = run.take_while(follows).count().max(1);
            if let Some((unit, page)) = leaving[at] {
                self.compare_ring(copy, unit, u64::from(page), pages as u64)?;
            }
            at += pages;
        }
        self.leaving = leaving;
        Ok(())
    }

    /// Compares ring pages of the unit with its shadow's sums, by a copy out on this stream.
    fn compare_ring(&self, copy: CopyStream, id: UnitId, first: u64, pages: u64) -> CudaResult<()> {
        let on = self.copies[copy as usize];
        let (Some(unit), Some(scratch)) = (self.units.get(&id), self.scratch.get(copy as usize)) else {
            return Ok(());
        };
        let mut at = first;
        while at < first + pages {
            let some = self.chunk_pages.min(first + pages - at);
            for run in runs(self.alias.as_ref(), unit, at, some) {
                let begin = run.offset - at * PAGE;
                for (offset, bytes, host) in scratch.pieces(begin, run.bytes) {
                    let from = run.at + (offset - begin);
                    // SAFETY: the buffer is this stream's own, and used in its order.
                    unsafe { copy::to_host_async(host.cast_mut(), from, bytes as usize, on) }?;
                }
            }
            let host = scratch.bytes().0.expose_provenance();
            unit.sums.enqueue(Task::CompareRing(host), unit.shadow, at..at + some, on)?;
            at += some;
        }
        Ok(())
    }

    /// What is write-protected now, as (start, end), sorted.
    pub(crate) fn write_protected(&self) -> Vec<(u64, u64)> {
        let shut = self.units.values().filter(|unit| unit.shield.is_shut());
        let mut ranges: Vec<_> = shut.map(|unit| unit.shield.range()).collect();
        ranges.sort_unstable();
        ranges
    }

    /// Its context still lives: events go back.
    pub(crate) fn close_events(&mut self) {
        self.flight.close();
        self.units.values_mut().for_each(|unit| unit.shield.close());
    }

    /// The ring is let go; its copy streams are drained, or gone with their context.
    pub(crate) fn close(self) {
        alias::forget_ring(self.device, self.number);
        if let Some(alias) = self.alias {
            alias.give_back();
        }
        verify::let_go(self.scratch);
    }
}
