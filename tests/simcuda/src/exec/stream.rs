//! Streams: a bounded queue and one worker thread each.
//!
//! An entry runs when the entries before it and everything it waits for are done. A programmatic launch may run beside
//! the kernel right before it. The worker starts with the first entry and ends with the stream.

use super::clock::{Clock, Lane};
use super::context::Context;
use super::event::Record;
use super::hazard::{Stamp, Use};
use super::work::Work;
use crate::locks::{lock, wait};
use crate::registry::Registry;
use crate::settings::settings;
use crate::status::Status;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Condvar, Mutex, Weak};
use std::thread::{self, JoinHandle};

pub(crate) static STREAMS: Registry<Stream> = Registry::reusing(2);

/// `CU_STREAM_NON_BLOCKING`.
pub(crate) const NON_BLOCKING: u32 = 1;

/// What an entry waits for besides the entries before it.
pub(crate) enum Wait {
    /// Another stream has finished this many entries.
    Position(Arc<Stream>, u64),
    /// A recorded event has happened.
    Record(Arc<Record>),
}

impl Wait {
    fn block(&self) {
        match self {
            Self::Position(stream, count) => stream.wait_for(*count),
            Self::Record(record) => record.block(),
        }
    }
}

struct Entry {
    work: Work,
    waits: Vec<Wait>,
    stamp: Stamp,
}

impl Entry {
    fn overlaps_predecessor(&self) -> bool {
        matches!(&self.work, Work::Kernel(call) if call.programmatic)
    }
}

struct Queue {
    entries: VecDeque<Entry>,
    /// Uses of every entry that is not done, with its number.
    uses: VecDeque<(u64, &'static str, Vec<Use>)>,
    submitted: u64,
    done: u64,
    /// What is ordered before the next entry.
    clock: Clock,
    /// What was ordered before the last entry, if that is a kernel: a programmatic launch starts there.
    before_kernel: Option<Clock>,
    worker: bool,
    closed: bool,
}

/// A stream of one context.
pub(crate) struct Stream {
    /// 0 for default streams.
    pub(crate) handle: u64,
    pub(crate) device: usize,
    pub(crate) context: Weak<Context>,
    pub(crate) flags: u32,
    pub(crate) priority: i32,
    pub(crate) legacy: bool,
    pub(crate) id: u32,
    /// Threads that wait for it by its name.
    pub(crate) waited_for: AtomicU32,
    lane: Arc<Lane>,
    queue: Mutex<Queue>,
    work: Condvar,
    progress: Condvar,
}

impl Stream {
    fn new(
        handle: u64,
        device: usize,
        context: Weak<Context>,
        flags: u32,
        priority: i32,
        legacy: bool,
    ) -> Arc<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let lane = Lane::take();
        let done = lane.done.load(Ordering::Acquire);
        let queue = Queue {
            entries: VecDeque::new(),
            uses: VecDeque::new(),
            submitted: done,
            done,
            clock: Clock::default(),
            before_kernel: None,
            worker: false,
            closed: false,
        };
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        Arc::new(Self {
            handle,
            device,
            context,
            flags,
            priority,
            legacy,
            id,
            waited_for: AtomicU32::new(0),
            lane,
            queue: Mutex::new(queue),
            work: Condvar::new(),
            progress: Condvar::new(),
        })
    }

    /// The legacy stream of a context, or a thread's own one.
    pub(crate) fn default_stream(device: usize, context: Weak<Context>, legacy: bool) -> Arc<Self> {
        Self::new(0, device, context, 0, 0, legacy)
    }

    /// A stream that the program asked for.
    pub(crate) fn create(context: &Arc<Context>, flags: u32, priority: i32) -> Arc<Self> {
        let stream = STREAMS.insert(|handle| {
            Self::new(handle, context.device, Arc::downgrade(context), flags, priority, false)
        });
        context.adopt(&stream);
        stream
    }

    /// Whether the legacy stream orders itself against this one.
    pub(crate) fn blocking(&self) -> bool {
        !self.legacy && self.flags & NON_BLOCKING == 0
    }

    /// # Errors
    /// The error that took the stream's context.
    pub(crate) fn usable(&self) -> Result<(), Status> {
        self.context.upgrade().ok_or(Status::CONTEXT_IS_DESTROYED)?.usable()
    }

    /// The legacy ordering that an entry submitted now falls under.
    fn implicit_waits(&self, context: &Context) -> Vec<(Wait, Clock)> {
        let before = |stream: &Arc<Self>| {
            let queue = lock(&stream.queue);
            (queue.submitted > queue.done)
                .then(|| (Wait::Position(Arc::clone(stream), queue.submitted), queue.clock.clone()))
        };
        if self.legacy {
            context.streams().iter().filter(|stream| stream.blocking()).filter_map(before).collect()
        } else if self.blocking() {
            before(&context.legacy).into_iter().collect()
        } else {
            Vec::new()
        }
    }

