//! Observes passes while a model is learnt, and later ones that are worth it: which launch uses which unit, for which owner, and how long it takes
//! without what it waits for. What a pass holds is `pass`'s matter, what a profile is made of is core's `profile`; when to observe is said by the phase, and later by
//! `replan`. Whatever a program does, there are bounds: to the passes of a model that go on at once, to what each of them holds, and to the marks that wait to be read.

mod marks;
mod pass;

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};

use flextensor_core::profile::{PassRecord, ProfileCollector};
use flextensor_core::units::{ModelId, UnitId};

use super::arena::Meaning;
use super::scan::Found;
use super::trace;
use super::words::{Word, words};
use super::{evidence, link, saved};
use crate::ffi::context::{self, Context};
use crate::ffi::event::{self, Event};
use crate::ffi::stream::Stream;
use marks::Marks;
use pass::Pass;

/// Places in a pass at which the link is measured in turn.
const PROBED_PLACES: usize = 5;

/// Passes of one model that go on at once and are observed. The oldest of more were never said to end.
const MOST_OPEN: usize = 64;

/// Marks of a model's ended passes that wait for the GPU. The oldest passes give theirs up for further ones, and with them their times.
const MOST_UNREAD: usize = 1 << 18;

/// Who holds a unit in a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Holder {
    pub(crate) model: ModelId,
    pub(crate) owner: u32,
    /// The enclosing trap, or -1.
    pub(crate) trap: i32,
}

/// Everything learnt.
#[derive(Default)]
pub(crate) struct Recorder {
    holders: BTreeMap<UnitId, Vec<Holder>>,
    active: Vec<Pass>,
    finished: Vec<Pass>,
    pub(crate) collector: ProfileCollector,
    marks: Marks,
    /// Models that are being learnt: of others no pass is observed but those that `replan` asks for.
    learning: BTreeSet<ModelId>,
    /// Passes that were ever opened.
    opened: u64,
    /// Units that launches showed in their owner's forward.
    shown: BTreeSet<UnitId>,
    /// Units that words which read weights showed outside their owners' forwards.
    elsewhere: BTreeSet<UnitId>,
    /// Owners whose forward was ever entered.
    ran: BTreeSet<(ModelId, u32)>,
    /// Uses of each model's last pass, and its passes with a probe.
    probes: BTreeMap<ModelId, (usize, usize)>,
    /// Hits that no rule counted as a use.
    pub(crate) doubtful: u64,
    pub(crate) hits: u64,
}

static RECORDER: Mutex<Option<Recorder>> = Mutex::new(None);

/// Passes that are being observed.
static OBSERVED: AtomicUsize = AtomicUsize::new(0);

/// Passes that are timed as a whole, while nothing is observed.
static WHOLE: AtomicUsize = AtomicUsize::new(0);

/// Whether any pass is being observed.
pub(crate) fn observes() -> bool {
    OBSERVED.load(Ordering::Relaxed) > 0
}

/// Whether launches that show what is being learnt are to be left alone: it takes time to note them.
pub(crate) fn leaves_alone() -> bool {
    WHOLE.load(Ordering::Relaxed) > 0
}

thread_local! {
    static OWNERS: RefCell<Vec<(ModelId, u32)>> = const { RefCell::new(Vec::new()) };
}

/// Runs `work` on the locked recorder.
pub(crate) fn recorder<T>(work: impl FnOnce(&mut Recorder) -> T) -> T {
    let mut guard: MutexGuard<'_, Option<Recorder>> =
        RECORDER.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let recorder = guard.get_or_insert_default();
    let done = work(recorder);
    let whole = recorder.active.iter().filter(|pass| pass.whole).count();
    OBSERVED.store(recorder.active.len() - whole, Ordering::Relaxed);
    WHOLE.store(whole, Ordering::Relaxed);
    done
}

