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
    let given = Stream::from(call.stream(stream));
    let captured = graphs::is_capturing(given);
    let code = call.invoke(stream, graph);
    // A refused end leaves the capture as it is, and one of a stream that captures nothing ends nobody's.
    if captured && !graphs::is_capturing(given) {
        graphs::capture_ended();
    }
    Outcome::Done(code)
}

/// The parameters of a kernel node, in the layout of one driver version.
pub(super) trait KernelNode {
    /// Weights that the node shows stay where they are.
    fn keep(&self) -> Result<(), CUresult>;
}

macro_rules! kernel_node {
    ($($layout:ty),+) => {$(
        impl KernelNode for $layout {
            fn keep(&self) -> Result<(), CUresult> {
                graphs::keep_parameters(self.func, self.kernelParams, self.extra)
            }
        }
    )+};
}

kernel_node!(CUDA_KERNEL_NODE_PARAMS_v1, CUDA_KERNEL_NODE_PARAMS_v2);

/// # Safety
/// The parameters are null or valid.
unsafe fn keep_node<P: KernelNode>(params: *const P) -> Outcome {
    // SAFETY: the caller's promise.
    kept_or_fail(unsafe { params.as_ref() }.map_or(Ok(()), P::keep))
}

pub(super) fn add_kernel_node<P: KernelNode>(
    _call: &Call<
        unsafe extern "C" fn(*mut CUgraphNode, CUgraph, *const CUgraphNode, usize, *const P) -> CUresult,
    >,
    _node: *mut CUgraphNode,
    _graph: CUgraph,
    _dependencies: *const CUgraphNode,
    _count: usize,
    params: *const P,
) -> Outcome {
    // SAFETY: the program passes the node's parameters to the driver in this very call.
    unsafe { keep_node(params) }
}

pub(super) fn set_exec_kernel_node<P: KernelNode>(
    _call: &Call<unsafe extern "C" fn(CUgraphExec, CUgraphNode, *const P) -> CUresult>,
    _graph: CUgraphExec,
    _node: CUgraphNode,
    params: *const P,
) -> Outcome {
    // SAFETY: the program passes the node's parameters to the driver in this very call.
    unsafe { keep_node(params) }
}
