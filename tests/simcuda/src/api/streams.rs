//! Streams and the captures on them.
#![expect(unsafe_code, reason = "exports under fixed names")]

use crate::call::{exports, stream_exports};
use crate::exec::context;
use crate::exec::event::{EVENTS, State};
use crate::exec::stream::{NON_BLOCKING, STREAMS, Stream, Wait};
use crate::exec::work::{HostCall, Work};
use crate::exec::{NullStream, capture, enqueue, stream_of};
use crate::journal::{Detection, journal};
use crate::pointer::{In, Out};
use crate::status::{Done, Status};
use std::sync::atomic::Ordering;

exports! {
    Init cuStreamCreate(handle: Out<u64>, flags: u32) => create;
    Init cuStreamCreateWithPriority(handle: Out<u64>, flags: u32, priority: i32) => create_with_priority;
    Init cuStreamDestroy_v2(handle: u64) => destroy;
    Init cuThreadExchangeStreamCaptureMode(mode: Out<u32>) => exchange_mode;
}

stream_exports! {
    cuStreamSynchronize, cuStreamSynchronize_ptsz(stream: u64) => synchronize;
    cuStreamQuery, cuStreamQuery_ptsz(stream: u64) => query;
    cuStreamWaitEvent, cuStreamWaitEvent_ptsz(stream: u64, event: u64, flags: u32) => wait_event;
    cuStreamGetFlags, cuStreamGetFlags_ptsz(stream: u64, flags: Out<u32>) => flags;
    cuStreamGetPriority, cuStreamGetPriority_ptsz(stream: u64, priority: Out<i32>) => priority;
    cuStreamGetId, cuStreamGetId_ptsz(stream: u64, id: Out<u64>) => id;
    cuStreamGetCtx, cuStreamGetCtx_ptsz(stream: u64, context: Out<u64>) => context_of;
    cuStreamGetCtx_v2, cuStreamGetCtx_v2_ptsz(stream: u64, context: Out<u64>, green: Out<u64>) => contexts_of;
    cuStreamGetDevice, cuStreamGetDevice_ptsz(stream: u64, number: Out<i32>) => device_of;
    cuStreamAddCallback, cuStreamAddCallback_ptsz(stream: u64, function: u64, data: u64, flags: u32) => add_callback;
    cuLaunchHostFunc, cuLaunchHostFunc_ptsz(stream: u64, function: u64, data: u64) => host_function;
    cuStreamBeginCapture, cuStreamBeginCapture_ptsz(stream: u64) => begin_capture_global;
    cuStreamBeginCapture_v2, cuStreamBeginCapture_v2_ptsz(stream: u64, mode: u32) => begin_capture;
    cuStreamEndCapture, cuStreamEndCapture_ptsz(stream: u64, graph: Out<u64>) => end_capture;
    cuStreamIsCapturing, cuStreamIsCapturing_ptsz(stream: u64, status: Out<u32>) => is_capturing;
    cuStreamGetCaptureInfo, cuStreamGetCaptureInfo_ptsz(stream: u64, status: Out<u32>, id: Out<u64>) => capture_info;
    cuStreamGetCaptureInfo_v2, cuStreamGetCaptureInfo_v2_ptsz(stream: u64, status: Out<u32>, id: Out<u64>, graph: Out<u64>, nodes: Out<u64>, count: Out<usize>) => capture_info_v2;
    cuStreamGetCaptureInfo_v3, cuStreamGetCaptureInfo_v3_ptsz(stream: u64, status: Out<u32>, id: Out<u64>, graph: Out<u64>, nodes: Out<u64>, edges: Out<u64>, count: Out<usize>) => capture_info_v3;
    cuStreamUpdateCaptureDependencies, cuStreamUpdateCaptureDependencies_ptsz(stream: u64, nodes: In<u64>, count: usize, flags: u32) => update_dependencies;
    cuStreamUpdateCaptureDependencies_v2, cuStreamUpdateCaptureDependencies_v2_ptsz(stream: u64, nodes: In<u64>, edges: In<u64>, count: usize, flags: u32) => update_dependencies_v2;
}

fn create(handle: Out<u64>, flags: u32) -> Done {
    create_with_priority(handle, flags, 0)
}

fn create_with_priority(handle: Out<u64>, flags: u32, priority: i32) -> Done {
    if flags & !NON_BLOCKING != 0 || handle.is_null() {
        return Err(Status::INVALID_VALUE);
    }
    let context = context::current()?;
    handle.set(Stream::create(&context, flags, priority.clamp(-5, 0)).handle)
}

fn destroy(handle: u64) -> Done {
    let stream = STREAMS.remove(handle)?;
    if stream.waited_for.load(Ordering::SeqCst) > 0 {
        let message = format!("stream {handle:#x} is destroyed while a thread waits for it");
        journal().detect(Detection::DestroyedInUse, &message);
    }
    stream.close();
    Ok(())
}

fn exchange_mode(mode: Out<u32>) -> Done {
    let old = capture::exchange_mode(mode.current()?)?;
    mode.set(old)
}

fn synchronize(null: NullStream, handle: u64) -> Done {
    let stream = stream_of(null, handle)?;
    capture::forbid_on(&stream)?;
    capture::check_implicit(&stream)?;
    stream.waited_for.fetch_add(1, Ordering::SeqCst);
    stream.drain_all();
    stream.waited_for.fetch_sub(1, Ordering::SeqCst);
    stream.usable()
}

fn query(null: NullStream, handle: u64) -> Done {
    let stream = stream_of(null, handle)?;
    capture::forbid_on(&stream)?;
    capture::check_implicit(&stream)?;
    if stream.idle() { Ok(()) } else { Err(Status::NOT_READY) }
}

