//! Host pages that stand in for GPU memory: they become shadows, under a second address and without a copy, or change places with GPU pages, behind the closed
//! gate and with the GPU drained. Which regions get host pages is `overflow`'s matter, who leaves them `home`'s.

#![expect(unsafe_code, reason = "copies from host pages that we mapped")]

use std::sync::OnceLock;

use flextensor_core::units::UnitId;

use super::arena::{PAGE, arena};
use super::exchange::Move;
use super::overflow::{self, release};
use super::readout;
use super::shadow::{self, Shadow};
use super::world::{Unit, UnitState, World, world};
use crate::ffi::context;
use crate::ffi::result::{CudaError, CudaResult};
use crate::ffi::stream::Stream;
use crate::ffi::types::CUresult;
use crate::ffi::vmm::{self, Handle};
use crate::ffi::{copy, stream};
use crate::log;

/// Host pages among the `pages` pages from `address` on.
pub(super) fn pages_at(world: &World, address: u64, pages: u64) -> Vec<Handle> {
    let Some(region) = world.region_of(address) else { return Vec::new() };
    let here = region.handles_from(address).take(pages as usize);
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

/// Runs among the `pages` pages from `address` on, as (first, count), that lie in host memory, or that do not.
pub(super) fn runs(world: &World, address: u64, pages: u64, in_host: bool) -> Vec<(u64, u64)> {
    let Some(region) = world.region_of(address) else { return Vec::new() };
    let here = region.handles_from(address).take(pages as usize);
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

/// Bytes of weights in units of a device that host pages hold.
pub(super) fn weight_bytes(world: &World, device: i32) -> u64 {
    let living = world.units.iter().filter(|unit| unit.device == device && unit.state != UnitState::Gone);
    living.map(|unit| pages_at(world, unit.base, unit.pages).len() as u64 * PAGE).sum()
}

/// Bytes of GPU memory that weights of a device hold outside its ring.
pub(super) fn gpu_weight_bytes(world: &World, device: i32) -> u64 {
    world.private_weight_bytes(device).saturating_sub(weight_bytes(world, device))
}

/// From host pages to GPU pages under the same addresses; after an error all is as it was.
pub(super) fn to_gpu(
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
pub(super) fn exchange_pages(
    world: &mut World,
    device: i32,
    address: u64,
    fresh: Vec<Handle>,
) -> CudaResult<()> {
    let _reading = readout::hold();
    let old = handles_at(world, address, fresh.len());
    let to_host = fresh.iter().all(|handle| handle.is_in_host());
    let moved = if to_host {
        copied_to_host(device, address, &old, &fresh)
    } else {
        copied_to_gpu(device, address, &old, &fresh)
    };
    if let Err((error, Lost(lost))) = moved {
        release(fresh);
        if lost {
            lose(world, address, old.len() as u64);
        }
        return Err(error);
    }
    if let Some(region) = world.region_of_mut(address) {
        for (slot, handle) in region.handles_from_mut(address).zip(fresh) {
            *slot = Some(handle);
        }
    }
    if let Some(arena) = arena().filter(|_| !to_host) {
        arena.clear_in_host(address, old.len() as u64);
    }
    release(old);
    Ok(())
}

fn handles_at(world: &World, address: u64, pages: usize) -> Vec<Handle> {
    let Some(region) = world.region_of(address) else { return Vec::new() };
    region.handles_from(address).take(pages).flatten().copied().collect()
}

/// Calls that show a weight on these pages fail from now on.
fn lose(world: &mut World, address: u64, pages: u64) {
    let Some(arena) = arena() else { return };
    let end = address + pages * PAGE;
    let here =
        |unit: &&Unit| unit.state != UnitState::Gone && unit.base < end && address < unit.end_of_pages();
    let ids: Vec<UnitId> = world.units.iter().filter(here).map(|unit| unit.id).collect();
    ids.into_iter().for_each(|id| world.lost(arena, id));
}

fn copied_to_gpu(
    device: i32,
    address: u64,
    old: &[Handle],
    fresh: &[Handle],
) -> Result<(), (CudaError, Lost)> {
    let source = adopt(old, 0, device).map_err(as_it_was)?;
    let bytes = fresh.len() as u64 * PAGE;
    let moved = replace(device, address, old, fresh).and_then(|()| {
        let copied = on_a_stream(|on| {
            source.pieces(0, bytes).try_for_each(|(offset, bytes, host)| {
                // SAFETY: the shadow stays mapped until it is given back, behind the wait.
                unsafe { copy::to_device_async(address + offset, host, bytes as usize, on) }
            })
        });
        // What was not filled is not the weight: the old pages come back.
        copied.map_err(|error| match replace(device, address, fresh, old) {
            Ok(()) => as_it_was(error),
            Err((again, _)) => {
                log::error!(
                    "{} MiB at {address:#x} have lost their bytes: {error}, then {again}",
                    bytes >> 20
                );
                (error, Lost(true))
            }
        })
    });
    shadow::give_back(vec![source]);
    moved
}

fn copied_to_host(
    device: i32,
    address: u64,
    old: &[Handle],
    fresh: &[Handle],
) -> Result<(), (CudaError, Lost)> {
    let target = adopt(fresh, 0, device).map_err(as_it_was)?;
    let copied = on_a_stream(|on| {
        target.pieces(0, fresh.len() as u64 * PAGE).try_for_each(|(offset, bytes, host)| {
            // SAFETY: as above; nobody else knows the pages yet.
            unsafe { copy::to_host_async(host.cast_mut(), address + offset, bytes as usize, on) }
        })
    });
    let moved = copied.map_err(as_it_was).and_then(|()| replace(device, address, old, fresh));
    shadow::give_back(vec![target]);
    moved
}

/// Runs copies on a stream of their own, and waits for them.
fn on_a_stream(copies: impl FnOnce(Stream) -> CudaResult<()>) -> CudaResult<()> {
    let on = stream::create_nonblocking()?;
    let copied = copies(on);
    let ended = stream::drain(on);
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

/// Addresses have nothing behind them any more, or nothing that makes sense.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lost(pub(super) bool);

fn as_it_was(error: CudaError) -> (CudaError, Lost) {
    (error, Lost(false))
}

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
        match vmm::create(device, PAGE as u32) {
            Ok(page) => pages.push(page),
            Err(error) => {
                release(pages);
                return Err(error);
            }
        }
    }
    Ok(pages)
}
