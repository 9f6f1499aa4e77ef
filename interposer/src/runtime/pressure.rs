//! GPU memory that runs short, for the driver or by `gpu_limit`: who is refused, and when weights make room, or come back. A budget only says how much weights may
//! take; where the rest of the GPU needs it, they take less. How they move is `replan::give_way`'s matter, and `home`'s for weights that are still learnt; when they
//! come back, `calm` says, and what happens when another model comes, `newcomer`.

mod calm;
mod newcomer;

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use flextensor_core::units::Bytes;

use super::arena::PAGE;
use super::devices::bit_of;
use super::{graphs, home, limit, pools, replan, switch};
use crate::account;
use crate::ffi::context;
use crate::ffi::result::{CudaError, CudaResult};
use crate::ffi::types::CUresult;
use crate::log;

pub(super) use calm::{nothing_to_gain, pass_ended};
pub(super) use newcomer::{bytes_over, hold_budget, is_any_owed, settle_owed};

/// Weights that make room leave one part in so many of a GPU free besides: without it every further allocation would move weights again.
const ROOM: u64 = 64;

/// Allocators that keep what is freed ask the driver for multiples of this many bytes, and ask again when they have let go of what they keep.
const ALLOCATORS_GRAIN: u64 = 2 << 20;

/// Tries of one allocation: others may take what was made free.
const TRIES: u32 = 3;

/// Bit n: weights of device n have left GPU memory because it ran short, and have not all come back.
static PRESSED: AtomicU64 = AtomicU64::new(0);

static REFUSED: AtomicU64 = AtomicU64::new(0);
static DEMOTIONS: AtomicU64 = AtomicU64::new(0);
static DEMOTED_BYTES: AtomicU64 = AtomicU64::new(0);
static PROMOTIONS: AtomicU64 = AtomicU64::new(0);
static PROMOTED_BYTES: AtomicU64 = AtomicU64::new(0);
static UNANSWERED: AtomicU64 = AtomicU64::new(0);

thread_local! {
    /// Bytes of the allocation that this thread was last refused, until one succeeds.
    static LAST_REFUSED: Cell<u64> = const { Cell::new(0) };
}

/// What happened so far, for the report.
#[derive(Clone, Copy, Debug)]
pub(super) struct Counts {
    /// Shortages that were answered with out-of-memory, so that the program frees what it keeps.
    pub(super) refused: u64,
    /// Times that weights made room, and bytes that became free.
    pub(super) demotions: u64,
    pub(super) demoted_bytes: u64,
    /// Times that weights came back, and bytes that they took.
    pub(super) promotions: u64,
    pub(super) promoted_bytes: u64,
    /// Allocations that nothing could make room for.
    pub(super) unanswered: u64,
}

/// What happened so far.
pub(super) fn counts() -> Counts {
    let of = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    Counts {
        refused: of(&REFUSED),
        demotions: of(&DEMOTIONS),
        demoted_bytes: of(&DEMOTED_BYTES),
        promotions: of(&PROMOTIONS),
        promoted_bytes: of(&PROMOTED_BYTES),
        unanswered: of(&UNANSWERED),
    }
}

/// An allocation of the program.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wish {
    pub(crate) device: i32,
    pub(crate) bytes: u64,
    /// Whoever asks may free something of its own and ask again.
    pub(crate) asks_again: bool,
}

impl Wish {
    /// What an allocator may ask for: those that keep freed memory are known by their sizes.
    pub(crate) fn of_allocator(device: i32, bytes: u64) -> Self {
        Wish { device, bytes, asks_again: bytes.is_multiple_of(ALLOCATORS_GRAIN) }
    }
}

/// Makes an allocation by `attempt`. Where there is too little memory the program is first told so, once for each thread and size, since allocators free what they
/// keep and ask again; then weights make room. `otherwise` is tried where they cannot. The calling thread is not inside the gate and holds no lock, and a
/// context is current.
///
/// # Errors
/// What the last try said.
pub(crate) fn satisfy<T>(
    wish: Wish,
    mut attempt: impl FnMut() -> CudaResult<T>,
    otherwise: impl FnOnce() -> Option<CudaResult<T>>,
) -> CudaResult<T> {
    let error = match attempt() {
        Err(error) if is_shortage(error) => error,
        done => {
            if done.is_ok() {
                forget_refusal();
            }
            return done;
        }
    };
    if graphs::any_capture() {
        say_in_capture(wish);
        return Err(error);
    }
    if wish.asks_again && !was_refused(wish.bytes) {
        REFUSED.fetch_add(1, Ordering::Relaxed);
        return Err(error);
    }
    forget_refusal();
    for round in 0..TRIES {
        if let Err(why) = make_room_there(wish, round > 0) {
            say_unanswered(wish, &why);
            break;
        }
        match attempt() {
            Err(error) if is_shortage(error) => {}
            done => return done,
        }
    }
    otherwise().unwrap_or(Err(error))
}

