//! The CUDA driver for test programs: found at run time by a selectable route, called with plain integers and the
//! published struct types.
//!
//! Handles are `u64`. Every function returns the driver's code; `check` turns it into a `Result`.
#![expect(unsafe_code, reason = "turns addresses of driver functions into callable ones")]

use cudarc::driver::sys;
use std::ffi::{CStr, CString, c_char, c_void};
use std::fmt;

/// How driver functions are found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Route {
    /// `dlopen("libcuda.so.1")` and `dlsym` of the exported name.
    Dlsym,
    /// `cuGetProcAddress_v2`, itself found by `dlsym`.
    ProcAddress,
    /// The four-argument `cuGetProcAddress`, itself found by `dlsym`.
    ProcAddressV1,
    /// The global scope, as a program that is linked to the driver.
    Global,
}

impl Route {
    /// The route that `HARNESS_ROUTE` names (`dlsym`, `proc`, `proc1`, `global`); `dlsym` when it is not set.
    ///
    /// # Panics
    /// For another value.
    #[must_use]
    pub fn from_environment() -> Self {
        match std::env::var("HARNESS_ROUTE").as_deref() {
            Err(_) | Ok("dlsym") => Self::Dlsym,
            Ok("proc") => Self::ProcAddress,
            Ok("proc1") => Self::ProcAddressV1,
            Ok("global") => Self::Global,
            Ok(other) => panic!("HARNESS_ROUTE={other}; allowed: dlsym, proc, proc1, global"),
        }
    }
}

/// A driver function that did not return success.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Failure {
    /// The function.
    pub function: &'static str,
    /// What it returned.
    pub code: u32,
}

impl fmt::Display for Failure {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{} returned {}", self.function, self.code)
    }
}

impl std::error::Error for Failure {}

/// Turns a code into a result.
///
/// # Errors
/// `Failure` for every code but 0.
pub fn check(function: &'static str, code: u32) -> Result<(), Failure> {
    if code == 0 { Ok(()) } else { Err(Failure { function, code }) }
}

/// An open driver library.
struct Library {
    handle: *mut c_void,
    route: Route,
}

impl Library {
    fn open(route: Route) -> Option<Self> {
        let scope = if route == Route::Global { libc::RTLD_GLOBAL } else { libc::RTLD_LOCAL };
        // SAFETY: the name is NUL-terminated; a driver library may be loaded at any time.
        let handle = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW | scope) };
        (!handle.is_null()).then_some(Self { handle, route })
    }

    fn symbol(&self, name: &CStr) -> *mut c_void {
        let scope = if self.route == Route::Global { libc::RTLD_DEFAULT } else { self.handle };
        // SAFETY: the handle is open for the life of the process, and the name is NUL-terminated.
        unsafe { libc::dlsym(scope, name.as_ptr()) }
    }

    /// A function by its name without suffix, the CUDA version of its form, and its exported name.
    fn function(&self, name: &str, version: i32, export: &str) -> *mut c_void {
        let base = CString::new(name).expect("a name has no NUL");
        let export = CString::new(export).expect("a name has no NUL");
        let mut found = std::ptr::null_mut();
        match self.route {
            Route::Dlsym | Route::Global => found = self.symbol(&export),
            Route::ProcAddress => {
                let resolver = self.symbol(c"cuGetProcAddress_v2");
                assert!(!resolver.is_null(), "the driver has no cuGetProcAddress_v2");
                type Resolver = extern "C" fn(*const c_char, *mut *mut c_void, i32, u64, *mut u32) -> u32;
                // SAFETY: the exported function has this signature.
                let resolver: Resolver = unsafe { std::mem::transmute(resolver) };
                let mut status = 0;
                resolver(base.as_ptr(), &mut found, version, 0, &mut status);
            }
            Route::ProcAddressV1 => {
                let resolver = self.symbol(c"cuGetProcAddress");
                assert!(!resolver.is_null(), "the driver has no cuGetProcAddress");
                type Resolver = extern "C" fn(*const c_char, *mut *mut c_void, i32, u64) -> u32;
                // SAFETY: the exported function has this signature.
                let resolver: Resolver = unsafe { std::mem::transmute(resolver) };
                resolver(base.as_ptr(), &mut found, version, 0);
            }
        }
        found
    }
}

