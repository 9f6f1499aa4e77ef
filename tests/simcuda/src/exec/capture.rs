//! Stream capture: streams that record nodes instead of running, and which calls a capture forbids.

use super::context;
use super::event::State;
use super::graph::Graph;
use super::stream::Stream;
use super::work::Work;
use crate::locks::lock;
use crate::status::{Done, Status};
use std::cell::Cell;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};

/// `CU_STREAM_CAPTURE_MODE_*`.
pub(crate) const GLOBAL: u32 = 0;
pub(crate) const RELAXED: u32 = 2;

struct Joined {
    stream: Arc<Stream>,
    /// The nodes that the stream's next node comes after.
    frontier: Vec<u64>,
}

#[derive(Default)]
struct Progress {
    invalid: bool,
    joined: HashMap<u32, Joined>,
}

/// One capture: from begin to end.
pub(crate) struct Capture {
    pub(crate) id: u64,
    pub(crate) graph: Arc<Graph>,
    mode: u32,
    thread: u64,
    origin: Arc<Stream>,
    progress: Mutex<Progress>,
}

/// What an event means that was recorded in a capturing stream.
#[derive(Clone)]
pub(crate) struct Marker {
    capture: Arc<Capture>,
    nodes: Vec<u64>,
}

static ACTIVE: Mutex<Vec<Arc<Capture>>> = Mutex::new(Vec::new());
/// Length of `ACTIVE`, so that calls without any capture take no lock.
static COUNT: AtomicUsize = AtomicUsize::new(0);

thread_local! {
    static MODE: Cell<u32> = const { Cell::new(GLOBAL) };
}

/// Swaps the calling thread's mode.
///
/// # Errors
/// `INVALID_VALUE` for a number that is no mode.
pub(crate) fn exchange_mode(new: u32) -> Result<u32, Status> {
    if new > RELAXED {
        return Err(Status::INVALID_VALUE);
    }
    Ok(MODE.try_with(|mode| mode.replace(new)).unwrap_or(GLOBAL))
}

fn active() -> Vec<Arc<Capture>> {
    if COUNT.load(Relaxed) == 0 { Vec::new() } else { lock(&ACTIVE).clone() }
}

impl Capture {
    fn holds(&self, stream: &Stream) -> bool {
        lock(&self.progress).joined.contains_key(&stream.id)
    }

    pub(crate) fn invalidate(&self) {
        lock(&self.progress).invalid = true;
    }

    pub(crate) fn valid(&self) -> bool {
        !lock(&self.progress).invalid
    }

    /// The nodes that the stream's next node comes after.
    pub(crate) fn frontier(&self, stream: &Stream) -> Vec<u64> {
        lock(&self.progress).joined.get(&stream.id).map(|joined| joined.frontier.clone()).unwrap_or_default()
    }

    fn add(&self, stream: &Stream, work: &Work) -> Done {
        let mut progress = lock(&self.progress);
        if progress.invalid {
            return Err(Status::STREAM_CAPTURE_INVALIDATED);
        }
        let Some(joined) = progress.joined.get_mut(&stream.id) else { return Err(Status::ILLEGAL_STATE) };
        let node = self.graph.add(work.clone(), &joined.frontier)?;
        joined.frontier = vec![node];
        Ok(())
    }

    /// Whether every stream's last nodes are ordered before the origin's.
    fn all_joined(&self) -> bool {
        let progress = lock(&self.progress);
        let nodes: HashMap<u64, Vec<u64>> =
            self.graph.nodes().into_iter().map(|node| (node.handle, node.dependencies)).collect();
        let mut reached = std::collections::HashSet::new();
        let origin = progress.joined.get(&self.origin.id);
        let mut open = origin.map(|joined| joined.frontier.clone()).unwrap_or_default();
        while let Some(node) = open.pop() {
            if reached.insert(node) {
                open.extend(nodes.get(&node).into_iter().flatten());
            }
        }
        progress.joined.values().all(|joined| joined.frontier.iter().all(|node| reached.contains(node)))
    }
}

/// The capture that a stream takes part in.
pub(crate) fn of(stream: &Stream) -> Option<Arc<Capture>> {
    active().into_iter().find(|capture| capture.holds(stream))
}

/// Records work into the stream's capture; false when the stream does not capture.
pub(crate) fn record(stream: &Arc<Stream>, work: &Work) -> Result<bool, Status> {
    match of(stream) {
        None => Ok(false),
        Some(capture) => capture.add(stream, work).map(|()| true),
    }
}

/// The marker for an event recorded on a capturing stream.
pub(crate) fn mark(stream: &Stream) -> Result<Option<State>, Status> {
    let Some(capture) = of(stream) else { return Ok(None) };
    if !capture.valid() {
        return Err(Status::STREAM_CAPTURE_INVALIDATED);
    }
    let nodes = capture.frontier(stream);
    Ok(Some(State::Captured(Marker { capture, nodes })))
}

impl Marker {
    /// Makes a stream wait for the marked nodes, taking it into the capture.
    pub(crate) fn join(&self, stream: &Arc<Stream>) -> Done {
        let still = active().iter().any(|capture| Arc::ptr_eq(capture, &self.capture));
        if !still || !self.capture.valid() {
            return Err(Status::STREAM_CAPTURE_INVALIDATED);
        }
        if let Some(other) = of(stream).filter(|other| !Arc::ptr_eq(other, &self.capture)) {
            other.invalidate();
            self.capture.invalidate();
            return Err(Status::STREAM_CAPTURE_MERGE);
        }
        if stream.legacy {
            self.capture.invalidate();
            return Err(Status::STREAM_CAPTURE_IMPLICIT);
        }
        let mut progress = lock(&self.capture.progress);
        let joined = progress
            .joined
            .entry(stream.id)
            .or_insert_with(|| Joined { stream: Arc::clone(stream), frontier: Vec::new() });
        for node in &self.nodes {
            if !joined.frontier.contains(node) {
                joined.frontier.push(*node);
            }
        }
        Ok(())
    }
}

