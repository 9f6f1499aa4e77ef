//! Contexts: which one a thread has, and work inside another. We never create one; `retain_primary` only keeps the program's alive.

#![expect(unsafe_code, reason = "typed calls into the driver")]

use super::capture;
use super::real::driver;
use super::result::CudaResult;
use super::types::*;

/// A context handle; `Context::NONE` where a thread has none.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub(crate) struct Context(usize);

impl Context {
    /// No context.
    pub(crate) const NONE: Context = Context(0);

    /// The handle that the driver takes.
    pub(crate) fn raw(self) -> CUcontext {
        std::ptr::with_exposed_provenance_mut(self.0)
    }

    /// True for `Context::NONE`.
    pub(crate) fn is_none(self) -> bool {
        self.0 == 0
    }
}

impl From<CUcontext> for Context {
    fn from(raw: CUcontext) -> Context {
        Context(raw.expose_provenance())
    }
}

/// The calling thread's current context, or `Context::NONE`.
pub(crate) fn current() -> CudaResult<Context> {
    let mut raw: CUcontext = std::ptr::null_mut();
    // SAFETY: the pointer is to a local that lives through the call.
    unsafe { driver().cuCtxGetCurrent(&mut raw) }.ok()?;
    Ok(raw.into())
}

/// Takes a context off the thread's stack again, also by a panic.
struct Pushed;

impl Drop for Pushed {
    fn drop(&mut self) {
        let mut popped: CUcontext = std::ptr::null_mut();
        // SAFETY: the pointer is to a local; this undoes exactly the push of `with_current`.
        let _ = unsafe { driver().cuCtxPopCurrent_v2(&mut popped) };
    }
}

/// Runs `calls` with `ctx` as the thread's current context, and restores what it had.
pub(crate) fn with_current<T>(ctx: Context, calls: impl FnOnce() -> CudaResult<T>) -> CudaResult<T> {
    // SAFETY: the handle is alive: the program has not destroyed it, which we see (context hooks).
    unsafe { driver().cuCtxPushCurrent_v2(ctx.raw()) }.ok()?;
    let _restore = Pushed;
    calls()
}

/// Blocks until everything in the current context has ended. Not allowed while it captures.
pub(crate) fn synchronize() -> CudaResult<()> {
    // SAFETY: takes nothing.
    capture::relaxed(|| unsafe { driver().cuCtxSynchronize() }).ok()
}

/// Ordinal of the current context's device.
pub(crate) fn device() -> CudaResult<i32> {
    let mut device = 0;
    // SAFETY: the pointer is to a local that lives through the call.
    unsafe { driver().cuCtxGetDevice(&mut device) }.ok()?;
    Ok(device)
}
