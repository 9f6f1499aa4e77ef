//! Host pages that stand in for GPU memory, when a plan is made: those of streamed weights become their shadows, under a second address and without a copy;
//! those of resident weights give way to GPU pages. Behind the closed gate, with the GPU drained.
//! Which regions get host pages is `overflow`'s matter.

#![expect(unsafe_code, reason = "copies from host pages that we mapped")]

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use flextensor_core::units::Bytes;

use super::arena::{Arena, Meaning, PAGE, arena};
use super::exchange::Move;
use super::overflow::{self, release};
use super::regions::Region;
use super::shadow::{self, Shadow};
use super::streaming::ring_of;
use super::switch::Request;
use super::world::{Unit, UnitState, World, world};
use super::{gate, passes};
use crate::ffi::context::{self, Context};
use crate::ffi::result::{CudaError, CudaResult};
use crate::ffi::stream::Stream;
use crate::ffi::types::CUresult;
use crate::ffi::vmm::{self, Handle};
use crate::ffi::{copy, stream};
use crate::log;

/// Host pages among the `pages` pages from `address` on.
pub(super) fn pages_at(world: &World, address: u64, pages: u64) -> Vec<Handle> {
    let Some(region) = world.region_of(address) else { return Vec::new() };
    let first = ((address - region.base) / PAGE) as usize;
    let here = region.handles.iter().skip(first).take(pages as usize);
    here.flatten().copied().filter(|handle| handle.is_in_host()).collect()
}

/// A shadow of these host pages: their second address, for the processor and the copy engine, with addresses for `prefix` pages of view in front. A
/// context is current.
pub(super) fn adopt(handles: &[Handle], prefix: u64, device: i32) -> CudaResult<Shadow> {
    let (before, bytes) = (prefix * PAGE, handles.len() as u64 * PAGE);
    let reserved = vmm::reserve((before + bytes) as usize, PAGE as usize, 0)?;
    let start = reserved + before;
    let mapped = map_with_host(start, handles, device);
    if let Err(error) = mapped {
        let _ = vmm::unmap(start, bytes as usize);
        let _ = vmm::unreserve(reserved, (before + bytes) as usize);
        return Err(error);
    }
    let whole = handles.len() < 2 || copies_cross_pages(device);
    Ok(Shadow::of_host_pages(reserved, before, handles, whole))
}

/// The shadow of a streamed part: the host pages that are there, and fresh ones for the rest, which are its own.
pub(super) fn shadow_of(device: i32, m: &Move) -> CudaResult<Shadow> {
    let context = context::current()?;
    let mut fresh = overflow::pages(m.outside_pages(), context)?;
    let own = fresh.clone();
    let there = {
        let world = world();
        handles_at(&world, m.address, m.pages as usize)
    };
    let is_outside =
        |page: u64| m.outside.iter().any(|&(first, pages)| (first..first + pages).contains(&page));
    let mut pages = Vec::with_capacity(there.len());
    for (page, handle) in (0..).zip(there) {
        // A page that went to host memory just now is copied like any other.
        pages.extend(if is_outside(page) { fresh.pop() } else { Some(handle) });
    }
    let all_in_host = pages.len() as u64 == m.pages && pages.iter().all(|page| page.is_in_host());
    let shadow = if all_in_host {
        adopt(&pages, m.prefix(), device)
    } else {
        Err(CudaError(CUresult::CUDA_ERROR_INVALID_VALUE))
    };
    match shadow {
        Ok(shadow) => {
            shadow.keep_pages(own);
            Ok(shadow)
        }
        Err(error) => {
            release(own);
            Err(error)
        }
    }
}

fn map_with_host(start: u64, handles: &[Handle], device: i32) -> CudaResult<()> {
    for (page, &handle) in (0..).zip(handles) {
        vmm::map(start + page * PAGE, PAGE as usize, handle)?;
    }
    vmm::allow_with_host(start, handles.len() * PAGE as usize, device)
}

/// Whether the driver takes one copy out of, or into, several host pages. It refuses copies that cross two registrations; a copy for each page is a little slower.
fn copies_cross_pages(device: i32) -> bool {
    static CROSS: OnceLock<bool> = OnceLock::new();
    *CROSS.get_or_init(|| {
        let crossed = try_to_cross(device);
        if let Err(error) = crossed {
            log::info!("copies are cut where a host page ends: the driver says {error}");
        }
        crossed.is_ok()
    })
}

