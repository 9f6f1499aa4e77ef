//! THE TABLE of hooked driver functions. One row makes the export, the entry in `rows` (name, our address, slot of the original) and the
//! line in docs/hooks.md. Rows say which handler decides; handlers are plain Rust in `hooks/*.rs`, by driver-API group.
//! How a row works is `hooks/shell.rs`; how a program comes to hold our address instead of the driver's is `resolve`'s job.

#![expect(unsafe_code, reason = "exported C functions that call the driver's")]
#![allow(clippy::type_complexity, reason = "handlers state the signatures of the driver")]

use crate::ffi::types::*;
pub(crate) use shell::{Call, Row};
use shell::{hooks, row, shell, signature, signature_of};
use std::sync::atomic::AtomicPtr;

mod capture;
mod context;
mod copy;
mod descriptor;
mod fill;
mod launch;
mod memory;
mod module;
mod node;
mod physical;
mod pool;
mod shell;
mod start;
mod stream;

hooks! {
    // start
    /// The moment from which we may do anything at all
    always fn cuInit(flags: c_uint) => start::init;
    /// Third route to the driver's functions, as runtimes before CUDA 12 ask
    always fn cuGetProcAddress(symbol: *const c_char, pfn: *mut *mut c_void, version: c_int, flags: u64) => start::proc_address;
    /// Third route to the driver's functions
    always fn cuGetProcAddress_v2(symbol: *const c_char, pfn: *mut *mut c_void, version: c_int, flags: u64, status: *mut c_uint) => start::proc_address_with_status;

    // memory
    /// Large allocations become managed regions; small ones are counted, and limited by `gpu_limit`
    hook fn cuMemAlloc_v2(dptr: *mut CUdeviceptr, bytes: usize) => memory::alloc;
    /// Regions are given back when their users have ended
    hook fn cuMemFree_v2(dptr: CUdeviceptr) => memory::free;
    /// Pitched allocations stay with the driver; counted, and limited by `gpu_limit`
    hook fn cuMemAllocPitch_v2(dptr: *mut CUdeviceptr, pitch: *mut usize, width: usize, height: usize, element: c_uint) => memory::alloc_pitch;
    /// A region reports its first address and the size that was asked for
    hook fn cuMemGetAddressRange_v2(base: *mut CUdeviceptr, size: *mut usize, dptr: CUdeviceptr) => memory::address_range;
    /// Under `gpu_limit` a device has that much memory
    hook fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) => memory::info;
    /// Virtual memory has no legacy handle: a region that is exported needs an answer
    hook fn cuIpcGetMemHandle(handle: *mut CUipcMemHandle, dptr: CUdeviceptr) => memory::ipc_handle;

    // physical memory of the program's own: counted, and limited by `gpu_limit`
    /// Physical memory is made
    hook fn cuMemCreate(handle: *mut CUmemGenericAllocationHandle, bytes: usize, properties: *const AllocationProperties, flags: c_ulonglong) => physical::create;
    /// A handle is released
    hook fn cuMemRelease(handle: CUmemGenericAllocationHandle) => physical::release;
    /// A handle is given out once more
    hook fn cuMemRetainAllocationHandle(handle: *mut CUmemGenericAllocationHandle, address: *mut c_void) => physical::retain;
    /// A mapping keeps its memory
    hook fn cuMemMap(address: CUdeviceptr, bytes: usize, offset: usize, handle: CUmemGenericAllocationHandle, flags: c_ulonglong) => physical::map;
    /// Mappings let go of their memory
    hook fn cuMemUnmap(address: CUdeviceptr, bytes: usize) => physical::unmap;

    // stream-ordered memory: pools are counted by what the driver says they hold
    /// Allocation from the device's own pool
    hook fn cuMemAllocAsync(dptr: *mut CUdeviceptr, bytes: usize, stream: CUstream) / cuMemAllocAsync_ptsz => pool::alloc;
    /// Allocation from a pool
    hook fn cuMemAllocFromPoolAsync(dptr: *mut CUdeviceptr, bytes: usize, pool: CUmemoryPool, stream: CUstream) / cuMemAllocFromPoolAsync_ptsz => pool::alloc_from;
    /// A pool is made
    hook fn cuMemPoolCreate(pool: *mut CUmemoryPool, properties: *const AllocationProperties) => pool::create;
    /// A pool goes, with what it holds
    hook fn cuMemPoolDestroy(pool: CUmemoryPool) => pool::destroy;

    // copies and fills: uses and writes of regions that no launch shows
    /// Copy between any two addresses
    hook fn cuMemcpy(dst: CUdeviceptr, src: CUdeviceptr, bytes: usize) / cuMemcpy_ptds => copy::any;
    /// Copy between any two addresses
    hook fn cuMemcpyAsync(dst: CUdeviceptr, src: CUdeviceptr, bytes: usize, stream: CUstream) / cuMemcpyAsync_ptsz => copy::any_async;
    /// Copy from host memory
    hook fn cuMemcpyHtoD_v2(dst: CUdeviceptr, src: *const c_void, bytes: usize) / cuMemcpyHtoD_v2_ptds => copy::to_device;
    /// Copy from host memory
    hook fn cuMemcpyHtoDAsync_v2(dst: CUdeviceptr, src: *const c_void, bytes: usize, stream: CUstream) / cuMemcpyHtoDAsync_v2_ptsz => copy::to_device_async;
    /// Copy to host memory
    quiet fn cuMemcpyDtoH_v2(dst: *mut c_void, src: CUdeviceptr, bytes: usize) / cuMemcpyDtoH_v2_ptds => copy::to_host;
    /// Copy to host memory
    quiet fn cuMemcpyDtoHAsync_v2(dst: *mut c_void, src: CUdeviceptr, bytes: usize, stream: CUstream) / cuMemcpyDtoHAsync_v2_ptsz => copy::to_host_async;
    /// Copy on the device
    hook fn cuMemcpyDtoD_v2(dst: CUdeviceptr, src: CUdeviceptr, bytes: usize) / cuMemcpyDtoD_v2_ptds => copy::any;
    /// Copy on the device
    hook fn cuMemcpyDtoDAsync_v2(dst: CUdeviceptr, src: CUdeviceptr, bytes: usize, stream: CUstream) / cuMemcpyDtoDAsync_v2_ptsz => copy::any_async;
    /// Copy between devices
    hook fn cuMemcpyPeer(dst: CUdeviceptr, dst_ctx: CUcontext, src: CUdeviceptr, src_ctx: CUcontext, bytes: usize) / cuMemcpyPeer_ptds => copy::peer;
    /// Copy between devices
    hook fn cuMemcpyPeerAsync(dst: CUdeviceptr, dst_ctx: CUcontext, src: CUdeviceptr, src_ctx: CUcontext, bytes: usize, stream: CUstream) / cuMemcpyPeerAsync_ptsz => copy::peer_async;
    /// Copy of rows
    hook fn cuMemcpy2D_v2(copy: *const Memcpy2D) / cuMemcpy2D_v2_ptds => copy::rows;
    /// Copy of rows at any pitch
    hook fn cuMemcpy2DUnaligned_v2(copy: *const Memcpy2D) / cuMemcpy2DUnaligned_v2_ptds => copy::rows;
    /// Copy of rows
    hook fn cuMemcpy2DAsync_v2(copy: *const Memcpy2D, stream: CUstream) / cuMemcpy2DAsync_v2_ptsz => copy::rows_async;
    /// Copy of slices
    hook fn cuMemcpy3D_v2(copy: *const Memcpy3D) / cuMemcpy3D_v2_ptds => copy::slices;
    /// Copy of slices
    hook fn cuMemcpy3DAsync_v2(copy: *const Memcpy3D, stream: CUstream) / cuMemcpy3DAsync_v2_ptsz => copy::slices_async;
    /// Copy of slices between devices
    hook fn cuMemcpy3DPeer(copy: *const Memcpy3D) / cuMemcpy3DPeer_ptds => copy::slices;
    /// Copy of slices between devices
    hook fn cuMemcpy3DPeerAsync(copy: *const Memcpy3D, stream: CUstream) / cuMemcpy3DPeerAsync_ptsz => copy::slices_async;
    /// Many copies in one call, with the index of the failing one (CUDA 12.8)
    hook fn cuMemcpyBatchAsync(dsts: *mut CUdeviceptr, srcs: *mut CUdeviceptr, sizes: *mut usize, count: usize, attrs: *mut c_void, attr_indices: *mut usize, num_attrs: usize, failed: *mut usize, stream: CUstream) / cuMemcpyBatchAsync_ptsz => copy::batch_with_index;
    /// Many copies in one call (CUDA 13)
    hook fn cuMemcpyBatchAsync_v2(dsts: *mut CUdeviceptr, srcs: *mut CUdeviceptr, sizes: *mut usize, count: usize, attrs: *mut c_void, attr_indices: *mut usize, num_attrs: usize, stream: CUstream) / cuMemcpyBatchAsync_v2_ptsz => copy::batch;
    /// Fill with bytes
    quiet fn cuMemsetD8_v2(dst: CUdeviceptr, value: c_uchar, count: usize) / cuMemsetD8_v2_ptds => fill::words;
    /// Fill with bytes
    quiet fn cuMemsetD8Async(dst: CUdeviceptr, value: c_uchar, count: usize, stream: CUstream) / cuMemsetD8Async_ptsz => fill::words_async;
    /// Fill of rows with bytes
    quiet fn cuMemsetD2D8_v2(dst: CUdeviceptr, pitch: usize, value: c_uchar, width: usize, height: usize) / cuMemsetD2D8_v2_ptds => fill::rows;
    /// Fill of rows with bytes
    quiet fn cuMemsetD2D8Async(dst: CUdeviceptr, pitch: usize, value: c_uchar, width: usize, height: usize, stream: CUstream) / cuMemsetD2D8Async_ptsz => fill::rows_async;
    /// Fill with 16-bit words
    quiet fn cuMemsetD16_v2(dst: CUdeviceptr, value: c_ushort, count: usize) / cuMemsetD16_v2_ptds => fill::words;
    /// Fill with 16-bit words
    quiet fn cuMemsetD16Async(dst: CUdeviceptr, value: c_ushort, count: usize, stream: CUstream) / cuMemsetD16Async_ptsz => fill::words_async;
    /// Fill of rows with 16-bit words
    quiet fn cuMemsetD2D16_v2(dst: CUdeviceptr, pitch: usize, value: c_ushort, width: usize, height: usize) / cuMemsetD2D16_v2_ptds => fill::rows;
    /// Fill of rows with 16-bit words
    quiet fn cuMemsetD2D16Async(dst: CUdeviceptr, pitch: usize, value: c_ushort, width: usize, height: usize, stream: CUstream) / cuMemsetD2D16Async_ptsz => fill::rows_async;
    /// Fill with 32-bit words
    quiet fn cuMemsetD32_v2(dst: CUdeviceptr, value: c_uint, count: usize) / cuMemsetD32_v2_ptds => fill::words;
    /// Fill with 32-bit words
    quiet fn cuMemsetD32Async(dst: CUdeviceptr, value: c_uint, count: usize, stream: CUstream) / cuMemsetD32Async_ptsz => fill::words_async;
    /// Fill of rows with 32-bit words
    quiet fn cuMemsetD2D32_v2(dst: CUdeviceptr, pitch: usize, value: c_uint, width: usize, height: usize) / cuMemsetD2D32_v2_ptds => fill::rows;
    /// Fill of rows with 32-bit words
    quiet fn cuMemsetD2D32Async(dst: CUdeviceptr, pitch: usize, value: c_uint, width: usize, height: usize, stream: CUstream) / cuMemsetD2D32Async_ptsz => fill::rows_async;

    // launches: the uses of weights
    /// Kernel launch
    quiet fn cuLaunchKernel(function: CUfunction, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint, block_z: c_uint, shared_bytes: c_uint, stream: CUstream, params: *mut *mut c_void, extra: *mut *mut c_void) / cuLaunchKernel_ptsz => launch::kernel;
    /// Kernel launch with attributes (clusters, PDL)
    quiet fn cuLaunchKernelEx(config: *const LaunchConfig, function: CUfunction, params: *mut *mut c_void, extra: *mut *mut c_void) / cuLaunchKernelEx_ptsz => launch::kernel_with_config;
    /// Kernel launch whose blocks wait for each other
    quiet fn cuLaunchCooperativeKernel(function: CUfunction, grid_x: c_uint, grid_y: c_uint, grid_z: c_uint, block_x: c_uint, block_y: c_uint, block_z: c_uint, shared_bytes: c_uint, stream: CUstream, params: *mut *mut c_void) / cuLaunchCooperativeKernel_ptsz => launch::cooperative;
    /// Launch of a whole graph: a use of all weights in it
    quiet fn cuGraphLaunch(graph: CUgraphExec, stream: CUstream) / cuGraphLaunch_ptsz => launch::graph;

    // capture and graphs: which weights a graph holds
    /// Capture begins, as runtimes before CUDA 10.1 ask
    hook fn cuStreamBeginCapture(stream: CUstream) / cuStreamBeginCapture_ptsz => capture::begin;
    /// Capture begins
    hook fn cuStreamBeginCapture_v2(stream: CUstream, mode: c_uint) / cuStreamBeginCapture_v2_ptsz => capture::begin_in_mode;
    /// Capture into a graph that exists begins
    hook fn cuStreamBeginCaptureToGraph(stream: CUstream, graph: CUgraph, dependencies: *const CUgraphNode, edges: *const c_void, count: usize, mode: c_uint) / cuStreamBeginCaptureToGraph_ptsz => capture::begin_to_graph;
    /// Capture ends: work of ours is joined before
    hook fn cuStreamEndCapture(stream: CUstream, graph: *mut CUgraph) / cuStreamEndCapture_ptsz => capture::end;
    /// Kernel node made by hand, as runtimes before CUDA 12 ask
    hook fn cuGraphAddKernelNode(node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode, count: usize, params: *const CUDA_KERNEL_NODE_PARAMS_v1) => node::add;
    /// Kernel node made by hand
    hook fn cuGraphAddKernelNode_v2(node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode, count: usize, params: *const CUDA_KERNEL_NODE_PARAMS_v2) => node::add;
    /// Copy node made by hand
    hook fn cuGraphAddMemcpyNode(node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode, count: usize, params: *const Memcpy3D, ctx: CUcontext) => node::add_in_context;
    /// Fill node made by hand
    hook fn cuGraphAddMemsetNode(node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode, count: usize, params: *const MemsetNodeParams, ctx: CUcontext) => node::add_in_context;
    /// Node of any kind made by hand (CUDA 12.2)
    hook fn cuGraphAddNode(node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode, count: usize, params: *mut GraphNodeParams) => node::add;
    /// Node of any kind made by hand, with data of its edges (CUDA 12.3)
    hook fn cuGraphAddNode_v2(node: *mut CUgraphNode, graph: CUgraph, dependencies: *const CUgraphNode, edges: *const c_void, count: usize, params: *mut GraphNodeParams) => node::add_with_edges;
    /// Kernel node changed, as runtimes before CUDA 12 ask
    hook fn cuGraphKernelNodeSetParams(node: CUgraphNode, params: *const CUDA_KERNEL_NODE_PARAMS_v1) => node::set;
    /// Kernel node changed
    hook fn cuGraphKernelNodeSetParams_v2(node: CUgraphNode, params: *const CUDA_KERNEL_NODE_PARAMS_v2) => node::set;
    /// Copy node changed
    hook fn cuGraphMemcpyNodeSetParams(node: CUgraphNode, params: *const Memcpy3D) => node::set;
    /// Fill node changed
    hook fn cuGraphMemsetNodeSetParams(node: CUgraphNode, params: *const MemsetNodeParams) => node::set;
    /// Node of any kind changed (CUDA 12.2)
    hook fn cuGraphNodeSetParams(node: CUgraphNode, params: *mut GraphNodeParams) => node::set;
    /// Kernel node of an executable graph changed, as runtimes before CUDA 12 ask
    hook fn cuGraphExecKernelNodeSetParams(graph: CUgraphExec, node: CUgraphNode, params: *const CUDA_KERNEL_NODE_PARAMS_v1) => node::set_exec;
    /// Kernel node of an executable graph changed
    hook fn cuGraphExecKernelNodeSetParams_v2(graph: CUgraphExec, node: CUgraphNode, params: *const CUDA_KERNEL_NODE_PARAMS_v2) => node::set_exec;
    /// Copy node of an executable graph changed
    hook fn cuGraphExecMemcpyNodeSetParams(graph: CUgraphExec, node: CUgraphNode, params: *const Memcpy3D, ctx: CUcontext) => node::set_exec_in_context;
    /// Fill node of an executable graph changed
    hook fn cuGraphExecMemsetNodeSetParams(graph: CUgraphExec, node: CUgraphNode, params: *const MemsetNodeParams, ctx: CUcontext) => node::set_exec_in_context;
    /// Node of any kind of an executable graph changed (CUDA 12.2)
    hook fn cuGraphExecNodeSetParams(graph: CUgraphExec, node: CUgraphNode, params: *mut GraphNodeParams) => node::set_exec;

    // modules: cached parameter layouts die with their kernels
    /// Kernels of the module are gone
    hook fn cuModuleUnload(module: CUmodule) => module::unload;
    /// Kernels of the library are gone
    hook fn cuLibraryUnload(library: CUlibrary) => module::unload_library;

    // peers: devices that reach each other's memory
    /// What is mapped is opened to the device too
    hook fn cuCtxEnablePeerAccess(ctx: CUcontext, flags: c_uint) => context::enable_peer;
    /// What is mapped later is not opened to it any more
    hook fn cuCtxDisablePeerAccess(ctx: CUcontext) => context::disable_peer;

    // contexts and streams: what ends with them, and who waits for what
    /// Everything in the context is gone, as runtimes before CUDA 4 ask
    hook fn cuCtxDestroy(ctx: CUcontext) => context::destroy;
    /// Everything in the context is gone
    hook fn cuCtxDestroy_v2(ctx: CUcontext) => context::destroy;
    /// Everything in the primary context is gone
    hook fn cuDevicePrimaryCtxReset(device: CUdevice) => context::reset_primary;
    /// Everything in the primary context is gone
    hook fn cuDevicePrimaryCtxReset_v2(device: CUdevice) => context::reset_primary;
    /// Everything in the primary context may be gone
    hook fn cuDevicePrimaryCtxRelease(device: CUdevice) => context::release_primary;
    /// Everything in the primary context may be gone
    hook fn cuDevicePrimaryCtxRelease_v2(device: CUdevice) => context::release_primary;
    /// A stream of the program's that a wait for the context is a wait for
    always fn cuStreamCreate(stream: *mut CUstream, flags: c_uint) => stream::create;
    /// A stream of the program's that a wait for the context is a wait for
    always fn cuStreamCreateWithPriority(stream: *mut CUstream, flags: c_uint, priority: c_int) => stream::create_with_priority;
    /// What was known of the stream is forgotten, as runtimes before CUDA 4 ask
    hook fn cuStreamDestroy(stream: CUstream) => stream::destroy;
    /// What was known of the stream is forgotten
    hook fn cuStreamDestroy_v2(stream: CUstream) => stream::destroy;
    /// A thread's own stream may carry work that no launch shows
    quiet fn cuLaunchHostFunc(stream: CUstream, function: Option<unsafe extern "C" fn(*mut c_void)>, data: *mut c_void) / cuLaunchHostFunc_ptsz => stream::host_function;
    /// A thread's own stream may carry work that no launch shows
    quiet fn cuStreamWaitEvent(stream: CUstream, event: CUevent, flags: c_uint) / cuStreamWaitEvent_ptsz => stream::waits;
    /// Streams of a green context are the driver's to wait for
    hook fn cuGreenCtxCreate(context: *mut *mut c_void, resources: *mut c_void, device: CUdevice, flags: c_uint) => stream::create_green;
    /// The program waits for what it submitted, not for weights of its next pass
    hook fn cuCtxSynchronize() => stream::synchronize;
    /// The program waits for what it submitted, not for weights of its next pass (CUDA 13)
    hook fn cuCtxSynchronize_v2(ctx: CUcontext) => stream::synchronize_of;
}

/// Every hooked function.
pub(crate) fn rows() -> impl Iterator<Item = &'static Row> {
    TABLE.iter().copied().flatten()
}

/// The row whose driver function stands at `address`.
pub(crate) fn row_of_original(address: *mut c_void) -> Option<&'static Row> {
    if address.is_null() { None } else { rows().find(|row| row.original() == address) }
}

/// The row of exactly this name.
pub(crate) fn row_of_name(name: &[u8]) -> Option<&'static Row> {
    rows().find(|row| row.name.as_bytes() == name)
}

/// `cuInit` as a program calls it, through our function.
pub(crate) fn init_driver() -> CUresult {
    // SAFETY: takes a number, of which 0 is the one that is allowed.
    unsafe { cuInit(0) }
}

#[cfg(test)]
mod tests;
