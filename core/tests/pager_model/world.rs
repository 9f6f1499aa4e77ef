//! A program on the model's GPU: performs the pager's commands, keeps what its own writes made the truth, and orders
//! conflicting launches among its streams as a correct program does. An audit reads along: it must find something wrong in nothing of this. Which launches it makes is the test files' matter.

use flextensor_core::audit::{Audit, Caller};
use flextensor_core::pager::{Access, Certainty, Command, CopyStream, Hit, Pager, StreamId, Verdict};
use flextensor_core::units::UnitId;

use super::gpu::{Gpu, OpId, Place, Use};

/// What a launch really does to a unit that it shows; the pager does not know. Pages are `(first, count)`, cut to the unit:
/// a unit may be a group of weights, and a launch touches one of them.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Effect {
    /// A stale word: it neither reads nor writes.
    Nothing,
    Reads(usize, usize),
    Writes(usize, usize),
}

impl Effect {
    fn touches(self, page: usize) -> bool {
        match self {
            Effect::Nothing => false,
            Effect::Reads(first, count) | Effect::Writes(first, count) => {
                page >= first && page - first < count
            }
        }
    }

    pub(crate) fn writes(self) -> bool {
        matches!(self, Effect::Writes(..))
    }

    /// Whether a correct program must order the two.
    pub(crate) fn conflicts(self, other: Effect) -> bool {
        (self.writes() || other.writes()) && (0..64).any(|page| self.touches(page) && other.touches(page))
    }
}

/// One unit that a launch shows.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shown {
    pub(crate) hit: Hit,
    pub(crate) effect: Effect,
}

/// A read in the owner's forward; the other kinds are made from it.
pub(crate) fn reads(unit: u32) -> Shown {
    let hit = Hit {
        unit: UnitId(unit),
        access: Access::Read,
        certainty: Certainty::Owner,
        hold: false,
        can_redirect: true,
    };
    Shown { hit, effect: Effect::Reads(0, usize::MAX) }
}

/// A write of the whole unit in the owner's forward.
pub(crate) fn writes(unit: u32) -> Shown {
    let shown = reads(unit);
    Shown { hit: Hit { access: Access::Write, ..shown.hit }, effect: Effect::Writes(0, usize::MAX) }
}

impl Shown {
    /// By a word of which nothing is known.
    pub(crate) fn doubtful(self) -> Self {
        Self { hit: Hit { certainty: Certainty::Unknown, ..self.hit }, ..self }
    }

    /// By a word that has been a use before.
    pub(crate) fn live(self) -> Self {
        Self { hit: Hit { certainty: Certainty::Live, ..self.hit }, ..self }
    }

    /// The word is stale.
    pub(crate) fn stale(self) -> Self {
        Self { effect: Effect::Nothing, ..self }
    }

    /// Held for the owner's whole forward.
    pub(crate) fn held(self) -> Self {
        Self { hit: Hit { hold: true, ..self.hit }, ..self }
    }

    /// Its word cannot be pointed elsewhere.
    pub(crate) fn fixed(self) -> Self {
        Self { hit: Hit { can_redirect: false, ..self.hit }, ..self }
    }
}

/// A launch between its check and its enqueue.
#[derive(Debug)]
pub(crate) struct Open {
    pub(crate) stream: StreamId,
    pub(crate) shown: Vec<Shown>,
    hits: Vec<Hit>,
    pub(crate) verdicts: Vec<Verdict>,
    private: Vec<bool>,
}

impl Open {
    fn place(&self, index: usize) -> Place {
        match (self.private[index], self.verdicts[index].in_place()) {
            (true, _) => Place::Private,
            (false, true) => Place::Ring,
            (false, false) => Place::Shadow,
        }
    }

    /// Units that it shows where only its own copy of the parameters, or nothing, keeps it right.
    pub(crate) fn is_stuck(&self) -> Option<UnitId> {
        let mut both = self.hits.iter().zip(&self.verdicts);
        both.find(|(hit, verdict)| !verdict.in_place() && !hit.can_redirect).map(|(hit, _)| hit.unit)
    }
}