fn is_shortage(error: CudaError) -> bool {
    error.0 == CUresult::CUDA_ERROR_OUT_OF_MEMORY
}

/// Whether this thread was refused so many bytes just now; notes them if not.
fn was_refused(bytes: u64) -> bool {
    LAST_REFUSED.try_with(|last| last.replace(bytes) == bytes).unwrap_or(true)
}

fn forget_refusal() {
    let _ = LAST_REFUSED.try_with(|last| last.set(0));
}

/// [`make_room`] in a context of the device.
fn make_room_there(wish: Wish, again: bool) -> Result<(), String> {
    if context::device().is_ok_and(|current| current == wish.device) {
        return make_room(wish, again);
    }
    let there = account::context_of(wish.device).ok_or("no weight lies there")?;
    context::with_current(there, || Ok(make_room(wish, again)))
        .unwrap_or_else(|error| Err(format!("the device has no context: {error}")))
}

/// Weights leave GPU memory until the allocation has room. `again`: it was tried since room was last made.
fn make_room(wish: Wish, again: bool) -> Result<(), String> {
    let Wish { device, bytes, .. } = wish;
    let _only = switch::SWITCHING.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    pools::trim(device);
    let memory = limit::free_and_total(device);
    let (free, total) = memory.map_err(|error| format!("the driver does not tell free memory: {error}"))?;
    let bytes = bytes.checked_next_multiple_of(PAGE).filter(|&bytes| bytes <= total);
    let bytes = bytes.ok_or_else(|| format!("the GPU, or gpu_limit, has only {}", Bytes(total)))?;
    if !again && free >= bytes {
        // Another thread has made room while this one waited.
        return Ok(());
    }
    let least = if again { bytes } else { bytes - free };
    let wanted = least + room(total);
    let given = replan::give_way(device, least, wanted)
        .or_else(|why| home::give_way(device, least, wanted).map_err(|other| format!("{why}; {other}")))?;
    note_demotion(device, given, wish);
    Ok(())
}

/// Bytes that stay free besides what is asked for.
pub(super) fn room(total: u64) -> u64 {
    (total / ROOM).next_multiple_of(PAGE)
}

/// Bytes that weights leave free on a device where memory has run short; none where it has not, or no longer.
pub(super) fn reserve(device: i32, total: u64) -> Option<u64> {
    is_pressed(device).then(|| 2 * room(total))
}

fn is_pressed(device: i32) -> bool {
    PRESSED.load(Ordering::Relaxed) & bit_of(device) != 0
}

fn note_demotion(device: i32, bytes: u64, wish: Wish) {
    PRESSED.fetch_or(bit_of(device), Ordering::Relaxed);
    calm::ends(device);
    DEMOTED_BYTES.fetch_add(bytes, Ordering::Relaxed);
    let (freed, asked) = (Bytes(bytes), Bytes(wish.bytes));
    if DEMOTIONS.fetch_add(1, Ordering::Relaxed) == 0 {
        log::notice!(
            "GPU {device} ran short of memory: weights have made {freed} free for an allocation of {asked}, and are streamed; the report counts further times"
        );
    } else {
        log::debug!("weights have made {freed} free on GPU {device} for an allocation of {asked}");
    }
}

/// Weights have come back. `all`: nothing keeps them from where they would be without the shortage.
pub(super) fn note_promotion(device: i32, bytes: u64, all: bool) {
    if all {
        PRESSED.fetch_and(!bit_of(device), Ordering::Relaxed);
    }
    calm::promoted(device);
    PROMOTED_BYTES.fetch_add(bytes, Ordering::Relaxed);
    if PROMOTIONS.fetch_add(1, Ordering::Relaxed) == 0 {
        log::notice!("GPU {device} has free memory again: {} of weights came back", Bytes(bytes));
    } else {
        log::debug!("{} of weights came back to GPU {device}", Bytes(bytes));
    }
}

fn say_in_capture(wish: Wish) {
    static SAID: AtomicBool = AtomicBool::new(false);
    UNANSWERED.fetch_add(1, Ordering::Relaxed);
    if !SAID.swap(true, Ordering::Relaxed) {
        log::warning!(
            "an allocation of {} on GPU {} is out of memory: no weight can make room while a CUDA graph is captured",
            Bytes(wish.bytes),
            wish.device
        );
    }
}

fn say_unanswered(wish: Wish, why: &str) {
    static SAID: AtomicBool = AtomicBool::new(false);
    UNANSWERED.fetch_add(1, Ordering::Relaxed);
    let (asked, device) = (Bytes(wish.bytes), wish.device);
    if SAID.swap(true, Ordering::Relaxed) {
        log::debug!("no room could be made for {asked} on GPU {device}: {why}");
    } else {
        log::notice!("no room could be made for an allocation of {asked} on GPU {device}: {why}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_size_is_refused_once_until_one_is_granted() {
        assert!(!was_refused(10) && was_refused(10) && !was_refused(20));
        forget_refusal();
        assert!(!was_refused(20));
        forget_refusal();
    }
}
