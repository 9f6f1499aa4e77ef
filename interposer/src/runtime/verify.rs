//! Proves words read-only (rule 8): after a write-back the shadow must have the checksum it had before. One thread of its own, so that no launch waits.
//! What a proof is worth is `words`' matter.

#![expect(unsafe_code, reason = "reads shadows")]

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use flextensor_core::units::UnitId;
use xxhash_rust::xxh3::xxh3_64;

use super::arena::PAGE;
use super::shadow::{self, Shadow};
use super::streaming::{StreamedUnit, ring_of};
use super::words::{Word, words};
use crate::ffi::context::{self, Context};
use crate::ffi::event::{self, Event};
use crate::ffi::stream::Stream;

/// Bytes that one checksum covers; a shadow's is that of its pieces' checksums.
const PIECE: usize = 4 << 20;

struct Job {
    context: Context,
    device: i32,
    unit: UnitId,
    shadow: Shadow,
    /// Marks the end of the write-back.
    done: Event,
    /// The unit's count of shadow writes when the write-back was issued.
    writes: u64,
    before: Option<u64>,
    suspects: Vec<Word>,
}

static QUEUE: OnceLock<Mutex<Sender<Job>>> = OnceLock::new();

/// Held while a shadow is read. Taken before a ring's lock, never with one held.
static READING: Mutex<()> = Mutex::new(());

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
        drop(READING.lock().unwrap_or_else(|poisoned| poisoned.into_inner()));
        shadow::give_back(shadows);
    }
}

/// Copies the last pages of a unit's shadow to the end of another one while the program runs. Returns how many writes the shadow had seen: what was copied is
/// right as long as there are no more. None where a write may be under way.
pub(crate) fn bring_along(device: i32, id: UnitId, to: &Shadow, pages: u64) -> Option<u64> {
    // A unit that is in its ring keeps its shadow while this is held.
    let _reading = READING.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let (from, writes) = {
        let ring = ring_of(device);
        let unit = ring.as_ref()?.unit(id).filter(|unit| unit.checksum.is_some())?;
        (unit.shadow, unit.shadow_writes)
    };
    from.copy_end_to(to, pages * PAGE);
    Some(writes)
}

/// The unit's write-back has just been enqueued on `on`: checks it when it has ended.
pub(crate) fn after_write_back(
    context: Context,
    device: i32,
    id: UnitId,
    unit: &mut StreamedUnit,
    on: Stream,
) {
    let suspects = std::mem::take(&mut unit.suspects);
    let before = unit.checksum.take();
    enqueue(context, device, id, unit, on, before, suspects);
}

/// A launch that may write is about to be pointed at the unit's shadow. From here on no checksum is the shadow's: a check that is under way might
/// otherwise end between the launch and its record, and take the launch's writes for what was there before. Returns the one that held so far.
pub(crate) fn before_redirect(unit: &mut StreamedUnit) -> Option<u64> {
    unit.shadow_writes += 1;
    unit.checksum.take()
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
    suspects: &[Word],
) {
    // Another such launch may have been made, and checked, meanwhile.
    unit.checksum = None;
    unit.shadow_writes += 1;
    if before.is_none() || suspects.is_empty() {
        return;
    }
    let started: Vec<Word> = {
        let mut words = words();
        suspects.iter().copied().filter(|&word| words.start_check(word)).collect()
    };
    // All words of the launch must be judged together: a change may be any one's.
    if started.len() == suspects.len() {
        enqueue(context, device, id, unit, on, before, started);
    } else {
        let mut words = words();
        started.into_iter().for_each(|word| words.end_check(word));
    }
}

fn enqueue(
    context: Context,
    device: i32,
    id: UnitId,
    unit: &StreamedUnit,
    on: Stream,
    before: Option<u64>,
    suspects: Vec<Word>,
) {
    let Some(done) = mark(on) else {
        let mut words = words();
        return suspects.into_iter().for_each(|word| words.end_check(word));
    };
    PENDING.fetch_add(1, Ordering::AcqRel);
    let job = Job {
        context,
        device,
        unit: id,
        shadow: unit.shadow,
        done,
        writes: unit.shadow_writes,
        before,
        suspects,
    };
    let queue = QUEUE.get_or_init(start).lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    // A queue without its thread means that the process is ending.
    let _ = queue.send(job);
}

/// An event behind what is on the stream so far.
fn mark(on: Stream) -> Option<Event> {
    let done = event::create(false).ok()?;
    if event::record(done, on).is_err() {
        let _ = event::destroy(done);
        return None;
    }
    Some(done)
}

fn start() -> Mutex<Sender<Job>> {
    let (sender, receiver) = channel::<Job>();
    let spawned = std::thread::Builder::new().name("ft-verify".into()).spawn(move || {
        for job in receiver {
            check(job);
        }
    });
    if let Err(error) = spawned {
        crate::log::warning!("no thread to prove kernels read-only: {error}; every use is written back");
    }
    Mutex::new(sender)
}

