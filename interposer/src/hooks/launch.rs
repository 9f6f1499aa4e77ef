//! Handlers of launches.

use super::Call;
use crate::ffi::types::*;
use crate::outcome::{Outcome, Reason};

#[expect(clippy::too_many_arguments, reason = "the driver's signature")]
pub(super) fn kernel(
    _call: &Call<
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
    _function: CUfunction,
    _grid_x: c_uint,
    _grid_y: c_uint,
    _grid_z: c_uint,
    _block_x: c_uint,
    _block_y: c_uint,
    _block_z: c_uint,
    _shared_bytes: c_uint,
    _stream: CUstream,
    _params: *mut *mut c_void,
    _extra: *mut *mut c_void,
) -> Outcome {
    Outcome::Bypass(Reason::NotManaged)
}

pub(super) fn kernel_with_config(
    _call: &Call<
        unsafe extern "C" fn(*const LaunchConfig, CUfunction, *mut *mut c_void, *mut *mut c_void) -> CUresult,
    >,
    _config: *const LaunchConfig,
    _function: CUfunction,
    _params: *mut *mut c_void,
    _extra: *mut *mut c_void,
) -> Outcome {
    Outcome::Bypass(Reason::NotManaged)
}

#[expect(clippy::too_many_arguments, reason = "the driver's signature")]
pub(super) fn cooperative(
    _call: &Call<
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
    _function: CUfunction,
    _grid_x: c_uint,
    _grid_y: c_uint,
    _grid_z: c_uint,
    _block_x: c_uint,
    _block_y: c_uint,
    _block_z: c_uint,
    _shared_bytes: c_uint,
    _stream: CUstream,
    _params: *mut *mut c_void,
) -> Outcome {
    Outcome::Bypass(Reason::NotManaged)
}

pub(super) fn graph(
    _call: &Call<unsafe extern "C" fn(CUgraphExec, CUstream) -> CUresult>,
    _graph: CUgraphExec,
    _stream: CUstream,
) -> Outcome {
    Outcome::Bypass(Reason::NotManaged)
}
