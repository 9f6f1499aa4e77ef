//! Where the pages of a new region lie: in GPU memory as long as the GPU has room, and with `budget_while_loading` the budget too; else in host memory. So a
//! model that is larger than the GPU, or than its budget, can be built, moved and cast; kernels read and write host pages over the link.
//! What becomes of host pages when a plan is made is `hosted`'s matter.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

use flextensor_core::units::Bytes;

use super::arena::{Arena, Meaning, PAGE};
use super::devices::{MAX_DEVICES, bit_of, index_of};
use super::regions::Region;
use super::world::{World, world};
use super::{config, host_memory, hosted, limit, pinning, pressure, python, touched};
use crate::ffi::context::{self, Context};
use crate::ffi::device;
use crate::ffi::peer;
use crate::ffi::result::CudaResult;
use crate::ffi::types::CUresult;
use crate::ffi::vmm::{self, Handle};
use crate::{log, quiet};

/// Bit n: a forward of a named model has begun on device n. From then on new memory is mostly activations, which host pages would slow down.
static FORWARDS: AtomicU64 = AtomicU64::new(0);

/// Bit n: while models were loaded, device n had too little memory for their weights.
static SHORT: AtomicU64 = AtomicU64::new(0);

/// Weights that are loaded leave one part in so many of a GPU: code of kernels, workspaces and small tensors need some.
const ROOM_WHILE_LOADING: u64 = 32;

/// When a plan is made for a GPU that was too small, weights leave one part in so many of what they could have to activations.
const ROOM_WHILE_RUNNING: u64 = 8;

/// The driver does not make host memory that can be mapped like a GPU's.
static REFUSED: AtomicBool = AtomicBool::new(false);

/// GPU bytes of regions that are being made, by device.
static CLAIMED: Mutex<[u64; MAX_DEVICES]> = Mutex::new([0; MAX_DEVICES]);

/// A forward of a named model begins on the device.
pub(super) fn forward_began(device: i32) {
    FORWARDS.fetch_or(bit_of(device), Ordering::Relaxed);
}

/// No forward has begun on the device, or no model is left there: what is allocated is taken for weights.
fn is_loading(device: i32) -> bool {
    FORWARDS.load(Ordering::Relaxed) & bit_of(device) == 0
        || world().models.values().all(|model| model.device != device)
}

/// GPU bytes that a region being made may take; given back when the region is in the world, or was not made.
struct Claim {
    device: usize,
    bytes: u64,
}

impl Drop for Claim {
    fn drop(&mut self) {
        claimed()[self.device] -= self.bytes;
    }
}

fn claimed() -> MutexGuard<'static, [u64; MAX_DEVICES]> {
    CLAIMED.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Claims room in GPU memory. None if the budget has not enough, or the GPU too little beyond it for what is no weight.
fn claim(device: i32, bytes: u64) -> Option<Claim> {
    let index = index_of(device);
    let mut claimed = claimed();
    if is_loading(device) {
        let taken = claimed[index] + bytes;
        if budget(device).is_some_and(|budget| gpu_bytes(device) + taken > budget) {
            return None;
        }
        let memory = limit::free_and_total(device);
        if memory.is_ok_and(|(free, total)| free < taken + total / ROOM_WHILE_LOADING) {
            SHORT.fetch_or(bit_of(device), Ordering::Relaxed);
            return None;
        }
    }
    claimed[index] += bytes;
    Some(Claim { device: index, bytes })
}

/// Bytes of GPU memory that weights may take while they are loaded, if the user limits that.
fn budget(device: i32) -> Option<u64> {
    if !config().budget_while_loading {
        return None;
    }
    // Weights that nobody will ever name would stay in host memory for good.
    if python::cannot_hear() {
        return None;
    }
    let total = device::total_memory(device).ok()?;
    config().max_gpu_mem_for(device.unsigned_abs(), total as u64)
}

