//! Observes passes while a model is learnt, and later ones that are worth it: which launch uses which unit, for which owner, and how long it takes
//! without what it waits for. What a profile is made of is core's `profile`; when to observe is said by the phase, and later by `replan`.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};

use flextensor_core::profile::{PassRecord, ProfileCollector};
use flextensor_core::units::{ModelId, UnitId};

use super::arena::Meaning;
use super::scan::Found;
use super::trace::{self, Trace, TracedUse};
use super::words::{Word, words};
use super::{evidence, link, saved};
use crate::ffi::context::{self, Context};
use crate::ffi::event::{self, Event};
use crate::ffi::result::CudaResult;
use crate::ffi::stream::Stream;

/// Places in a pass at which the link is measured in turn.
const PROBED_PLACES: usize = 5;

/// Who holds a unit in a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Holder {
    pub(crate) model: ModelId,
    pub(crate) owner: u32,
    /// The enclosing trap, or -1.
    pub(crate) trap: i32,
}

/// One use as it was seen.
struct Seen {
    unit: UnitId,
    owner: u32,
    /// In its owner's forward; otherwise only in its trap's or in the pass.
    certain: bool,
    end: Option<Event>,
    launches: u32,
    /// From the moment that its launches began to wait for copies to the end of that.
    waits: Vec<(Event, Event)>,
}

/// A pass that is going on, or whose events have not been read yet.
struct Pass {
    model: ModelId,
    shape: u64,
    timed: bool,
    /// It is observed while weights stream.
    anew: bool,
    /// What was known of its shape stays: it is seen for the report alone.
    traced: bool,
    /// Only its beginning and its end are of interest.
    whole: bool,
    start: Option<Event>,
    end: Option<Event>,
    uses: Vec<Seen>,
    /// Owners whose forward was entered in this pass.
    entered: BTreeSet<u32>,
    traps: Vec<u32>,
    /// The use at which the link is measured beside the program's kernels, if it is.
    probe_at: Option<usize>,
    stream: Option<Stream>,
    /// Where its stream and events belong.
    context: Context,
    /// A launch waits for copies, or has waited and is not noted yet.
    waiting: (Option<Event>, Option<Event>),
}