/// Copies across the border of two host pages and back, by memory that nobody else knows.
fn try_to_cross(device: i32) -> CudaResult<()> {
    const BYTES: usize = 128;
    let whole = 2 * PAGE as usize;
    let pages = overflow::pages(2, context::current()?)?;
    let tried = || -> CudaResult<()> {
        let start = vmm::reserve(whole, PAGE as usize, 0)?;
        let tried = map_with_host(start, &pages, device).and_then(|()| {
            let border = std::ptr::with_exposed_provenance_mut::<u8>((start + PAGE) as usize - BYTES / 2);
            let between = vmm::plain_alloc(BYTES)?;
            let copied = on_a_stream(|on| {
                // SAFETY: two pages are mapped here for the processor and the GPU, and stay so until the copies have ended.
                unsafe { copy::to_device_async(between, border.cast_const(), BYTES, on) }?;
                // SAFETY: as above.
                unsafe { copy::to_host_async(border, between, BYTES, on) }
            });
            vmm::plain_free(between)?;
            copied
        });
        let _ = vmm::unmap(start, whole);
        let _ = vmm::unreserve(start, whole);
        tried
    };
    let crossed = tried();
    release(pages);
    crossed
}

/// What is resident by plan leaves host memory; then what else there is, as far as the budget has room. Uses GPU pages out of `pool` first. The gate is
/// closed, and the GPU drained.
pub(super) fn settle(world: &mut World, request: &Request, pool: &mut Vec<Handle>) {
    for &id in &request.mine {
        let Some(unit) = world.unit(id) else { continue };
        let (address, pages) = (unit.base, unit.pages - unit.streamed);
        bring_home(world, request.device, address, pages, pool);
    }
    bring_home_what_fits(world, request.device, request.plan.budget, pool);
}

/// Host pages among the `pages` pages from `address` on give way to GPU pages. Those that cannot stay where they are: right, and slow.
pub(super) fn bring_home(world: &mut World, device: i32, address: u64, pages: u64, pool: &mut Vec<Handle>) {
    for (first, pages) in runs(world, address, pages, true) {
        let address = address + first * PAGE;
        if let Err(error) = to_gpu(world, device, address, pages, pool) {
            let bytes = Bytes(pages * PAGE);
            log::info!("{bytes} of weights stay in host memory, and are read over the link: {error}");
        }
    }
}

/// The same for all memory of a device that no unit being learnt lies in.
fn bring_home_what_fits(world: &mut World, device: i32, budget: Option<u64>, pool: &mut Vec<Handle>) {
    let ring = ring_of(device).as_ref().map_or(0, |ring| ring.ring_bytes());
    let here = |region: &&Region| region.device == device && region.host_bytes() > 0;
    let bases: Vec<(u64, u64)> =
        world.regions.values().filter(here).map(|region| (region.base, region.pages())).collect();
    for (base, pages) in bases {
        let units = world.units_in(base, pages);
        if units.iter().filter_map(|&id| world.unit(id)).any(|unit| unit.state == UnitState::Learning) {
            continue;
        }
        let used: u64 =
            world.regions.values().filter(|region| region.device == device).map(Region::private_bytes).sum();
        let wanted = world.regions.get(&base).map_or(0, Region::host_bytes);
        if budget.is_none_or(|budget| used + ring + wanted <= budget) {
            bring_home(world, device, base, pages, pool);
        }
    }
}

/// Runs among the `pages` pages from `address` on, as (first, count), that lie in host memory, or that do not.
pub(super) fn runs(world: &World, address: u64, pages: u64, in_host: bool) -> Vec<(u64, u64)> {
    let Some(region) = world.region_of(address) else { return Vec::new() };
    let first = ((address - region.base) / PAGE) as usize;
    let here = region.handles.iter().skip(first).take(pages as usize);
    let mut runs: Vec<(u64, u64)> = Vec::new();
    for (page, handle) in (0..).zip(here) {
        match runs.last_mut() {
            _ if handle.is_none_or(|handle| handle.is_in_host() != in_host) => {}
            Some((start, count)) if *start + *count == page => *count += 1,
            _ => runs.push((page, 1)),
        }
    }
    runs
}

/// Regions wait to leave host memory.
static SHOWN: AtomicBool = AtomicBool::new(false);

