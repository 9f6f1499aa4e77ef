//! GPU memory that runs short, for the driver or by `gpu_limit`: who is refused, and when weights make room, or come back. A budget only says how much weights may
//! take; where the rest of the GPU needs it, they take less. How they move is `replan::give_way`'s matter, and `home`'s for weights that are still learnt.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

use flextensor_core::units::Bytes;

use super::arena::PAGE;
use super::streaming::{MAX_DEVICES, ring_of};
use super::world::{UnitState, world};
use super::{graphs, home, hosted, limit, pools, replan, switch};
use crate::account;
use crate::ffi::context;
use crate::ffi::result::{CudaError, CudaResult};
use crate::ffi::types::CUresult;
use crate::log;

/// Weights that make room leave one part in so many of a GPU free besides: without it every further allocation would move weights again.
const ROOM: u64 = 64;

/// Allocators that keep what is freed ask the driver for multiples of this many bytes, and ask again when they have let go of what they keep.
const ALLOCATORS_GRAIN: u64 = 2 << 20;

/// Tries of one allocation: others may take what was made free.
const TRIES: u32 = 3;

/// Passes that memory has to stay free before weights come back; as many more times two where they had to leave again soon, up to the most.
const PATIENCE: u64 = 8;
const MOST_PATIENCE: u64 = 1024;
/// Passes within which leaving again is soon.
const SOON: u64 = 64;

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

/// Another model came to a device with a plan in force, which may have used up the budget: what that plan keeps gives way, so that the budget holds while the newcomer
/// is learnt, or is exceeded by as little as can be. A plan for both follows when it has been. The calling thread holds no lock and is not inside the gate.
pub(super) fn hold_budget(device: i32) {
    if bytes_over(device).is_none() {
        return;
    }
    let _only = switch::SWITCHING.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let Some(over) = bytes_over(device) else { return };
    match make_room_for_newcomer(device, over) {
        Ok(bytes) => {
            log::info!("{} more of weights are streamed on GPU {device}: another model came", Bytes(bytes));
        }
        Err(why) => log::info!("no weights on GPU {device} make room for another model now: {why}"),
    }
    let Some(over) = bytes_over(device) else { return };
    log::info!(
        "the budget of GPU {device} is exceeded by {} until another model has been learnt",
        Bytes(over)
    );
    owed()[at(device)] = Some(Owed { wait: 1, passes: 0 });
    ANY_OWED.fetch_or(bit(device), Ordering::Relaxed);
}

/// Bytes by which weights exceed the budget of a device with a plan in force.
fn bytes_over(device: i32) -> Option<u64> {
    let total = crate::ffi::device::total_memory(device).map_or(0, |bytes| bytes as u64);
    let budget = super::config().max_gpu_mem_for(device.unsigned_abs(), total)?;
    let world = world();
    let ring = ring_of(device).as_ref().map_or(0, |ring| ring.ring_bytes());
    let over = (hosted::gpu_weight_bytes(&world, device) + ring).saturating_sub(budget);
    (over > 0 && world.decided.contains_key(&device)).then_some(over)
}

fn make_room_for_newcomer(device: i32, over: u64) -> Result<u64, String> {
    let there = account::context_of(device).ok_or("the device has no context")?;
    context::with_current(there, || Ok(replan::give_what_can(device, over)))
        .unwrap_or_else(|error| Err(format!("its context is not to be had: {error}")))
}

/// A budget that could not be held when another model came: what stood against it, a capture or a forward, may be over, while nobody knows whether that model ever runs.
#[derive(Clone, Copy)]
struct Owed {
    /// Passes from one try to the next.
    wait: u64,
    passes: u64,
}

/// Bit n: the budget of device n is owed.
static ANY_OWED: AtomicU64 = AtomicU64::new(0);
static OWED: Mutex<[Option<Owed>; MAX_DEVICES]> = Mutex::new([None; MAX_DEVICES]);

fn owed() -> MutexGuard<'static, [Option<Owed>; MAX_DEVICES]> {
    OWED.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl Owed {
    /// A pass has ended. True if it is time to try again; the next try comes after twice as many passes.
    fn is_due(&mut self) -> bool {
        self.passes += 1;
        let due = self.passes >= self.wait;
        if due {
            (self.wait, self.passes) = ((self.wait * 2).min(MOST_PATIENCE), 0);
        }
        due
    }
}

/// A forward has ended on the device, and the calling thread holds nothing: a budget that is owed is tried for again.
pub(super) fn settle_owed(device: i32) {
    if ANY_OWED.load(Ordering::Relaxed) & bit(device) == 0 {
        return;
    }
    let due = owed()[at(device)].as_mut().is_some_and(Owed::is_due);
    if !due {
        return;
    }
    let Ok(_only) = switch::SWITCHING.try_lock() else { return };
    // A newcomer that has been learnt gets a plan together with the others.
    let over = bytes_over(device).filter(|_| is_learning(device));
    if let Some(over) = over {
        match make_room_for_newcomer(device, over) {
            Ok(bytes) => log::info!("{} more of weights are streamed on GPU {device}", Bytes(bytes)),
            Err(why) => log::debug!("the budget of GPU {device} stays exceeded: {why}"),
        }
    }
    if over.is_none() || bytes_over(device).is_none() {
        owed()[at(device)] = None;
        ANY_OWED.fetch_and(!bit(device), Ordering::Relaxed);
    }
}