macro_rules! functions {
    ($($method:ident = $name:literal $version:literal $export:literal ($($arg:ident: $ty:ty),*);)*) => {
        /// The driver functions that test programs use. A function that the driver lacks returns 500.
        pub struct Driver {
            route: Route,
            $($method: Option<extern "C" fn($($ty),*) -> u32>,)*
        }

        impl Driver {
            /// Finds every function; `None` without a driver library.
            #[must_use]
            pub fn open(route: Route) -> Option<Self> {
                let library = Library::open(route)?;
                Some(Self {
                    route,
                    $($method: {
                        let address = library.function($name, $version, $export);
                        // SAFETY: the driver documents this signature for this form of the function, and a null address
                        // becomes `None`.
                        unsafe { std::mem::transmute::<*mut c_void, Option<extern "C" fn($($ty),*) -> u32>>(address) }
                    },)*
                })
            }

            $(
                #[doc = concat!("`", $export, "`.")]
                #[allow(clippy::too_many_arguments, reason = "the driver's signatures; most are short")]
                pub fn $method(&self, $($arg: $ty),*) -> u32 {
                    self.$method.map_or(500, |function| function($($arg),*))
                }
            )*
        }
    };
}

impl Driver {
    /// The route it was opened by.
    #[must_use]
    pub fn route(&self) -> Route {
        self.route
    }
}

