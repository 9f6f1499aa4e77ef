//! One observed pass: its uses in turn, and the marks by which the GPU tells how long each took. What one pass may hold is bounded here, whatever the program does in it;
//! which launch is a use of what is `learn`'s matter.

use std::collections::{BTreeSet, VecDeque};
use std::time::Instant;

use flextensor_core::profile::PassRecord;
use flextensor_core::units::{ModelId, UnitId};

use super::super::trace::{Trace, TracedUse};
use crate::ffi::context::Context;
use crate::ffi::event::{self, Event};
use crate::ffi::result::CudaResult;
use crate::ffi::stream::Stream;

/// Uses of one pass that are told apart. What a longer one does behind them counts as its end: a forward that generates a whole text, or one that was never said to end.
pub(super) const MOST_USES: usize = 1 << 17;

/// Waits of one pass that have not ended; further ones count as time of their use.
pub(super) const MOST_WAITS: usize = 1 << 12;

/// One use as it was seen.
pub(super) struct Seen {
    pub(super) unit: UnitId,
    pub(super) owner: u32,
    /// In its owner's forward; otherwise only in its trap's or in the pass.
    certain: bool,
    end: Option<Event>,
    launches: u32,
    /// Milliseconds that its launches stood until their pages were there, as far as that has been read.
    waited_ms: f64,
}

/// From the moment that launches began to wait for copies to the end of that.
type Wait = (Event, Event);

/// A pass that is going on, or whose events have not been read yet.
pub(super) struct Pass {
    /// Of all passes this one.
    pub(super) number: u64,
    pub(super) model: ModelId,
    pub(super) shape: u64,
    pub(super) timed: bool,
    /// It is observed while weights stream.
    pub(super) anew: bool,
    /// What was known of its shape stays: it is seen for the report alone.
    pub(super) traced: bool,
    /// Only its beginning and its end are of interest.
    pub(super) whole: bool,
    pub(super) begun: Instant,
    /// Milliseconds until it returned to the program, once it has.
    pub(super) host_ms: f64,
    pub(super) start: Option<Event>,
    pub(super) end: Option<Event>,
    uses: Vec<Seen>,
    /// Owners whose forward was entered in this pass.
    pub(super) entered: BTreeSet<u32>,
    pub(super) traps: Vec<u32>,
    /// The use at which the link is measured beside the program's kernels, if it is.
    pub(super) probe_at: Option<usize>,
    pub(super) stream: Option<Stream>,
    /// Where its stream and events belong.
    pub(super) context: Context,
    /// A launch waits for copies, or has waited and is not noted yet.
    waiting: (Option<Event>, Option<Event>),
    /// What launches waited, with the use of each, oldest first, as long as nobody has read it.
    waits: VecDeque<(usize, Wait)>,
}

impl Pass {
    pub(super) fn new(number: u64, model: ModelId, shape: u64, timed: bool) -> Self {
        Self {
            number,
            model,
            shape,
            timed,
            anew: false,
            traced: false,
            whole: false,
            begun: Instant::now(),
            host_ms: 0.0,
            start: None,
            end: None,
            uses: Vec::new(),
            entered: BTreeSet::new(),
            traps: Vec::new(),
            probe_at: None,
            stream: None,
            context: Context::NONE,
            waiting: (None, None),
            waits: VecDeque::new(),
        }
    }

    /// Uses so far.
    pub(super) fn len(&self) -> usize {
        self.uses.len()
    }

    /// One launch more of the owner's use of the unit, if that goes on: which use it is, and the mark at its end, which comes to stand behind this launch.
    pub(super) fn goes_on(&mut self, unit: UnitId, owner: u32) -> Option<(usize, Option<Event>)> {
        let uses = self.uses.iter_mut().enumerate().rev();
        let mut group = uses.take_while(|(_, seen)| seen.owner == owner);
        let (at, seen) = group.find(|(_, seen)| seen.unit == unit)?;
        seen.launches += 1;
        Some((at, seen.end))
    }

    /// A use begins. None if it is not told apart from the end of the pass any more.
    pub(super) fn begins(&mut self, unit: UnitId, owner: u32, certain: bool) -> Option<usize> {
        if self.uses.len() >= MOST_USES {
            return None;
        }
        self.uses.push(Seen { unit, owner, certain, end: None, launches: 1, waited_ms: 0.0 });
        Some(self.uses.len() - 1)
    }

    /// The mark behind the launches of this use.
    pub(super) fn ends(&mut self, at: usize, mark: Option<Event>) {
        self.uses[at].end = mark;
    }

    /// Whether it is to be marked that a launch begins to wait (`begins`), or has enqueued all that it waits for.
    pub(super) fn may_wait(&self, begins: bool) -> bool {
        let may = if begins { self.waits.len() < MOST_WAITS } else { self.waiting.0.is_some() };
        may && self.timed && self.start.is_some()
    }

