//! The driver's C types as hooks and wrappers see them. Handles and plain structs are cudarc's; what a program may fill with values
//! that no enum of ours knows (result codes, memory types, launch attributes, capture modes) is declared here as plain integers.
//! Calls nothing.

pub(crate) use cudarc::driver::sys::{
    CUDA_KERNEL_NODE_PARAMS_v1, CUDA_KERNEL_NODE_PARAMS_v2, CUarray, CUcontext, CUdevice, CUdeviceptr,
    CUevent, CUfunction, CUgraph, CUgraphExec, CUgraphNode, CUipcMemHandle, CUkernel, CUlibrary,
    CUmemAccess_flags, CUmemAccessDesc, CUmemAllocationProp, CUmemAllocationType,
    CUmemGenericAllocationHandle, CUmemLocation, CUmemLocationType, CUmemoryPool, CUmodule, CUstream,
};
pub(crate) use std::ffi::{c_char, c_int, c_uchar, c_uint, c_ulonglong, c_ushort, c_void};

/// What a driver call returns. A newtype over the number and no enum, because a newer driver may return codes that were not
/// known when this was written.
#[repr(transparent)]
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct CUresult(pub(crate) c_uint);

macro_rules! result_codes {
    ($($name:ident = $value:literal;)*) => {
        #[allow(missing_docs, dead_code, reason = "the driver's names, documented in cuda.h; all that reports may have to name")]
        impl CUresult {
            $(pub(crate) const $name: CUresult = CUresult($value);)*

            /// The driver's name of the code, or `None` for a code that is not in this table.
            pub(crate) const fn name(self) -> Option<&'static str> {
                match self.0 {
                    $($value => Some(stringify!($name)),)*
                    _ => None,
                }
            }
        }
    };
}

result_codes! {
    CUDA_SUCCESS = 0;
    CUDA_ERROR_INVALID_VALUE = 1;
    CUDA_ERROR_OUT_OF_MEMORY = 2;
    CUDA_ERROR_NOT_INITIALIZED = 3;
    CUDA_ERROR_DEINITIALIZED = 4;
    CUDA_ERROR_NO_DEVICE = 100;
    CUDA_ERROR_INVALID_DEVICE = 101;
    CUDA_ERROR_INVALID_CONTEXT = 201;
    CUDA_ERROR_MAP_FAILED = 205;
    CUDA_ERROR_UNMAP_FAILED = 206;
    CUDA_ERROR_ALREADY_MAPPED = 208;
    CUDA_ERROR_NOT_MAPPED = 211;
    CUDA_ERROR_ECC_UNCORRECTABLE = 214;
    CUDA_ERROR_INVALID_HANDLE = 400;
    CUDA_ERROR_NOT_FOUND = 500;
    CUDA_ERROR_NOT_READY = 600;
    CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED = 704;
    CUDA_ERROR_ILLEGAL_ADDRESS = 700;
    CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES = 701;
    CUDA_ERROR_PRIMARY_CONTEXT_ACTIVE = 708;
    CUDA_ERROR_CONTEXT_IS_DESTROYED = 709;
    CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED = 712;
    CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED = 713;
    CUDA_ERROR_LAUNCH_FAILED = 719;
    CUDA_ERROR_NOT_PERMITTED = 800;
    CUDA_ERROR_NOT_SUPPORTED = 801;
    CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED = 900;
    CUDA_ERROR_STREAM_CAPTURE_INVALIDATED = 901;
    CUDA_ERROR_UNKNOWN = 999;
}

impl CUresult {
    /// True for `CUDA_SUCCESS`.
    pub(crate) const fn is_success(self) -> bool {
        self.0 == 0
    }
}

impl std::fmt::Debug for CUresult {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.name() {
            Some(name) => write!(out, "{name} ({})", self.0),
            None => write!(out, "CUDA error {}", self.0),
        }
    }
}

/// The stream handle that stands for the calling thread's default stream (`CU_STREAM_PER_THREAD`).
pub(crate) const STREAM_PER_THREAD: CUstream = std::ptr::without_provenance_mut(2);
/// The stream handle that stands for the legacy default stream even in per-thread code (`CU_STREAM_LEGACY`).
#[cfg(test)]
pub(crate) const STREAM_LEGACY: CUstream = std::ptr::without_provenance_mut(1);

/// `CUmemAllocationProp`, as far as we read it: what a program may fill with values that our enums do not know is plain numbers.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the driver's field names, documented in cuda.h")]
pub(crate) struct AllocationProperties {
    pub(crate) kind: c_uint,
    pub(crate) handle_types: c_uint,
    pub(crate) location_kind: c_uint,
    pub(crate) location_id: c_int,
}

