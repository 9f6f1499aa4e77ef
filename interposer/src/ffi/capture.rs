//! Keeps our own driver calls legal while a thread of the program captures a CUDA graph: in the relaxed capture mode the driver does
//! not refuse them, and does not kill the capture.

#![expect(unsafe_code, reason = "typed calls into the driver")]

use super::real::driver;
use super::types::c_uint;
use std::cell::Cell;

/// `CU_STREAM_CAPTURE_MODE_RELAXED`.
const RELAXED: c_uint = 2;

thread_local! {
    /// The thread is already in our relaxed section: inner ones need no driver call.
    static RELAXED_BY_US: Cell<bool> = const { Cell::new(false) };
}

/// The thread's mode becomes `mode`; returns the one before, or nothing if the driver refused.
fn exchange(mode: c_uint) -> Option<c_uint> {
    let mut mode = mode;
    // SAFETY: the pointer is to a local that lives through the call.
    let code = unsafe { driver().cuThreadExchangeStreamCaptureMode(&mut mode) };
    code.is_success().then_some(mode)
}

/// Puts the thread's capture mode back when it is dropped, also by a panic.
struct ModeBefore(Option<c_uint>);

impl Drop for ModeBefore {
    fn drop(&mut self) {
        RELAXED_BY_US.with(|ours| ours.set(false));
        if let Some(before) = self.0 {
            exchange(before);
        }
    }
}

/// Runs `calls` with the calling thread in relaxed capture mode. Nests: wrap a series of calls to pay for the mode once.
pub(crate) fn relaxed<T>(calls: impl FnOnce() -> T) -> T {
    if RELAXED_BY_US.with(|ours| ours.replace(true)) {
        return calls();
    }
    let _restore = ModeBefore(exchange(RELAXED));
    calls()
}
