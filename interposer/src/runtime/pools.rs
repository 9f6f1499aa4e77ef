//! Stream-ordered allocations: they come from pools, which hold more than the program uses. What a pool holds is the driver's word, asked whenever it matters.

use super::arena::PAGE;
use super::pressure::{self, Wish};
use super::{limit, memory};
use crate::account::{self, pools};
use crate::ffi::context;
use crate::ffi::pool::{self, Pool};
use crate::ffi::result::CudaResult;
use crate::ffi::types::CUresult;

/// Lets the driver make an allocation of `bytes` from a pool, or from the current device's own. `make` returns the driver's code, and the address. The stream does
/// not capture.
pub(crate) fn alloc(from: Option<Pool>, bytes: u64, mut make: impl FnMut() -> (CUresult, u64)) -> CUresult {
    let (Ok(current), Ok(context)) = (context::device(), context::current()) else { return make().0 };
    limit::look(current, context);
    let Some(from) = from.or_else(|| pool::current(current).ok()) else { return make().0 };
    let known = pools::device_of(from);
    let device = known.unwrap_or(current);
    // Without a limit nobody needs to know what it holds at each allocation: programs allocate from pools all the time.
    let limited = account::most(device).is_some();
    if !limited && known.is_none() {
        look(from, device);
    }
    let mut attempt = || {
        let grows = if limited { growth(from, bytes) } else { 0 };
        let made = memory::taken(device, grows, || {
            let (code, _) = make();
            code.ok()
        });
        if made.is_ok() {
            // What it has grown by is the driver's to say.
            account::give_back(device, grows);
        }
        if limited {
            look(from, device);
        }
        made
    };
    // Pools keep what is freed; whoever allocates from one does not ask again.
    let patient = || match attempt() {
        Err(_) if pool::trim(from).is_ok() => {
            look(from, device);
            attempt()
        }
        made => made,
    };
    match pressure::satisfy(Wish { device, bytes, asks_again: false }, patient, || None) {
        Ok(()) => CUresult::CUDA_SUCCESS,
        Err(error) => error.into(),
    }
}

/// Bytes that a pool needs more for an allocation, as far as it tells: whole pages at least. If the driver takes more at a time, that counts afterwards.
fn growth(from: Pool, bytes: u64) -> u64 {
    let bytes = bytes.checked_next_multiple_of(PAGE).unwrap_or(u64::MAX);
    let more = || -> CudaResult<u64> {
        Ok(pool::used(from)?.saturating_add(bytes).saturating_sub(pool::reserved(from)?))
    };
    more().unwrap_or(bytes)
}

fn look(from: Pool, device: i32) {
    if let Ok(bytes) = pool::reserved(from) {
        pools::holds(from, device, bytes);
    }
}

/// All pools that are known are asked what they hold.
pub(super) fn look_at_all() {
    for known in pools::all() {
        if let Some(device) = pools::device_of(known) {
            look(known, device);
        }
    }
}

/// Memory of a device runs short: its pools give back what nobody uses.
pub(super) fn trim(device: i32) {
    for known in pools::all().into_iter().filter(|&known| pools::device_of(known) == Some(device)) {
        // What a pool keeps is counted as it is.
        let _ = pool::trim(known);
        look(known, device);
    }
}

/// The program has made a pool on a device.
pub(crate) fn created(made: Pool, device: i32) {
    pools::holds(made, device, 0);
}