/// The owner's forward begins on this thread.
pub(crate) fn owner_enter(model: ModelId, owner: u32) {
    let _ = OWNERS.try_with(|owners| owners.borrow_mut().push((model, owner)));
    recorder(|recorder| {
        recorder.ran.insert((model, owner));
        if let Some(pass) = recorder.active.iter_mut().rev().find(|pass| pass.model == model) {
            pass.entered.insert(owner);
        }
    });
}

/// The owner's forward has returned on this thread; forwards inside it that never did have ended with it.
pub(crate) fn owner_exit(model: ModelId, owner: u32) {
    let _ = OWNERS.try_with(|owners| {
        let mut owners = owners.borrow_mut();
        if let Some(at) = owners.iter().rposition(|&entry| entry == (model, owner)) {
            owners.truncate(at);
        }
    });
}

fn is_entered(holder: &Holder) -> bool {
    OWNERS.try_with(|owners| owners.borrow().contains(&(holder.model, holder.owner))).unwrap_or(false)
}

/// Whether this thread is inside the forward of an owner of the unit. Owners report only while somebody wants to know.
pub(crate) fn in_owner(unit: UnitId) -> bool {
    if OWNERS.try_with(|owners| owners.borrow().is_empty()).unwrap_or(true) {
        return false;
    }
    recorder(|recorder| recorder.holders.get(&unit).is_some_and(|holders| holders.iter().any(is_entered)))
}

/// Whether hits of the unit may be uses for all that is known: a pass of its model is being observed anew, and that model never reports owners.
pub(crate) fn may_be_used(unit: UnitId) -> bool {
    observes()
        && recorder(|recorder| {
            let holders = recorder.holders.get(&unit).map_or(&[][..], Vec::as_slice);
            let silent = |model: ModelId| recorder.ran.iter().all(|(ran, _)| *ran != model);
            let anew = |model: ModelId| recorder.active.iter().any(|pass| pass.anew && pass.model == model);
            holders.iter().any(|holder| anew(holder.model) && silent(holder.model))
        })
}

/// A launch that shows units is about to be enqueued: the first of a pass marks its start.
pub(crate) fn before_launch(found: &[Found], stream: Stream) {
    recorder(|recorder| {
        let shown = found.iter().filter_map(shown_unit);
        let models: BTreeSet<ModelId> = shown
            .filter_map(|unit| recorder.holders.get(&unit))
            .flatten()
            .map(|holder| holder.model)
            .collect();
        let waiting = |pass: &Pass| pass.timed && pass.start.is_none() && models.contains(&pass.model);
        let starting: Vec<usize> =
            (0..recorder.active.len()).filter(|&at| waiting(&recorder.active[at])).collect();
        for at in starting {
            recorder.active[at].start = recorder.mark_in(at, stream);
        }
    });
}

/// The launch is enqueued: its uses are noted, and their words are live from now on.
pub(crate) fn after_launch(found: &[Found], function: usize, stream: Stream) {
    evidence::note(found, function);
    recorder(|recorder| {
        for found in found {
            let Some(unit) = shown_unit(found) else { continue };
            recorder.hits += 1;
            match recorder.note(unit, stream) {
                Noted::Began => words().mark_live(Word::of(function, found.offset), false),
                Noted::GoesOn => {}
                Noted::Doubtful => {
                    recorder.doubtful += 1;
                    if words().evidence(Word::of(function, found.offset)).live {
                        recorder.elsewhere.insert(unit);
                    }
                }
            }
        }
    });
}

/// A copy or fill by address is a use like a launch's.
pub(crate) fn after_copy(unit: UnitId, stream: Stream) {
    recorder(|recorder| {
        recorder.note(unit, stream);
    });
}

