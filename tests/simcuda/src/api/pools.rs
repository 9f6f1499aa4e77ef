//! Pools: memory that is allocated and freed in the order of a stream. A free waits for its stream here, and the memory stays with the pool until it is trimmed.
#![expect(unsafe_code, reason = "exports under fixed names")]

use crate::abi::{AllocationProperties, LOCATION_DEVICE};
use crate::call::{exports, stream_exports};
use crate::exec::context::device;
use crate::exec::{NullStream, capture, context, stream_of};
use crate::locks::lock;
use crate::memory::{PAGE, space};
use crate::pointer::{In, Out};
use crate::status::{Done, Status};
use std::collections::BTreeMap;
use std::sync::Mutex;

exports! {
    Init cuDeviceGetDefaultMemPool(pool: Out<u64>, number: i32) => default_pool;
    Init cuDeviceGetMemPool(pool: Out<u64>, number: i32) => default_pool;
    Init cuMemPoolCreate(pool: Out<u64>, properties: In<AllocationProperties>) => create;
    Init cuMemPoolDestroy(pool: u64) => destroy;
    Init cuMemPoolGetAttribute(pool: u64, attribute: u32, value: Out<u64>) => attribute;
    Init cuMemPoolTrimTo(pool: u64, keep: usize) => trim;
}

stream_exports! {
    cuMemAllocAsync, cuMemAllocAsync_ptsz(address: Out<u64>, bytes: usize, stream: u64) => allocate;
    cuMemAllocFromPoolAsync, cuMemAllocFromPoolAsync_ptsz(address: Out<u64>, bytes: usize, pool: u64, stream: u64) => allocate_from;
    cuMemFreeAsync, cuMemFreeAsync_ptsz(address: u64, stream: u64) => free;
}

/// Handles of the devices' own pools begin here, those of others behind.
const FIRST: u64 = 0x9000_0000;
const FIRST_CREATED: u64 = FIRST + 0x1000;

const RESERVED_NOW: u32 = 5;
const USED_NOW: u32 = 7;

#[derive(Default)]
struct Pool {
    device: usize,
    live: BTreeMap<u64, u64>,
    free: Vec<(u64, u64)>,
}

static POOLS: Mutex<BTreeMap<u64, Pool>> = Mutex::new(BTreeMap::new());

/// Runs `body` on a pool; a device's own is made when it is first asked for.
fn with<T>(handle: u64, body: impl FnOnce(&mut Pool) -> Result<T, Status>) -> Result<T, Status> {
    let mut pools = lock(&POOLS);
    if (FIRST..FIRST_CREATED).contains(&handle) {
        let device = device((handle - FIRST) as i32)?;
        return body(pools.entry(handle).or_insert_with(|| Pool { device, ..Pool::default() }));
    }
    body(pools.get_mut(&handle).ok_or(Status::INVALID_VALUE)?)
}

fn default_pool(pool: Out<u64>, number: i32) -> Done {
    pool.set(FIRST + device(number)? as u64)
}

fn create(pool: Out<u64>, properties: In<AllocationProperties>) -> Done {
    let location = properties.get()?.location;
    if location.kind != LOCATION_DEVICE || pool.is_null() {
        return Err(Status::INVALID_VALUE);
    }
    let device = device(location.id)?;
    let mut pools = lock(&POOLS);
    let handle = pools.keys().last().map_or(FIRST_CREATED, |last| (last + 1).max(FIRST_CREATED));
    pools.insert(handle, Pool { device, ..Pool::default() });
    pool.set(handle)
}

fn destroy(pool: u64) -> Done {
    if pool < FIRST_CREATED {
        return Err(Status::INVALID_VALUE);
    }
    trim(pool, 0)?;
    lock(&POOLS).remove(&pool).map(|_| ()).ok_or(Status::INVALID_VALUE)
}

fn attribute(pool: u64, attribute: u32, value: Out<u64>) -> Done {
    let (used, kept) = with(pool, |pool| {
        let kept: u64 = pool.free.iter().map(|(_, bytes)| bytes).sum();
        Ok((pool.live.values().sum::<u64>(), kept))
    })?;
    match attribute {
        RESERVED_NOW => value.set(used + kept),
        USED_NOW => value.set(used),
        _ => Err(Status::INVALID_VALUE),
    }
}

fn trim(pool: u64, keep: usize) -> Done {
    with(pool, |pool| {
        let mut kept: u64 =
            pool.free.iter().map(|(_, bytes)| bytes).sum::<u64>() + pool.live.values().sum::<u64>();
        while kept > keep as u64
            && let Some((address, bytes)) = pool.free.pop()
        {
            space::change(|space| space.free(address))?;
            kept -= bytes;
        }
        Ok(())
    })
}

fn allocate(null: NullStream, address: Out<u64>, bytes: usize, stream: u64) -> Done {
    let context = context::current()?;
    allocate_from(null, address, bytes, FIRST + context.device as u64, stream)
}

fn allocate_from(null: NullStream, address: Out<u64>, bytes: usize, pool: u64, stream: u64) -> Done {
    let stream = stream_of(null, stream)?;
    if bytes == 0 || address.is_null() {
        return Err(Status::INVALID_VALUE);
    }
    if capture::of(&stream).is_some() {
        return Err(Status::NOT_SUPPORTED);
    }
    let context = context::current()?;
    let length = (bytes as u64).checked_next_multiple_of(PAGE).ok_or(Status::OUT_OF_MEMORY)?;
    let got = with(pool, |pool| {
        let kept = pool.free.iter().position(|(_, free)| *free == length);
        let got = match kept {
            Some(at) => pool.free.swap_remove(at).0,
            None => space::change(|space| space.allocate(length, pool.device, context.handle))?,
        };
        pool.live.insert(got, length);
        Ok(got)
    })?;
    address.set(got)
}

fn free(null: NullStream, address: u64, stream: u64) -> Done {
    let stream = stream_of(null, stream)?;
    if capture::of(&stream).is_some() {
        return Err(Status::NOT_SUPPORTED);
    }
    stream.drain();
    let mut pools = lock(&POOLS);
    for pool in pools.values_mut() {
        if let Some(bytes) = pool.live.remove(&address) {
            pool.free.push((address, bytes));
            return Ok(());
        }
    }
    Err(Status::INVALID_VALUE)
}
