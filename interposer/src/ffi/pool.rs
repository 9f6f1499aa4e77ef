//! Pools of stream-ordered memory: what the driver says of them. Allocating from them is the program's.

#![expect(unsafe_code, reason = "typed calls into the driver")]

use super::capture;
use super::real::driver;
use super::result::CudaResult;
use super::types::*;

/// `CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT` and `CU_MEMPOOL_ATTR_USED_MEM_CURRENT`.
const RESERVED: c_uint = 5;
const USED: c_uint = 7;

/// A pool handle.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Pool(usize);

impl From<CUmemoryPool> for Pool {
    fn from(raw: CUmemoryPool) -> Pool {
        Pool(raw.expose_provenance())
    }
}

impl Pool {
    fn raw(self) -> CUmemoryPool {
        std::ptr::with_exposed_provenance_mut(self.0)
    }
}

/// The pool that the device's allocations without one come from.
pub(crate) fn current(device: i32) -> CudaResult<Pool> {
    let mut raw: CUmemoryPool = std::ptr::null_mut();
    // SAFETY: the pointer is to a local that lives through the call.
    capture::relaxed(|| unsafe { driver().cuDeviceGetMemPool(&mut raw, device) }).ok()?;
    Ok(raw.into())
}

/// Bytes of GPU memory that the pool holds.
pub(crate) fn reserved(pool: Pool) -> CudaResult<u64> {
    attribute(pool, RESERVED)
}

/// Bytes of them that the program uses.
pub(crate) fn used(pool: Pool) -> CudaResult<u64> {
    attribute(pool, USED)
}

fn attribute(pool: Pool, which: c_uint) -> CudaResult<u64> {
    let mut value = 0_u64;
    let at = std::ptr::from_mut(&mut value).cast();
    // SAFETY: both attributes are 64-bit numbers, and the pointer is to a local that lives through the call.
    capture::relaxed(|| unsafe { driver().cuMemPoolGetAttribute(pool.raw(), which, at) }).ok()?;
    Ok(value)
}

/// The pool gives back what nobody uses.
pub(crate) fn trim(pool: Pool) -> CudaResult<()> {
    // SAFETY: the handle is the program's, or the device's own.
    capture::relaxed(|| unsafe { driver().cuMemPoolTrimTo(pool.raw(), 0) }).ok()
}
