//! Several devices in one process: memory of ours is open to the devices that the program lets reach it, is taken apart only when these have done with it, and is
//! copied between devices as the driver's own would be.

use std::sync::{Mutex, MutexGuard};

use super::arena::{Arena, PAGE, arena};
use super::streaming::ring_of;
use super::world::world;
use super::{gate, graphs};
use crate::account;
use crate::ffi::context::{self, Context};
use crate::ffi::pointer;
use crate::ffi::result::{CudaError, CudaResult};
use crate::ffi::stream::Stream;
use crate::ffi::types::CUresult;
use crate::ffi::{peer, vmm};
use crate::log;

/// Contexts that reach another device's memory, with their own device and the other.
static REACHING: Mutex<Vec<(Context, i32, i32)>> = Mutex::new(Vec::new());

fn reaching() -> MutexGuard<'static, Vec<(Context, i32, i32)>> {
    REACHING.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// The program lets the current context reach memory of another one's device: what is mapped there is opened to it too.
///
/// # Errors
/// What the driver says of the first part that cannot be opened; the context reaches nothing of ours then that it did not reach before, as far as is known here.
pub(crate) fn opened(to: Context) -> CudaResult<()> {
    let (mine, reader) = (context::current()?, context::device()?);
    let owner = context::with_current(to, context::device)?;
    if reader == owner {
        return Ok(());
    }
    let entry = (mine, reader, owner);
    {
        let mut reaching = reaching();
        if !reaching.contains(&entry) {
            reaching.push(entry);
        }
    }
    let _closed = gate::close();
    let world = world();
    if !peer::set(reader, owner, true) {
        return Ok(());
    }
    // Nobody opens or shuts a protected weight meanwhile.
    let ring = ring_of(owner);
    let shut = ring.as_ref().map_or_else(Vec::new, |ring| ring.write_protected());
    let regions = world.regions.values().filter(|region| region.device == owner);
    let whole = regions.map(|region| (region.base, region.base + region.pages() * PAGE));
    let mut all = whole.flat_map(|whole| parts(whole, &shut));
    let done =
        all.try_for_each(|(from, to, writable)| vmm::open(from, (to - from) as usize, owner, writable));
    if let Err(error) = done {
        log::warning!("memory of GPU {owner} could not be opened to GPU {reader}: {error}");
        forget(entry);
    }
    done
}

/// The context does not reach the other device's memory any more.
fn forget(entry: (Context, i32, i32)) {
    let (_, reader, owner) = entry;
    let mut reaching = reaching();
    reaching.retain(|&known| known != entry);
    if !reaching.iter().any(|&(_, who, whose)| (who, whose) == (reader, owner)) {
        peer::set(reader, owner, false);
    }
}

/// A range from `start` to `end` in parts, as (from, to, whether it may be written): what check mode write-protects stays so, for every device. `shut` is sorted.
fn parts((start, end): (u64, u64), shut: &[(u64, u64)]) -> Vec<(u64, u64, bool)> {
    let mut parts = Vec::new();
    let mut at = start;
    for &(from, to) in shut.iter().filter(|&&(from, to)| from < end && to > start) {
        let (from, to) = (from.max(at), to.min(end));
        parts.extend((at < from).then_some((at, from, true)));
        parts.push((from, to, false));
        at = to;
    }
    parts.extend((at < end).then_some((at, end, true)));
    parts
}

/// The current context no longer reaches the other one's memory. What is open to it stays open: nothing is lost by that.
pub(crate) fn shut(to: Context) {
    let (Ok(mine), Ok(reader)) = (context::current(), context::device()) else { return };
    let Ok(owner) = context::with_current(to, context::device) else { return };
    forget((mine, reader, owner));
}

/// A context is gone, and reaches nothing any more.
pub(super) fn forget_context(context: Context) {
    let mut reaching = reaching();
    let (gone, left): (Vec<_>, Vec<_>) = reaching.drain(..).partition(|&(mine, ..)| mine == context);
    for (_, reader, owner) in gone {
        if !left.iter().any(|&(_, who, whose)| (who, whose) == (reader, owner)) {
            peer::set(reader, owner, false);
        }
    }
    *reaching = left;
}

/// Waits for everything that may use memory of the device, so that pages can move. Behind the closed gate, where no capture begins: while one is under way it
/// would not survive the waiting, and nothing moves.
pub(super) fn wait_to_move(device: i32) -> CudaResult<()> {
    if graphs::any_capture() {
        return Err(CudaError(CUresult::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED));
    }
    wait_for_users(device)
}

/// Waits for everything that may use memory of the device: in the current context, which is of it, and in those that reach it.
pub(super) fn wait_for_users(device: i32) -> CudaResult<()> {
    context::synchronize()?;
    if peer::reached_by(device) == 0 {
        return Ok(());
    }
    let others: Vec<Context> =
        reaching().iter().filter(|(.., owner)| *owner == device).map(|&(context, ..)| context).collect();
    others.into_iter().try_for_each(|other| context::with_current(other, context::synchronize))
}

/// A copy between any two addresses that `issue` would make, where both are of devices and one is ours: made as a copy between two contexts if the current device
/// does not reach both. The driver does as much for memory of its own.
pub(crate) fn copy(
    (dst, src): (u64, u64),
    bytes: usize,
    stream: Stream,
    issue: impl FnOnce() -> CUresult,
) -> CUresult {
    if account::has_one_device() {
        return issue();
    }
    let Some(arena) = arena().filter(|arena| arena.contains(dst) || arena.contains(src)) else {
        return issue();
    };
    match (place(arena, dst), place(arena, src)) {
        (Some(to), Some(from)) if !reaches_both(to.0, from.0) => {
            between((dst, to.1), (src, from.1), bytes, stream)
        }
        _ => issue(),
    }
}

fn reaches_both(one: i32, other: i32) -> bool {
    let Ok(here) = context::device() else { return true };
    [one, other].into_iter().all(|device| device == here || peer::reached_by(device) >> here & 1 != 0)
}

/// The device and the context that memory belongs to; none for host memory.
fn place(arena: &Arena, address: u64) -> Option<(i32, Context)> {
    if arena.contains(address) {
        return world().region_of(address).map(|region| (region.device, region.context));
    }
    pointer::owner(address)
}

#[expect(unsafe_code, reason = "names the contexts of memory that the program copies")]
fn between(to: (u64, Context), from: (u64, Context), bytes: usize, stream: Stream) -> CUresult {
    // SAFETY: both contexts hold memory that is there, so that they are alive.
    unsafe { peer::copy_async(to, from, bytes, stream) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_protected_is_open_to_reads_and_all_else_to_writes() {
        assert_eq!(parts((10, 50), &[]), [(10, 50, true)]);
        let shut = [(2, 10), (10, 14), (20, 30), (30, 34), (48, 50), (50, 60)];
        let all = [
            (10, 14, false),
            (14, 20, true),
            (20, 30, false),
            (30, 34, false),
            (34, 48, true),
            (48, 50, false),
        ];
        assert_eq!(parts((10, 50), &shut), all);
        assert_eq!(parts((20, 30), &shut), [(20, 30, false)]);
    }
}
