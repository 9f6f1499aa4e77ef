//! Streams and events: snapshots, default-stream ordering. A host function holds a stream until the gate opens.

use super::facts::Facts;
use harness::driver::{Failure, check};
use harness::gpu::Gpu;
use std::ffi::c_void;
use std::sync::{Condvar, Mutex};
use std::time::Duration;

/// A gate that streams wait at.
struct Gate {
    open: Mutex<bool>,
    moved: Condvar,
}

static GATE: Gate = Gate { open: Mutex::new(true), moved: Condvar::new() };

impl Gate {
    fn set(&self, open: bool) {
        *self.open.lock().expect("nobody panics at the gate") = open;
        self.moved.notify_all();
    }
}

/// Holds the stream that calls it; gives up after ten seconds, so that a wrong driver ends with a wrong fact.
extern "C" fn hold(_: *mut c_void) {
    let open = GATE.open.lock().expect("nobody panics at the gate");
    let ten = Duration::from_secs(10);
    let _ = GATE.moved.wait_timeout_while(open, ten, |open| !*open);
}

const NOT_READY: u32 = 600;

fn closed(gpu: &Gpu, stream: u64) -> Result<(), Failure> {
    GATE.set(false);
    check("cuLaunchHostFunc", gpu.driver.host_function(stream, hold, std::ptr::null_mut()))
}

fn open(gpu: &Gpu) -> Result<(), Failure> {
    GATE.set(true);
    gpu.synchronize()
}

pub(crate) fn observe(gpu: &Gpu, facts: &mut Facts) -> Result<(), Failure> {
    never_recorded(gpu, facts)?;
    snapshots(gpu, facts)?;
    legacy_stream(gpu, facts)
}

fn never_recorded(gpu: &Gpu, facts: &mut Facts) -> Result<(), Failure> {
    let (stream, event) = (gpu.stream()?, gpu.event()?);
    facts.code("waiting for an event that was never recorded", gpu.driver.stream_wait(stream, event, 0), 0);
    facts.code("asking an event that was never recorded", gpu.driver.event_query(event), 0);
    let mut milliseconds = 0.0;
    let mut timed = [0u64; 2];
    for event in &mut timed {
        check("cuEventCreate", gpu.driver.event_create(event, 0))?;
    }
    let code = gpu.driver.event_elapsed(&mut milliseconds, timed[0], timed[1]);
    facts.code("time between events that were never recorded", code, 400);
    gpu.record(timed[0], stream)?;
    gpu.record(timed[1], stream)?;
    gpu.synchronize()?;
    let code = gpu.driver.event_elapsed(&mut milliseconds, timed[0], timed[1]);
    facts.code("time between events", code, 0);
    facts.holds("time between events is not negative", milliseconds >= 0.0);
    for event in timed.into_iter().chain([event]) {
        facts.code("destroying an event", gpu.driver.event_destroy(event), 0);
    }
    check("cuStreamDestroy", gpu.driver.stream_destroy(stream))
}

fn snapshots(gpu: &Gpu, facts: &mut Facts) -> Result<(), Failure> {
    let driver = &gpu.driver;
    let (first, second, event) = (gpu.stream()?, gpu.stream()?, gpu.event()?);
    gpu.record(event, first)?;
    closed(gpu, first)?;
    facts.code("synchronizing with an event before a held entry", driver.event_synchronize(event), 0);
    facts.code("asking a held stream", driver.stream_query(first), NOT_READY);
    gpu.wait(second, event)?;
    gpu.record(event, first)?;
    facts.code("asking an event that was recorded again", driver.event_query(event), NOT_READY);
    facts.code("a wait on the older record", driver.stream_synchronize(second), 0);
    gpu.wait(second, event)?;
    facts.code("a wait on the newer record", driver.stream_query(second), NOT_READY);
    facts.code("destroying an event that is waited for", driver.event_destroy(event), 0);
    open(gpu)?;
    facts.code("the wait after the gate", driver.stream_query(second), 0);
    check("cuStreamDestroy", driver.stream_destroy(first))?;
    check("cuStreamDestroy", driver.stream_destroy(second))
}

fn legacy_stream(gpu: &Gpu, facts: &mut Facts) -> Result<(), Failure> {
    let driver = &gpu.driver;
    let memory = gpu.alloc(4096)?;
    let free = gpu.stream()?;
    let mut blocking = 0;
    check("cuStreamCreate", driver.stream_create(&mut blocking, 0))?;

    closed(gpu, free)?;
    facts.code(
        "the legacy stream beside a held non-blocking stream",
        driver.set_d8_async(memory, 1, 4096, 0),
        0,
    );
    facts.code("its end", driver.stream_synchronize(0), 0);
    open(gpu)?;

    closed(gpu, blocking)?;
    facts.code("the legacy stream behind a held blocking stream", driver.set_d8_async(memory, 2, 4096, 0), 0);
    facts.code("it waits", driver.stream_query(0), NOT_READY);
    open(gpu)?;

    closed(gpu, 0)?;
    facts.code(
        "a blocking stream behind the held legacy stream",
        driver.set_d8_async(memory, 3, 4096, blocking),
        0,
    );
    facts.code("it waits too", driver.stream_query(blocking), NOT_READY);
    facts.code("a non-blocking stream beside it", driver.set_d8_async(memory, 4, 4096, free), 0);
    facts.code("it does not wait", driver.stream_synchronize(free), 0);
    open(gpu)?;
    check("cuStreamDestroy", driver.stream_destroy(free))?;
    check("cuStreamDestroy", driver.stream_destroy(blocking))?;
    gpu.free(memory)
}
