//! Handlers of stream captures and graph nodes.

use super::Call;
use crate::ffi::types::*;
use crate::outcome::{Outcome, Reason};

pub(super) fn begin(_call: &Call<unsafe extern "C" fn(CUstream) -> CUresult>, _stream: CUstream) -> Outcome {
    Outcome::Bypass(Reason::NotManaged)
}

pub(super) fn begin_in_mode(
    _call: &Call<unsafe extern "C" fn(CUstream, c_uint) -> CUresult>,
    _stream: CUstream,
    _mode: c_uint,
) -> Outcome {
    Outcome::Bypass(Reason::NotManaged)
}

pub(super) fn begin_to_graph(
    _call: &Call<
        unsafe extern "C" fn(CUstream, CUgraph, *const CUgraphNode, *const c_void, usize, c_uint) -> CUresult,
    >,
    _stream: CUstream,
    _graph: CUgraph,
    _dependencies: *const CUgraphNode,
    _edges: *const c_void,
    _count: usize,
    _mode: c_uint,
) -> Outcome {
    Outcome::Bypass(Reason::NotManaged)
}

pub(super) fn end(
    _call: &Call<unsafe extern "C" fn(CUstream, *mut CUgraph) -> CUresult>,
    _stream: CUstream,
    _graph: *mut CUgraph,
) -> Outcome {
    Outcome::Bypass(Reason::NotManaged)
}

pub(super) fn add_kernel_node_before_12(
    _call: &Call<
        unsafe extern "C" fn(
            *mut CUgraphNode,
            CUgraph,
            *const CUgraphNode,
            usize,
            *const CUDA_KERNEL_NODE_PARAMS_v1,
        ) -> CUresult,
    >,
    _node: *mut CUgraphNode,
    _graph: CUgraph,
    _dependencies: *const CUgraphNode,
    _count: usize,
    _params: *const CUDA_KERNEL_NODE_PARAMS_v1,
) -> Outcome {
    Outcome::Bypass(Reason::NotManaged)
}

pub(super) fn add_kernel_node(
    _call: &Call<
        unsafe extern "C" fn(
            *mut CUgraphNode,
            CUgraph,
            *const CUgraphNode,
            usize,
            *const CUDA_KERNEL_NODE_PARAMS_v2,
        ) -> CUresult,
    >,
    _node: *mut CUgraphNode,
    _graph: CUgraph,
    _dependencies: *const CUgraphNode,
    _count: usize,
    _params: *const CUDA_KERNEL_NODE_PARAMS_v2,
) -> Outcome {
    Outcome::Bypass(Reason::NotManaged)
}

pub(super) fn set_exec_kernel_node_before_12(
    _call: &Call<
        unsafe extern "C" fn(CUgraphExec, CUgraphNode, *const CUDA_KERNEL_NODE_PARAMS_v1) -> CUresult,
    >,
    _graph: CUgraphExec,
    _node: CUgraphNode,
    _params: *const CUDA_KERNEL_NODE_PARAMS_v1,
) -> Outcome {
    Outcome::Bypass(Reason::NotManaged)
}

pub(super) fn set_exec_kernel_node(
    _call: &Call<
        unsafe extern "C" fn(CUgraphExec, CUgraphNode, *const CUDA_KERNEL_NODE_PARAMS_v2) -> CUresult,
    >,
    _graph: CUgraphExec,
    _node: CUgraphNode,
    _params: *const CUDA_KERNEL_NODE_PARAMS_v2,
) -> Outcome {
    Outcome::Bypass(Reason::NotManaged)
}
