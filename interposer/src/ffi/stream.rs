//! Streams: ours, which never wait for the legacy default stream, and questions about the program's.

#![expect(unsafe_code, reason = "typed calls into the driver")]

use super::event::Event;
use super::real::driver;
use super::result::{CudaError, CudaResult};
use super::types::*;
use super::{capture, context};

/// A stream handle, also the special values 0 (legacy default), 1 (legacy) and 2 (the calling thread's own).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) struct Stream(usize);

/// `CU_STREAM_NON_BLOCKING`.
const NON_BLOCKING: c_uint = 1;

impl Stream {
    /// The legacy default stream.
    pub(crate) const LEGACY: Stream = Stream(0);

    /// The handle as a number, for maps and logs.
    pub(crate) fn number(self) -> usize {
        self.0
    }

    /// The handle that the driver takes.
    pub(crate) fn raw(self) -> CUstream {
        std::ptr::with_exposed_provenance_mut(self.0)
    }
}

impl From<CUstream> for Stream {
    fn from(raw: CUstream) -> Stream {
        Stream(raw.expose_provenance())
    }
}

/// A stream of the current context that does not synchronise with the legacy default stream.
pub(crate) fn create_nonblocking() -> CudaResult<Stream> {
    create_with_priority(0)
}

/// As `create_nonblocking`; a lower number is a higher priority.
pub(crate) fn create_with_priority(priority: i32) -> CudaResult<Stream> {
    let mut raw: CUstream = std::ptr::null_mut();
    // SAFETY: the pointer is to a local that lives through the call.
    capture::relaxed(|| unsafe { driver().cuStreamCreateWithPriority(&mut raw, NON_BLOCKING, priority) })
        .ok()?;
    Ok(raw.into())
}

/// Destroys a stream of ours; work on it still ends.
pub(crate) fn destroy(stream: Stream) -> CudaResult<()> {
    // SAFETY: the handle came from `create_*`.
    capture::relaxed(|| unsafe { driver().cuStreamDestroy_v2(stream.raw()) }).ok()
}

/// Later work on `stream` waits for the last record of `event`. An event that was never recorded is accepted silently by the driver.
pub(crate) fn wait(stream: Stream, event: Event) -> CudaResult<()> {
    // SAFETY: both handles are alive: ours, or the program's during its own call.
    capture::relaxed(|| unsafe { driver().cuStreamWaitEvent(stream.raw(), event.raw(), 0) }).ok()
}

/// Calls `function` with `data` on a thread of the driver, in order on `stream`. It must not call the driver.
///
/// # Safety
/// `function` may be called with `data` once, at any later time, from any thread.
pub(crate) unsafe fn call_host(
    stream: Stream,
    function: unsafe extern "C" fn(*mut c_void),
    data: *mut c_void,
) -> CudaResult<()> {
    // SAFETY: the caller's promise.
    capture::relaxed(|| unsafe { driver().cuLaunchHostFunc(stream.raw(), function, data) }).ok()
}

/// Blocks until everything on `stream` has ended.
pub(crate) fn synchronize(stream: Stream) -> CudaResult<()> {
    // SAFETY: the handle is alive, as for `wait`.
    capture::relaxed(|| unsafe { driver().cuStreamSynchronize(stream.raw()) }).ok()
}

/// As [`synchronize`], for work that uses pages or host memory which are about to be somebody else's: where waiting for the stream is refused, everything in the
/// current context is waited for.
pub(crate) fn drain(stream: Stream) -> CudaResult<()> {
    synchronize(stream).or_else(|error| context::synchronize().map_err(|_| error))
}

/// True when everything on `stream` has ended.
pub(crate) fn query(stream: Stream) -> CudaResult<bool> {
    // SAFETY: the handle is alive: ours, or one of the program's that `runtime/streams` keeps from being destroyed meanwhile.
    ready(capture::relaxed(|| unsafe { driver().cuStreamQuery(stream.raw()) }))
}

/// True while work on `stream` is being captured into a graph (also when the capture is already dead).
pub(crate) fn is_capturing(stream: Stream) -> CudaResult<bool> {
    let mut status: c_uint = 0;
    // SAFETY: the pointer is to a local that lives through the call.
    unsafe { driver().cuStreamIsCapturing(stream.raw(), &mut status) }.ok()?;
    Ok(status != 0)
}

/// "Ready", "not ready" or an error, of a query.
pub(super) fn ready(code: CUresult) -> CudaResult<bool> {
    match code {
        CUresult::CUDA_SUCCESS => Ok(true),
        CUresult::CUDA_ERROR_NOT_READY => Ok(false),
        error => Err(CudaError(error)),
    }
}