/// Whether weights of the device are still learnt.
fn is_learning(device: i32) -> bool {
    world().units.iter().any(|unit| unit.device == device && unit.state == UnitState::Learning)
}

/// Bytes that stay free besides what is asked for.
pub(super) fn room(total: u64) -> u64 {
    (total / ROOM).next_multiple_of(PAGE)
}

/// Bytes that weights leave free on a device where memory has run short; none where it has not, or no longer.
pub(super) fn reserve(device: i32, total: u64) -> Option<u64> {
    is_pressed(device).then(|| 2 * room(total))
}

fn at(device: i32) -> usize {
    (device.unsigned_abs() as usize).min(MAX_DEVICES - 1)
}

fn bit(device: i32) -> u64 {
    1 << at(device)
}

fn is_pressed(device: i32) -> bool {
    PRESSED.load(Ordering::Relaxed) & bit(device) != 0
}

/// How long memory was free, by device.
#[derive(Clone, Copy)]
struct Calm {
    passes: u64,
    patience: u64,
    since_promotion: u64,
}

static CALM: Mutex<[Calm; MAX_DEVICES]> =
    Mutex::new([Calm { passes: 0, patience: PATIENCE, since_promotion: u64::MAX }; MAX_DEVICES]);

fn calm(device: i32) -> (usize, MutexGuard<'static, [Calm; MAX_DEVICES]>) {
    let at = at(device);
    (at, CALM.lock().unwrap_or_else(|poisoned| poisoned.into_inner()))
}

impl Calm {
    /// Weights had to leave.
    fn ended(&mut self) {
        let soon = self.since_promotion < SOON;
        self.patience = if soon { (self.patience * 2).min(MOST_PATIENCE) } else { PATIENCE };
        (self.passes, self.since_promotion) = (0, u64::MAX);
    }

    /// A pass has ended, and weights are away (`pressed`) or not. True if it is time to look whether they may come back.
    fn lasts(&mut self, pressed: bool) -> bool {
        self.since_promotion = self.since_promotion.saturating_add(1);
        if !pressed {
            return false;
        }
        self.passes += 1;
        let enough = self.passes >= self.patience;
        if enough {
            self.passes = 0;
        }
        enough
    }
}

/// A forward has ended on the device, whose context is current: weights that made room come back, where memory has been free for long enough.
pub(super) fn pass_ended(device: i32) {
    let enough = {
        let (at, mut all) = calm(device);
        all[at].lasts(is_pressed(device))
    };
    // What stays free afterwards, and as much again to come back for.
    let worth = |(free, total): (u64, u64)| free >= 3 * room(total);
    if enough && limit::free_and_total(device).is_ok_and(worth) {
        replan::come_back(device);
    }
}

fn note_demotion(device: i32, bytes: u64, wish: Wish) {
    PRESSED.fetch_or(bit(device), Ordering::Relaxed);
    {
        let (at, mut all) = calm(device);
        all[at].ended();
    }
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

/// A plan for more memory was not worth moving for: the next look comes later.
pub(super) fn nothing_to_gain(device: i32) {
    let (at, mut all) = calm(device);
    all[at].patience = (all[at].patience * 2).min(MOST_PATIENCE);
}

/// Weights have come back. `all`: nothing keeps them from where they would be without the shortage.
pub(super) fn note_promotion(device: i32, bytes: u64, all: bool) {
    if all {
        PRESSED.fetch_and(!bit(device), Ordering::Relaxed);
    }
    {
        let (at, mut calm) = calm(device);
        calm[at].since_promotion = 0;
    }
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
    fn memory_has_to_stay_free_longer_where_weights_had_to_leave_again_soon() {
        let mut calm = Calm { passes: 0, patience: PATIENCE, since_promotion: u64::MAX };
        calm.ended();
        assert_eq!((1..).find(|_| calm.lasts(true)), Some(PATIENCE));
        calm.since_promotion = 0;
        calm.ended();
        assert_eq!((1..).find(|_| calm.lasts(true)), Some(2 * PATIENCE));
        calm.since_promotion = 0;
        (0..SOON).for_each(|_| {
            calm.lasts(true);
        });
        calm.ended();
        assert_eq!((1..).find(|_| calm.lasts(true)), Some(PATIENCE));
    }

    #[test]
    fn passes_with_all_weights_back_count_as_well() {
        let mut calm = Calm { passes: 0, patience: PATIENCE, since_promotion: 0 };
        assert!((0..SOON).all(|_| !calm.lasts(false)));
        calm.ended();
        assert_eq!((1..).find(|_| calm.lasts(true)), Some(PATIENCE));
    }

    #[test]
    fn a_budget_that_cannot_be_held_is_tried_for_ever_more_seldom() {
        let mut owed = Owed { wait: 1, passes: 0 };
        let tries = (0..3000).filter(|_| owed.is_due()).count();
        assert_eq!(tries, 11, "after 1, 3, 7 ... 1023, 2047 passes");
    }

    #[test]
    fn each_size_is_refused_once_until_one_is_granted() {
        assert!(!was_refused(10) && was_refused(10) && !was_refused(20));
        forget_refusal();
        assert!(!was_refused(20));
        forget_refusal();
    }
}
