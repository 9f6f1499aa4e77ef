//! Proves words read-only while weights are streamed (rule 8): after a write-back the shadow must have the checksum that it had before, and the private pages in
//! front of it theirs. One thread of its own, so that no launch waits. What a proof is worth is `words`' matter; what learning proves is `evidence`'s.

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use flextensor_core::units::UnitId;

use super::arena::PAGE;
use super::readout::{self, Reader};
use super::shadow::{self, Shadow};
use super::streaming::{StreamedUnit, ring_of};
use super::sums;
use super::words::{Finding, Suspect, Word, words};
use crate::ffi::context::{self, Context};
use crate::ffi::event::{self, Event};
use crate::ffi::stream::Stream;

/// What is known of a streamed unit's bytes, and who may have changed them.
#[derive(Debug, Default)]
pub(crate) struct Ledger {
    /// Of all ledgers this one: a unit that gets another shadow gets another ledger, and checks of the old one are void.
    number: u64,
    /// Words not proven read-only that showed it since it was written back last.
    suspects: Vec<Suspect>,
    /// The program itself changed the bytes since then: nobody can be judged by them.
    changed: bool,
    /// Counts what may have changed the shadow: write-backs as they are enqueued, and launches that were pointed at it.
    writes: u64,
    /// Of these, launches.
    unmarked: u64,
    /// The shadow's checksum after so many writes.
    sum: Option<(u64, u64)>,
    /// The checksum of the private pages in front of the streamed ones, and the first write-back of which it was taken before all launches.
    prefix: Option<(u64, u64)>,
    /// Checks that may be under way: the next write-back marks its beginning there.
    checks: Vec<Arc<Overtaken>>,
    /// A forward wrote it, by the word of somebody who knows: nothing is proven by it, and nothing read-only shows it.
    pub(crate) written: bool,
}

/// The beginning of the write-back after the one that is checked: until the GPU comes there, the shadow is what the check is about.
#[derive(Debug, Default)]
pub(crate) struct Overtaken(OnceLock<Event>);

impl Overtaken {
    fn mark(&self, on: Stream) {
        // Without a mark the check must not count.
        let _ = self.0.set(event::behind(on).unwrap_or(Event::LOST));
    }

    fn may_be(&self) -> bool {
        self.0.get().is_some_and(|&event| event == Event::LOST || event::query(event).unwrap_or(true))
    }
}

impl Drop for Overtaken {
    fn drop(&mut self) {
        if let Some(&event) = self.0.get().filter(|&&event| event != Event::LOST) {
            let _ = event::destroy(event);
        }
    }
}

impl Ledger {
    /// Of a unit whose shadow has this checksum, if it is known, after so many writes to it or the one before it.
    pub(crate) fn new(sum: Option<u64>, writes: u64) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        Self { number, sum: sum.map(|sum| (writes, sum)), writes, ..Self::default() }
    }

    /// Counts what may have changed the shadow.
    pub(crate) fn writes(&self) -> u64 {
        self.writes
    }

    /// The pages in front of the streamed ones have this checksum. `first`: they were read before anything was launched that the ring knows of.
    pub(crate) fn know_prefix(&mut self, sum: u64, first: bool) {
        self.prefix = Some((sum, if first { 0 } else { self.writes + 2 }));
    }

    /// A launch may have changed the bytes in place.
    pub(crate) fn suspect(&mut self, word: Word, counts: bool) {
        match self.suspects.iter_mut().find(|suspect| suspect.word == word) {
            Some(known) => known.counts &= counts,
            None => self.suspects.push(Suspect { word, counts }),
        }
    }

    /// The program changed the bytes by a copy or a fill.
    pub(crate) fn note_change(&mut self) {
        self.suspects.clear();
        self.changed = true;
    }

    /// The checksum of the shadow as it is, if that is known and nothing is on its way there.
    fn current(&self) -> Option<u64> {
        self.sum.filter(|&(writes, _)| writes == self.writes).map(|(_, sum)| sum)
    }
}

/// With what a shadow is compared.
enum Before {
    /// With what it was after the write before this one.
    Last,
    Sum(u64),
    /// With nothing: it is added up for the next check.
    Nothing,
}

struct Job {
    context: Context,
    device: i32,
    unit: UnitId,
    shadow: Shadow,
    /// Address and number of the private pages in front.
    prefix: (u64, u64),
    /// Marks the end of the write-back.
    done: Event,
    /// The unit's ledger, and its counts when this was enqueued.
    ledger: u64,
    writes: u64,
    unmarked: u64,
    overtaken: Arc<Overtaken>,
    before: Before,
    suspects: Vec<Suspect>,
}

static QUEUE: OnceLock<Mutex<Sender<Job>>> = OnceLock::new();