fn wait_event(null: NullStream, handle: u64, event: u64, flags: u32) -> Done {
    if flags & !1 != 0 {
        return Err(Status::INVALID_VALUE);
    }
    let stream = stream_of(null, handle)?;
    match EVENTS.get(event)?.state() {
        State::Never => {
            let message = format!("a stream waits on event {event:#x}, which was never recorded");
            journal().detect(Detection::UnrecordedWait, &message);
            Ok(())
        }
        State::Captured(marker) => marker.join(&stream),
        State::Recorded(record) => {
            if let Some(capture) = capture::of(&stream) {
                capture.invalidate();
                return Err(Status::STREAM_CAPTURE_ISOLATION);
            }
            capture::check_implicit(&stream)?;
            stream.submit(Work::Wait, vec![Wait::Record(record)]);
            Ok(())
        }
    }
}

fn flags(null: NullStream, handle: u64, flags: Out<u32>) -> Done {
    flags.set(stream_of(null, handle)?.flags)
}

fn priority(null: NullStream, handle: u64, priority: Out<i32>) -> Done {
    priority.set(stream_of(null, handle)?.priority)
}

fn id(null: NullStream, handle: u64, id: Out<u64>) -> Done {
    id.set(u64::from(stream_of(null, handle)?.id))
}

fn context_of(null: NullStream, handle: u64, context: Out<u64>) -> Done {
    context.set(stream_of(null, handle)?.context.upgrade().ok_or(Status::CONTEXT_IS_DESTROYED)?.handle)
}

fn contexts_of(null: NullStream, handle: u64, context: Out<u64>, green: Out<u64>) -> Done {
    green.set_if_wanted(0);
    context_of(null, handle, context)
}

fn device_of(null: NullStream, handle: u64, number: Out<i32>) -> Done {
    number.set(stream_of(null, handle)?.device as i32)
}

fn host_call(stream: &std::sync::Arc<Stream>, call: HostCall, function: u64) -> Done {
    if function == 0 {
        return Err(Status::INVALID_VALUE);
    }
    enqueue(stream, Work::Host(call)).map(|_| ())
}

fn add_callback(null: NullStream, handle: u64, function: u64, data: u64, _: u32) -> Done {
    let stream = stream_of(null, handle)?;
    capture::forbid_on(&stream)?;
    host_call(&stream, HostCall::Callback { function, stream: handle, data }, function)
}

fn host_function(null: NullStream, handle: u64, function: u64, data: u64) -> Done {
    host_call(&stream_of(null, handle)?, HostCall::Function { function, data }, function)
}

fn begin_capture_global(null: NullStream, handle: u64) -> Done {
    begin_capture(null, handle, capture::GLOBAL)
}

fn begin_capture(null: NullStream, handle: u64, mode: u32) -> Done {
    capture::begin(&stream_of(null, handle)?, mode)
}

fn end_capture(null: NullStream, handle: u64, graph: Out<u64>) -> Done {
    let stream = stream_of(null, handle)?;
    match capture::end(&stream) {
        Ok(made) => graph.set(made.handle),
        Err(status) => {
            graph.set_if_wanted(0);
            Err(status)
        }
    }
}

/// `CU_STREAM_CAPTURE_STATUS_*`.
fn status_of(stream: &Stream) -> u32 {
    match capture::of(stream) {
        None => 0,
        Some(capture) if capture.valid() => 1,
        Some(_) => 2,
    }
}

fn is_capturing(null: NullStream, handle: u64, status: Out<u32>) -> Done {
    let stream = stream_of(null, handle)?;
    capture::check_implicit(&stream)?;
    status.set(status_of(&stream))
}

fn capture_info(null: NullStream, handle: u64, status: Out<u32>, id: Out<u64>) -> Done {
    let stream = stream_of(null, handle)?;
    capture::check_implicit(&stream)?;
    let state = status_of(&stream);
    status.set(state)?;
    if let Some(capture) = capture::of(&stream).filter(|_| state == 1) {
        id.set_if_wanted(capture.id);
    }
    Ok(())
}

fn capture_info_v2(
    null: NullStream,
    handle: u64,
    status: Out<u32>,
    id: Out<u64>,
    graph: Out<u64>,
    nodes: Out<u64>,
    count: Out<usize>,
) -> Done {
    capture_info(null, handle, status, id)?;
    let stream = stream_of(null, handle)?;
    let Some(capture) = capture::of(&stream).filter(|capture| capture.valid()) else { return Ok(()) };
    graph.set_if_wanted(capture.graph.handle);
    let frontier = capture.frontier(&stream);
    count.set_if_wanted(frontier.len());
    if !nodes.is_null() {
        nodes.set(capture.graph.show(frontier))?;
    }
    Ok(())
}

#[expect(clippy::too_many_arguments, reason = "the driver's signature")]
fn capture_info_v3(
    null: NullStream,
    handle: u64,
    status: Out<u32>,
    id: Out<u64>,
    graph: Out<u64>,
    nodes: Out<u64>,
    edges: Out<u64>,
    count: Out<usize>,
) -> Done {
    // All edges here are plain ones, which a null array says.
    edges.set_if_wanted(0);
    capture_info_v2(null, handle, status, id, graph, nodes, count)
}

fn update_dependencies(null: NullStream, handle: u64, nodes: In<u64>, count: usize, flags: u32) -> Done {
    if flags > 1 {
        return Err(Status::INVALID_VALUE);
    }
    capture::update(&*stream_of(null, handle)?, &nodes.list(count)?, flags == 1)
}

fn update_dependencies_v2(
    null: NullStream,
    handle: u64,
    nodes: In<u64>,
    _: In<u64>,
    count: usize,
    flags: u32,
) -> Done {
    update_dependencies(null, handle, nodes, count, flags)
}