/// A launch on `stream` is about to wait for copies (`begins`), or all that it waits for has been enqueued.
pub(crate) fn waits(stream: Stream, begins: bool) {
    recorder(|recorder| {
        for at in 0..recorder.active.len() {
            let context = recorder.active[at].context;
            let read = recorder.active[at].read_ended_waits();
            recorder.marks.give_back(context, read);
            if !recorder.active[at].may_wait(begins) {
                continue;
            }
            let mark = recorder.mark_in(at, stream);
            let lost = recorder.active[at].mark_waiting(mark, begins);
            recorder.marks.give_back(context, lost);
        }
    });
}

fn shown_unit(found: &Found) -> Option<UnitId> {
    match found.meaning {
        Meaning::Learning(unit) | Meaning::Streamed(unit) => Some(unit),
        Meaning::Nothing | Meaning::InHost => None,
    }
}

enum Noted {
    Began,
    GoesOn,
    Doubtful,
}

impl Recorder {
    /// The unit is held like this too from now on.
    pub(crate) fn add_holders(&mut self, unit: UnitId, holders: Vec<Holder>) {
        self.holders.entry(unit).or_default().extend(holders);
    }

    /// The model is learnt from now on: its passes are observed.
    pub(crate) fn begin_learning(&mut self, model: ModelId) {
        self.learning.insert(model);
    }

    /// The model is learnt no longer. Passes of it that still go on, on other threads, show nothing that counts; nobody would end them.
    pub(crate) fn end_learning(&mut self, model: ModelId) {
        self.learning.remove(&model);
        self.abandon(|pass| pass.model == model && !pass.anew);
    }

    /// A pass begins of a model that is being learnt. `timed`: its times are to be kept.
    pub(crate) fn pass_begin(&mut self, model: ModelId, shape: u64, timed: bool) {
        if self.learning.contains(&model) {
            self.open(model, shape, timed, false);
        }
    }

    /// The same on `stream`, whose context is current; the pass is timed as a whole. False if that cannot be.
    pub(crate) fn pass_begin_whole(&mut self, model: ModelId, shape: u64, stream: Stream) -> bool {
        if !self.learning.contains(&model) {
            return false;
        }
        self.open(model, shape, true, false);
        let at = self.active.len() - 1;
        let start = self.mark_in(at, stream);
        let pass = &mut self.active[at];
        (pass.start, pass.stream, pass.whole, pass.probe_at) = (start, Some(stream), true, None);
        if start.is_none() {
            self.active.pop();
        }
        start.is_some()
    }

    /// Whether the model's pass that is going on is timed as a whole.
    pub(crate) fn is_whole(&self, model: ModelId) -> bool {
        self.active.iter().any(|pass| pass.model == model && pass.whole)
    }

    /// A pass begins that is observed while weights stream: because the program may have changed, or (`traced`) for the report alone. Returns its number, by which it
    /// has to be ended.
    pub(crate) fn pass_begin_anew(&mut self, model: ModelId, shape: u64, traced: bool) -> u64 {
        let pass = self.open(model, shape, true, true);
        pass.traced = traced;
        pass.number
    }

    fn open(&mut self, model: ModelId, shape: u64, timed: bool, anew: bool) -> &mut Pass {
        let of_it = |pass: &&Pass| pass.model == model;
        if self.active.iter().filter(of_it).count() >= MOST_OPEN
            && let Some(oldest) = self.active.iter().find(of_it).map(|pass| pass.number)
        {
            self.abandon(|pass| pass.number == oldest);
        }
        self.opened += 1;
        let mut pass = Pass::new(self.opened, model, shape, timed);
        pass.anew = anew;
        pass.probe_at = if timed && !anew && saved::keeps_link() { self.probe_at(model) } else { None };
        self.active.push_mut(pass)
    }

    /// Passes that go on show nothing that counts.
    fn abandon(&mut self, which: impl Fn(&Pass) -> bool) {
        for mut pass in self.active.extract_if(.., |pass| which(pass)) {
            self.marks.give_back(pass.context, pass.take_marks());
        }
    }

