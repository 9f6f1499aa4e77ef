//! Events: marks in a stream that other streams, or the host, wait for. Pools and what an event means are the caller's.

#![expect(unsafe_code, reason = "typed calls into the driver")]

use super::capture;
use super::real::driver;
use super::result::CudaResult;
use super::stream::{Stream, ready};
use super::types::*;

/// An event handle.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Event(usize);

/// `CU_EVENT_DISABLE_TIMING`.
const DISABLE_TIMING: c_uint = 2;

impl Event {
    /// Stands for an event that could not be made; nothing takes it.
    pub(crate) const LOST: Event = Event(0);

    /// The handle that the driver takes.
    pub(crate) fn raw(self) -> CUevent {
        std::ptr::with_exposed_provenance_mut(self.0)
    }
}

impl From<CUevent> for Event {
    fn from(raw: CUevent) -> Event {
        Event(raw.expose_provenance())
    }
}

/// An event of the current context; one without `timing` is cheaper, and has no elapsed time.
pub(crate) fn create(timing: bool) -> CudaResult<Event> {
    let flags = if timing { 0 } else { DISABLE_TIMING };
    let mut raw: CUevent = std::ptr::null_mut();
    // SAFETY: the pointer is to a local that lives through the call.
    capture::relaxed(|| unsafe { driver().cuEventCreate(&mut raw, flags) }).ok()?;
    Ok(raw.into())
}

/// The event marks everything submitted to `stream` so far.
pub(crate) fn record(event: Event, stream: Stream) -> CudaResult<()> {
    // SAFETY: both handles are alive and of one context: ours, or the program's during its own call.
    capture::relaxed(|| unsafe { driver().cuEventRecord(event.raw(), stream.raw()) }).ok()
}

/// A new event without timing behind what is on the stream so far.
pub(crate) fn behind(stream: Stream) -> CudaResult<Event> {
    let event = create(false)?;
    match record(event, stream) {
        Ok(()) => Ok(event),
        Err(error) => {
            let _ = destroy(event);
            Err(error)
        }
    }
}

/// True when what the event marks has ended; also for an event that was never recorded.
pub(crate) fn query(event: Event) -> CudaResult<bool> {
    // SAFETY: the handle came from `create`.
    ready(capture::relaxed(|| unsafe { driver().cuEventQuery(event.raw()) }))
}

/// Blocks until what the event marks has ended.
pub(crate) fn synchronize(event: Event) -> CudaResult<()> {
    // SAFETY: the handle came from `create`.
    capture::relaxed(|| unsafe { driver().cuEventSynchronize(event.raw()) }).ok()
}

/// Milliseconds between two events with timing, both of which have ended.
pub(crate) fn elapsed_ms(start: Event, end: Event) -> CudaResult<f32> {
    let mut ms = 0.0;
    // SAFETY: the pointer is to a local that lives through the call; the handles came from `create`.
    let code =
        capture::relaxed(|| unsafe { driver().cuEventElapsedTime_v2(&mut ms, start.raw(), end.raw()) });
    if code != CUresult::CUDA_ERROR_NOT_SUPPORTED {
        return code.ok().map(|()| ms);
    }
    // Drivers before 12.8 have only the first form.
    // SAFETY: as above.
    capture::relaxed(|| unsafe { driver().cuEventElapsedTime(&mut ms, start.raw(), end.raw()) }).ok()?;
    Ok(ms)
}

/// Destroys an event; waits already issued on it still hold.
pub(crate) fn destroy(event: Event) -> CudaResult<()> {
    // SAFETY: the handle came from `create`.
    capture::relaxed(|| unsafe { driver().cuEventDestroy_v2(event.raw()) }).ok()
}