/// A launch shows memory in host pages that nobody has named. In a forward that is no weight of a model that is still to come, but memory that the program
/// uses for everything, such as a block that its allocator keeps: it leaves host memory before the next forward.
pub(super) fn shown(arena: &Arena, address: u64) {
    let mut world = world();
    if world.models.values().all(|model| model.open == 0) {
        return;
    }
    let Some(region) = world.region_of_mut(address) else { return };
    region.shown = true;
    for page in (0..region.pages()).map(|page| region.base + page * PAGE) {
        if arena.meaning(page) == Meaning::InHost {
            arena.set_meaning(page, 1, Meaning::Nothing);
        }
    }
    SHOWN.store(true, Ordering::Release);
}

/// What was shown leaves host memory, as far as GPUs have room: a budget is for weights. The calling thread is not inside the gate.
pub(super) fn bring_home_what_was_shown() {
    if !SHOWN.swap(false, Ordering::AcqRel) {
        return;
    }
    let _closed = gate::close();
    let mut world = world();
    let take = |region: &mut Region| {
        let place = (region.base, region.pages(), region.device, region.context);
        std::mem::take(&mut region.shown).then_some(place)
    };
    let shown: Vec<(u64, u64, i32, Context)> = world.regions.values_mut().filter_map(take).collect();
    for (base, pages, device, context) in shown {
        if !world.units_in(base, pages).is_empty() {
            continue;
        }
        let moved = passes::in_context(context, || {
            context::synchronize()?;
            bring_home(&mut world, device, base, pages, &mut Vec::new());
            Ok(())
        });
        if let Some(Err::<(), CudaError>(error)) = moved {
            log::info!("memory stays in the host: waiting for the GPU failed: {error}");
        }
    }
}

/// Bytes of weights in units of a device that host pages hold.
pub(super) fn weight_bytes(world: &World, device: i32) -> u64 {
    let living = world.units.iter().filter(|unit| unit.device == device && unit.state != UnitState::Gone);
    living.map(|unit| pages_at(world, unit.base, unit.pages).len() as u64 * PAGE).sum()
}

/// A forward is about to begin on a device that was too small for the weights that were loaded: the last named of those that are being learnt go to host
/// memory, until activations have room. The device's context is current.
pub(super) fn leave_room(device: i32) {
    let excess = |world: &World| {
        let ring_bytes = ring_of(device).as_ref().map_or(0, |ring| ring.ring_bytes());
        let limit = overflow::limit(world, ring_bytes, device, None)?;
        let weights = world.private_weight_bytes(device).saturating_sub(weight_bytes(world, device));
        weights.checked_sub(limit).filter(|&excess| excess > 0)
    };
    if excess(&world()).is_none() {
        return;
    }
    let _closed = gate::close();
    if let Err(error) = context::synchronize() {
        return log::info!("no room can be made on GPU {device}: waiting for it failed: {error}");
    }
    let mut world = world();
    let learnt = |unit: &&Unit| unit.device == device && unit.state == UnitState::Learning;
    let units: Vec<(u64, u64, Context)> =
        world.units.iter().rev().filter(learnt).map(|unit| (unit.base, unit.pages, unit.context)).collect();
    for (address, pages, context) in units {
        if excess(&world).is_none() {
            return;
        }
        if !pages_at(&world, address, pages).is_empty() {
            continue;
        }
        let fresh = overflow::pages(pages, context);
        if let Err(error) = fresh.and_then(|fresh| exchange_pages(&mut world, device, address, fresh)) {
            return log::info!("no more room can be made on GPU {device}: {error}");
        }
    }
}

/// From host pages to GPU pages under the same addresses; after an error all is as it was.
fn to_gpu(
    world: &mut World,
    device: i32,
    address: u64,
    pages: u64,
    pool: &mut Vec<Handle>,
) -> CudaResult<()> {
    let mut fresh = pool.split_off(pool.len() - pool.len().min(pages as usize));
    match gpu_pages(device, pages - fresh.len() as u64) {
        Ok(more) => fresh.extend(more),
        Err(error) => {
            pool.extend(fresh);
            return Err(error);
        }
    }
    exchange_pages(world, device, address, fresh)
}