    /// Another place in each pass, so that no use is disturbed twice in a row.
    fn probe_at(&mut self, model: ModelId) -> Option<usize> {
        let (uses, probes) = self.probes.get_mut(&model).filter(|(uses, _)| *uses > 0)?;
        *probes += 1;
        Some(*uses * (*probes % PROBED_PLACES + 1) / (PROBED_PLACES + 2))
    }

    /// The model's pass has ended. `keep`: it counts as an observation.
    pub(crate) fn pass_end(&mut self, model: ModelId, keep: bool) {
        let learning = |pass: &Pass| pass.model == model && !pass.anew;
        let Some(at) = self.active.iter().rposition(learning) else { return };
        let pass = &mut self.active[at];
        pass.host_ms = pass.begun.elapsed().as_secs_f64() * 1e3;
        if !pass.whole {
            self.probes.entry(model).or_default().0 = self.active[at].len();
        }
        self.end_at(at, keep);
    }

    fn end_at(&mut self, at: usize, keep: bool) {
        // A mark on a stream that captures would become the capture's.
        if let Some(stream) = self.active[at].stream.filter(|_| self.active[at].timed && keep) {
            self.active[at].end = self.mark_in(at, stream);
        }
        let mut pass = self.active.remove(at);
        if !keep {
            return self.marks.give_back(pass.context, pass.take_marks());
        }
        let model = pass.model;
        self.finished.push(pass);
        self.give_up_times(model, MOST_UNREAD);
    }

    /// The model's ended passes keep so many marks, the last ones first; of those without marks only the order of use is known.
    fn give_up_times(&mut self, model: ModelId, most: usize) {
        let mut marks = 0;
        for pass in self.finished.iter_mut().rev().filter(|pass| pass.model == model) {
            marks += pass.marks();
            if marks > most {
                self.marks.give_back(pass.context, pass.take_marks());
            }
        }
    }

    /// The pass of this number, which was observed anew, has ended: its units and owners in order of use. None if it does not count, or only for the report.
    pub(crate) fn pass_end_anew(&mut self, number: u64, keep: bool) -> Option<Vec<(UnitId, u32)>> {
        let at = self.active.iter().position(|pass| pass.number == number)?;
        let (traced, order) = (self.active[at].traced, self.active[at].order());
        self.end_at(at, keep && !order.is_empty());
        (keep && !traced).then_some(order)
    }

    /// Reads the events of ended passes, as far as they have completed. Waits for nothing.
    pub(crate) fn collect(&mut self) {
        let ended: Vec<Pass> = self.finished.extract_if(.., |pass| pass.has_ended()).collect();
        ended.into_iter().for_each(|pass| self.take(pass));
    }

    /// Whether a pass of the model was observed anew and its times are not read yet.
    pub(crate) fn is_reading(&self, model: ModelId) -> bool {
        self.finished.iter().any(|pass| pass.anew && !pass.traced && pass.model == model)
    }

    fn take(&mut self, mut pass: Pass) {
        let read = pass.read_waits();
        self.marks.give_back(pass.context, read);
        match &pass {
            Pass { whole: true, timed, .. } if *timed => {
                self.collector.add_whole(pass.model, pass.shape, pass.whole_ms(), pass.host_ms);
            }
            Pass { whole: true, .. } => {}
            Pass { anew: true, .. } => {
                let trace = pass.trace();
                if !pass.traced {
                    self.collector.replace(pass.record(&trace));
                }
                if pass.timed {
                    trace::keep(pass.model, pass.shape, trace);
                }
            }
            _ => self.collector.add(pass.record(&pass.trace())),
        }
        self.marks.give_back(pass.context, pass.take_marks());
    }

    /// A trap's forward begins.
    pub(crate) fn trap_enter(&mut self, model: ModelId, trap: u32) {
        if let Some(pass) = self.active.iter_mut().rev().find(|pass| pass.model == model) {
            pass.traps.push(trap);
        }
    }