/// Invalidates the capture of a stream on which a forbidden call was made.
pub(crate) fn forbid_on(stream: &Stream) -> Done {
    match of(stream) {
        None => Ok(()),
        Some(capture) => {
            capture.invalidate();
            Err(Status::STREAM_CAPTURE_UNSUPPORTED)
        }
    }
}

/// Invalidates the captures that streams of a context take part in: nothing waits for a context while one of its streams captures, in whatever mode.
pub(crate) fn forbid_in(context: &context::Context) -> Done {
    let mut result = Ok(());
    for capture in active() {
        let here = lock(&capture.progress)
            .joined
            .values()
            .any(|joined| std::ptr::eq(joined.stream.context.as_ptr(), context));
        if here {
            capture.invalidate();
            result = Err(Status::STREAM_CAPTURE_UNSUPPORTED);
        }
    }
    result
}

/// Refuses work on the legacy stream that would have to wait for a capturing stream.
pub(crate) fn check_implicit(stream: &Stream) -> Done {
    if !stream.legacy {
        return Ok(());
    }
    for capture in active() {
        let blocked = lock(&capture.progress)
            .joined
            .values()
            .any(|joined| joined.stream.blocking() && joined.stream.context.ptr_eq(&stream.context));
        if blocked {
            capture.invalidate();
            return Err(Status::STREAM_CAPTURE_IMPLICIT);
        }
    }
    Ok(())
}

/// The gate of calls that a capture in global mode forbids to every thread, and one in thread-local mode to its own:
/// allocation, registration, synchronisation. A thread in relaxed mode may do all of them.
pub(crate) fn unsafe_call() -> Done {
    let captures = active();
    if captures.is_empty() {
        return Ok(());
    }
    let mode = MODE.try_with(Cell::get).unwrap_or(GLOBAL);
    let thread = context::thread();
    let mut result = Ok(());
    for capture in captures {
        let everywhere = mode == GLOBAL && capture.mode == GLOBAL;
        let here = mode != RELAXED && capture.mode != RELAXED && capture.thread == thread;
        if everywhere || here {
            capture.invalidate();
            result = Err(Status::STREAM_CAPTURE_UNSUPPORTED);
        }
    }
    result
}

/// Begins a capture.
///
/// # Errors
/// `INVALID_VALUE` for an unknown mode, `STREAM_CAPTURE_UNSUPPORTED` for the legacy stream, `ILLEGAL_STATE` for a stream
/// that captures already.
pub(crate) fn begin(stream: &Arc<Stream>, mode: u32) -> Done {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    if mode > RELAXED {
        return Err(Status::INVALID_VALUE);
    }
    if stream.legacy {
        return Err(Status::STREAM_CAPTURE_UNSUPPORTED);
    }
    if of(stream).is_some() {
        return Err(Status::ILLEGAL_STATE);
    }
    let mut progress = Progress::default();
    progress.joined.insert(stream.id, Joined { stream: Arc::clone(stream), frontier: Vec::new() });
    let capture = Capture {
        id: NEXT.fetch_add(1, Relaxed),
        graph: Graph::create(),
        mode,
        thread: context::thread(),
        origin: Arc::clone(stream),
        progress: Mutex::new(progress),
    };
    let mut active = lock(&ACTIVE);
    active.push(Arc::new(capture));
    COUNT.store(active.len(), Relaxed);
    Ok(())
}

/// Ends a capture and returns its graph.
///
/// # Errors
/// `ILLEGAL_STATE` when the stream does not capture; the capture errors 901, 903, 904 and 908.
pub(crate) fn end(stream: &Arc<Stream>) -> Result<Arc<Graph>, Status> {
    let capture = of(stream).ok_or(Status::ILLEGAL_STATE)?;
    if capture.origin.id != stream.id {
        capture.invalidate();
        return Err(Status::STREAM_CAPTURE_UNMATCHED);
    }
    if capture.mode != RELAXED && capture.thread != context::thread() {
        return Err(Status::STREAM_CAPTURE_WRONG_THREAD);
    }
    {
        let mut active = lock(&ACTIVE);
        active.retain(|other| !Arc::ptr_eq(other, &capture));
        COUNT.store(active.len(), Relaxed);
    }
    let verdict = match (capture.valid(), capture.all_joined()) {
        (false, _) => Err(Status::STREAM_CAPTURE_INVALIDATED),
        (true, false) => Err(Status::STREAM_CAPTURE_UNJOINED),
        (true, true) => Ok(Arc::clone(&capture.graph)),
    };
    if verdict.is_err() {
        capture.graph.destroy();
        let _ = super::graph::GRAPHS.remove(capture.graph.handle);
    }
    verdict
}

/// Replaces or extends what the stream's next node comes after.
pub(crate) fn update(stream: &Stream, nodes: &[u64], replace: bool) -> Done {
    let capture = of(stream).ok_or(Status::ILLEGAL_STATE)?;
    for node in nodes {
        capture.graph.node(*node)?;
    }
    let mut progress = lock(&capture.progress);
    if progress.invalid {
        return Err(Status::STREAM_CAPTURE_INVALIDATED);
    }
    let Some(joined) = progress.joined.get_mut(&stream.id) else { return Err(Status::ILLEGAL_STATE) };
    if replace {
        joined.frontier.clear();
    }
    joined.frontier.extend_from_slice(nodes);
    Ok(())
}
