//! Handlers of stream captures. What a captured call means is said where the call is handled; nodes that are made by hand are `node`'s matter.

use super::Call;
use crate::ffi::stream::Stream;
use crate::ffi::types::*;
use crate::outcome::Outcome;
use crate::runtime::{graphs, memory, streaming};

/// `begin` makes the stream capture. What it carries now is marked before: events that are recorded later would be the capture's.
fn begun(stream: CUstream, begin: impl FnOnce() -> CUresult) -> Outcome {
    let code = graphs::begin_capture(|| {
        streaming::forget_stream(Stream::from(stream));
        streaming::close_marks();
        begin()
    });
    if !code.is_success() {
        memory::free_what_was_put_off();
    }
    Outcome::Done(code)
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
        memory::free_what_was_put_off();
    }
    Outcome::Done(code)
}
