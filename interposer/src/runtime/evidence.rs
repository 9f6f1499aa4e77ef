//! What the passes prove in which a model is learnt. All weights have private pages then, so that all of their bytes can be looked at: once early, in the background,
//! and again when the plan is made. A word that showed weights in two whole passes between, all of which are what they were, reads only; so nothing has to be
//! written back when weights begin to be streamed. What words are is `words`' matter, reading out `readout`'s; what is not proven here is left to `verify`.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;

use flextensor_core::plan::StayReason;
use flextensor_core::units::{ModelId, UnitId};

use super::arena::{Meaning, PAGE};
use super::exchange::Move;
use super::readout::{self, Range, Sums};
use super::scan::Found;
use super::streaming::ring_of;
use super::words::{Word, words};
use super::world::{UnitState, World, world};
use super::{graphs, hosted, open, passes, sums};
use crate::ffi::context::{self, Context};
use crate::ffi::event::{self, Event};
use crate::ffi::stream::Stream;
use crate::log;

/// Whether launches are noted.
static NOTING: AtomicBool = AtomicBool::new(false);

/// Bytes of weights that were looked at early, and words that learning proved.
static LOOKED_AT: AtomicU64 = AtomicU64::new(0);
static PROVEN: AtomicUsize = AtomicUsize::new(0);

/// Bytes of weights that were looked at early, and words that learning proved.
pub(super) fn counts() -> (u64, usize) {
    (LOOKED_AT.load(Ordering::Relaxed), PROVEN.load(Ordering::Relaxed))
}

/// A weight, or a group of them, in private pages.
#[derive(Clone, Copy, Debug)]
struct Place {
    unit: UnitId,
    base: u64,
    pages: u64,
}

/// A read-out on threads of its own.
struct Reading {
    places: Vec<Place>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<Vec<Option<Sums>>>>,
}

impl Reading {
    /// Of these pages at the beginning of each place. `behind`: after what this marks, which goes with it.
    fn begin(context: Context, places: Vec<Place>, pages: &[u64], behind: Option<Event>) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let ranges = places.iter().zip(pages);
        let ranges: Vec<Range> =
            ranges.map(|(place, &pages)| Range { base: place.base, first: 0, pages }).collect();
        let told = Arc::clone(&stop);
        let work = move || {
            let read = readout::add_up(context, &ranges, behind, &told);
            if let Some(behind) = behind {
                let _ = event::destroy(behind);
                let bytes = ranges.iter().zip(&read).filter(|(_, sums)| sums.is_some());
                LOOKED_AT.fetch_add(bytes.map(|(range, _)| range.pages * PAGE).sum(), Ordering::Relaxed);
            }
            read
        };
        let thread = std::thread::Builder::new().name("ft-evidence".into()).spawn(work).ok();
        Self { places, stop, thread }
    }

    /// What was read; `whole`: after all has been.
    fn end(&mut self, whole: bool) -> Vec<Option<Sums>> {
        self.stop.store(!whole, Ordering::Relaxed);
        self.thread.take().and_then(|thread| thread.join().ok()).unwrap_or_default()
    }
}

impl Drop for Reading {
    fn drop(&mut self) {
        if self.thread.is_some() {
            self.end(false);
        }
    }
}

struct Collection {
    model: ModelId,
    context: Context,
    reading: Reading,
}

fn collection() -> MutexGuard<'static, Option<Collection>> {
    static COLLECTION: Mutex<Option<Collection>> = Mutex::new(None);
    COLLECTION.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// The model has been named, and some of it will be streamed: its weights are looked at while its first pass runs, which is not timed. One model at a time;
/// others are proven while they are streamed.
pub(super) fn begin(world: &World, id: ModelId) {
    let Some(model) = world.models.get(&id) else { return };
    let mut collection = collection();
    if collection.is_some() || graphs::any_capture() {
        return;
    }
    let units = model.units.iter().filter_map(|&unit| world.unit(unit));
    let learnt = units.filter(|unit| unit.state == UnitState::Learning && unit.context == model.context);
    let in_gpu = learnt.filter(|unit| hosted::pages_at(world, unit.base, unit.pages).is_empty());
    let places: Vec<Place> =
        in_gpu.map(|unit| Place { unit: unit.id, base: unit.base, pages: unit.pages }).collect();
    // Weights may still be on their way: what the program has submitted comes first, on every stream that waits for the default one.
    let Some(Ok(behind)) = passes::in_context(model.context, || event::behind(Stream::LEGACY)) else {
        return;
    };
    readout::offer(places.iter().map(|place| (place.base, place.pages)));
    let pages: Vec<u64> = places.iter().map(|place| place.pages).collect();
    let reading = Reading::begin(model.context, places, &pages, Some(behind));
    *collection = Some(Collection { model: id, context: model.context, reading });
    NOTING.store(true, Ordering::Release);
}

/// A launch of this function has shown these.
pub(super) fn note(found: &[Found], function: usize) {
    if !NOTING.load(Ordering::Acquire) {
        return;
    }
    let pass = open::watched_here();
    let mut words = words();
    for found in found {
        if let Meaning::Learning(unit) = found.meaning {
            words.note_shown(Word::of(function, found.offset), unit, pass);
        }
    }
}