    /// A launch begins to wait (`begins`), or all that it waits for has been enqueued. Returns what is of no use any more.
    pub(super) fn mark_waiting(&mut self, mark: Option<Event>, begins: bool) -> Vec<Event> {
        let (from, to) = &mut self.waiting;
        let lost = if begins {
            [std::mem::replace(from, mark), to.take()]
        } else {
            [None, std::mem::replace(to, mark)]
        };
        lost.into_iter().flatten().collect()
    }

    /// What the launch waited that is noted now, if it did; or a mark without its other one.
    pub(super) fn take_waiting(&mut self) -> Result<Option<Wait>, Event> {
        match std::mem::take(&mut self.waiting) {
            (Some(from), Some(to)) => Ok(Some((from, to))),
            (None, None) => Ok(None),
            (Some(lost), None) | (None, Some(lost)) => Err(lost),
        }
    }

    /// A launch of this use waited so, if it did.
    pub(super) fn waited(&mut self, at: usize, wait: Option<Wait>) {
        self.waits.extend(wait.map(|wait| (at, wait)));
    }

    /// Reads the waits that have ended, if there are many. Waits for nothing. Returns their marks.
    pub(super) fn read_ended_waits(&mut self) -> Vec<Event> {
        let mut read = Vec::new();
        if self.waits.len() >= MOST_WAITS / 2 {
            while let Some(&(_, (_, to))) = self.waits.front()
                && event::query(to).unwrap_or(true)
            {
                read.extend(self.read_wait().into_iter().flatten());
            }
        }
        read
    }

    /// Reads all waits: the pass has ended on the GPU. Returns their marks.
    pub(super) fn read_waits(&mut self) -> Vec<Event> {
        std::iter::from_fn(|| self.read_wait()).flatten().collect()
    }

    fn read_wait(&mut self) -> Option<[Event; 2]> {
        let (at, (from, to)) = self.waits.pop_front()?;
        self.uses[at].waited_ms += between(Some(from), Some(to));
        Some([from, to])
    }

    /// Marks that it holds.
    pub(super) fn marks(&self) -> usize {
        let ends = self.uses.iter().filter(|seen| seen.end.is_some()).count();
        let ends = ends + usize::from(self.start.is_some()) + usize::from(self.end.is_some());
        ends + 2 * self.waits.len()
    }

    /// All of its marks; what they would have told is lost.
    pub(super) fn take_marks(&mut self) -> Vec<Event> {
        let mut marks: Vec<Event> = self.uses.iter_mut().filter_map(|seen| seen.end.take()).collect();
        marks.extend(self.waits.drain(..).flat_map(|(_, (from, to))| [from, to]));
        marks.extend([self.waiting.0.take(), self.waiting.1.take()].into_iter().flatten());
        marks.extend([self.start.take(), self.end.take()].into_iter().flatten());
        self.timed = false;
        marks
    }

    /// Whether it has ended on the GPU, as far as that can be told.
    pub(super) fn has_ended(&self) -> bool {
        self.end.is_none_or(|end| event::query(end).unwrap_or(true))
    }

    /// Milliseconds from beginning to end.
    pub(super) fn whole_ms(&self) -> f64 {
        between(self.start, self.end)
    }

    /// Uses that count: a unit that was seen in its owner's forward is not used elsewhere, other hits of it were stale words.
    fn counted(&self) -> impl Iterator<Item = &Seen> {
        let certain: BTreeSet<UnitId> =
            self.uses.iter().filter(|seen| seen.certain).map(|seen| seen.unit).collect();
        self.uses.iter().filter(move |seen| seen.certain || !certain.contains(&seen.unit))
    }

    /// Units and owners of the uses that count, in turn.
    pub(super) fn order(&self) -> Vec<(UnitId, u32)> {
        self.counted().map(|seen| (seen.unit, seen.owner)).collect()
    }

    /// What each use that counts computed and waited for, and how long the pass went on behind the last one. All waits have been read.
    pub(super) fn trace(&self) -> Trace {
        let mut last = self.start;
        let mut uses = Vec::new();
        for &Seen { unit, end, launches, waited_ms, .. } in self.counted() {
            let computed_ms = (between(last, end) - waited_ms).max(0.0);
            uses.push(TracedUse { unit, launches, computed_ms, waited_ms });
            last = end.or(last);
        }
        Trace { uses, tail_ms: between(last, self.end) }
    }

    /// What a profile is made of, from the pass's [`Pass::trace`].
    pub(super) fn record(&self, trace: &Trace) -> PassRecord {
        let mut record = if self.timed && self.start.is_some() {
            PassRecord::timed(self.model, self.shape)
        } else {
            PassRecord::order_only(self.model, self.shape)
        };
        for (seen, used) in self.counted().zip(&trace.uses) {
            record.record(seen.unit, seen.owner, used.computed_ms);
            record.record_launches(seen.launches);
        }
        record.finish(trace.tail_ms)
    }
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