fn check(job: Job) {
    let waited = context::with_current(job.context, || event::synchronize(job.done));
    let _ = event::destroy(job.done);
    let verdict = waited.ok().and_then(|()| compare(&job));
    let mut words = words();
    for &word in &job.suspects {
        words.end_check(word);
    }
    if let Some(clean) = verdict {
        words.judge(&job.suspects, clean);
    }
}

/// Whether the shadow is as it was; none if that cannot be said. A checksum that holds is the unit's from now on.
fn compare(job: &Job) -> Option<bool> {
    let unchanged = |unit: &StreamedUnit| unit.shadow_writes == job.writes;
    // A unit that is in its ring keeps its shadow while this is held.
    let _reading = READING.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let still = ring_of(job.device).as_ref().and_then(|ring| ring.unit(job.unit).map(unchanged));
    if still != Some(true) {
        return None;
    }
    let now = checksum_fast(&job.shadow);
    let mut ring = ring_of(job.device);
    let unit = ring.as_mut()?.unit_mut(job.unit)?;
    if !unchanged(unit) {
        return None;
    }
    unit.checksum = Some(now);
    job.before.map(|before| before == now)
}

/// Checksum of a shadow. Torn reads are the caller's to detect: by `shadow_writes`.
pub(crate) fn checksum(shadow: &Shadow) -> u64 {
    let (start, bytes) = shadow.bytes();
    // SAFETY: the caller keeps the shadow. A copy by the GPU may write it meanwhile; the result is thrown away then.
    let bytes = unsafe { std::slice::from_raw_parts(start, bytes) };
    let mut sums = vec![0_u8; bytes.len().div_ceil(PIECE) * 8];
    for (piece, sum) in bytes.chunks(PIECE).zip(sums.chunks_mut(8)) {
        sum.copy_from_slice(&xxh3_64(piece).to_le_bytes());
    }
    xxh3_64(&sums)
}

/// The same by several threads: a proof should not take longer than a pass.
fn checksum_fast(shadow: &Shadow) -> u64 {
    let (start, bytes) = shadow.bytes();
    // SAFETY: as above.
    let bytes = unsafe { std::slice::from_raw_parts(start, bytes) };
    let pieces = bytes.len().div_ceil(PIECE);
    let mut sums = vec![0_u8; pieces * 8];
    let threads = std::thread::available_parallelism().map_or(2, usize::from).div_ceil(2).min(8);
    let share = pieces.div_ceil(threads).max(1);
    let parts = bytes.chunks(share * PIECE).zip(sums.chunks_mut(share * 8));
    for_each_on_threads(parts, |(bytes, sums)| {
        for (piece, sum) in bytes.chunks(PIECE).zip(sums.chunks_mut(8)) {
            sum.copy_from_slice(&xxh3_64(piece).to_le_bytes());
        }
    });
    xxh3_64(&sums)
}

/// Checksums of many shadows, by many threads, each as soon as `complete` has waited for it and says that it is; 0 for those that never are.
pub(crate) fn checksums(shadows: &[Shadow], complete: impl Fn(usize) -> bool + Sync) -> Vec<u64> {
    let threads = std::thread::available_parallelism().map_or(4, usize::from).min(16).min(shadows.len());
    let sums: Vec<AtomicU64> = shadows.iter().map(|_| AtomicU64::new(0)).collect();
    let next = AtomicUsize::new(0);
    for_each_on_threads(0..threads, |_| {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some((shadow, sum)) = shadows.get(at).zip(sums.get(at)) else { return };
            if !complete(at) {
                return;
            }
            sum.store(checksum(shadow), Ordering::Relaxed);
        }
    });
    sums.into_iter().map(AtomicU64::into_inner).collect()
}

/// Each part on a thread of its own; on this one where the system gives no more threads.
fn for_each_on_threads<T: Send>(parts: impl Iterator<Item = T>, work: impl Fn(T) + Sync) {
    let work = &work;
    std::thread::scope(|scope| {
        for part in parts {
            // A thread that cannot be made drops its work: the part stays where both can get it.
            let part = Mutex::new(Some(part));
            let part = std::sync::Arc::new(part);
            let theirs = std::sync::Arc::clone(&part);
            let take =
                |part: &Mutex<Option<T>>| part.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take();
            let run = move || take(&theirs).into_iter().for_each(work);
            if std::thread::Builder::new().spawn_scoped(scope, run).is_err() {
                take(&part).into_iter().for_each(work);
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thread_and_many_find_the_same_checksum_and_a_changed_byte() {
        let mut bytes: Vec<u8> = (0..PIECE * 3 + 17).map(|i| (i % 251) as u8).collect();
        let shadow = Shadow::of(&bytes);
        let sum = checksum(&shadow);
        assert_eq!(checksum_fast(&shadow), sum);
        assert_eq!(checksums(&[shadow; 3], |_| true), [sum; 3]);
        assert_eq!(checksums(&[shadow; 3], |_| false), [0; 3], "no shadow was complete");
        bytes[PIECE * 2 + 5] ^= 1;
        assert_ne!(checksum_fast(&Shadow::of(&bytes)), sum);
    }
}