/// Bytes of GPU memory that weights may take when a plan is made: the budget; where the GPU was too small while they were loaded, or ran short later, no more than
/// leaves it some room. `ring_bytes`: those of the device's ring. The device's context is current.
pub(super) fn limit(world: &World, ring_bytes: u64, device: i32, budget: Option<u64>) -> Option<u64> {
    let short = SHORT.load(Ordering::Relaxed) & bit_of(device) != 0;
    let Ok((free, total)) = limit::free_and_total(device) else { return budget };
    let reserve = pressure::reserve(device, total);
    if !short && reserve.is_none() {
        return budget;
    }
    let all = free + ring_bytes + hosted::gpu_weight_bytes(world, device);
    let room = if short { all / ROOM_WHILE_RUNNING } else { 0 };
    let fits = all.saturating_sub(room.max(reserve.unwrap_or(0)));
    Some(budget.map_or(fits, |budget| budget.min(fits)))
}

/// Weights that are learnt had to make room on the device: its plan leaves some too.
pub(super) fn note_short(device: i32) {
    SHORT.fetch_or(bit_of(device), Ordering::Relaxed);
}

/// GPU bytes of all regions of a device.
fn gpu_bytes(device: i32) -> u64 {
    world().regions.values().filter(|region| region.device == device).map(Region::private_bytes).sum()
}

/// Makes a region of `bytes` on the device, and returns its first address.
///
/// # Errors
/// The driver's code. Out of memory only where host memory cannot stand in, or may not: once a forward has begun.
pub(super) fn make_region(arena: &Arena, bytes: u64, device: i32, context: Context) -> CudaResult<u64> {
    let claim = claim(device, bytes.next_multiple_of(PAGE));
    let made = match &claim {
        Some(_) => match Region::make(arena, bytes, device, context) {
            Err(error) if error.0 == CUresult::CUDA_ERROR_OUT_OF_MEMORY && is_loading(device) => {
                note_short(device);
                in_host(arena, bytes, device, context).unwrap_or(Err(error))
            }
            made => made,
        },
        None => in_host(arena, bytes, device, context)
            .unwrap_or_else(|| Region::make(arena, bytes, device, context)),
    };
    made.map(|region| enter(arena, region))
}

/// A region of host pages where the GPU has no memory for it, once weights cannot make room. None in a forward: what is asked for there is never in the host.
pub(super) fn stand_in(arena: &Arena, bytes: u64, device: i32, context: Context) -> Option<CudaResult<u64>> {
    if quiet::any_untold() || world().models.values().any(|model| model.open > 0) {
        return None;
    }
    note_short(device);
    in_host(arena, bytes, device, context).map(|made| made.map(|region| enter(arena, region)))
}

/// The region belongs to the world.
fn enter(arena: &Arena, region: Region) -> u64 {
    let base = region.base;
    if region.host_bytes() > 0 {
        say(&region);
        arena.set_meaning(base, region.pages(), Meaning::InHost);
    }
    let mut world = world();
    // The program may have let another device reach this one's memory meanwhile.
    if peer::reached_by(region.device) != region.open_to
        && let Err(error) = vmm::allow(base, (region.pages() * PAGE) as usize, region.device)
    {
        log::warning!("memory at {base:#x} could not be opened to other GPUs: {error}");
    }
    world.regions.insert(base, region);
    base
}

/// A region of host pages. None if there are none to be had.
fn in_host(arena: &Arena, bytes: u64, device: i32, context: Context) -> Option<CudaResult<Region>> {
    if REFUSED.load(Ordering::Relaxed) || !host_has_room(bytes) {
        return None;
    }
    match pages(bytes.div_ceil(PAGE), context) {
        Ok(pages) => Some(Region::of_pages(arena, bytes, device, context, pages)),
        Err(error) => {
            if error.0 != CUresult::CUDA_ERROR_OUT_OF_MEMORY && !REFUSED.swap(true, Ordering::Relaxed) {
                log::warning!(
                    "the driver makes no host memory that kernels could use in place of GPU memory ({error}): a model must fit the GPU until its plan is in force"
                );
            }
            None
        }
    }
}

