//! A GPU for the pager alone: first-in-first-out queues whose heads advance in an order that a seed chooses, events as CUDA has them,
//! pages that know what is in them. Anything that is read too early, too late or half written is kept as a fault. What a
//! program does, and which commands the pager gives, is `world`'s matter.

use std::collections::{HashMap, VecDeque};

use flextensor_core::pager::{CopyStream, EventId, Progress, StreamId};
use flextensor_core::units::UnitId;

/// What a page holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum Content {
    #[default]
    Nothing,
    /// Somebody is in the middle of writing it.
    Torn,
    /// A page of a unit as its `version`-th write left it.
    Of { unit: u32, page: u32, version: u32 },
}

/// Where the addresses lead that a launch was given for a unit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    Ring,
    Shadow,
    Private,
}

/// What a launch does to one unit at every one of its three steps.
#[derive(Clone, Debug)]
pub(crate) struct Use {
    pub(crate) unit: UnitId,
    pub(crate) place: Place,
    /// Versions that it must see on each page; none where it does not look.
    pub(crate) sees: Vec<Option<u32>>,
    /// Version that it leaves on those pages.
    pub(crate) leaves: Option<u32>,
}

/// A unit's memory.
#[derive(Debug)]
pub(crate) struct Memory {
    start: usize,
    pub(crate) shadow: Vec<Content>,
    pub(crate) private: Vec<Content>,
}

pub(crate) type OpId = usize;

#[derive(Debug)]
enum Work {
    Wait(OpId),
    Record,
    Copy { unit: UnitId, first: usize, pages: usize, back: bool },
    Launch(Vec<Use>),
}

#[derive(Debug)]
struct Op {
    id: OpId,
    work: Work,
    step: usize,
}

#[derive(Debug)]
struct Queue {
    name: String,
    ops: VecDeque<Op>,
    /// How often the scheduler picks it, compared with the others.
    weight: u64,
}

/// Small, seeded, good enough to shuffle queues.
#[derive(Debug)]
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)) % limit
    }
}

#[derive(Debug)]
pub(crate) struct Gpu {
    ring: Vec<Content>,
    pub(crate) memory: Vec<Memory>,
    /// The two copy streams, then streams of the program, ended ones included.
    queues: Vec<Queue>,
    streams: HashMap<StreamId, usize>,
    events: HashMap<EventId, OpId>,
    done: Vec<bool>,
    dice: Dice,
    fault: Option<String>,
}

impl Gpu {
    pub(crate) fn new(ring_pages: u32, units: &[(u32, u32)], seed: u64) -> Self {
        let memory = (0..).zip(units).map(|(unit, &(start, pages))| Memory {
            start: start as usize,
            shadow: (0..pages).map(|page| Content::Of { unit, page, version: 0 }).collect(),
            private: Vec::new(),
        });
        let mut gpu = Self {
            ring: vec![Content::Nothing; ring_pages as usize],
            memory: memory.collect(),
            queues: Vec::new(),
            streams: HashMap::new(),
            events: HashMap::new(),
            done: Vec::new(),
            dice: Dice(seed),
            fault: None,
        };
        gpu.add_queue("prefetch".into());
        gpu.add_queue("demand".into());
        gpu
    }

    /// Whether two units own a page both.
    pub(crate) fn share(&self, first: u32, second: u32) -> bool {
        let pages = |unit: u32| {
            let Memory { start, shadow, .. } = &self.memory[unit as usize];
            (*start..start + shadow.len()).map(|page| page % self.ring.len())
        };
        pages(first).any(|page| pages(second).any(|other| other == page))
    }

    pub(crate) fn fault(&self) -> Option<&str> {
        self.fault.as_deref()
    }

    pub(crate) fn is_done(&self, op: OpId) -> bool {
        self.done[op]
    }

    /// A stream is made when it is first used; after [`Gpu::destroy`] the same value names another one.
    fn stream(&mut self, stream: StreamId) -> usize {
        if let Some(&queue) = self.streams.get(&stream) {
            return queue;
        }
        let queue = self.add_queue(format!("stream {}", stream.0));
        self.streams.insert(stream, queue);
        queue
    }

    fn add_queue(&mut self, name: String) -> usize {
        let weight = [1, 1, 6, 40][self.dice.below(4) as usize];
        let queue = Queue { name, ops: VecDeque::new(), weight };
        let live: Vec<usize> = self.streams.values().copied().collect();
        let ended = (2..self.queues.len()).find(|at| !live.contains(at) && self.queues[*at].ops.is_empty());
        let at = ended.unwrap_or(self.queues.len());
        match self.queues.get_mut(at) {
            Some(old) => *old = queue,
            None => self.queues.push(queue),
        }
        at
    }