/// The context may be about to end: nobody reads in it any more.
pub(super) fn leave_context(context: Context) {
    let ends = collection().take_if(|collection| collection.context == context);
    if let Some(Collection { model: _, context, mut reading }) = ends {
        NOTING.store(false, Ordering::Release);
        reading.end(false);
        drop(Baseline { context, places: std::mem::take(&mut reading.places), read: Vec::new() });
    }
}

/// The model is learnt no longer, and nothing is to be proven by it.
pub(super) fn discard(id: ModelId) {
    drop(take(id));
}

/// Learning has ended: nothing more is looked at, and no launch noted. None for a model that was not looked at.
pub(super) fn take(id: ModelId) -> Option<Baseline> {
    let mut collection = collection();
    let Collection { context, mut reading, .. } = collection.take_if(|collection| collection.model == id)?;
    NOTING.store(false, Ordering::Release);
    let read = reading.end(false);
    Some(Baseline { context, places: std::mem::take(&mut reading.places), read })
}

/// What weights were early.
pub(super) struct Baseline {
    context: Context,
    places: Vec<Place>,
    read: Vec<Option<Sums>>,
}

impl Drop for Baseline {
    fn drop(&mut self) {
        readout::forget(self.places.iter().map(|place| place.base));
        // What was noted speaks of nothing any more; nothing that has been concluded is left.
        words().conclude(|_| None);
    }
}

impl Baseline {
    /// Begins to read what no shadow will show: weights that stay, and the pages in front of streamed ones. All that was noted has run by then.
    pub(super) fn read_rest(self, moves: &[Move]) -> Option<Rest> {
        // What an earlier run learnt was not noted here.
        if !words().any_shown() {
            return None;
        }
        context::synchronize().ok()?;
        let streamed: BTreeMap<UnitId, u64> = moves.iter().map(|m| (m.id, m.pages)).collect();
        let rest = |place: &Place| place.pages - streamed.get(&place.unit).copied().unwrap_or(0);
        let pages: Vec<u64> = self.places.iter().map(rest).collect();
        let reading = Reading::begin(self.context, self.places.clone(), &pages, None);
        Some(Rest { baseline: self, pages, reading })
    }
}

/// What weights are, as far as no shadow shows it.
pub(super) struct Rest {
    baseline: Baseline,
    /// How many pages of each place that is.
    pages: Vec<u64>,
    reading: Reading,
}

impl Rest {
    /// When all of it has been read. Behind the gate it would be read no more slowly, but launches wait there.
    pub(super) fn wait(mut self) -> Looked {
        let rest = self.reading.end(true);
        Looked { baseline: self.baseline, pages: self.pages, rest }
    }
}

/// All but the streamed pages has been read twice.
pub(super) struct Looked {
    baseline: Baseline,
    pages: Vec<u64>,
    rest: Vec<Option<Sums>>,
}

impl Looked {
    /// The weights are streamed, and their shadows have these checksums: proves what can be proven.
    pub(super) fn conclude(self, device: i32, moves: &[Move], shadows: &[u64]) {
        let shadows: BTreeMap<UnitId, u64> =
            moves.iter().map(|m| m.id).zip(shadows.iter().copied()).collect();
        let mut unchanged = BTreeMap::new();
        let read = self.baseline.read.iter().zip(&self.rest);
        for ((place, &pages), (before, rest)) in self.baseline.places.iter().zip(&self.pages).zip(read) {
            let (Some(before), Some(rest)) = (before, rest) else { continue };
            if pages > 0
                && let Some(unit) = ring_of(device).as_mut().and_then(|ring| ring.unit_mut(place.unit))
            {
                unit.ledger.know_prefix(sums::combined(&rest.pages), true);
            }
            let shadow = shadows.get(&place.unit).copied();
            if is_as_it_was(&before.pages, &rest.pages, shadow) {
                unchanged.insert(place.unit, before.before);
            }
        }
        {
            let world = world();
            let written = |unit| world.unit(unit).is_some_and(|unit| unit.stay == Some(StayReason::Written));
            unchanged.retain(|&unit, _| !written(unit));
        }
        let proven = words().conclude(|unit| unchanged.get(&unit).copied());
        PROVEN.fetch_add(proven, Ordering::Relaxed);
        log::debug!(
            "learning proved {proven} words; {} of {} units stayed as they were",
            unchanged.len(),
            self.pages.len()
        );
    }
}

/// Whether a unit whose pages had these checksums early still has them: those that no shadow shows, and the others together in their shadow, if there are any.
fn is_as_it_was(before: &[u64], rest: &[u64], shadow: Option<u64>) -> bool {
    let (in_front, streamed) = before.split_at(rest.len().min(before.len()));
    let same_shadow = match shadow {
        Some(sum) => sum == sums::combined(streamed),
        None => streamed.is_empty(),
    };
    in_front == rest && same_shadow
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_unit_is_as_it_was_if_every_page_is() {
        let before = [1, 2, 3];
        let shadow = Some(sums::combined(&[3]));
        assert!(is_as_it_was(&before, &[1, 2], shadow));
        assert!(!is_as_it_was(&before, &[1, 9], shadow), "a private page in front changed");
        assert!(!is_as_it_was(&before, &[1, 2], Some(sums::combined(&[9]))), "a streamed page changed");
        assert!(!is_as_it_was(&before, &[1, 2], None), "nobody looked at the last page");
        assert!(is_as_it_was(&before, &before, None), "it stays as a whole");
        assert!(is_as_it_was(&before, &[], Some(sums::combined(&before))), "it is streamed as a whole");
    }
}