    /// A trap's forward has returned.
    pub(crate) fn trap_exit(&mut self, model: ModelId, trap: u32) {
        let Some(pass) = self.active.iter_mut().rev().find(|pass| pass.model == model) else { return };
        if let Some(at) = pass.traps.iter().rposition(|&entered| entered == trap) {
            pass.traps.truncate(at);
        }
    }

    /// Where the model's pass that is going on, or ended last, runs.
    pub(crate) fn stream_of(&self, model: ModelId) -> Option<Stream> {
        self.active.iter().chain(&self.finished).rev().find(|pass| pass.model == model)?.stream
    }

    /// Reads the events of all finished passes; waits for the last of them.
    pub(crate) fn settle(&mut self) {
        for pass in std::mem::take(&mut self.finished) {
            if let Some(end) = pass.end {
                let _ = event::synchronize(end);
            }
            self.take(pass);
        }
    }

    /// Forgets all times of a model; orders of use stay known.
    pub(crate) fn clear_durations(&mut self, model: ModelId) {
        for pass in self.finished.iter_mut().filter(|pass| pass.model == model) {
            pass.timed = false;
        }
        self.collector.clear_durations(model);
    }

    /// Owners of a model whose forward was ever entered.
    pub(crate) fn ran_of(&self, model: ModelId) -> BTreeSet<u32> {
        self.ran.iter().filter(|(ran, _)| *ran == model).map(|&(_, owner)| owner).collect()
    }

    /// Whether a launch showed the unit in its owner's forward.
    pub(crate) fn was_shown(&self, unit: UnitId) -> bool {
        self.shown.contains(&unit)
    }

    /// Whether launches read the unit outside its owners' forwards, as far as can be told.
    pub(crate) fn was_read_elsewhere(&self, unit: UnitId) -> bool {
        self.elsewhere.contains(&unit)
    }

    /// What an earlier run learnt takes the place of learning. `ran`: owners whose forward was entered; `shown`: units that launches showed there.
    pub(crate) fn restore(
        &mut self,
        model: ModelId,
        ran: impl Iterator<Item = u32>,
        (shown, elsewhere): (impl Iterator<Item = UnitId>, impl Iterator<Item = UnitId>),
        passes: Vec<(PassRecord, u64, f64)>,
    ) {
        self.elsewhere.extend(elsewhere);
        self.ran.extend(ran.map(|owner| (model, owner)));
        self.shown.extend(shown);
        for (pass, count, host_ms) in passes {
            self.collector.restore(pass, count, host_ms);
        }
    }

    /// Whether a unit that the usual pass does not use may be taken as unused: its model reports owners, and none of the unit's ever ran without
    /// showing it. An owner that did reads it in a way that cannot be seen.
    pub(crate) fn is_idle(&self, unit: UnitId, model: ModelId) -> bool {
        let reports = self.ran.iter().any(|(ran, _)| *ran == model);
        let ran = |holder: &Holder| self.ran.contains(&(holder.model, holder.owner));
        let any_ran = self.holders.get(&unit).is_some_and(|holders| holders.iter().any(ran));
        reports && (self.shown.contains(&unit) || !any_ran)
    }

    /// Nothing may be recorded on this stream any more.
    pub(crate) fn forget_stream(&mut self, stream: Stream) {
        for pass in self.active.iter_mut().chain(&mut self.finished) {
            pass.stream = pass.stream.filter(|&known| known != stream);
        }
    }

    /// The context is gone, and everything in it.
    pub(crate) fn forget_context(&mut self, context: Context) {
        self.marks.forget_context(context);
        link::forget_context(context);
        let passes = self.active.iter_mut().chain(&mut self.finished);
        for pass in passes.filter(|pass| pass.context == context) {
            pass.stream = None;
            // What it measured is lost, and so is what it would still measure.
            drop(pass.take_marks());
        }
    }

