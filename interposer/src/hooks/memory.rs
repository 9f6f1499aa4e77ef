//! Handlers of allocations. What a region is, is the runtime's matter.

#![expect(unsafe_code, reason = "writes where the driver would")]

use super::Call;
use crate::ffi::types::*;
use crate::log;
use crate::outcome::{Outcome, Reason};
use crate::runtime::{self, memory};

pub(super) fn alloc(
    _call: &Call<unsafe extern "C" fn(*mut CUdeviceptr, usize) -> CUresult>,
    dptr: *mut CUdeviceptr,
    bytes: usize,
) -> Outcome {
    let minimum = runtime::config().managed_min_bytes;
    if dptr.is_null() || bytes == 0 || (bytes as u64) < minimum {
        return Outcome::Bypass(Reason::TooSmall);
    }
    match memory::alloc(bytes as u64) {
        Ok(address) => {
            // SAFETY: the program passes a pointer for the driver to write to.
            unsafe { dptr.write(address) };
            Outcome::Done(CUresult::CUDA_SUCCESS)
        }
        Err(error) if error.is_unsupported() => Outcome::Bypass(Reason::OtherDevice),
        Err(error) => Outcome::Fail(error.into()),
    }
}

pub(super) fn free(
    _call: &Call<unsafe extern "C" fn(CUdeviceptr) -> CUresult>,
    dptr: CUdeviceptr,
) -> Outcome {
    match memory::free(dptr) {
        Some(code) => Outcome::Done(code),
        None => Outcome::Bypass(Reason::NotManaged),
    }
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
    base: *mut CUdeviceptr,
    size: *mut usize,
    dptr: CUdeviceptr,
) -> Outcome {
    let Some((first, bytes)) = memory::range(dptr) else { return Outcome::Bypass(Reason::NotManaged) };
    if !base.is_null() {
        // SAFETY: the program passes a pointer for the driver to write to.
        unsafe { base.write(first) };
    }
    if !size.is_null() {
        // SAFETY: as above.
        unsafe { size.write(bytes as usize) };
    }
    Outcome::Done(CUresult::CUDA_SUCCESS)
}

pub(super) fn info(
    _call: &Call<unsafe extern "C" fn(*mut usize, *mut usize) -> CUresult>,
    _free: *mut usize,
    _total: *mut usize,
) -> Outcome {
    Outcome::Bypass(Reason::Observed)
}

pub(super) fn ipc_handle(
    _call: &Call<unsafe extern "C" fn(*mut CUipcMemHandle, CUdeviceptr) -> CUresult>,
    _handle: *mut CUipcMemHandle,
    dptr: CUdeviceptr,
) -> Outcome {
    if memory::range(dptr).is_some() {
        log::warning!(
            "memory at {dptr:#x} cannot be shared with other processes by a legacy handle while it is managed; FT_MANAGED_MIN_BYTES above its size leaves it to the driver"
        );
    }
    Outcome::Bypass(Reason::NotManaged)
}
