//! Handlers of streams that are made and destroyed, and of the wait for all of a context. What is known of the program's streams is `runtime/streams`' matter.

#![expect(unsafe_code, reason = "reads a handle that the driver has just written for the program")]

use super::Call;
use crate::ffi::context::{self, Context};
use crate::ffi::stream::Stream;
use crate::ffi::types::*;
use crate::outcome::{Outcome, Reason};
use crate::runtime::streams::Ends;
use crate::runtime::{passes, streaming, streams};

/// Also what is made before we are active, or amid a hook.
fn made(code: CUresult, stream: *const CUstream) -> CUresult {
    if code.is_success() {
        // SAFETY: the driver has just written the handle there.
        streams::made(Stream::from(unsafe { *stream }));
    }
    code
}

pub(super) fn create(
    call: &Call<unsafe extern "C" fn(*mut CUstream, c_uint) -> CUresult>,
    stream: *mut CUstream,
    flags: c_uint,
) -> CUresult {
    made(call.invoke(stream, flags), stream)
}

pub(super) fn create_with_priority(
    call: &Call<unsafe extern "C" fn(*mut CUstream, c_uint, c_int) -> CUresult>,
    stream: *mut CUstream,
    flags: c_uint,
    priority: c_int,
) -> CUresult {
    made(call.invoke(stream, flags, priority), stream)
}

pub(super) fn destroy(call: &Call<unsafe extern "C" fn(CUstream) -> CUresult>, stream: CUstream) -> Outcome {
    let given = Stream::from(stream);
    streaming::forget_stream(given);
    passes::forget_stream(given);
    let Ends::Now(context) = streams::ends(given) else { return Outcome::Done(CUresult::CUDA_SUCCESS) };
    let code = call.invoke(stream);
    if let Some(context) = context.filter(|_| !code.is_success()) {
        streams::lives(context, given);
    }
    Outcome::Done(code)
}

/// Work that is no use of a weight: only that a thread's own stream may carry it is of interest.
pub(super) fn host_function(
    call: &Call<
        unsafe extern "C" fn(CUstream, Option<unsafe extern "C" fn(*mut c_void)>, *mut c_void) -> CUresult,
    >,
    stream: CUstream,
    _function: Option<unsafe extern "C" fn(*mut c_void)>,
    _data: *mut c_void,
) -> Outcome {
    call.stream(stream);
    Outcome::Bypass(Reason::Observed)
}

/// As [`host_function`].
pub(super) fn waits(
    call: &Call<unsafe extern "C" fn(CUstream, CUevent, c_uint) -> CUresult>,
    stream: CUstream,
    _event: CUevent,
    _flags: c_uint,
) -> Outcome {
    call.stream(stream);
    Outcome::Bypass(Reason::Observed)
}

/// A wait for the primary context is one for these as well, and their streams have makers of their own.
pub(super) fn create_green(
    _call: &Call<unsafe extern "C" fn(*mut *mut c_void, *mut c_void, CUdevice, c_uint) -> CUresult>,
    _context: *mut *mut c_void,
    _resources: *mut c_void,
    _device: CUdevice,
    _flags: c_uint,
) -> Outcome {
    streams::cannot_be_named();
    Outcome::Bypass(Reason::Observed)
}

pub(super) fn synchronize(call: &Call<unsafe extern "C" fn() -> CUresult>) -> Outcome {
    wait(|| call.invoke())
}

/// The form that names a context: another one than the current is the driver's to wait for.
pub(super) fn synchronize_of(
    call: &Call<unsafe extern "C" fn(CUcontext) -> CUresult>,
    ctx: CUcontext,
) -> Outcome {
    let is_current = ctx.is_null() || context::current() == Ok(Context::from(ctx));
    if is_current { wait(|| call.invoke(ctx)) } else { Outcome::Bypass(Reason::Observed) }
}

fn wait(by_the_driver: impl FnOnce() -> CUresult) -> Outcome {
    if streams::wait_for_the_programs() {
        return Outcome::Done(CUresult::CUDA_SUCCESS);
    }
    let left = streams::Left::before();
    let code = by_the_driver();
    if code.is_success() {
        left.has_ended();
    }
    Outcome::Done(code)
}