/// Everything learnt.
#[derive(Default)]
pub(crate) struct Recorder {
    holders: BTreeMap<UnitId, Vec<Holder>>,
    active: Vec<Pass>,
    finished: Vec<Pass>,
    pub(crate) collector: ProfileCollector,
    /// Events to be used again, by context.
    spare: BTreeMap<Context, Vec<Event>>,
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
                Noted::Began => words().mark_live(Word::of(function, found.offset)),
                Noted::GoesOn => {}
                Noted::Doubtful => {
                    recorder.doubtful += 1;
                    if words().is_live(Word::of(function, found.offset)) {
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
            let pass = &recorder.active[at];
            if !pass.timed || pass.start.is_none() {
                continue;
            }
            let mark = recorder.mark_in(at, stream);
            let waiting = &mut recorder.active[at].waiting;
            let lost = if begins {
                (std::mem::replace(&mut waiting.0, mark), waiting.1.take())
            } else {
                (None, std::mem::replace(&mut waiting.1, mark))
            };
            let context = recorder.active[at].context;
            recorder.spare.entry(context).or_default().extend([lost.0, lost.1].into_iter().flatten());
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

    /// A pass begins. `timed`: its times are to be kept.
    pub(crate) fn pass_begin(&mut self, model: ModelId, shape: u64, timed: bool) {
        self.open(model, shape, timed, false);
    }

    /// A pass begins on `stream`, whose context is current, and is timed as a whole. False if that cannot be.
    pub(crate) fn pass_begin_whole(&mut self, model: ModelId, shape: u64, stream: Stream) -> bool {
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

    /// A pass begins that is observed because the program may have changed.
    pub(crate) fn pass_begin_anew(&mut self, model: ModelId, shape: u64) {
        self.open(model, shape, true, true);
    }

    /// A pass begins that is observed for the report alone.
    pub(crate) fn pass_begin_traced(&mut self, model: ModelId, shape: u64) {
        self.open(model, shape, true, true);
        if let Some(pass) = self.active.last_mut() {
            pass.traced = true;
        }
    }

    fn open(&mut self, model: ModelId, shape: u64, timed: bool, anew: bool) {
        let probe_at = if timed && !anew && saved::keeps_link() { self.probe_at(model) } else { None };
        self.active.push(Pass {
            model,
            shape,
            timed,
            anew,
            traced: false,
            whole: false,
            start: None,
            end: None,
            uses: Vec::new(),
            entered: BTreeSet::new(),
            traps: Vec::new(),
            probe_at,
            stream: None,
            context: Context::NONE,
            waiting: (None, None),
        });
    }

    /// Another place in each pass, so that no use is disturbed twice in a row.
    fn probe_at(&mut self, model: ModelId) -> Option<usize> {
        let (uses, probes) = self.probes.get_mut(&model).filter(|(uses, _)| *uses > 0)?;
        *probes += 1;
        Some(*uses * (*probes % PROBED_PLACES + 1) / (PROBED_PLACES + 2))
    }

    /// The pass has ended. `keep`: it counts as an observation.
    pub(crate) fn pass_end(&mut self, model: ModelId, keep: bool) {
        let Some(at) = self.active.iter().rposition(|pass| pass.model == model) else { return };
        // A mark on a stream that captures would become the capture's.
        if let Some(stream) = self.active[at].stream.filter(|_| self.active[at].timed && keep) {
            self.active[at].end = self.mark_in(at, stream);
        }
        let pass = self.active.remove(at);
        if !pass.whole {
            self.probes.entry(model).or_default().0 = pass.uses.len();
        }
        if keep {
            self.finished.push(pass);
        } else {
            self.recycle(&pass);
        }
    }

    /// The pass that was observed anew has ended: its units and owners in order of use. None if it does not count, or only for the report.
    pub(crate) fn pass_end_anew(&mut self, model: ModelId, keep: bool) -> Option<Vec<(UnitId, u32)>> {
        let pass = self.active.iter().rev().find(|pass| pass.model == model && pass.anew)?;
        let traced = pass.traced;
        let order: Vec<_> = counted(pass).map(|seen| (seen.unit, seen.owner)).collect();
        self.pass_end(model, keep && !order.is_empty());
        (keep && !traced).then_some(order)
    }

    /// Reads the events of passes that were observed anew, as far as they have completed. Waits for nothing.
    pub(crate) fn collect(&mut self) {
        let done = |pass: &Pass| pass.anew && pass.end.is_none_or(|end| event::query(end).unwrap_or(true));
        while let Some(at) = self.finished.iter().position(done) {
            let pass = self.finished.remove(at);
            self.take(&pass);
        }
    }

    /// Whether a pass of the model was observed anew and its times are not read yet.
    pub(crate) fn is_reading(&self, model: ModelId) -> bool {
        self.finished.iter().any(|pass| pass.anew && !pass.traced && pass.model == model)
    }

    fn take(&mut self, pass: &Pass) {
        match pass {
            Pass { whole: true, timed, .. } if *timed => {
                self.collector.add_whole(pass.model, pass.shape, between(pass.start, pass.end));
            }
            Pass { whole: true, .. } => {}
            Pass { anew: true, .. } => {
                let (record, trace) = (to_record(pass), to_trace(pass));
                if !pass.traced {
                    self.collector.replace(record);
                }
                if pass.timed {
                    trace::keep(pass.model, pass.shape, trace);
                }
            }
            _ => self.collector.add(to_record(pass)),
        }
        self.recycle(pass);
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
            self.take(&pass);
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
        passes: Vec<(PassRecord, u64)>,
    ) {
        self.elsewhere.extend(elsewhere);
        self.ran.extend(ran.map(|owner| (model, owner)));
        self.shown.extend(shown);
        for (pass, count) in passes {
            self.collector.restore(pass, count);
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
        self.spare.remove(&context);
        link::forget_context(context);
        let passes = self.active.iter_mut().chain(&mut self.finished);
        for pass in passes.filter(|pass| pass.context == context) {
            (pass.stream, pass.start, pass.end) = (None, None, None);
            pass.uses.iter_mut().for_each(|seen| (seen.end, seen.waits) = (None, Vec::new()));
            pass.waiting = (None, None);
            // What it measured is lost, and so is what it would still measure.
            pass.timed = false;
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
        let (gone, active) =
            std::mem::take(&mut self.active).into_iter().partition(|pass| pass.model == model);
        self.active = active;
        let gone: Vec<Pass> = gone;
        gone.iter().for_each(|pass| self.recycle(pass));
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
        let timed = self.active[at].timed;
        if self.is_of(at, context::current().unwrap_or(Context::NONE)) {
            self.active[at].stream = Some(stream);
        }
        let waited = match std::mem::take(&mut self.active[at].waiting) {
            (Some(from), Some(to)) => Some((from, to)),
            // Another thread's launch is amid its waiting: its mark is of no use to anybody.
            (from, to) => {
                let context = self.active[at].context;
                self.spare.entry(context).or_default().extend(from.into_iter().chain(to));
                None
            }
        };
        let group = self.active[at].uses.iter_mut().rev().take_while(|seen| seen.owner == holder.owner);
        if let Some(seen) = group.into_iter().find(|seen| seen.unit == unit) {
            if let Some(end) = seen.end {
                let _ = event::record(end, stream);
            }
            seen.launches += 1;
            seen.waits.extend(waited);
            return Noted::GoesOn;
        }
        if certain {
            self.shown.insert(unit);
        }
        let end = if timed { self.mark_in(at, stream) } else { None };
        let waits = waited.into_iter().collect();
        self.active[at].uses.push(Seen { unit, owner: holder.owner, certain, end, launches: 1, waits });
        if self.active[at].probe_at == Some(self.active[at].uses.len()) && end.is_some() {
            link::probe(stream);
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
        let event = match self.spare.get_mut(&context).and_then(Vec::pop) {
            Some(event) => event,
            None => event::create(true).ok()?,
        };
        let recorded = event::record(event, stream).is_ok();
        if !recorded {
            self.spare.entry(context).or_default().push(event);
        }
        recorded.then_some(event)
    }

    fn recycle(&mut self, pass: &Pass) {
        let ends = pass.uses.iter().filter_map(|seen| seen.end);
        let waits = pass.uses.iter().flat_map(|seen| &seen.waits).flat_map(|&(from, to)| [from, to]);
        let waiting = [pass.waiting.0, pass.waiting.1].into_iter().flatten();
        let events = pass.start.into_iter().chain(pass.end).chain(ends).chain(waits).chain(waiting);
        self.spare.entry(pass.context).or_default().extend(events);
    }
}

/// Uses that count: a unit that was seen in its owner's forward is not used elsewhere, other hits of it were stale words.
fn counted(pass: &Pass) -> impl Iterator<Item = &Seen> {
    let certain: BTreeSet<UnitId> =
        pass.uses.iter().filter(|seen| seen.certain).map(|seen| seen.unit).collect();
    pass.uses.iter().filter(move |seen| seen.certain || !certain.contains(&seen.unit))
}

/// What each use that counts computed and waited for, and how long the pass went on behind the last one.
fn to_trace(pass: &Pass) -> Trace {
    let mut last = pass.start;
    let mut uses = Vec::new();
    for seen in counted(pass) {
        let waited_ms: f64 = seen.waits.iter().map(|&(from, to)| between(Some(from), Some(to))).sum();
        let computed_ms = (between(last, seen.end) - waited_ms).max(0.0);
        uses.push(TracedUse { unit: seen.unit, launches: seen.launches, computed_ms, waited_ms });
        last = seen.end.or(last);
    }
    Trace { uses, tail_ms: between(last, pass.end) }
}

fn to_record(pass: &Pass) -> PassRecord {
    let mut record = if pass.timed && pass.start.is_some() {
        PassRecord::timed(pass.model, pass.shape)
    } else {
        PassRecord::order_only(pass.model, pass.shape)
    };
    let trace = to_trace(pass);
    for (seen, used) in counted(pass).zip(&trace.uses) {
        record.record(seen.unit, seen.owner, used.computed_ms);
        record.record_launches(seen.launches);
    }
    record.finish(trace.tail_ms)
}

fn between(start: Option<Event>, end: Option<Event>) -> f64 {
    let elapsed = || -> CudaResult<f32> {
        match (start, end) {
            (Some(start), Some(end)) => event::elapsed_ms(start, end),
            _ => Ok(0.0),
        }
    };
    elapsed().map_or(0.0, f64::from)
}
