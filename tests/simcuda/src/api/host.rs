//! Page-locked host memory.
#![expect(unsafe_code, reason = "exports under fixed names")]

use crate::call::exports;
use crate::exec::{capture, context, stream};
use crate::journal::{Detection, journal};
use crate::memory::space::{self, HostRange};
use crate::memory::{os, round_up};
use crate::pointer::Out;
use crate::status::{Done, Status};

exports! {
    Init cuMemHostAlloc(address: Out<u64>, bytes: usize, flags: u32) => allocate;
    Init cuMemAllocHost_v2(address: Out<u64>, bytes: usize) => allocate_plain;
    Init cuMemFreeHost(address: u64) => free;
    Init cuMemHostRegister_v2(address: u64, bytes: usize, flags: u32) => register;
    Init cuMemHostUnregister(address: u64) => unregister;
    Init cuMemHostGetDevicePointer_v2(device: Out<u64>, address: u64, flags: u32) => device_pointer;
    Init cuMemHostGetFlags(flags: Out<u32>, address: u64) => flags;
}

fn allocate_plain(address: Out<u64>, bytes: usize) -> Done {
    allocate(address, bytes, 0)
}

fn allocate(address: Out<u64>, bytes: usize, flags: u32) -> Done {
    context::current()?;
    capture::unsafe_call()?;
    if address.is_null() || bytes == 0 {
        return Err(Status::INVALID_VALUE);
    }
    let length = round_up(bytes as u64, 4096).ok_or(Status::OUT_OF_MEMORY)?;
    let memory = os::host_memory(length).map_err(|_| Status::OUT_OF_MEMORY)?;
    let range = HostRange { bytes: length, allocated: true, flags };
    space::change(|space| space.register(memory, range))?;
    address.set(memory)
}

/// Notes work that still uses a range of host memory which is about to go.
fn report_users(address: u64, bytes: u64) {
    if let Some(user) = stream::user_of(address, bytes) {
        let message = format!("host memory {address:#x} + {bytes:#x} is given up while {user}");
        journal().detect(Detection::UnregisterInUse, &message);
    }
}

/// The registration that begins at an address.
fn registration(address: u64, allocated: bool) -> Result<u64, Status> {
    let view = space::view();
    let (base, range) = view.host_range(address).ok_or(Status::HOST_MEMORY_NOT_REGISTERED)?;
    if base == address && range.allocated == allocated { Ok(range.bytes) } else { Err(Status::INVALID_VALUE) }
}

fn free(address: u64) -> Done {
    let context = context::current()?;
    capture::unsafe_call()?;
    let bytes = registration(address, true).map_err(|_| Status::INVALID_VALUE)?;
    // The driver waits here too.
    context.synchronize()?;
    space::change(|space| space.host.remove(&address));
    os::give_back(address, bytes).map_err(|_| Status::OPERATING_SYSTEM)
}

fn register(address: u64, bytes: usize, flags: u32) -> Done {
    context::current()?;
    capture::unsafe_call()?;
    space::change(|space| space.register(address, HostRange { bytes: bytes as u64, allocated: false, flags }))
}

fn unregister(address: u64) -> Done {
    context::current()?;
    capture::unsafe_call()?;
    let bytes = registration(address, false)?;
    report_users(address, bytes);
    space::change(|space| space.host.remove(&address));
    Ok(())
}

fn device_pointer(device: Out<u64>, address: u64, flags: u32) -> Done {
    context::current()?;
    if flags != 0 || space::view().host_range(address).is_none() {
        return Err(Status::INVALID_VALUE);
    }
    device.set(address)
}

fn flags(flags: Out<u32>, address: u64) -> Done {
    let view = space::view();
    let (_, range) = view.host_range(address).ok_or(Status::INVALID_VALUE)?;
    flags.set(range.flags)
}
