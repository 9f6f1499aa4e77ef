//! Handlers of graph nodes that are made or changed by hand: weights that a node shows stay where they are. How, is the runtime's matter; captures are
//! `capture`'s.

#![expect(unsafe_code, reason = "reads the parameters that the program passes to the driver")]

use super::{Call, descriptor, fill};
use crate::ffi::types::*;
use crate::outcome::{Outcome, Reason};
use crate::runtime::{copies, graphs};

/// A pointer to the parameters of a node, in the layout of one kind of node and driver version.
pub(super) trait NodeParams: Copy {
    /// Weights that the node shows stay where they are.
    ///
    /// # Safety
    /// The pointer is null or leads to valid parameters.
    unsafe fn keep(self) -> Result<(), CUresult>;
}

impl NodeParams for *const CUDA_KERNEL_NODE_PARAMS_v1 {
    unsafe fn keep(self) -> Result<(), CUresult> {
        // SAFETY: the caller's promise.
        let Some(node) = (unsafe { self.as_ref() }) else { return Ok(()) };
        graphs::keep_parameters(node.func, node.kernelParams, node.extra)
    }
}

impl NodeParams for *const CUDA_KERNEL_NODE_PARAMS_v2 {
    unsafe fn keep(self) -> Result<(), CUresult> {
        // SAFETY: the caller's promise.
        let Some(node) = (unsafe { self.as_ref() }) else { return Ok(()) };
        // The driver looks at `kern` only where `func` is null; either handle names a kernel.
        let function = if node.func.is_null() { node.kern.cast() } else { node.func };
        graphs::keep_parameters(function, node.kernelParams, node.extra)
    }
}

impl NodeParams for *const Memcpy3D {
    unsafe fn keep(self) -> Result<(), CUresult> {
        // SAFETY: the caller's promise.
        copies::keep(&unsafe { descriptor::slices_of(self) })
    }
}

impl NodeParams for *const MemsetNodeParams {
    unsafe fn keep(self) -> Result<(), CUresult> {
        // SAFETY: the caller's promise.
        let Some(node) = (unsafe { self.as_ref() }) else { return Ok(()) };
        copies::keep(&[fill::of_node(node)])
    }
}

impl NodeParams for *mut GraphNodeParams {
    unsafe fn keep(self) -> Result<(), CUresult> {
        // SAFETY: the caller's promise.
        let Some(node) = (unsafe { self.as_ref() }) else { return Ok(()) };
        match node.kind {
            // SAFETY: parameters of this kind are those of a kernel.
            node_kind::KERNEL => unsafe { NodeParams::keep(&raw const node.detail.kernel) },
            // SAFETY: parameters of this kind are those of a copy.
            node_kind::MEMCPY => unsafe { NodeParams::keep(&raw const node.detail.memcpy.copy) },
            // SAFETY: parameters of this kind are those of a fill.
            node_kind::MEMSET => unsafe { NodeParams::keep(&raw const node.detail.memset) },
            // The others name no memory, or memory that they allocate; nodes of graphs inside have been seen when they were made.
            _ => Ok(()),
        }
    }
}

/// # Safety
/// The pointer is null or leads to valid parameters.
unsafe fn keep<P: NodeParams>(params: P) -> Outcome {
    // SAFETY: the caller's promise.
    match unsafe { params.keep() } {
        Ok(()) => Outcome::Bypass(Reason::Observed),
        Err(code) => Outcome::Fail(code),
    }
}

pub(super) fn add<P: NodeParams>(
    _call: &Call<unsafe extern "C" fn(*mut CUgraphNode, CUgraph, *const CUgraphNode, usize, P) -> CUresult>,
    _node: *mut CUgraphNode,
    _graph: CUgraph,
    _dependencies: *const CUgraphNode,
    _count: usize,
    params: P,
) -> Outcome {
    // SAFETY: the program passes the node's parameters to the driver in this very call.
    unsafe { keep(params) }
}

pub(super) fn add_with_edges(
    _call: &Call<
        unsafe extern "C" fn(
            *mut CUgraphNode,
            CUgraph,
            *const CUgraphNode,
            *const c_void,
            usize,
            *mut GraphNodeParams,
        ) -> CUresult,
    >,
    _node: *mut CUgraphNode,
    _graph: CUgraph,
    _dependencies: *const CUgraphNode,
    _edges: *const c_void,
    _count: usize,
    params: *mut GraphNodeParams,
) -> Outcome {
    // SAFETY: as above.
    unsafe { keep(params) }
}

pub(super) fn add_in_context<P: NodeParams>(
    _call: &Call<
        unsafe extern "C" fn(*mut CUgraphNode, CUgraph, *const CUgraphNode, usize, P, CUcontext) -> CUresult,
    >,
    _node: *mut CUgraphNode,
    _graph: CUgraph,
    _dependencies: *const CUgraphNode,
    _count: usize,
    params: P,
    _ctx: CUcontext,
) -> Outcome {
    // SAFETY: as above.
    unsafe { keep(params) }
}

pub(super) fn set<P: NodeParams>(
    _call: &Call<unsafe extern "C" fn(CUgraphNode, P) -> CUresult>,
    _node: CUgraphNode,
    params: P,
) -> Outcome {
    // SAFETY: as above.
    unsafe { keep(params) }
}

pub(super) fn set_exec<P: NodeParams>(
    _call: &Call<unsafe extern "C" fn(CUgraphExec, CUgraphNode, P) -> CUresult>,
    _graph: CUgraphExec,
    _node: CUgraphNode,
    params: P,
) -> Outcome {
    // SAFETY: as above.
    unsafe { keep(params) }
}

pub(super) fn set_exec_in_context<P: NodeParams>(
    _call: &Call<unsafe extern "C" fn(CUgraphExec, CUgraphNode, P, CUcontext) -> CUresult>,
    _graph: CUgraphExec,
    _node: CUgraphNode,
    params: P,
    _ctx: CUcontext,
) -> Outcome {
    // SAFETY: as above.
    unsafe { keep(params) }
}
