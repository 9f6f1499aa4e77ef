//! Work on streams: order, time, and the rules that tell ordered work from luck.
//!
//! - `clock`: which work is ordered before which (vector clocks over streams)
//! - `context`: contexts, the current one of a thread, default streams
//! - `stream`: queues and their worker threads
//! - `event`: snapshots of a stream's position
//! - `work`: what a queue entry does when its turn comes
//! - `copy`: copies, memsets and the copy engines
//! - `hazard`: unordered use of the same physical bytes
//! - `capture`: streams that record instead of running
//! - `graph`: graphs and their launches

pub(crate) mod capture;
pub(crate) mod clock;
pub(crate) mod context;
pub(crate) mod copy;
pub(crate) mod event;
pub(crate) mod graph;
pub(crate) mod hazard;
pub(crate) mod stream;
pub(crate) mod work;

use crate::status::Status;
use std::sync::Arc;

/// What the null stream means in a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NullStream {
    /// The stream that orders itself against all blocking streams.
    Legacy,
    /// The calling thread's own stream (`_ptsz` and `_ptds` exports).
    PerThread,
}

/// The stream behind a handle.
///
/// # Errors
/// `INVALID_CONTEXT` for a default stream without a current context, `INVALID_HANDLE` for a stream that is not alive, or
/// the error that took the context.
pub(crate) fn stream_of(null: NullStream, handle: u64) -> Result<Arc<stream::Stream>, Status> {
    let own = match handle {
        0 => null == NullStream::PerThread,
        1 => false,
        2 => true,
        other => {
            let found = stream::STREAMS.get(other)?;
            found.usable()?;
            return Ok(found);
        }
    };
    let context = context::current()?;
    Ok(if own { context.thread_stream() } else { Arc::clone(&context.legacy) })
}

/// Puts work on a stream, or into the graph that the stream is capturing. Returns its number in the stream, `None` for a
/// node.
///
/// # Errors
/// Those of capture rules.
pub(crate) fn enqueue(stream: &Arc<stream::Stream>, work: work::Work) -> Result<Option<u64>, Status> {
    if capture::record(stream, &work)? {
        return Ok(None);
    }
    capture::check_implicit(stream)?;
    Ok(Some(stream.submit(work, Vec::new())))
}