    /// These units are gone.
    pub(crate) fn forget_units(&mut self, units: &[UnitId]) {
        self.holders.retain(|unit, _| !units.contains(unit));
        self.shown.retain(|unit| !units.contains(unit));
        self.elsewhere.retain(|unit| !units.contains(unit));
    }

    /// The model is gone.
    pub(crate) fn forget(&mut self, model: ModelId) {
        self.collector.forget(model);
        trace::forget(model);
        self.learning.remove(&model);
        self.abandon(|pass| pass.model == model);
        for mut pass in self.finished.extract_if(.., |pass| pass.model == model) {
            self.marks.give_back(pass.context, pass.take_marks());
        }
        self.ran.retain(|(ran, _)| *ran != model);
        self.probes.remove(&model);
        for holders in self.holders.values_mut() {
            holders.retain(|holder| holder.model != model);
        }
        self.holders.retain(|_, holders| !holders.is_empty());
    }

    fn note(&mut self, unit: UnitId, stream: Stream) -> Noted {
        let Some(holders) = self.holders.get(&unit) else { return Noted::Doubtful };
        let Some((at, holder, certain)) = self.use_of(holders) else { return Noted::Doubtful };
        if self.is_of(at, context::current().unwrap_or(Context::NONE)) {
            self.active[at].stream = Some(stream);
        }
        let waited = self.active[at].take_waiting().unwrap_or_else(|lost| {
            // Another thread's launch is amid its waiting: its mark is of no use to anybody.
            self.marks.give_back(self.active[at].context, [lost]);
            None
        });
        if let Some((seen, end)) = self.active[at].goes_on(unit, holder.owner) {
            if let Some(end) = end {
                let _ = event::record(end, stream);
            }
            self.active[at].waited(seen, waited);
            return Noted::GoesOn;
        }
        if certain {
            self.shown.insert(unit);
        }
        match self.active[at].begins(unit, holder.owner, certain) {
            Some(seen) => {
                let end = if self.active[at].timed { self.mark_in(at, stream) } else { None };
                self.active[at].ends(seen, end);
                self.active[at].waited(seen, waited);
                if self.active[at].probe_at == Some(seen + 1) && end.is_some() {
                    link::probe(stream);
                }
            }
            None => {
                let marks = waited.into_iter().flat_map(<[_; 2]>::from);
                self.marks.give_back(self.active[at].context, marks);
            }
        }
        if certain { Noted::Began } else { Noted::GoesOn }
    }

    /// The pass and holder that use a unit now, and whether that is certain: in the owner's forward; or, where that was never entered, in the trap's.
    fn use_of(&self, holders: &[Holder]) -> Option<(usize, Holder, bool)> {
        for (at, pass) in self.active.iter().enumerate().rev() {
            let mine = || holders.iter().filter(|holder| holder.model == pass.model);
            if let Some(holder) = mine().find(|holder| is_entered(holder)) {
                return Some((at, *holder, true));
            }
            let in_trap = |holder: &&Holder| {
                holder.trap < 0 || pass.traps.is_empty() || pass.traps.contains(&(holder.trap as u32))
            };
            if let Some(holder) = mine().filter(in_trap).find(|holder| !pass.entered.contains(&holder.owner))
            {
                return Some((at, *holder, false));
            }
        }
        None
    }

    /// Whether the pass runs in this context; the first one that is asked about is it.
    fn is_of(&mut self, at: usize, context: Context) -> bool {
        let pass = &mut self.active[at];
        if pass.context.is_none() {
            pass.context = context;
        }
        pass.context == context && !context.is_none()
    }

    /// A mark of the pass; none in another context than its own, where it could not be compared.
    fn mark_in(&mut self, at: usize, stream: Stream) -> Option<Event> {
        let context = context::current().ok()?;
        if !self.is_of(at, context) {
            return None;
        }
        self.marks.behind(context, stream)
    }
}

#[cfg(test)]
#[path = "learn/tests.rs"]
mod tests;