/// What the program knows of one page of a unit.
#[derive(Clone, Debug, Default)]
struct Page {
    version: u32,
    last_write: Option<OpId>,
    reads_since: Vec<OpId>,
}

/// What the program knows of one unit.
#[derive(Debug)]
struct Known {
    pages: Vec<Page>,
    writes: u32,
    /// Streams on which launches may read it without showing it.
    held_on: Vec<StreamId>,
}

impl Known {
    /// What a launch with this effect comes behind.
    fn behind(&self, effect: Effect) -> Vec<OpId> {
        let touched = (0..).zip(&self.pages).filter(|(page, _)| effect.touches(*page));
        let each = touched.flat_map(|(_, page)| {
            page.last_write.iter().chain(page.reads_since.iter().filter(|_| effect.writes())).copied()
        });
        let mut behind: Vec<OpId> = each.collect();
        behind.sort_unstable();
        behind.dedup();
        behind
    }

    /// Versions that a launch with this effect sees.
    fn sees(&self, effect: Effect) -> Vec<Option<u32>> {
        let pages = (0..).zip(&self.pages);
        pages.map(|(number, page)| effect.touches(number).then_some(page.version)).collect()
    }
}

#[derive(Debug)]
pub(crate) struct World {
    pub(crate) pager: Pager,
    pub(crate) gpu: Gpu,
    audit: Audit,
    known: Vec<Known>,
    commands: Vec<Command>,
    /// All commands since the last [`World::take_journal`].
    journal: Vec<Command>,
}

/// Behind so many pages the units of a world share an event; every fourth seed shares none.
pub(crate) fn shared_events(seed: u64) -> u32 {
    [16, 4, 2, 1][seed as usize % 4]
}

pub(crate) const S1: StreamId = StreamId(1);
pub(crate) const S2: StreamId = StreamId(2);

impl World {
    /// Units 0, 1, 2 ... at `(start, pages)` in the ring.
    pub(crate) fn new(ring_pages: u32, chunk_pages: u32, units: &[(u32, u32)], seed: u64) -> Self {
        let mut pager = Pager::new(ring_pages, chunk_pages).with_shared_events(shared_events(seed));
        let mut audit = Audit::new(ring_pages);
        for (unit, &(start, pages)) in (0..).zip(units) {
            pager.add_unit(UnitId(unit), start, pages);
            audit.add_unit(UnitId(unit), start, pages);
        }
        let known = units.iter().map(|&(_, pages)| Known {
            pages: vec![Page::default(); pages as usize],
            writes: 0,
            held_on: Vec::new(),
        });
        Self {
            pager,
            gpu: Gpu::new(ring_pages, units, seed),
            audit,
            known: known.collect(),
            commands: Vec::new(),
            journal: Vec::new(),
        }
    }

    pub(crate) fn units(&self) -> usize {
        self.known.len()
    }

    /// Check and enqueue with nothing between, then prefetch. A unit that is stuck gets private pages, and the launch is tried again.
    pub(crate) fn launch(&mut self, stream: StreamId, shown: &[Shown]) -> Vec<Verdict> {
        loop {
            let open = self.acquire(stream, shown);
            let Some(unit) = open.is_stuck() else {
                let verdicts = open.verdicts.clone();
                self.enqueue(open);
                return verdicts;
            };
            self.refuse(open);
            assert!(self.make_private(unit), "{unit:?} is pinned by a launch that is still open");
        }
    }

    /// The program orders the launch behind what it conflicts with, then the pager checks it.
    pub(crate) fn acquire(&mut self, stream: StreamId, shown: &[Shown]) -> Open {
        for shown in shown {
            let behind = self.known[shown.hit.unit.0 as usize].behind(shown.effect);
            behind.into_iter().for_each(|op| self.gpu.wait_for(stream, op));
        }
        let hits: Vec<Hit> = shown.iter().map(|shown| shown.hit).collect();
        let mut verdicts = vec![Verdict::Ready; hits.len()];
        let private = hits.iter().map(|hit| !self.pager.streams(hit.unit)).collect();
        self.pager.acquire(stream, &hits, &mut verdicts, &mut self.commands);
        self.perform();
        self.audit.checked(stream, &hits, &verdicts, Caller(0));
        Open { stream, shown: shown.to_vec(), hits, verdicts, private }
    }

