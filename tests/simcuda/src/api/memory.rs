//! `cuMemAlloc` and its family, and what is asked about memory as a whole.
#![expect(unsafe_code, reason = "exports under fixed names")]

use crate::call::exports;
use crate::exec::{capture, context, stream};
use crate::journal::journal;
use crate::memory::{physical, space};
use crate::pointer::Out;
use crate::settings::settings;
use crate::status::{Done, Status};
use std::sync::atomic::Ordering::Relaxed;

exports! {
    Init cuMemAlloc_v2(address: Out<u64>, bytes: usize) => allocate;
    Init cuMemAllocPitch_v2(address: Out<u64>, pitch: Out<usize>, width: usize, height: usize, unit: u32) => allocate_pitch;
    Init cuMemFree_v2(address: u64) => free;
    Init cuMemGetInfo_v2(free: Out<usize>, total: Out<usize>) => info;
    Init cuMemGetAddressRange_v2(base: Out<u64>, bytes: Out<usize>, address: u64) => address_range;
    Init cuIpcGetMemHandle(handle: Out<u8>, address: u64) => ipc_handle;
}

fn allocate(address: Out<u64>, bytes: usize) -> Done {
    let context = context::current()?;
    capture::unsafe_call()?;
    if bytes == 0 || address.is_null() {
        return Err(Status::INVALID_VALUE);
    }
    address.set(space::change(|space| space.allocate(bytes as u64, context.device, context.handle))?)
}

fn allocate_pitch(address: Out<u64>, pitch: Out<usize>, width: usize, height: usize, unit: u32) -> Done {
    if !matches!(unit, 4 | 8 | 16) || width == 0 || height == 0 {
        return Err(Status::INVALID_VALUE);
    }
    let row = width.checked_next_multiple_of(512).ok_or(Status::INVALID_VALUE)?;
    allocate(address, row.checked_mul(height).ok_or(Status::INVALID_VALUE)?)?;
    pitch.set(row)
}

/// Frees as the driver does: after everything that may use the memory.
fn free(address: u64) -> Done {
    if address == 0 {
        return Ok(());
    }
    let context = context::current()?;
    capture::unsafe_call()?;
    let bytes = space::view().allocation(address)?;
    if stream::user_of(address, bytes).is_some() {
        journal().free_waited.fetch_add(1, Relaxed);
    }
    context.synchronize()?;
    space::change(|space| space.free(address))
}

fn info(free: Out<usize>, total: Out<usize>) -> Done {
    let context = context::current()?;
    free.set_if_wanted(physical::free(context.device) as usize);
    total.set_if_wanted(settings().memory as usize);
    Ok(())
}

fn address_range(base: Out<u64>, bytes: Out<usize>, address: u64) -> Done {
    context::current()?;
    let view = space::view();
    let (start, length) = match view.mapping(address) {
        // What a driver answers for host-located mappings, as measured.
        Some((_, mapping)) if mapping.object.place == physical::Place::Host => (0, mapping.bytes),
        Some((start, mapping)) => (start, mapping.requested),
        None => {
            view.host_range(address).map(|(start, range)| (start, range.bytes)).ok_or(Status::NOT_FOUND)?
        }
    };
    base.set_if_wanted(start);
    bytes.set_if_wanted(length as usize);
    Ok(())
}

fn ipc_handle(handle: Out<u8>, address: u64) -> Done {
    context::current()?;
    if handle.is_null()
        || space::view().mapping(address).is_none_or(|(_, mapping)| mapping.allocation.is_none())
    {
        return Err(Status::INVALID_VALUE);
    }
    Err(Status::NOT_SUPPORTED)
}
