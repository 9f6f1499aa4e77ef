//! Handlers of launches. What a launch has to wait for is the runtime's matter.

#![expect(unsafe_code, reason = "reads the configuration that the program passes to the driver")]

use super::Call;
use crate::ffi::stream::Stream;
use crate::ffi::types::*;
use crate::outcome::{Outcome, Reason};
use crate::runtime::launch::{self, Launch};

#[expect(clippy::too_many_arguments, reason = "the driver's signature")]
pub(super) fn kernel(
    call: &Call<
        unsafe extern "C" fn(
            CUfunction,
            c_uint,
            c_uint,
            c_uint,
            c_uint,
            c_uint,
            c_uint,
            c_uint,
            CUstream,
            *mut *mut c_void,
            *mut *mut c_void,
        ) -> CUresult,
    >,
    function: CUfunction,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    shared_bytes: c_uint,
    stream: CUstream,
    params: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Outcome {
    let launch = Launch { function, stream: Stream::from(call.stream(stream)), pointers: params, extra };
    launch::handle(launch, |params, extra| {
        call.invoke(
            function,
            grid_x,
            grid_y,
            grid_z,
            block_x,
            block_y,
            block_z,
            shared_bytes,
            stream,
            params,
            extra,
        )
    })
}

pub(super) fn kernel_with_config(
    call: &Call<
        unsafe extern "C" fn(*const LaunchConfig, CUfunction, *mut *mut c_void, *mut *mut c_void) -> CUresult,
    >,
    config: *const LaunchConfig,
    function: CUfunction,
    params: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Outcome {
    // SAFETY: the program passes the configuration to the driver in this very call.
    let Some(given) = (unsafe { config.as_ref() }) else { return Outcome::Bypass(Reason::NotManaged) };
    let launch =
        Launch { function, stream: Stream::from(call.stream(given.stream)), pointers: params, extra };
    launch::handle(launch, |params, extra| call.invoke(config, function, params, extra))
}

#[expect(clippy::too_many_arguments, reason = "the driver's signature")]
pub(super) fn cooperative(
    call: &Call<
        unsafe extern "C" fn(
            CUfunction,
            c_uint,
            c_uint,
            c_uint,
            c_uint,
            c_uint,
            c_uint,
            c_uint,
            CUstream,
            *mut *mut c_void,
        ) -> CUresult,
    >,
    function: CUfunction,
    grid_x: c_uint,
    grid_y: c_uint,
    grid_z: c_uint,
    block_x: c_uint,
    block_y: c_uint,
    block_z: c_uint,
    shared_bytes: c_uint,
    stream: CUstream,
    params: *mut *mut c_void,
) -> Outcome {
    let launch = Launch {
        function,
        stream: Stream::from(call.stream(stream)),
        pointers: params,
        extra: std::ptr::null_mut(),
    };
    launch::handle(launch, |params, _| {
        call.invoke(function, grid_x, grid_y, grid_z, block_x, block_y, block_z, shared_bytes, stream, params)
    })
}

pub(super) fn graph(
    call: &Call<unsafe extern "C" fn(CUgraphExec, CUstream) -> CUresult>,
    _graph: CUgraphExec,
    stream: CUstream,
) -> Outcome {
    // Whose it is, if it is a thread's own.
    call.stream(stream);
    // Every weight that a graph shows has had private pages since its capture.
    Outcome::Bypass(Reason::Observed)
}
