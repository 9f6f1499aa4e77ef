//! Handlers of allocations. What a region is, is the runtime's matter.

#![expect(unsafe_code, reason = "writes where the driver would")]

use super::Call;
use crate::account::blocks;
use crate::ffi::types::*;
use crate::log;
use crate::outcome::{Outcome, Reason};
use crate::runtime::{self, memory};

pub(super) fn alloc(
    call: &Call<unsafe extern "C" fn(*mut CUdeviceptr, usize) -> CUresult>,
    dptr: *mut CUdeviceptr,
    bytes: usize,
) -> Outcome {
    let minimum = runtime::config().managed_min_bytes;
    if dptr.is_null() || bytes == 0 {
        return Outcome::Bypass(Reason::TooSmall);
    }
    let by_driver = || {
        let code = call.invoke(dptr, bytes);
        // SAFETY: the program passes a pointer that the driver may write to, so that it may be read.
        (code, unsafe { dptr.read() })
    };
    if (bytes as u64) < minimum {
        return Outcome::Done(memory::alloc_elsewhere(bytes as u64, by_driver));
    }
    match memory::alloc(bytes as u64) {
        Ok(address) => {
            // SAFETY: the program passes a pointer for the driver to write to.
            unsafe { dptr.write(address) };
            Outcome::Done(CUresult::CUDA_SUCCESS)
        }
        Err(error) if error.is_unsupported() => {
            Outcome::Done(memory::alloc_elsewhere(bytes as u64, by_driver))
        }
        Err(error) => Outcome::Fail(error.into()),
    }
}

pub(super) fn free(call: &Call<unsafe extern "C" fn(CUdeviceptr) -> CUresult>, dptr: CUdeviceptr) -> Outcome {
    if let Some(code) = memory::free(dptr) {
        return Outcome::Done(code);
    }
    let by_driver = || {
        let code = call.invoke(dptr);
        (code, code.is_success())
    };
    match blocks::free(dptr, by_driver) {
        Some(code) => Outcome::Done(code),
        None => Outcome::Bypass(Reason::NotManaged),
    }
}

/// Rows are made longer by the driver, to at most the next multiple of this many bytes.
const LONGEST_PITCH: usize = 512;

pub(super) fn alloc_pitch(
    call: &Call<unsafe extern "C" fn(*mut CUdeviceptr, *mut usize, usize, usize, c_uint) -> CUresult>,
    dptr: *mut CUdeviceptr,
    pitch: *mut usize,
    width: usize,
    height: usize,
    element: c_uint,
) -> Outcome {
    let row = width.checked_next_multiple_of(LONGEST_PITCH);
    let Some(bytes) = row.and_then(|row| row.checked_mul(height)).filter(|&bytes| bytes > 0) else {
        return Outcome::Bypass(Reason::NotManaged);
    };
    if dptr.is_null() {
        return Outcome::Bypass(Reason::NotManaged);
    }
    Outcome::Done(memory::alloc_elsewhere(bytes as u64, || {
        let code = call.invoke(dptr, pitch, width, height, element);
        // SAFETY: the program passes a pointer that the driver may write to, so that it may be read.
        (code, unsafe { dptr.read() })
    }))
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
    call: &Call<unsafe extern "C" fn(*mut usize, *mut usize) -> CUresult>,
    free: *mut usize,
    total: *mut usize,
) -> Outcome {
    let (mut free_now, mut total_now) = (0, 0);
    let code = call.invoke(&mut free_now, &mut total_now);
    if !code.is_success() {
        return Outcome::Done(code);
    }
    let (free_now, total_now) = memory::told(free_now as u64, total_now as u64);
    if !free.is_null() {
        // SAFETY: the program passes a pointer for the driver to write to.
        unsafe { free.write(free_now as usize) };
    }
    if !total.is_null() {
        // SAFETY: as above.
        unsafe { total.write(total_now as usize) };
    }
    Outcome::Done(code)
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
