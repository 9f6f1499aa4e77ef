//! Handlers of stream-ordered allocations and their pools: counted, and limited like any other memory.

#![expect(unsafe_code, reason = "reads what the program passes to the driver")]

use super::Call;
use crate::account::pools;
use crate::ffi::pool::Pool;
use crate::ffi::stream::Stream;
use crate::ffi::types::*;
use crate::outcome::{Outcome, Reason};
use crate::runtime::{self, graphs};

/// An allocation by `make` on `stream`. In a capture it is a node: its memory comes when the graph runs.
fn allocate(
    stream: Stream,
    from: Option<Pool>,
    dptr: *mut CUdeviceptr,
    bytes: usize,
    mut make: impl FnMut() -> CUresult,
) -> Outcome {
    if dptr.is_null() || bytes == 0 || graphs::is_capturing(stream) {
        return Outcome::Bypass(Reason::NotManaged);
    }
    Outcome::Done(runtime::pools::alloc(from, bytes as u64, || {
        let code = make();
        // SAFETY: the program passes a pointer that the driver may write to, so that it may be read.
        (code, unsafe { dptr.read() })
    }))
}

pub(super) fn alloc(
    call: &Call<unsafe extern "C" fn(*mut CUdeviceptr, usize, CUstream) -> CUresult>,
    dptr: *mut CUdeviceptr,
    bytes: usize,
    stream: CUstream,
) -> Outcome {
    let on = Stream::from(call.stream(stream));
    allocate(on, None, dptr, bytes, || call.invoke(dptr, bytes, stream))
}

pub(super) fn alloc_from(
    call: &Call<unsafe extern "C" fn(*mut CUdeviceptr, usize, CUmemoryPool, CUstream) -> CUresult>,
    dptr: *mut CUdeviceptr,
    bytes: usize,
    pool: CUmemoryPool,
    stream: CUstream,
) -> Outcome {
    let on = Stream::from(call.stream(stream));
    allocate(on, Some(Pool::from(pool)), dptr, bytes, || call.invoke(dptr, bytes, pool, stream))
}

pub(super) fn create(
    call: &Call<unsafe extern "C" fn(*mut CUmemoryPool, *const AllocationProperties) -> CUresult>,
    pool: *mut CUmemoryPool,
    properties: *const AllocationProperties,
) -> Outcome {
    let code = call.invoke(pool, properties);
    // SAFETY: the program passes properties for the driver to read in this very call; a pool's begin as an allocation's do.
    let device = unsafe { properties.as_ref() }.and_then(AllocationProperties::device);
    if let Some(device) = device.filter(|_| code.is_success() && !pool.is_null()) {
        // SAFETY: the driver has just written the handle there.
        runtime::pools::created(Pool::from(unsafe { pool.read() }), device);
    }
    Outcome::Done(code)
}

/// Forgotten before it is destroyed: the driver may give the same handle out again at once.
pub(super) fn destroy(
    _call: &Call<unsafe extern "C" fn(CUmemoryPool) -> CUresult>,
    pool: CUmemoryPool,
) -> Outcome {
    pools::gone(Pool::from(pool));
    Outcome::Bypass(Reason::Observed)
}
