//! Handlers of stream captures and graph nodes: weights that a graph shows stay where they are. How, is the runtime's matter.

#![expect(unsafe_code, reason = "reads the parameters that the program passes to the driver")]

use super::Call;
use crate::ffi::stream::Stream;
use crate::ffi::types::*;
use crate::outcome::{Outcome, Reason};
use crate::runtime::{graphs, streaming};

/// `begin` makes the stream capture. What it carries now is marked before: events that are recorded later would be the capture's.
fn begun(stream: CUstream, begin: impl FnOnce() -> CUresult) -> Outcome {
    streaming::forget_stream(Stream::from(stream));
    let code = begin();
    if code.is_success() {
        graphs::capture_began();
    }
    Outcome::Done(code)
}

fn kept_or_fail(kept: Result<(), CUresult>) -> Outcome {
    match kept {
        Ok(()) => Outcome::Bypass(Reason::Observed),
        Err(code) => Outcome::Fail(code),
    }
}

pub(super) fn begin(call: &Call<unsafe extern "C" fn(CUstream) -> CUresult>, stream: CUstream) -> Outcome {
    begun(call.stream(stream), || call.invoke(stream))
}

pub(super) fn begin_in_mode(
    call: &Call<unsafe extern "C" fn(CUstream, c_uint) -> CUresult>,
    stream: CUstream,
    mode: c_uint,
) -> Outcome {
    begun(call.stream(stream), || call.invoke(stream, mode))
}

pub(super) fn begin_to_graph(
    call: &Call<
        unsafe extern "C" fn(CUstream, CUgraph, *const CUgraphNode, *const c_void, usize, c_uint) -> CUresult,
    >,
    stream: CUstream,
    graph: CUgraph,
    dependencies: *const CUgraphNode,
    edges: *const c_void,
    count: usize,
    mode: c_uint,
) -> Outcome {
    begun(call.stream(stream), || call.invoke(stream, graph, dependencies, edges, count, mode))
}

pub(super) fn end(
    call: &Call<unsafe extern "C" fn(CUstream, *mut CUgraph) -> CUresult>,
    stream: CUstream,
    graph: *mut CUgraph,
) -> Outcome {
    let code = call.invoke(stream, graph);
    graphs::capture_ended();
    Outcome::Done(code)
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
    params: *const CUDA_KERNEL_NODE_PARAMS_v1,
) -> Outcome {
    // SAFETY: the program passes the node's parameters to the driver in this very call.
    let kept = unsafe { params.as_ref() }
        .map_or(Ok(()), |p| graphs::keep_parameters(p.func, p.kernelParams, p.extra));
    kept_or_fail(kept)
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
    params: *const CUDA_KERNEL_NODE_PARAMS_v2,
) -> Outcome {
    // SAFETY: the program passes the node's parameters to the driver in this very call.
    let kept = unsafe { params.as_ref() }
        .map_or(Ok(()), |p| graphs::keep_parameters(p.func, p.kernelParams, p.extra));
    kept_or_fail(kept)
}

pub(super) fn set_exec_kernel_node_before_12(
    _call: &Call<
        unsafe extern "C" fn(CUgraphExec, CUgraphNode, *const CUDA_KERNEL_NODE_PARAMS_v1) -> CUresult,
    >,
    _graph: CUgraphExec,
    _node: CUgraphNode,
    params: *const CUDA_KERNEL_NODE_PARAMS_v1,
) -> Outcome {
    // SAFETY: the program passes the node's parameters to the driver in this very call.
    let kept = unsafe { params.as_ref() }
        .map_or(Ok(()), |p| graphs::keep_parameters(p.func, p.kernelParams, p.extra));
    kept_or_fail(kept)
}

pub(super) fn set_exec_kernel_node(
    _call: &Call<
        unsafe extern "C" fn(CUgraphExec, CUgraphNode, *const CUDA_KERNEL_NODE_PARAMS_v2) -> CUresult,
    >,
    _graph: CUgraphExec,
    _node: CUgraphNode,
    params: *const CUDA_KERNEL_NODE_PARAMS_v2,
) -> Outcome {
    // SAFETY: the program passes the node's parameters to the driver in this very call.
    let kept = unsafe { params.as_ref() }
        .map_or(Ok(()), |p| graphs::keep_parameters(p.func, p.kernelParams, p.extra));
    kept_or_fail(kept)
}
