//! Handlers of physical memory that the program makes and maps itself, as allocators with expandable segments do: counted, and limited like any other. Imported
//! memory is somebody else's.

#![expect(unsafe_code, reason = "reads what the program passes to the driver")]

use super::Call;
use crate::account::handles;
use crate::ffi::types::*;
use crate::outcome::{Outcome, Reason};
use crate::runtime::memory;

pub(super) fn create(
    call: &Call<
        unsafe extern "C" fn(
            *mut CUmemGenericAllocationHandle,
            usize,
            *const AllocationProperties,
            c_ulonglong,
        ) -> CUresult,
    >,
    handle: *mut CUmemGenericAllocationHandle,
    bytes: usize,
    properties: *const AllocationProperties,
    flags: c_ulonglong,
) -> Outcome {
    // SAFETY: the program passes properties for the driver to read in this very call.
    let device = unsafe { properties.as_ref() }.and_then(AllocationProperties::device);
    let Some(device) = device.filter(|_| !handle.is_null() && bytes > 0) else {
        return Outcome::Bypass(Reason::NotManaged);
    };
    Outcome::Done(memory::create_elsewhere(device, bytes as u64, || {
        let code = call.invoke(handle, bytes, properties, flags);
        // SAFETY: the program passes a pointer that the driver may write to, so that it may be read.
        (code, unsafe { handle.read() })
    }))
}

/// Forgotten before it is released: the driver may give the same handle out again at once.
pub(super) fn release(
    _call: &Call<unsafe extern "C" fn(CUmemGenericAllocationHandle) -> CUresult>,
    handle: CUmemGenericAllocationHandle,
) -> Outcome {
    handles::released(handle);
    Outcome::Bypass(Reason::Observed)
}

pub(super) fn retain(
    call: &Call<unsafe extern "C" fn(*mut CUmemGenericAllocationHandle, *mut c_void) -> CUresult>,
    handle: *mut CUmemGenericAllocationHandle,
    address: *mut c_void,
) -> Outcome {
    let code = call.invoke(handle, address);
    if code.is_success() && !handle.is_null() {
        // SAFETY: the driver has just written the handle there.
        handles::retained(unsafe { handle.read() }, address.addr() as u64);
    }
    Outcome::Done(code)
}

pub(super) fn map(
    call: &Call<
        unsafe extern "C" fn(
            CUdeviceptr,
            usize,
            usize,
            CUmemGenericAllocationHandle,
            c_ulonglong,
        ) -> CUresult,
    >,
    address: CUdeviceptr,
    bytes: usize,
    offset: usize,
    handle: CUmemGenericAllocationHandle,
    flags: c_ulonglong,
) -> Outcome {
    let code = call.invoke(address, bytes, offset, handle, flags);
    if code.is_success() {
        handles::mapped(address, bytes as u64, handle);
    }
    Outcome::Done(code)
}

pub(super) fn unmap(
    call: &Call<unsafe extern "C" fn(CUdeviceptr, usize) -> CUresult>,
    address: CUdeviceptr,
    bytes: usize,
) -> Outcome {
    let code = call.invoke(address, bytes);
    if code.is_success() {
        handles::unmapped(address, bytes as u64);
    }
    Outcome::Done(code)
}
