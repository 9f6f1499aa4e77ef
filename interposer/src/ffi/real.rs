//! The real driver's entry points for our *internal* calls: one row a function, resolved once from libcuda's own symbol table after the
//! first successful `cuInit`. Never through our exports (that would hook ourselves), never through a binding crate's loader (its
//! `dlsym` is ours, and it panics on a missing name). The hooks' originals are a different table: `hooks`.

#![expect(unsafe_code, reason = "typed calls into the driver")]

use super::types::*;
use std::sync::OnceLock;

macro_rules! real {
    ($(fn $name:ident($($arg:ident: $ty:ty),* $(,)?);)*) => {
        /// Entry points of the loaded driver; `None` where this driver does not have the function.
        #[allow(non_snake_case, reason = "the driver's names")]
        #[derive(Default)]
        pub(crate) struct Driver {
            $($name: Option<unsafe extern "C" fn($($ty),*) -> CUresult>,)*
        }

        #[allow(non_snake_case, clippy::too_many_arguments, reason = "the driver's names and signatures")]
        impl Driver {
            /// Finds every row by `lookup`, which returns null for a name that the driver does not have.
            fn find(lookup: impl Fn(&std::ffi::CStr) -> *mut c_void) -> Driver {
                Driver {
                    $($name: {
                        const NAME: &std::ffi::CStr =
                            match std::ffi::CStr::from_bytes_with_nul(concat!(stringify!($name), "\0").as_bytes()) {
                                Ok(name) => name,
                                Err(_) => panic!("a function name holds no NUL"),
                            };
                        let address = lookup(NAME);
                        // SAFETY: `lookup` returned the driver's function of exactly this name, whose C signature the row states;
                        // null becomes None, which is the null of an optional function pointer.
                        unsafe { std::mem::transmute::<*mut c_void, Option<unsafe extern "C" fn($($ty),*) -> CUresult>>(address) }
                    },)*
                }
            }

            $(
                /// The driver's function of this name; `CUDA_ERROR_NOT_SUPPORTED` where the driver does not have it.
                ///
                /// # Safety
                /// As the driver's documentation of the function says for its pointers and handles.
                pub(crate) unsafe fn $name(&self, $($arg: $ty),*) -> CUresult {
                    match self.$name {
                        // SAFETY: the caller keeps the promises of the driver's function.
                        Some(function) => unsafe { function($($arg),*) },
                        None => CUresult::CUDA_ERROR_NOT_SUPPORTED,
                    }
                }
            )*
        }
    };
}

