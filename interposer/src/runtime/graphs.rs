//! Captures and graphs, for now: a weight that a graph shows gets private pages before the graph can run, and keeps them. Prefetch inside graphs is a later step.

use std::sync::atomic::{AtomicUsize, Ordering};

use flextensor_core::plan::StayReason;

use super::arena::{Arena, Meaning, arena};
use super::launch::Launch;
use super::private::Why;
use super::scan::Parameters;
use super::{gate, private, streams, world};
use crate::ffi::stream::{self, Stream};
use crate::ffi::types::{CUfunction, CUresult, CUstream, c_void};
use crate::outcome::Outcome;
use crate::quiet;

/// Captures that began and have not ended.
static CAPTURES: AtomicUsize = AtomicUsize::new(0);

/// Lets `begin` make a stream capture, at a moment when no pages move: whoever moves pages waits for the whole GPU, which no capture survives.
pub(crate) fn begin_capture(begin: impl FnOnce() -> CUresult) -> CUresult {
    // Before the driver is asked: what is launched there afterwards has to be looked at.
    let _loud = quiet::loud();
    let _inside = gate::enter();
    // Before `begin` marks what streams carry: launches on other streams, which may join the capture, are marked at once from here on.
    streams::while_none_is_asked(|| {
        CAPTURES.fetch_add(1, Ordering::SeqCst);
    });
    let code = begin();
    if !code.is_success() {
        capture_ended();
    }
    code
}

/// A capture ended, with or without a graph.
pub(crate) fn capture_ended() {
    let _ = CAPTURES
        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |captures| Some(captures.saturating_sub(1)));
}

/// Whether any stream captures now.
pub(crate) fn any_capture() -> bool {
    CAPTURES.load(Ordering::SeqCst) > 0
}

/// Whether this stream captures. Asked of the driver only while there is a capture: other streams join one by events.
pub(crate) fn is_capturing(stream: Stream) -> bool {
    any_capture() && stream::is_capturing(stream).unwrap_or(false)
}

/// A launch that becomes a node: its weights stay where they are for good.
#[expect(unsafe_code, reason = "reads what the program passes to the driver")]
pub(crate) fn capture_launch(
    arena: &Arena,
    parameters: Parameters,
    issue: impl FnOnce() -> CUresult,
) -> Outcome {
    let mut shown = Vec::new();
    // SAFETY: the parameters are those of the launch that the program makes now.
    unsafe { parameters.each_address(arena, |found| shown.push((found.meaning, found.address))) };
    match keep(shown.into_iter()) {
        Ok(()) => Outcome::Done(issue()),
        Err(code) => Outcome::Fail(code),
    }
}

/// Makes what these addresses show private, and keeps it so: also memory that is no weight yet, if it ever becomes one.
pub(crate) fn keep(shown: impl Iterator<Item = (Meaning, u64)>) -> Result<(), CUresult> {
    let Some(arena) = arena() else { return Ok(()) };
    for (mut meaning, address) in shown {
        loop {
            match meaning {
                Meaning::Nothing | Meaning::InHost => {
                    if world::world().keep(arena, address, meaning, StayReason::GraphHeld) {
                        break;
                    }
                }
                Meaning::Learning(unit) | Meaning::Streamed(unit) => {
                    private::keep(unit, StayReason::GraphHeld, Why::Graph).map_err(CUresult::from)?;
                    break;
                }
            }
            meaning = arena.meaning(address);
        }
    }
    Ok(())
}

/// As [`keep`], for what a kernel node passes to its kernel.
#[expect(unsafe_code, reason = "reads what the program passes to the driver")]
pub(crate) fn keep_parameters(
    function: CUfunction,
    pointers: *mut *mut c_void,
    extra: *mut *mut c_void,
) -> Result<(), CUresult> {
    let Some(arena) = arena() else { return Ok(()) };
    let node =
        Launch { function, stream: Stream::from(std::ptr::null_mut::<()>() as CUstream), pointers, extra };
    let Some(parameters) = node.parameters() else {
        return private::everything(Why::Unparsed).map_err(CUresult::from);
    };
    let mut shown = Vec::new();
    // SAFETY: the parameters are those that the program passes to the driver now.
    unsafe { parameters.each_address(arena, |found| shown.push((found.meaning, found.address))) };
    keep(shown.into_iter())
}