/// Whether the machine, and the user, leave so much host memory.
pub(super) fn host_has_room(bytes: u64) -> bool {
    let available = host_memory::available();
    let (taken, limit) = (host_bytes_taken(), host_limit());
    let room = available.as_ref().is_none_or(|available| bytes <= available.bytes)
        && limit.is_none_or(|limit| taken + bytes <= limit);
    if !room {
        static SAID: AtomicBool = AtomicBool::new(false);
        if !SAID.swap(true, Ordering::Relaxed) {
            log::warning!(
                "an allocation of {} gets no host memory in place of GPU memory: host memory has {} available and {} taken, host_mem_limit allows {}",
                Bytes(bytes),
                available.map_or("an unknown amount".to_owned(), |available| available.to_string()),
                Bytes(taken),
                limit.map_or("all".to_owned(), |bytes| Bytes(bytes).to_string())
            );
        }
    }
    room
}

/// The user's limit of what [`host_bytes_taken`] counts. A percentage is of all that the machine, or the control group, has: of what is left, it would shrink
/// with every byte that we take, which are counted against it already.
pub(super) fn host_limit() -> Option<u64> {
    config().host_mem_limit_for(host_memory::total().unwrap_or(u64::MAX))
}

/// Host bytes that stand in for GPU memory: shadows, and regions in host memory. The caller does not hold the world.
pub(super) fn host_bytes_taken() -> u64 {
    pinning::taken_bytes() + host_bytes()
}

/// Host bytes of all regions.
pub(super) fn host_bytes() -> u64 {
    world().regions.values().map(Region::host_bytes).sum()
}

/// One line for the first region that is not where the program asked for it.
fn say(region: &Region) {
    static SAID: AtomicBool = AtomicBool::new(false);
    if region.host_bytes() > 0 && !SAID.swap(true, Ordering::Relaxed) {
        log::info!("what does not fit the GPU memory that weights may take is loaded into host memory");
    }
    log::debug!("{} at {:#x} lie in host memory", Bytes(region.host_bytes()), region.base);
}

/// Pages of host memory, made by several threads: all of them, or none.
pub(super) fn pages(count: u64, context: Context) -> CudaResult<Vec<Handle>> {
    /// Pages that are worth a thread: a few milliseconds' work.
    const SHARE: u64 = 16;
    let threads = (count / SHARE).clamp(1, touched::threads().min(8) as u64);
    let left = AtomicU64::new(count);
    let work = || {
        let mut made = Vec::new();
        while left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok() {
            match vmm::create_in_host(PAGE as u32) {
                Ok(handle) => made.push(handle),
                Err(error) => return (made, Some(error)),
            }
        }
        (made, None)
    };
    let (mut made, mut failed) = (Vec::with_capacity(count as usize), None);
    std::thread::scope(|scope| {
        let spawn = |_| {
            let on_thread = || context::with_current(context, || Ok(work()));
            std::thread::Builder::new().spawn_scoped(scope, on_thread).ok()
        };
        let others: Vec<_> = (1..threads).filter_map(spawn).collect();
        let joined = others.into_iter().filter_map(|other| other.join().ok()?.ok());
        for (some, error) in std::iter::once(work()).chain(joined) {
            made.extend(some);
            failed = failed.or(error);
        }
    });
    // A thread that had no context leaves its share to nobody in particular.
    while failed.is_none() && (made.len() as u64) < count {
        match vmm::create_in_host(PAGE as u32) {
            Ok(handle) => made.push(handle),
            Err(error) => failed = Some(error),
        }
    }
    match failed {
        None => Ok(made),
        Some(error) => {
            release(made);
            Err(error)
        }
    }
}

/// Gives up pages that are mapped nowhere, or that mappings keep.
pub(super) fn release(pages: impl IntoIterator<Item = Handle>) {
    for page in pages {
        // What the driver does not take back it takes when the process ends.
        let _ = vmm::release(page);
    }
}