    /// The launch enters its stream; the pager records it and prefetches.
    pub(crate) fn enqueue(&mut self, open: Open) {
        let uses = (0..open.shown.len()).filter_map(|index| self.use_of(&open, index)).collect();
        let op = self.gpu.launch(open.stream, uses);
        for (index, shown) in open.shown.iter().enumerate() {
            self.note(op, shown.hit.unit, shown.effect);
            let known = &mut self.known[shown.hit.unit.0 as usize];
            if shown.hit.hold && open.place(index) == Place::Ring && !known.held_on.contains(&open.stream) {
                known.held_on.push(open.stream);
            }
        }
        self.refuse(open);
    }

    /// The driver refused the launch: the pager hears of it as of any other.
    pub(crate) fn refuse(&mut self, open: Open) {
        // A stream exists from the program's first call that names it.
        self.gpu.launch(open.stream, Vec::new());
        self.audit.enqueued(open.stream, &open.hits, &open.verdicts, Caller(0));
        self.pager.launched(open.stream, &open.hits, &open.verdicts, &mut self.commands);
        self.perform();
        self.prefetch(open.stream);
    }

    pub(crate) fn prefetch(&mut self, stream: StreamId) {
        self.pager.prefetch(stream, &self.gpu, &mut self.commands);
        self.perform();
    }

    /// A capture begins, or whatever else has all that was launched marked now.
    pub(crate) fn close_marks(&mut self) {
        self.pager.close_marks(&mut self.commands);
        self.perform();
    }

    /// A launch that reads a held unit without showing it. False where no launch may.
    pub(crate) fn launch_hidden(&mut self, stream: StreamId, unit: u32) -> bool {
        let known = &self.known[unit as usize];
        if !known.held_on.contains(&stream) {
            return false;
        }
        let place = if self.pager.streams(UnitId(unit)) { Place::Ring } else { Place::Private };
        let all = Effect::Reads(0, usize::MAX);
        let used = Use { unit: UnitId(unit), place, sees: known.sees(all), leaves: None };
        known.behind(all).into_iter().for_each(|op| self.gpu.wait_for(stream, op));
        let op = self.gpu.launch(stream, vec![used]);
        self.note(op, UnitId(unit), all);
        true
    }

    /// The unit's owner has returned.
    pub(crate) fn end_use(&mut self, unit: u32) {
        self.known[unit as usize].held_on.clear();
        self.pager.end_use(UnitId(unit), &mut self.commands);
        self.audit.hold_ends(UnitId(unit));
        self.perform();
    }

    pub(crate) fn destroy_stream(&mut self, stream: StreamId) {
        self.pager.forget_stream(stream, &mut self.commands);
        self.audit.stream_ends(stream);
        self.perform();
        self.audit.stream_ended(stream);
        self.gpu.destroy(stream);
        self.known.iter_mut().for_each(|known| known.held_on.retain(|&held| held != stream));
    }

    /// Rule 12. False while the pager refuses.
    pub(crate) fn make_private(&mut self, unit: UnitId) -> bool {
        if !self.pager.streams(unit) {
            return true;
        }
        if !self.evict(unit) {
            return false;
        }
        let memory = &mut self.gpu.memory[unit.0 as usize];
        memory.private = memory.shadow.clone();
        self.pager.remove(unit);
        self.audit.remove_unit(unit);
        let known = &self.known[unit.0 as usize];
        let all = Effect::Reads(0, usize::MAX);
        let used = Use { unit, place: Place::Private, sees: known.sees(all), leaves: None };
        // A stream of its own stands for the host, which looks at once.
        if known.behind(all).into_iter().all(|op| self.gpu.is_done(op)) {
            self.gpu.launch(StreamId(1000), vec![used]);
            self.gpu.run_stream_only(StreamId(1000));
        } else {
            self.gpu.set_fault(format!("{unit:?} became private before its last write"));
        }
        true
    }

