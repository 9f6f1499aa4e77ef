//! Handlers of allocations.

use super::Call;
use crate::ffi::types::*;
use crate::outcome::{Outcome, Reason};

pub(super) fn alloc(
    _call: &Call<unsafe extern "C" fn(*mut CUdeviceptr, usize) -> CUresult>,
    _dptr: *mut CUdeviceptr,
    _bytes: usize,
) -> Outcome {
    Outcome::Bypass(Reason::NotManaged)
}

pub(super) fn free(
    _call: &Call<unsafe extern "C" fn(CUdeviceptr) -> CUresult>,
    _dptr: CUdeviceptr,
) -> Outcome {
    Outcome::Bypass(Reason::NotManaged)
}

pub(super) fn alloc_pitch(
    _call: &Call<unsafe extern "C" fn(*mut CUdeviceptr, *mut usize, usize, usize, c_uint) -> CUresult>,
    _dptr: *mut CUdeviceptr,
    _pitch: *mut usize,
    _width: usize,
    _height: usize,
    _element: c_uint,
) -> Outcome {
    Outcome::Bypass(Reason::NotManaged)
}

pub(super) fn address_range(
    _call: &Call<unsafe extern "C" fn(*mut CUdeviceptr, *mut usize, CUdeviceptr) -> CUresult>,
    _base: *mut CUdeviceptr,
    _size: *mut usize,
    _dptr: CUdeviceptr,
) -> Outcome {
    Outcome::Bypass(Reason::NotManaged)
}

pub(super) fn info(
    _call: &Call<unsafe extern "C" fn(*mut usize, *mut usize) -> CUresult>,
    _free: *mut usize,
    _total: *mut usize,
) -> Outcome {
    Outcome::Bypass(Reason::NotManaged)
}

pub(super) fn ipc_handle(
    _call: &Call<unsafe extern "C" fn(*mut CUipcMemHandle, CUdeviceptr) -> CUresult>,
    _handle: *mut CUipcMemHandle,
    _dptr: CUdeviceptr,
) -> Outcome {
    Outcome::Bypass(Reason::NotManaged)
}