    /// Appends work; blocks while the queue is full. Returns its number in the stream.
    pub(crate) fn submit(self: &Arc<Self>, work: Work, waits: Vec<Wait>) -> u64 {
        let context = self.context.upgrade();
        {
            let mut queue = lock(&self.queue);
            while queue.entries.len() >= settings().queue {
                queue = wait(&self.progress, queue);
            }
        }
        let _order = context.as_ref().map(|context| lock(&context.order));
        let implicit = context.as_ref().map(|context| self.implicit_waits(context)).unwrap_or_default();
        let mut queue = lock(&self.queue);
        queue.submitted += 1;
        let sequence = queue.submitted;
        let kernel = matches!(work, Work::Kernel(_));
        let programmatic = matches!(&work, Work::Kernel(call) if call.programmatic);
        let mut before = match queue.before_kernel.take() {
            Some(start) if programmatic => start,
            _ => queue.clock.clone(),
        };
        before.join(&Clock::finished());
        let mut all = waits;
        for (wait, clock) in implicit {
            before.join(&clock);
            all.push(wait);
        }
        for wait in &all {
            if let Wait::Record(record) = wait {
                record.order(&mut before);
            }
        }
        queue.before_kernel = kernel.then(|| before.clone());
        queue.clock.join(&before);
        queue.clock.reach(self.lane.index, sequence);
        if let Work::Record(record) = &work {
            record.happens_after(&queue.clock);
        }
        let label = work.label();
        queue.uses.push_back((sequence, label, work.uses()));
        let stamp = Stamp { lane: self.lane.index, sequence, before, label };
        queue.entries.push_back(Entry { work, waits: all, stamp });
        if !queue.worker {
            queue.worker = true;
            let stream = Arc::clone(self);
            let name = "simcuda stream".to_owned();
            thread::Builder::new()
                .name(name)
                .spawn(move || stream.run())
                .expect("the system starts a thread");
        }
        self.work.notify_one();
        sequence
    }

    /// Takes the next entry, and says whether the one behind it may run beside it. `None` when the stream has ended.
    fn next(&self, running: &mut Vec<JoinHandle<()>>, last: u64) -> Option<(Entry, bool)> {
        let mut queue = lock(&self.queue);
        loop {
            if let Some(entry) = queue.entries.pop_front() {
                let beside = queue.entries.front().is_some_and(Entry::overlaps_predecessor);
                self.progress.notify_all();
                return Some((entry, beside));
            }
            if !running.is_empty() {
                drop(queue);
                self.settle(running, last);
                queue = lock(&self.queue);
            } else if queue.closed {
                return None;
            } else {
                queue = wait(&self.work, queue);
            }
        }
    }

    /// Waits for the kernels that run beside each other, then counts everything up to `last` as done.
    fn settle(&self, running: &mut Vec<JoinHandle<()>>, last: u64) {
        for kernel in running.drain(..) {
            // A panic in a kernel body was printed by the panic hook; the stream goes on.
            let _ = kernel.join();
        }
        self.finish(last);
    }

    fn finish(&self, sequence: u64) {
        let mut queue = lock(&self.queue);
        queue.done = queue.done.max(sequence);
        self.lane.done.store(queue.done, Ordering::Release);
        while queue.uses.front().is_some_and(|(number, ..)| *number <= sequence) {
            queue.uses.pop_front();
        }
        self.progress.notify_all();
    }

    fn run(self: Arc<Self>) {
        let mut running = Vec::new();
        let mut last = 0;
        while let Some((entry, beside)) = self.next(&mut running, last) {
            if !entry.overlaps_predecessor() && !running.is_empty() {
                self.settle(&mut running, last);
            }
            for wait in &entry.waits {
                wait.block();
            }
            last = entry.stamp.sequence;
            let kernel = matches!(entry.work, Work::Kernel(_));
            if kernel && (beside || !running.is_empty()) {
                let stream = Arc::clone(&self);
                running.push(thread::spawn(move || entry.work.run(&stream, &entry.stamp)));
                continue;
            }
            entry.work.run(&self, &entry.stamp);
            self.finish(last);
        }
        if let Some(context) = self.context.upgrade() {
            context.forget(&self);
        }
        self.lane.release();
    }

    /// Blocks until this many entries are done.
    pub(crate) fn wait_for(&self, count: u64) {
        let mut queue = lock(&self.queue);
        while queue.done < count {
            queue = wait(&self.progress, queue);
        }
    }

    /// Blocks until everything submitted before the call is done.
    pub(crate) fn drain(&self) {
        let submitted = lock(&self.queue).submitted;
        self.wait_for(submitted);
    }

    /// Blocks until everything that work submitted now would wait for is done: the legacy stream stands for all blocking
    /// streams too.
    pub(crate) fn drain_all(&self) {
        if let Some(context) = self.context.upgrade().filter(|_| self.legacy) {
            for stream in context.streams().iter().filter(|stream| stream.blocking()) {
                stream.drain();
            }
        }
        self.drain();
    }

    /// Whether everything submitted is done.
    pub(crate) fn idle(&self) -> bool {
        let queue = lock(&self.queue);
        queue.done == queue.submitted
    }

    /// Takes no more work and ends once the queue is empty.
    pub(crate) fn close(&self) {
        let started = {
            let mut queue = lock(&self.queue);
            let first = !queue.closed;
            queue.closed = true;
            queue.worker || !first
        };
        if started {
            self.work.notify_all();
        } else {
            if let Some(context) = self.context.upgrade() {
                context.forget(self);
            }
            self.lane.release();
        }
    }

    /// The first unfinished entry that uses a byte of the range.
    pub(crate) fn user_of(&self, address: u64, bytes: u64) -> Option<String> {
        let queue = lock(&self.queue);
        queue.uses.iter().find_map(|(sequence, label, uses)| {
            let used = uses.iter().find(|used| used.overlaps(address, bytes))?;
            Some(format!(
                "{label} (stream lane {}, entry {sequence}) uses {:#x}",
                self.lane.index, used.address
            ))
        })
    }
}

/// The first unfinished entry of any stream that uses a byte of the range.
pub(crate) fn user_of(address: u64, bytes: u64) -> Option<String> {
    super::context::CONTEXTS
        .all()
        .iter()
        .flat_map(|context| context.streams())
        .find_map(|stream| stream.user_of(address, bytes))
}