    /// The first half of rule 12: the unit's bytes are in its shadow, and nobody is at them. It may be streamed on.
    pub(crate) fn evict(&mut self, unit: UnitId) -> bool {
        let free = self.pager.evict(unit, &mut self.commands);
        if free {
            self.audit.evicts(unit);
        }
        self.perform();
        if free {
            self.gpu.drain_copies();
            CopyStream::ALL.into_iter().for_each(|copy| self.audit.waited_for(copy));
            if self.gpu.touches(unit) {
                self.gpu.set_fault(format!("{unit:?} was unmapped while in use"));
            }
        }
        free
    }

    /// A private unit that no open launch shows and no owner holds is streamed again, at a place of its own.
    pub(crate) fn stream_again(&mut self, unit: UnitId, start: u32) {
        if !self.pager.streams(unit) && self.known[unit.0 as usize].held_on.is_empty() {
            self.gpu.drain();
            self.gpu.move_to_shadow(unit, start);
            let pages = self.known[unit.0 as usize].pages.len() as u32;
            self.pager.add_unit(unit, start, pages);
            self.audit.waited_for_all();
            self.audit.add_unit(unit, start, pages);
        }
    }

    /// Runs everything; every unit that is still streamed must end in its shadow as the program last wrote it.
    pub(crate) fn finish(&mut self) -> Result<(), String> {
        self.gpu.drain();
        for unit in 0..self.known.len() as u32 {
            if !self.make_private(UnitId(unit)) {
                self.gpu.set_fault(format!("unit {unit} is still pinned"));
            }
        }
        let found = self.audit.take_findings();
        self.verdict().and_then(|()| {
            found.first().map_or(Ok(()), |finding| Err(format!("the audit takes offence: {finding:?}")))
        })
    }

    /// The first fault, if there was one.
    pub(crate) fn verdict(&self) -> Result<(), String> {
        self.gpu.fault().map_or(Ok(()), |fault| Err(fault.to_owned()))
    }

    pub(crate) fn take_journal(&mut self) -> Vec<Command> {
        std::mem::take(&mut self.journal)
    }

    fn use_of(&self, open: &Open, index: usize) -> Option<Use> {
        let Shown { hit, effect } = open.shown[index];
        let known = &self.known[hit.unit.0 as usize];
        let leaves = effect.writes().then_some(known.writes + 1);
        let used = Use { unit: hit.unit, place: open.place(index), sees: known.sees(effect), leaves };
        (effect != Effect::Nothing).then_some(used)
    }

    fn note(&mut self, op: OpId, unit: UnitId, effect: Effect) {
        let known = &mut self.known[unit.0 as usize];
        known.writes += u32::from(effect.writes());
        for (_, page) in (0..).zip(&mut known.pages).filter(|(page, _)| effect.touches(*page)) {
            if effect.writes() {
                *page = Page { version: known.writes, last_write: Some(op), reads_since: Vec::new() };
            } else {
                page.reads_since.push(op);
            }
        }
    }

    fn perform(&mut self) {
        for command in std::mem::take(&mut self.commands) {
            self.journal.push(command);
            self.audit.command(command);
            match command {
                Command::WaitOnStream { stream, event } => self.gpu.wait_on_stream(stream, event),
                Command::WaitOnCopy { copy, event } => self.gpu.wait_on_copy(copy, event),
                Command::CopyIn { copy, unit, first, pages } => {
                    self.gpu.copy(copy, unit, first, pages, false)
                }
                Command::WriteBack { copy, unit, first, pages } => {
                    self.gpu.copy(copy, unit, first, pages, true)
                }
                Command::RecordCopy { copy, event } => self.gpu.record_on_copy(copy, event),
                Command::RecordReader { stream, event } => self.gpu.record_on_stream(stream, event),
            }
        }
    }
}

/// Pages that the journal copied in, by copy stream.
pub(crate) fn pages_in(journal: &[Command], on: CopyStream) -> u32 {
    let pages = |command: &Command| match *command {
        Command::CopyIn { copy, pages, .. } if copy == on => pages,
        _ => 0,
    };
    journal.iter().map(pages).sum()
}