functions! {
    init = "cuInit" 2000 "cuInit" (flags: u32);
    driver_version = "cuDriverGetVersion" 2020 "cuDriverGetVersion" (version: *mut i32);
    device_count = "cuDeviceGetCount" 2000 "cuDeviceGetCount" (count: *mut i32);
    device_attribute = "cuDeviceGetAttribute" 2000 "cuDeviceGetAttribute" (value: *mut i32, attribute: u32, device: i32);
    primary_retain = "cuDevicePrimaryCtxRetain" 7000 "cuDevicePrimaryCtxRetain" (context: *mut u64, device: i32);
    primary_release = "cuDevicePrimaryCtxRelease" 11000 "cuDevicePrimaryCtxRelease_v2" (device: i32);
    context_create = "cuCtxCreate" 3020 "cuCtxCreate_v2" (context: *mut u64, flags: u32, device: i32);
    context_destroy = "cuCtxDestroy" 4000 "cuCtxDestroy_v2" (context: u64);
    set_current = "cuCtxSetCurrent" 4000 "cuCtxSetCurrent" (context: u64);
    get_current = "cuCtxGetCurrent" 4000 "cuCtxGetCurrent" (context: *mut u64);
    context_synchronize = "cuCtxSynchronize" 2000 "cuCtxSynchronize" ();
    mem_alloc = "cuMemAlloc" 3020 "cuMemAlloc_v2" (address: *mut u64, bytes: usize);
    mem_alloc_pitch = "cuMemAllocPitch" 3020 "cuMemAllocPitch_v2" (address: *mut u64, pitch: *mut usize, width: usize, height: usize, element: u32);
    mem_alloc_async = "cuMemAllocAsync" 11020 "cuMemAllocAsync" (address: *mut u64, bytes: usize, stream: u64);
    mem_free_async = "cuMemFreeAsync" 11020 "cuMemFreeAsync" (address: u64, stream: u64);
    mem_free = "cuMemFree" 3020 "cuMemFree_v2" (address: u64);
    mem_info = "cuMemGetInfo" 3020 "cuMemGetInfo_v2" (free: *mut usize, total: *mut usize);
    address_range = "cuMemGetAddressRange" 3020 "cuMemGetAddressRange_v2" (base: *mut u64, bytes: *mut usize, address: u64);
    pointer_attribute = "cuPointerGetAttribute" 4000 "cuPointerGetAttribute" (data: *mut c_void, attribute: u32, address: u64);
    ipc_handle = "cuIpcGetMemHandle" 4010 "cuIpcGetMemHandle" (handle: *mut [u8; 64], address: u64);
    granularity = "cuMemGetAllocationGranularity" 10020 "cuMemGetAllocationGranularity" (bytes: *mut usize, properties: *const sys::CUmemAllocationProp, option: u32);
    address_reserve = "cuMemAddressReserve" 10020 "cuMemAddressReserve" (address: *mut u64, bytes: usize, alignment: usize, wanted: u64, flags: u64);
    address_free = "cuMemAddressFree" 10020 "cuMemAddressFree" (address: u64, bytes: usize);
    mem_create = "cuMemCreate" 10020 "cuMemCreate" (handle: *mut u64, bytes: usize, properties: *const sys::CUmemAllocationProp, flags: u64);
    mem_release = "cuMemRelease" 10020 "cuMemRelease" (handle: u64);
    mem_map = "cuMemMap" 10020 "cuMemMap" (address: u64, bytes: usize, offset: usize, handle: u64, flags: u64);
    mem_unmap = "cuMemUnmap" 10020 "cuMemUnmap" (address: u64, bytes: usize);
    set_access = "cuMemSetAccess" 10020 "cuMemSetAccess" (address: u64, bytes: usize, list: *const sys::CUmemAccessDesc, count: usize);
    get_access = "cuMemGetAccess" 10020 "cuMemGetAccess" (flags: *mut u64, location: *const sys::CUmemLocation, address: u64);
    retain_handle = "cuMemRetainAllocationHandle" 11000 "cuMemRetainAllocationHandle" (handle: *mut u64, address: u64);
    host_alloc = "cuMemHostAlloc" 2020 "cuMemHostAlloc" (address: *mut u64, bytes: usize, flags: u32);
    host_free = "cuMemFreeHost" 2000 "cuMemFreeHost" (address: u64);
    host_register = "cuMemHostRegister" 6050 "cuMemHostRegister_v2" (address: u64, bytes: usize, flags: u32);
    host_unregister = "cuMemHostUnregister" 4000 "cuMemHostUnregister" (address: u64);
    copy = "cuMemcpy" 4000 "cuMemcpy" (target: u64, source: u64, bytes: usize);
    copy_h2d = "cuMemcpyHtoD" 3020 "cuMemcpyHtoD_v2" (target: u64, source: u64, bytes: usize);
    copy_d2h = "cuMemcpyDtoH" 3020 "cuMemcpyDtoH_v2" (target: u64, source: u64, bytes: usize);
    copy_d2d = "cuMemcpyDtoD" 3020 "cuMemcpyDtoD_v2" (target: u64, source: u64, bytes: usize);
    enable_peer = "cuCtxEnablePeerAccess" 4000 "cuCtxEnablePeerAccess" (context: u64, flags: u32);
    copy_batch = "cuMemcpyBatchAsync" 13000 "cuMemcpyBatchAsync_v2" (targets: *mut u64, sources: *mut u64, sizes: *mut usize, count: usize, attributes: *mut c_void, indices: *mut usize, attribute_count: usize, stream: u64);
    copy_async = "cuMemcpyAsync" 4000 "cuMemcpyAsync" (target: u64, source: u64, bytes: usize, stream: u64);
    copy_h2d_async = "cuMemcpyHtoDAsync" 3020 "cuMemcpyHtoDAsync_v2" (target: u64, source: u64, bytes: usize, stream: u64);
    copy_d2h_async = "cuMemcpyDtoHAsync" 3020 "cuMemcpyDtoHAsync_v2" (target: u64, source: u64, bytes: usize, stream: u64);
    copy_d2d_async = "cuMemcpyDtoDAsync" 3020 "cuMemcpyDtoDAsync_v2" (target: u64, source: u64, bytes: usize, stream: u64);
    copy_2d = "cuMemcpy2D" 3020 "cuMemcpy2D_v2" (copy: *const sys::CUDA_MEMCPY2D);
    copy_2d_async = "cuMemcpy2DAsync" 3020 "cuMemcpy2DAsync_v2" (copy: *const sys::CUDA_MEMCPY2D, stream: u64);
    set_d8 = "cuMemsetD8" 3020 "cuMemsetD8_v2" (target: u64, value: u8, count: usize);
    set_d8_async = "cuMemsetD8Async" 3020 "cuMemsetD8Async" (target: u64, value: u8, count: usize, stream: u64);
    set_d32 = "cuMemsetD32" 3020 "cuMemsetD32_v2" (target: u64, value: u32, count: usize);
    set_d32_async = "cuMemsetD32Async" 3020 "cuMemsetD32Async" (target: u64, value: u32, count: usize, stream: u64);
    stream_create = "cuStreamCreate" 2000 "cuStreamCreate" (stream: *mut u64, flags: u32);
    stream_destroy = "cuStreamDestroy" 4000 "cuStreamDestroy_v2" (stream: u64);
    stream_synchronize = "cuStreamSynchronize" 2000 "cuStreamSynchronize" (stream: u64);
    stream_query = "cuStreamQuery" 2000 "cuStreamQuery" (stream: u64);
    stream_wait = "cuStreamWaitEvent" 3020 "cuStreamWaitEvent" (stream: u64, event: u64, flags: u32);
    host_function = "cuLaunchHostFunc" 10000 "cuLaunchHostFunc" (stream: u64, function: extern "C" fn(*mut c_void), data: *mut c_void);
    event_create = "cuEventCreate" 2000 "cuEventCreate" (event: *mut u64, flags: u32);
    event_destroy = "cuEventDestroy" 4000 "cuEventDestroy_v2" (event: u64);
    event_record = "cuEventRecord" 2000 "cuEventRecord" (event: u64, stream: u64);
    event_query = "cuEventQuery" 2000 "cuEventQuery" (event: u64);
    event_synchronize = "cuEventSynchronize" 2000 "cuEventSynchronize" (event: u64);
    event_elapsed = "cuEventElapsedTime" 2000 "cuEventElapsedTime" (milliseconds: *mut f32, start: u64, end: u64);
    module_load = "cuModuleLoadData" 2000 "cuModuleLoadData" (module: *mut u64, image: *const c_char);
    module_unload = "cuModuleUnload" 2000 "cuModuleUnload" (module: u64);
    module_function = "cuModuleGetFunction" 2000 "cuModuleGetFunction" (function: *mut u64, module: u64, name: *const c_char);
    library_load = "cuLibraryLoadData" 12000 "cuLibraryLoadData" (library: *mut u64, image: *const c_char, options: *mut c_void, values: *mut c_void, count: u32, library_options: *mut c_void, library_values: *mut c_void, library_count: u32);
    library_unload = "cuLibraryUnload" 12000 "cuLibraryUnload" (library: u64);
    library_kernel = "cuLibraryGetKernel" 12000 "cuLibraryGetKernel" (kernel: *mut u64, library: u64, name: *const c_char);
    kernel_function = "cuKernelGetFunction" 12000 "cuKernelGetFunction" (function: *mut u64, kernel: u64);
    kernel_parameter = "cuKernelGetParamInfo" 12040 "cuKernelGetParamInfo" (kernel: u64, index: usize, offset: *mut usize, bytes: *mut usize);
    function_parameter = "cuFuncGetParamInfo" 12040 "cuFuncGetParamInfo" (function: u64, index: usize, offset: *mut usize, bytes: *mut usize);
    launch = "cuLaunchKernel" 4000 "cuLaunchKernel" (function: u64, gx: u32, gy: u32, gz: u32, bx: u32, by: u32, bz: u32, shared: u32, stream: u64, parameters: *const *const c_void, extra: *const *const c_void);
    launch_ex = "cuLaunchKernelEx" 11060 "cuLaunchKernelEx" (config: *const sys::CUlaunchConfig, function: u64, parameters: *const *const c_void, extra: *const *const c_void);
    begin_capture = "cuStreamBeginCapture" 10010 "cuStreamBeginCapture_v2" (stream: u64, mode: u32);
    end_capture = "cuStreamEndCapture" 10000 "cuStreamEndCapture" (stream: u64, graph: *mut u64);
    is_capturing = "cuStreamIsCapturing" 10000 "cuStreamIsCapturing" (stream: u64, status: *mut u32);
    capture_info = "cuStreamGetCaptureInfo" 12030 "cuStreamGetCaptureInfo_v3" (stream: u64, status: *mut u32, id: *mut u64, graph: *mut u64, nodes: *mut *const u64, edges: *mut *const c_void, count: *mut usize);
    exchange_capture_mode = "cuThreadExchangeStreamCaptureMode" 10010 "cuThreadExchangeStreamCaptureMode" (mode: *mut u32);
    graph_create = "cuGraphCreate" 10000 "cuGraphCreate" (graph: *mut u64, flags: u32);
    graph_add_kernel = "cuGraphAddKernelNode" 12000 "cuGraphAddKernelNode_v2" (node: *mut u64, graph: u64, after: *const u64, count: usize, parameters: *const sys::CUDA_KERNEL_NODE_PARAMS_v2);
    graph_add_copy = "cuGraphAddMemcpyNode" 10000 "cuGraphAddMemcpyNode" (node: *mut u64, graph: u64, after: *const u64, count: usize, copy: *const sys::CUDA_MEMCPY3D, context: u64);
    graph_add_fill = "cuGraphAddMemsetNode" 10000 "cuGraphAddMemsetNode" (node: *mut u64, graph: u64, after: *const u64, count: usize, fill: *const sys::CUDA_MEMSET_NODE_PARAMS, context: u64);
    graph_add_any = "cuGraphAddNode" 12020 "cuGraphAddNode" (node: *mut u64, graph: u64, after: *const u64, count: usize, parameters: *mut sys::CUgraphNodeParams);
    graph_add_any_v2 = "cuGraphAddNode" 12030 "cuGraphAddNode_v2" (node: *mut u64, graph: u64, after: *const u64, edges: *const c_void, count: usize, parameters: *mut sys::CUgraphNodeParams);
    node_set_kernel = "cuGraphKernelNodeSetParams" 12000 "cuGraphKernelNodeSetParams_v2" (node: u64, parameters: *const sys::CUDA_KERNEL_NODE_PARAMS_v2);
    node_set_copy = "cuGraphMemcpyNodeSetParams" 10000 "cuGraphMemcpyNodeSetParams" (node: u64, copy: *const sys::CUDA_MEMCPY3D);
    node_set_fill = "cuGraphMemsetNodeSetParams" 10000 "cuGraphMemsetNodeSetParams" (node: u64, fill: *const sys::CUDA_MEMSET_NODE_PARAMS);
    node_set_any = "cuGraphNodeSetParams" 12020 "cuGraphNodeSetParams" (node: u64, parameters: *mut sys::CUgraphNodeParams);
    executable_set_kernel = "cuGraphExecKernelNodeSetParams" 12000 "cuGraphExecKernelNodeSetParams_v2" (executable: u64, node: u64, parameters: *const sys::CUDA_KERNEL_NODE_PARAMS_v2);
    executable_set_copy = "cuGraphExecMemcpyNodeSetParams" 10020 "cuGraphExecMemcpyNodeSetParams" (executable: u64, node: u64, copy: *const sys::CUDA_MEMCPY3D, context: u64);
    executable_set_fill = "cuGraphExecMemsetNodeSetParams" 10020 "cuGraphExecMemsetNodeSetParams" (executable: u64, node: u64, fill: *const sys::CUDA_MEMSET_NODE_PARAMS, context: u64);
    executable_set_any = "cuGraphExecNodeSetParams" 12020 "cuGraphExecNodeSetParams" (executable: u64, node: u64, parameters: *mut sys::CUgraphNodeParams);
    graph_instantiate = "cuGraphInstantiateWithFlags" 11040 "cuGraphInstantiateWithFlags" (executable: *mut u64, graph: u64, flags: u64);
    graph_launch = "cuGraphLaunch" 10000 "cuGraphLaunch" (executable: u64, stream: u64);
    graph_destroy = "cuGraphDestroy" 10000 "cuGraphDestroy" (graph: u64);
    executable_destroy = "cuGraphExecDestroy" 10000 "cuGraphExecDestroy" (executable: u64);
}