real! {
    fn cuMemCreate(handle: *mut CUmemGenericAllocationHandle, size: usize, prop: *const CUmemAllocationProp, flags: c_ulonglong);
    fn cuMemRelease(handle: CUmemGenericAllocationHandle);
    fn cuMemMap(ptr: CUdeviceptr, size: usize, offset: usize, handle: CUmemGenericAllocationHandle, flags: c_ulonglong);
    fn cuMemUnmap(ptr: CUdeviceptr, size: usize);
    fn cuMemSetAccess(ptr: CUdeviceptr, size: usize, desc: *const CUmemAccessDesc, count: usize);
    fn cuMemRetainAllocationHandle(handle: *mut CUmemGenericAllocationHandle, address: *mut c_void);
    fn cuMemAddressReserve(ptr: *mut CUdeviceptr, size: usize, alignment: usize, addr: CUdeviceptr, flags: c_ulonglong);
    fn cuMemAddressFree(ptr: CUdeviceptr, size: usize);
    fn cuMemAlloc_v2(dptr: *mut CUdeviceptr, bytesize: usize);
    fn cuMemFree_v2(dptr: CUdeviceptr);
    fn cuDeviceGetMemPool(pool: *mut CUmemoryPool, device: CUdevice);
    fn cuMemPoolGetAttribute(pool: CUmemoryPool, attribute: c_uint, value: *mut c_void);
    fn cuMemPoolTrimTo(pool: CUmemoryPool, keep: usize);
    fn cuPointerGetAttribute(data: *mut c_void, attribute: c_uint, ptr: CUdeviceptr);
    fn cuMemHostRegister_v2(p: *mut c_void, bytesize: usize, flags: c_uint);
    fn cuMemHostUnregister(p: *mut c_void);
    fn cuMemcpyHtoDAsync_v2(dst: CUdeviceptr, src: *const c_void, bytes: usize, stream: CUstream);
    fn cuMemcpyDtoHAsync_v2(dst: *mut c_void, src: CUdeviceptr, bytes: usize, stream: CUstream);
    fn cuMemcpyPeerAsync(dst: CUdeviceptr, dst_ctx: CUcontext, src: CUdeviceptr, src_ctx: CUcontext, bytes: usize, stream: CUstream);
    fn cuMemsetD8Async(dst: CUdeviceptr, value: c_uchar, bytes: usize, stream: CUstream);
    fn cuLaunchHostFunc(stream: CUstream, function: unsafe extern "C" fn(*mut c_void), data: *mut c_void);
    fn cuStreamCreateWithPriority(stream: *mut CUstream, flags: c_uint, priority: c_int);
    fn cuStreamDestroy_v2(stream: CUstream);
    fn cuStreamWaitEvent(stream: CUstream, event: CUevent, flags: c_uint);
    fn cuStreamSynchronize(stream: CUstream);
    fn cuStreamQuery(stream: CUstream);
    fn cuStreamIsCapturing(stream: CUstream, status: *mut c_uint);
    fn cuEventCreate(event: *mut CUevent, flags: c_uint);
    fn cuEventRecord(event: CUevent, stream: CUstream);
    fn cuEventQuery(event: CUevent);
    fn cuEventSynchronize(event: CUevent);
    fn cuEventElapsedTime_v2(milliseconds: *mut f32, start: CUevent, end: CUevent);
    fn cuEventElapsedTime(milliseconds: *mut f32, start: CUevent, end: CUevent);
    fn cuEventDestroy_v2(event: CUevent);
    fn cuCtxGetCurrent(ctx: *mut CUcontext);
    fn cuCtxPushCurrent_v2(ctx: CUcontext);
    fn cuCtxPopCurrent_v2(ctx: *mut CUcontext);
    fn cuCtxGetDevice(device: *mut CUdevice);
    fn cuCtxSynchronize();
    fn cuCtxDisablePeerAccess(peer: CUcontext);
    fn cuDevicePrimaryCtxGetState(device: CUdevice, flags: *mut c_uint, active: *mut c_int);
    fn cuDevicePrimaryCtxRetain(ctx: *mut CUcontext, device: CUdevice);
    fn cuDevicePrimaryCtxRelease_v2(device: CUdevice);
    fn cuDeviceTotalMem_v2(bytes: *mut usize, device: CUdevice);
    fn cuDeviceGetAttribute(value: *mut c_int, attribute: c_uint, device: CUdevice);
    fn cuDeviceGetUuid_v2(uuid: *mut [u8; 16], device: CUdevice);
    fn cuDeviceGetUuid(uuid: *mut [u8; 16], device: CUdevice);
    fn cuDeviceGetPCIBusId(text: *mut c_char, capacity: c_int, device: CUdevice);
    fn cuDriverGetVersion(version: *mut c_int);
    fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize);
    fn cuFuncGetParamInfo(function: CUfunction, index: usize, offset: *mut usize, size: *mut usize);
    fn cuKernelGetParamInfo(kernel: CUkernel, index: usize, offset: *mut usize, size: *mut usize);
    fn cuFuncGetName(name: *mut *const c_char, function: CUfunction);
    fn cuKernelGetName(name: *mut *const c_char, kernel: CUkernel);
    fn cuThreadExchangeStreamCaptureMode(mode: *mut c_uint);
}

static DRIVER: OnceLock<Driver> = OnceLock::new();
/// What `driver` answers before `resolve`: every call is "not supported".
static UNRESOLVED: OnceLock<Driver> = OnceLock::new();

/// The resolved table. Before the first successful `cuInit` every entry is missing.
pub(crate) fn driver() -> &'static Driver {
    match DRIVER.get() {
        Some(driver) => driver,
        None => UNRESOLVED.get_or_init(Driver::default),
    }
}

/// Fills the table by `lookup`. Called once, by `init`; a second call changes nothing.
pub(crate) fn resolve(lookup: impl Fn(&std::ffi::CStr) -> *mut c_void) {
    let _ = DRIVER.set(Driver::find(lookup));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_call_through_a_missing_entry_is_not_supported() {
        let empty = Driver::find(|_| std::ptr::null_mut());
        // SAFETY: the entry is missing, so nothing is called.
        let code = unsafe { empty.cuCtxSynchronize() };
        assert_eq!(code, CUresult::CUDA_ERROR_NOT_SUPPORTED);
    }

    #[test]
    fn a_row_is_looked_up_by_exactly_its_name_and_called() {
        unsafe extern "C" fn synchronize() -> CUresult {
            CUresult(4242)
        }
        let found = Driver::find(|name| {
            if name == c"cuCtxSynchronize" { synchronize as *mut c_void } else { std::ptr::null_mut() }
        });
        // SAFETY: the entry is the function above, which has the row's signature.
        let code = unsafe { found.cuCtxSynchronize() };
        assert_eq!(code, CUresult(4242));
    }
}