impl AllocationProperties {
    /// The GPU that the memory is on; none for host memory, and for what a later driver may know.
    pub(crate) fn device(&self) -> Option<i32> {
        (self.location_kind == CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE as c_uint)
            .then_some(self.location_id)
    }
}

/// Memory type numbers in the copy descriptors below (`CUmemorytype`).
pub(crate) mod memory_type {
    #![allow(dead_code, reason = "the driver's whole list")]
    pub(crate) const HOST: u32 = 1;
    pub(crate) const DEVICE: u32 = 2;
    pub(crate) const ARRAY: u32 = 3;
    pub(crate) const UNIFIED: u32 = 4;
}

/// `CUDA_MEMCPY2D`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the driver's field names, documented in cuda.h")]
pub(crate) struct Memcpy2D {
    pub(crate) src_x_in_bytes: usize,
    pub(crate) src_y: usize,
    pub(crate) src_memory_type: u32,
    pub(crate) src_host: *const c_void,
    pub(crate) src_device: CUdeviceptr,
    pub(crate) src_array: CUarray,
    pub(crate) src_pitch: usize,
    pub(crate) dst_x_in_bytes: usize,
    pub(crate) dst_y: usize,
    pub(crate) dst_memory_type: u32,
    pub(crate) dst_host: *mut c_void,
    pub(crate) dst_device: CUdeviceptr,
    pub(crate) dst_array: CUarray,
    pub(crate) dst_pitch: usize,
    pub(crate) width_in_bytes: usize,
    pub(crate) height: usize,
}

/// `CUDA_MEMCPY3D`, and `CUDA_MEMCPY3D_PEER`, which has contexts where the other has reserved words.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the driver's field names, documented in cuda.h")]
pub(crate) struct Memcpy3D {
    pub(crate) src_x_in_bytes: usize,
    pub(crate) src_y: usize,
    pub(crate) src_z: usize,
    pub(crate) src_lod: usize,
    pub(crate) src_memory_type: u32,
    pub(crate) src_host: *const c_void,
    pub(crate) src_device: CUdeviceptr,
    pub(crate) src_array: CUarray,
    pub(crate) src_context: *mut c_void,
    pub(crate) src_pitch: usize,
    pub(crate) src_height: usize,
    pub(crate) dst_x_in_bytes: usize,
    pub(crate) dst_y: usize,
    pub(crate) dst_z: usize,
    pub(crate) dst_lod: usize,
    pub(crate) dst_memory_type: u32,
    pub(crate) dst_host: *mut c_void,
    pub(crate) dst_device: CUdeviceptr,
    pub(crate) dst_array: CUarray,
    pub(crate) dst_context: *mut c_void,
    pub(crate) dst_pitch: usize,
    pub(crate) dst_height: usize,
    pub(crate) width_in_bytes: usize,
    pub(crate) height: usize,
    pub(crate) depth: usize,
}

/// `CUDA_MEMSET_NODE_PARAMS`; the second version has a context behind these fields, which nobody here looks at.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the driver's field names, documented in cuda.h")]
pub(crate) struct MemsetNodeParams {
    pub(crate) dst: CUdeviceptr,
    pub(crate) pitch: usize,
    pub(crate) value: c_uint,
    pub(crate) element_size: c_uint,
    pub(crate) width: usize,
    pub(crate) height: usize,
}

/// `CUDA_MEMCPY_NODE_PARAMS`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
#[allow(missing_docs, reason = "the driver's field names, documented in cuda.h")]
pub(crate) struct MemcpyNodeParams {
    pub(crate) flags: c_int,
    pub(crate) reserved: c_int,
    pub(crate) ctx: CUcontext,
    pub(crate) copy: Memcpy3D,
}

/// Numbers of node kinds (`CUgraphNodeType`) whose parameters name memory.
pub(crate) mod node_kind {
    pub(crate) const KERNEL: u32 = 0;
    pub(crate) const MEMCPY: u32 = 1;
    pub(crate) const MEMSET: u32 = 2;
}

/// The union in `CUgraphNodeParams`, as far as its parts name memory. Kernel parameters of the third version are those of the second.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(missing_docs, reason = "the driver's field names, documented in cuda.h")]
pub(crate) union GraphNodeDetail {
    pub(crate) reserved: [i64; 29],
    pub(crate) kernel: CUDA_KERNEL_NODE_PARAMS_v2,
    pub(crate) memcpy: MemcpyNodeParams,
    pub(crate) memset: MemsetNodeParams,
}