/// Other pages under the same addresses, with the same bytes; one side is in host memory. Takes the pages over; after an error all is as it was.
fn exchange_pages(world: &mut World, device: i32, address: u64, fresh: Vec<Handle>) -> CudaResult<()> {
    let old = handles_at(world, address, fresh.len());
    let to_host = fresh.iter().all(|handle| handle.is_in_host());
    let moved = if to_host {
        copied_to_host(device, address, &old, &fresh)
    } else {
        copied_to_gpu(device, address, &old, &fresh)
    };
    if let Err(error) = moved {
        release(fresh);
        return Err(error);
    }
    if let Some(region) = world.region_of_mut(address) {
        let first = ((address - region.base) / PAGE) as usize;
        for (slot, handle) in region.handles.iter_mut().skip(first).zip(fresh) {
            *slot = Some(handle);
        }
    }
    if let Some(arena) = arena().filter(|arena| !to_host && arena.meaning(address) == Meaning::InHost) {
        arena.set_meaning(address, old.len() as u64, Meaning::Nothing);
    }
    release(old);
    Ok(())
}

fn handles_at(world: &World, address: u64, pages: usize) -> Vec<Handle> {
    let Some(region) = world.region_of(address) else { return Vec::new() };
    let first = ((address - region.base) / PAGE) as usize;
    region.handles.iter().skip(first).take(pages).flatten().copied().collect()
}

fn copied_to_gpu(device: i32, address: u64, old: &[Handle], fresh: &[Handle]) -> CudaResult<()> {
    let source = adopt(old, 0, device)?;
    let bytes = fresh.len() as u64 * PAGE;
    let moved = replace(device, address, old, fresh).map_err(|(error, _)| error).and_then(|()| {
        let copied = on_a_stream(|on| {
            source.pieces(0, bytes).try_for_each(|(offset, bytes, host)| {
                // SAFETY: the shadow stays mapped until it is given back, behind the wait.
                unsafe { copy::to_device_async(address + offset, host, bytes as usize, on) }
            })
        });
        // What was not filled is not the weight: the old pages come back.
        copied.inspect_err(|_| {
            let _ = replace(device, address, fresh, old);
        })
    });
    shadow::give_back(vec![source]);
    moved
}

fn copied_to_host(device: i32, address: u64, old: &[Handle], fresh: &[Handle]) -> CudaResult<()> {
    let target = adopt(fresh, 0, device)?;
    let copied = on_a_stream(|on| {
        target.pieces(0, fresh.len() as u64 * PAGE).try_for_each(|(offset, bytes, host)| {
            // SAFETY: as above; nobody else knows the pages yet.
            unsafe { copy::to_host_async(host.cast_mut(), address + offset, bytes as usize, on) }
        })
    });
    let moved = copied.and_then(|()| replace(device, address, old, fresh).map_err(|(error, _)| error));
    shadow::give_back(vec![target]);
    moved
}

/// Runs copies on a stream of their own, and waits for them.
fn on_a_stream(copies: impl FnOnce(Stream) -> CudaResult<()>) -> CudaResult<()> {
    let on = stream::create_nonblocking()?;
    let copied = copies(on);
    let ended = stream::synchronize(on);
    let _ = stream::destroy(on);
    copied.and(ended)
}

/// Maps `fresh` where `old` is mapped, or leaves `old` there. The error says, too, whether not even that was possible.
pub(super) fn replace(
    device: i32,
    address: u64,
    old: &[Handle],
    fresh: &[Handle],
) -> Result<(), (CudaError, Lost)> {
    let bytes = fresh.len() * PAGE as usize;
    vmm::unmap(address, bytes).map_err(|error| (error, Lost(false)))?;
    let Err(error) = map(device, address, fresh) else { return Ok(()) };
    // Where nothing is mapped there is nothing to unmap; where something stays, the mapping below is refused.
    let _ = vmm::unmap(address, bytes);
    match map(device, address, old) {
        Ok(()) => Err((error, Lost(false))),
        Err(again) => {
            log::error!("{} MiB at {address:#x} have lost their memory: {error}, then {again}", bytes >> 20);
            Err((error, Lost(true)))
        }
    }
}

/// Addresses have nothing behind them any more.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lost(pub(super) bool);

fn map(device: i32, address: u64, pages: &[Handle]) -> CudaResult<()> {
    for (page, &handle) in (0..).zip(pages) {
        vmm::map(address + page * PAGE, PAGE as usize, handle)?;
    }
    vmm::allow(address, pages.len() * PAGE as usize, device)
}

/// GPU pages: given back whole if one is refused.
pub(super) fn gpu_pages(device: i32, count: u64) -> CudaResult<Vec<Handle>> {
    let mut pages = Vec::with_capacity(count as usize);
    for _ in 0..count {
        match vmm::create(device, PAGE as usize) {
            Ok(page) => pages.push(page),
            Err(error) => {
                release(pages);
                return Err(error);
            }
        }
    }
    Ok(pages)
}