/// Most jobs that wait: where writes come faster than checksums, some prove nothing, as where no event is to be had.
const MOST_PENDING: usize = 256;

/// Jobs that wait or are being checked.
static PENDING: AtomicUsize = AtomicUsize::new(0);

impl Drop for Job {
    fn drop(&mut self) {
        PENDING.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Waits for all checks: a context is about to end, and their events with it. The calling thread holds no lock.
pub(crate) fn settle() {
    while PENDING.load(Ordering::Acquire) > 0 {
        std::thread::sleep(Duration::from_micros(100));
    }
}

/// Gives back the memory of shadows whose units have left their ring, and that no copy or launch uses any more. A context is current, and the calling
/// thread holds no ring's lock: a check may be reading one of them.
pub(crate) fn let_go(shadows: Vec<Shadow>) {
    if !shadows.is_empty() {
        drop(readout::hold());
        shadow::give_back(shadows);
    }
}

/// Copies the last pages of a unit's shadow to the end of another one while the program runs. Returns how many writes the shadow had seen: what was copied is
/// right as long as there are no more. None where a write may be under way.
pub(crate) fn bring_along(device: i32, id: UnitId, to: &Shadow, pages: u64) -> Option<u64> {
    // A unit that is in its ring keeps its shadow while this is held.
    let _reading = readout::hold();
    let (from, writes) = {
        let ring = ring_of(device);
        let unit = ring.as_ref()?.unit(id).filter(|unit| unit.ledger.current().is_some())?;
        (unit.shadow, unit.ledger.writes)
    };
    from.copy_end_to(to, pages * PAGE);
    Some(writes)
}

/// The unit's write-back is about to be enqueued on `on`.
pub(crate) fn before_write_back(unit: &mut StreamedUnit, on: Stream) {
    unit.ledger.writes += 1;
    for check in unit.ledger.checks.drain(..) {
        // One that has ended needs no mark.
        if Arc::strong_count(&check) > 1 {
            check.mark(on);
        }
    }
}

/// It has just been enqueued: checks it when it has ended.
pub(crate) fn after_write_back(
    context: Context,
    device: i32,
    id: UnitId,
    unit: &mut StreamedUnit,
    on: Stream,
) {
    let suspects = std::mem::take(&mut unit.ledger.suspects);
    let before = if std::mem::take(&mut unit.ledger.changed) { Before::Nothing } else { Before::Last };
    enqueue(context, device, id, unit, on, before, suspects);
}

/// A launch that may write is about to be pointed at the unit's shadow. From here on no checksum is the shadow's: a check that is under way might
/// otherwise end between the launch and its record, and take the launch's writes for what was there before. Returns the one that held so far.
pub(crate) fn before_redirect(unit: &mut StreamedUnit) -> Option<u64> {
    let before = unit.ledger.current();
    unit.ledger.writes += 1;
    unit.ledger.unmarked += 1;
    unit.overhang_written = unit.overhang > 0;
    before
}

/// A launch on `on` was pointed at the unit's shadow, which had the checksum `before`, by words that are not proven read-only. One of them is checked,
/// if none of them is already: a checksum takes long, and dead words meet many units.
pub(crate) fn after_redirect(
    context: Context,
    device: i32,
    id: UnitId,
    unit: &mut StreamedUnit,
    on: Stream,
    before: Option<u64>,
    suspects: &[Suspect],
) {
    // Another such launch may have been made, and checked, meanwhile.
    unit.ledger.writes += 1;
    unit.ledger.unmarked += 1;
    // Where nothing can be proven there is nothing to add up: between forwards such launches come in every pass.
    let teaches = suspects.iter().any(|suspect| suspect.counts);
    let Some(before) = before.filter(|_| teaches) else { return };
    let started: Vec<Suspect> = {
        let mut words = words();
        suspects.iter().copied().filter(|suspect| words.start_check(suspect.word)).collect()
    };
    // All words of the launch must be judged together: a change may be any one's.
    if started.len() == suspects.len() {
        enqueue(context, device, id, unit, on, Before::Sum(before), started);
    } else {
        end_checks(&started);
    }
}

fn end_checks(suspects: &[Suspect]) {
    let mut words = words();
    suspects.iter().for_each(|suspect| words.end_check(suspect.word));
}

fn enqueue(
    context: Context,
    device: i32,
    id: UnitId,
    unit: &mut StreamedUnit,
    on: Stream,
    before: Before,
    suspects: Vec<Suspect>,
) {
    if PENDING.load(Ordering::Acquire) >= MOST_PENDING {
        return end_checks(&suspects);
    }
    let Ok(done) = event::behind(on) else { return end_checks(&suspects) };
    PENDING.fetch_add(1, Ordering::AcqRel);
    let overtaken = Arc::new(Overtaken::default());
    unit.ledger.checks.retain(|check| Arc::strong_count(check) > 1);
    unit.ledger.checks.push(Arc::clone(&overtaken));
    let job = Job {
        context,
        device,
        unit: id,
        shadow: unit.shadow,
        prefix: (unit.base, (unit.address - unit.base) / PAGE),
        done,
        ledger: unit.ledger.number,
        writes: unit.ledger.writes,
        unmarked: unit.ledger.unmarked,
        overtaken,
        before,
        suspects,
    };
    let queue = QUEUE.get_or_init(start).lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    // A queue without its thread means that the process is ending.
    let _ = queue.send(job);
}

fn start() -> Mutex<Sender<Job>> {
    let (sender, receiver) = channel::<Job>();
    let spawned = std::thread::Builder::new().name("ft-verify".into()).spawn(move || {
        let mut reader = None;
        for job in receiver {
            check(&job, &mut reader);
        }
    });
    if let Err(error) = spawned {
        crate::log::warning!("no thread to prove kernels read-only: {error}; every use is written back");
    }
    Mutex::new(sender)
}

fn check(job: &Job, reader: &mut Option<Reader>) {
    if let Some(other) = reader.take_if(|reader| reader.context != job.context) {
        close(other);
    }
    let found = context::with_current(job.context, || {
        event::synchronize(job.done)?;
        let found = compare(job).map(|found| look_in_front(job, found, reader));
        Ok(found.flatten())
    });
    let _ = event::destroy(job.done);
    end_checks(&job.suspects);
    if let Ok(Some(found)) = found {
        words().judge(&job.suspects, job.unit, found);
    }
    // Before the last job is done with: a context that ends waits for that.
    if PENDING.load(Ordering::Acquire) == 1
        && let Some(reader) = reader.take()
    {
        close(reader);
    }
}

fn close(reader: Reader) {
    let _ = context::with_current(reader.context, || {
        reader.close();
        Ok(())
    });
}

impl Job {
    /// Whether the unit's shadow is still the one that the job is about, and nothing has been written there since.
    fn holds(&self, unit: &StreamedUnit) -> bool {
        let ledger = &unit.ledger;
        let same = ledger.number == self.ledger && ledger.unmarked == self.unmarked;
        same && !ledger.written && !self.overtaken.may_be()
    }

    fn is_worth_more(&self) -> bool {
        let words = words();
        self.suspects.iter().any(|suspect| suspect.counts && words.is_in_question(suspect.word))
    }
}

/// Whether the shadow is as it was; none if that cannot be said. A checksum that holds is the unit's from now on.
fn compare(job: &Job) -> Option<Finding> {
    // A unit that is in its ring keeps its shadow while this is held.
    let _reading = readout::hold();
    if !ring_of(job.device).as_ref()?.unit(job.unit).is_some_and(|unit| job.holds(unit)) {
        return None;
    }
    let now = sums::of_shadow_fast(&job.shadow);
    let mut ring = ring_of(job.device);
    let unit = ring.as_mut()?.unit_mut(job.unit).filter(|unit| job.holds(unit))?;
    let last = unit.ledger.sum.replace((job.writes, now));
    let before = match job.before {
        Before::Last => last.filter(|&(writes, _)| writes + 1 == job.writes)?.1,
        Before::Sum(before) => before,
        Before::Nothing => return None,
    };
    Some(if before == now { Finding::Clean } else { Finding::Changed })
}

/// Where the shadow is as it was, and that is worth something, the private pages in front must be too.
fn look_in_front(job: &Job, found: Finding, reader: &mut Option<Reader>) -> Option<Finding> {
    let (address, pages) = job.prefix;
    if found != Finding::Clean || pages == 0 || !job.is_worth_more() {
        return Some(found);
    }
    if reader.is_none() {
        *reader = Reader::open();
    }
    let same = |unit: &StreamedUnit| unit.ledger.number == job.ledger && !unit.ledger.written;
    let still = || ring_of(job.device).as_ref().and_then(|ring| ring.unit(job.unit).map(same)) == Some(true);
    let now = reader.as_ref()?.checksum(address, pages, still)?;
    let mut ring = ring_of(job.device);
    let ledger = &mut ring.as_mut()?.unit_mut(job.unit).filter(|unit| same(unit))?.ledger;
    match ledger.prefix {
        Some((before, from)) if before == now => (job.writes >= from).then_some(found),
        Some(_) => {
            ledger.know_prefix(now, false);
            Some(Finding::ChangedBySomebody)
        }
        None => {
            ledger.know_prefix(now, false);
            None
        }
    }
}
