//! Contexts: which one a thread has, and work inside another. We never create one, and keep none alive.

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

/// The device's primary context, if it is alive. `device`: an ordinal.
pub(crate) fn primary(device: i32) -> Option<Context> {
    if !primary_is_alive(device) {
        return None;
    }
    let mut raw: CUcontext = std::ptr::null_mut();
    // SAFETY: the pointer is to a local that lives through the call.
    unsafe { driver().cuDevicePrimaryCtxRetain(&mut raw, device) }.ok().ok()?;
    // SAFETY: gives back what was taken just now; the program's own hold keeps the context.
    let _ = unsafe { driver().cuDevicePrimaryCtxRelease_v2(device) };
    Some(raw.into())
}

/// Whether the device has a primary context now.
pub(crate) fn primary_is_alive(device: i32) -> bool {
    let (mut flags, mut active) = (0, 0);
    // SAFETY: both pointers are to locals that live through the call.
    unsafe { driver().cuDevicePrimaryCtxGetState(device, &mut flags, &mut active) }.is_success()
        && active != 0
}