    pub(crate) fn destroy(&mut self, stream: StreamId) {
        self.streams.remove(&stream);
    }

    fn push(&mut self, queue: usize, work: Work) -> OpId {
        let id = self.done.len();
        self.done.push(false);
        self.queues[queue].ops.push_back(Op { id, work, step: 0 });
        id
    }

    pub(crate) fn launch(&mut self, stream: StreamId, uses: Vec<Use>) -> OpId {
        let queue = self.stream(stream);
        self.push(queue, Work::Launch(uses))
    }

    /// The program's own order between streams.
    pub(crate) fn wait_for(&mut self, stream: StreamId, op: OpId) {
        let queue = self.stream(stream);
        self.push(queue, Work::Wait(op));
    }

    pub(crate) fn copy(&mut self, copy: CopyStream, unit: UnitId, first: u32, pages: u32, back: bool) {
        self.push(copy as usize, Work::Copy { unit, first: first as usize, pages: pages as usize, back });
    }

    /// The wait takes the event's record at the time of issue.
    pub(crate) fn wait_on_stream(&mut self, stream: StreamId, event: EventId) {
        let queue = self.stream(stream);
        self.wait(queue, event);
    }

    pub(crate) fn wait_on_copy(&mut self, copy: CopyStream, event: EventId) {
        self.wait(copy as usize, event);
    }

    fn wait(&mut self, queue: usize, event: EventId) {
        match self.events.get(&event) {
            Some(&op) => _ = self.push(queue, Work::Wait(op)),
            None => self.set_fault(format!("wait on {event:?}, which was never recorded")),
        }
    }

    pub(crate) fn record_on_stream(&mut self, stream: StreamId, event: EventId) {
        match self.streams.get(&stream) {
            Some(&queue) => self.record(queue, event),
            None => self.set_fault(format!("{event:?} recorded on {stream:?}, which does not exist")),
        }
    }

    pub(crate) fn record_on_copy(&mut self, copy: CopyStream, event: EventId) {
        self.record(copy as usize, event);
    }

    fn record(&mut self, queue: usize, event: EventId) {
        let op = self.push(queue, Work::Record);
        self.events.insert(event, op);
    }

    /// Lets so many steps happen.
    pub(crate) fn run(&mut self, steps: u64) {
        for _ in 0..steps {
            if !self.step_one_of(|_| true) {
                return;
            }
        }
    }

    /// Runs everything that was submitted.
    pub(crate) fn drain(&mut self) {
        while self.step_one_of(|_| true) {}
        if let Some(queue) = self.queues.iter().find(|queue| !queue.ops.is_empty()) {
            let text = format!("stuck: {} at {:?}", queue.name, queue.ops[0]);
            self.set_fault(text);
        }
    }

    /// What a host sees that waits for both copy streams: the others have come no further than they must.
    pub(crate) fn drain_copies(&mut self) {
        while self.queues[..2].iter().any(|queue| !queue.ops.is_empty()) {
            if !self.step_one_of(|queue| queue < 2) && !self.step_one_of(|_| true) {
                return self.drain();
            }
        }
    }

    /// Runs the copy streams as far as they come by themselves.
    pub(crate) fn run_copies_only(&mut self) {
        while self.step_one_of(|queue| queue < 2) {}
    }

    /// Runs one stream of the program as far as it comes by itself.
    pub(crate) fn run_stream_only(&mut self, stream: StreamId) {
        let only = self.stream(stream);
        while self.step_one_of(|queue| queue == only) {}
    }

    /// Runs one copy stream as far as it comes by itself.
    pub(crate) fn run_copy_only(&mut self, copy: CopyStream) {
        while self.step_one_of(|queue| queue == copy as usize) {}
    }

    fn step_one_of(&mut self, allowed: impl Fn(usize) -> bool) -> bool {
        let done = &self.done;
        let ready = |queue: &Queue| match queue.ops.front() {
            Some(Op { work: Work::Wait(op), .. }) => done[*op],
            Some(_) => true,
            None => false,
        };
        let ready: Vec<usize> =
            (0..self.queues.len()).filter(|&queue| allowed(queue) && ready(&self.queues[queue])).collect();
        let total: u64 = ready.iter().map(|&queue| self.queues[queue].weight).sum();
        if total == 0 {
            return false;
        }
        let mut ticket = self.dice.below(total);
        for queue in ready {
            let weight = self.queues[queue].weight;
            if ticket < weight {
                self.step(queue);
                break;
            }
            ticket -= weight;
        }
        true
    }