/// `CUgraphNodeParams`.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(missing_docs, reason = "the driver's field names, documented in cuda.h")]
pub(crate) struct GraphNodeParams {
    pub(crate) kind: c_uint,
    pub(crate) reserved0: [c_int; 3],
    pub(crate) detail: GraphNodeDetail,
    pub(crate) reserved2: i64,
}

/// `CUlaunchAttribute`.
#[repr(C, align(8))]
#[derive(Clone, Copy)]
#[allow(missing_docs, reason = "the driver's field names, documented in cuda.h")]
pub(crate) struct LaunchAttribute {
    pub(crate) id: u32,
    pub(crate) pad: [u8; 4],
    pub(crate) value: [u8; 64],
}

/// `CUlaunchConfig`.
#[repr(C)]
#[derive(Clone, Copy)]
#[allow(missing_docs, reason = "the driver's field names, documented in cuda.h")]
pub(crate) struct LaunchConfig {
    pub(crate) grid: [c_uint; 3],
    pub(crate) block: [c_uint; 3],
    pub(crate) shared_mem_bytes: c_uint,
    pub(crate) stream: CUstream,
    pub(crate) attrs: *mut LaunchAttribute,
    pub(crate) num_attrs: c_uint,
}

#[cfg(test)]
mod tests {
    use super::*;
    use cudarc::driver::sys;
    use std::mem::{offset_of, size_of};

    #[test]
    fn our_declarations_have_the_drivers_layout() {
        assert_eq!(size_of::<Memcpy2D>(), size_of::<sys::CUDA_MEMCPY2D>());
        assert_eq!(offset_of!(Memcpy2D, dst_device), offset_of!(sys::CUDA_MEMCPY2D, dstDevice));
        assert_eq!(size_of::<Memcpy3D>(), size_of::<sys::CUDA_MEMCPY3D>());
        assert_eq!(size_of::<Memcpy3D>(), size_of::<sys::CUDA_MEMCPY3D_PEER>());
        assert_eq!(offset_of!(Memcpy3D, dst_device), offset_of!(sys::CUDA_MEMCPY3D, dstDevice));
        assert_eq!(offset_of!(Memcpy3D, dst_context), offset_of!(sys::CUDA_MEMCPY3D_PEER, dstContext));
        assert_eq!(offset_of!(Memcpy3D, depth), offset_of!(sys::CUDA_MEMCPY3D, Depth));
        assert_eq!(size_of::<MemsetNodeParams>(), size_of::<sys::CUDA_MEMSET_NODE_PARAMS>());
        assert_eq!(size_of::<MemcpyNodeParams>(), size_of::<sys::CUDA_MEMCPY_NODE_PARAMS>());
        assert_eq!(offset_of!(MemcpyNodeParams, copy), offset_of!(sys::CUDA_MEMCPY_NODE_PARAMS, copyParams));
        assert_eq!(size_of::<GraphNodeParams>(), size_of::<sys::CUgraphNodeParams>());
        assert_eq!(offset_of!(GraphNodeParams, detail), offset_of!(sys::CUgraphNodeParams, __bindgen_anon_1));
        assert_eq!(
            size_of::<sys::CUDA_KERNEL_NODE_PARAMS_v3>(),
            size_of::<sys::CUDA_KERNEL_NODE_PARAMS_v2>()
        );
        assert_eq!(
            offset_of!(sys::CUDA_KERNEL_NODE_PARAMS_v3, kern),
            offset_of!(sys::CUDA_KERNEL_NODE_PARAMS_v2, kern)
        );
        assert_eq!(size_of::<LaunchAttribute>(), size_of::<sys::CUlaunchAttribute>());
        assert_eq!(size_of::<LaunchConfig>(), size_of::<sys::CUlaunchConfig>());
        assert_eq!(offset_of!(LaunchConfig, stream), offset_of!(sys::CUlaunchConfig, hStream));
        assert_eq!(offset_of!(LaunchConfig, num_attrs), offset_of!(sys::CUlaunchConfig, numAttrs));
    }

    #[test]
    fn result_codes_carry_the_drivers_numbers_and_names() {
        assert_eq!(CUresult::CUDA_ERROR_NOT_SUPPORTED.0, sys::CUresult::CUDA_ERROR_NOT_SUPPORTED as u32);
        assert_eq!(
            CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED.0,
            sys::CUresult::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED as u32
        );
        assert_eq!(CUresult(700).name(), Some("CUDA_ERROR_ILLEGAL_ADDRESS"));
        assert_eq!(format!("{:?}", CUresult(12345)), "CUDA error 12345");
    }
}
