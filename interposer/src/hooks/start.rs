//! Handlers that see every call, also while we are not active: `cuInit`, from which on we may act, and the driver's own lookup.

#![expect(unsafe_code, reason = "hands the program's variable to the resolver")]

use super::Call;
use crate::ffi::types::*;
use crate::{init, resolve};

pub(super) fn init(call: &Call<unsafe extern "C" fn(c_uint) -> CUresult>, flags: c_uint) -> CUresult {
    let code = call.invoke(flags);
    if code.is_success() {
        init::first_success();
    }
    code
}

/// The four-argument form, which the name `cuGetProcAddress` means below CUDA 12.
pub(super) fn proc_address(
    call: &Call<unsafe extern "C" fn(*const c_char, *mut *mut c_void, c_int, u64) -> CUresult>,
    symbol: *const c_char,
    pfn: *mut *mut c_void,
    version: c_int,
    flags: u64,
) -> CUresult {
    let code = call.invoke(symbol, pfn, version, flags);
    // SAFETY: the driver has just accepted `pfn`.
    unsafe { resolve::substitute(code, pfn) };
    code
}

/// The five-argument form, which the name `cuGetProcAddress` means from CUDA 12 on.
pub(super) fn proc_address_with_status(
    call: &Call<unsafe extern "C" fn(*const c_char, *mut *mut c_void, c_int, u64, *mut c_uint) -> CUresult>,
    symbol: *const c_char,
    pfn: *mut *mut c_void,
    version: c_int,
    flags: u64,
    status: *mut c_uint,
) -> CUresult {
    let code = call.invoke(symbol, pfn, version, flags, status);
    // SAFETY: the driver has just accepted `pfn`.
    unsafe { resolve::substitute(code, pfn) };
    code
}