    fn step(&mut self, queue: usize) {
        let Some(mut op) = self.queues[queue].ops.pop_front() else { return };
        let finished = match &op.work {
            Work::Wait(_) | Work::Record => true,
            Work::Copy { unit, first, pages, back } => {
                self.copy_step(*unit, *first, *pages, *back, op.step);
                op.step == *pages
            }
            Work::Launch(uses) => {
                for used in uses {
                    if let Some(text) = self.launch_step(used, op.step) {
                        let text = format!("{}, step {}: {text}", self.queues[queue].name, op.step);
                        self.set_fault(text);
                    }
                }
                op.step == 2
            }
        };
        if finished {
            self.done[op.id] = true;
        } else {
            op.step += 1;
            self.queues[queue].ops.push_front(op);
        }
    }

    /// Step 0 tears what will change; each further step brings one page. Nobody may be writing what is copied.
    fn copy_step(&mut self, unit: UnitId, first: usize, pages: usize, back: bool, step: usize) {
        let mut half_written = false;
        for page in first..first + pages {
            let at = self.ring_page(unit, page);
            let shadow = &mut self.memory[unit.0 as usize].shadow[page];
            let (from, to) = if back { (self.ring[at], shadow) } else { (*shadow, &mut self.ring[at]) };
            if step == 0 && from != *to {
                *to = Content::Torn;
            } else if step == page - first + 1 {
                *to = from;
            }
            half_written |= step == page - first + 1 && from == Content::Torn;
        }
        if half_written {
            self.set_fault(format!("a copy of {unit:?} (back: {back}) met a page that was being written"));
        }
    }

    fn launch_step(&mut self, used: &Use, step: usize) -> Option<String> {
        let Use { unit, place, ref sees, leaves } = *used;
        let mut wrong = None;
        for (page, &version) in sees.iter().enumerate() {
            let Some(version) = version else { continue };
            let here = self.page_mut(unit, page, place);
            let of = |version| Content::Of { unit: unit.0, page: page as u32, version };
            let must = if leaves.is_some() && step == 2 { Content::Torn } else { of(version) };
            if *here != must {
                wrong = Some(format!("page {page} of {unit:?} in {place:?} holds {here:?}, should {must:?}"));
            }
            if let Some(version) = leaves.filter(|_| step > 0) {
                *here = if step == 1 { Content::Torn } else { of(version) };
            }
        }
        wrong
    }

    fn page_mut(&mut self, unit: UnitId, page: usize, place: Place) -> &mut Content {
        let at = self.ring_page(unit, page);
        let memory = &mut self.memory[unit.0 as usize];
        match place {
            Place::Ring => &mut self.ring[at],
            Place::Shadow => &mut memory.shadow[page],
            Place::Private => &mut memory.private[page],
        }
    }

    /// The unit's private bytes become its shadow's, and its addresses lead to another run of the ring.
    pub(crate) fn move_to_shadow(&mut self, unit: UnitId, start: u32) {
        let memory = &mut self.memory[unit.0 as usize];
        memory.shadow = std::mem::take(&mut memory.private);
        memory.start = start as usize;
    }

    fn ring_page(&self, unit: UnitId, page: usize) -> usize {
        (self.memory[unit.0 as usize].start + page) % self.ring.len()
    }

    /// Somebody still works at the unit's ring pages or on its shadow: its addresses must not be taken away.
    pub(crate) fn touches(&self, unit: UnitId) -> bool {
        let at_work = |op: &Op| match &op.work {
            Work::Copy { unit: copied, .. } => *copied == unit,
            Work::Launch(uses) => uses.iter().any(|used| {
                used.unit == unit
                    && (used.place == Place::Ring || used.place == Place::Shadow && used.leaves.is_some())
            }),
            _ => false,
        };
        self.queues.iter().flat_map(|queue| &queue.ops).any(at_work)
    }

    pub(crate) fn set_fault(&mut self, text: String) {
        self.fault.get_or_insert(text);
    }
}

impl Progress for Gpu {
    fn completed(&self, event: EventId) -> bool {
        self.events.get(&event).is_some_and(|&op| self.done[op])
    }
}
