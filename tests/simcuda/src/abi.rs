//! Layouts of the structs that cross the C border, with plain integers where C has enums: a caller may pass any number.
//!
//! The tests compare every layout with the published bindings.

use std::ffi::c_void;

/// `CUmemLocation`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Location {
    pub(crate) kind: u32,
    pub(crate) id: i32,
}

pub(crate) const LOCATION_DEVICE: u32 = 1;
pub(crate) const LOCATION_HOST: u32 = 2;
pub(crate) const LOCATION_HOST_NUMA: u32 = 3;

/// `CUmemAllocationProp`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct AllocationProperties {
    pub(crate) kind: u32,
    pub(crate) handle_types: u32,
    pub(crate) location: Location,
    pub(crate) win32: *mut c_void,
    pub(crate) flags: [u8; 8],
}

/// `CUmemAccessDesc`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct AccessDescription {
    pub(crate) location: Location,
    pub(crate) flags: u32,
}

/// `CUlaunchAttribute`; the value is a union of 64 bytes.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct LaunchAttribute {
    pub(crate) id: u32,
    pub(crate) pad: u32,
    pub(crate) value: [u64; 8],
}

/// `CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION`.
pub(crate) const PROGRAMMATIC_SERIALIZATION: u32 = 6;

/// `CUlaunchConfig`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct LaunchConfig {
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) shared: u32,
    pub(crate) stream: u64,
    pub(crate) attributes: *const LaunchAttribute,
    pub(crate) attribute_count: u32,
}

/// One side of a `CUDA_MEMCPY2D`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Side2d {
    pub(crate) x_bytes: usize,
    pub(crate) y: usize,
    pub(crate) memory_type: u32,
    pub(crate) host: u64,
    pub(crate) device: u64,
    pub(crate) array: u64,
    pub(crate) pitch: usize,
}

/// `CUDA_MEMCPY2D`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Copy2d {
    pub(crate) source: Side2d,
    pub(crate) target: Side2d,
    pub(crate) width_bytes: usize,
    pub(crate) height: usize,
}

/// One side of a `CUDA_MEMCPY3D`; `reserved` is the context in the peer variant.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Side3d {
    pub(crate) x_bytes: usize,
    pub(crate) y: usize,
    pub(crate) z: usize,
    pub(crate) level: usize,
    pub(crate) memory_type: u32,
    pub(crate) host: u64,
    pub(crate) device: u64,
    pub(crate) array: u64,
    pub(crate) reserved: u64,
    pub(crate) pitch: usize,
    pub(crate) height: usize,
}

/// `CUDA_MEMCPY3D` and `CUDA_MEMCPY3D_PEER`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Copy3d {
    pub(crate) source: Side3d,
    pub(crate) target: Side3d,
    pub(crate) width_bytes: usize,
    pub(crate) height: usize,
    pub(crate) depth: usize,
}

/// `CUmemorytype`.
pub(crate) const MEMORY_HOST: u32 = 1;
pub(crate) const MEMORY_DEVICE: u32 = 2;
pub(crate) const MEMORY_UNIFIED: u32 = 4;

/// `CUDA_KERNEL_NODE_PARAMS_v2`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct KernelNodeParameters {
    pub(crate) function: u64,
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) shared: u32,
    pub(crate) parameters: u64,
    pub(crate) extra: u64,
    pub(crate) kernel: u64,
    pub(crate) context: u64,
}

/// `CUDA_MEMSET_NODE_PARAMS`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct MemsetNodeParameters {
    pub(crate) target: u64,
    pub(crate) pitch: usize,
    pub(crate) value: u32,
    pub(crate) element_bytes: u32,
    pub(crate) width: usize,
    pub(crate) height: usize,
}

/// `CUDA_MEMCPY_NODE_PARAMS`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct CopyNodeParameters {
    pub(crate) flags: i32,
    pub(crate) reserved: i32,
    pub(crate) context: u64,
    pub(crate) copy: Copy3d,
}

/// `CUgraphNodeParams`; the detail is a union of 232 bytes, whose meaning is that of the kind.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct NodeParameters {
    pub(crate) kind: u32,
    pub(crate) reserved: [u32; 3],
    pub(crate) detail: [u64; 29],
    pub(crate) end: u64,
}

/// `CU_GRAPH_NODE_TYPE_*`.
pub(crate) const NODE_KERNEL: u32 = 0;
pub(crate) const NODE_COPY: u32 = 1;
pub(crate) const NODE_SET: u32 = 2;

/// `CUDA_GRAPH_INSTANTIATE_PARAMS`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct InstantiateParameters {
    pub(crate) flags: u64,
    pub(crate) upload_stream: u64,
    pub(crate) error_node: u64,
    pub(crate) result: u32,
}

/// `CUuuid`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub(crate) struct Uuid(pub(crate) [u8; 16]);

#[cfg(test)]
mod tests {
    use super::*;
    use cudarc::driver::sys;
    use std::mem::{offset_of, size_of};

    #[test]
    fn layouts_are_those_of_the_published_bindings() {
        assert_eq!(size_of::<AllocationProperties>(), size_of::<sys::CUmemAllocationProp>());
        assert_eq!(
            offset_of!(AllocationProperties, location),
            offset_of!(sys::CUmemAllocationProp, location)
        );
        assert_eq!(size_of::<AccessDescription>(), size_of::<sys::CUmemAccessDesc>());
        assert_eq!(size_of::<LaunchAttribute>(), size_of::<sys::CUlaunchAttribute>());
        assert_eq!(offset_of!(LaunchAttribute, value), offset_of!(sys::CUlaunchAttribute, value));
        assert_eq!(size_of::<LaunchConfig>(), size_of::<sys::CUlaunchConfig>());
        assert_eq!(offset_of!(LaunchConfig, attributes), offset_of!(sys::CUlaunchConfig, attrs));
        assert_eq!(size_of::<Copy2d>(), size_of::<sys::CUDA_MEMCPY2D>());
        assert_eq!(offset_of!(Copy2d, width_bytes), offset_of!(sys::CUDA_MEMCPY2D, WidthInBytes));
        assert_eq!(size_of::<Copy3d>(), size_of::<sys::CUDA_MEMCPY3D>());
        assert_eq!(offset_of!(Copy3d, target), offset_of!(sys::CUDA_MEMCPY3D, dstXInBytes));
        assert_eq!(size_of::<KernelNodeParameters>(), size_of::<sys::CUDA_KERNEL_NODE_PARAMS_v2>());
        assert_eq!(size_of::<MemsetNodeParameters>(), size_of::<sys::CUDA_MEMSET_NODE_PARAMS>());
        assert_eq!(size_of::<CopyNodeParameters>(), size_of::<sys::CUDA_MEMCPY_NODE_PARAMS>());
        assert_eq!(
            offset_of!(CopyNodeParameters, copy),
            offset_of!(sys::CUDA_MEMCPY_NODE_PARAMS, copyParams)
        );
        assert_eq!(size_of::<NodeParameters>(), size_of::<sys::CUgraphNodeParams>());
        assert_eq!(offset_of!(NodeParameters, detail), offset_of!(sys::CUgraphNodeParams, __bindgen_anon_1));
        assert_eq!(size_of::<InstantiateParameters>(), size_of::<sys::CUDA_GRAPH_INSTANTIATE_PARAMS>());
    }
}
