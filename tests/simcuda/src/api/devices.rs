//! Start-up, devices, error texts.
#![expect(unsafe_code, reason = "exports under fixed names")]

use crate::abi::Uuid;
use crate::call::{self, exports};
use crate::exec::context::device;
use crate::pointer::Out;
use crate::settings::settings;
use crate::status::{Done, Status, describe};
use std::ffi::c_char;

exports! {
    Any cuInit(flags: u32) => init;
    Any cuDriverGetVersion(version: Out<i32>) => driver_version;
    Any cuGetErrorName(code: u32, text: Out<*const c_char>) => error_name;
    Any cuGetErrorString(code: u32, text: Out<*const c_char>) => error_string;
    Init cuDeviceGetCount(count: Out<i32>) => count;
    Init cuDeviceGet(number: Out<i32>, ordinal: i32) => get;
    Init cuDeviceGetName(name: Out<u8>, capacity: i32, number: i32) => name;
    Init cuDeviceGetUuid(uuid: Out<Uuid>, number: i32) => uuid;
    Init cuDeviceGetUuid_v2(uuid: Out<Uuid>, number: i32) => uuid;
    Init cuDeviceTotalMem_v2(bytes: Out<usize>, number: i32) => total_memory;
    Init cuDeviceGetAttribute(value: Out<i32>, attribute: u32, number: i32) => attribute;
    Init cuDeviceGetPCIBusId(text: Out<u8>, capacity: i32, number: i32) => pci_bus_id;
    Init cuDeviceGetByPCIBusId(number: Out<i32>, text: crate::pointer::Text) => by_pci_bus_id;
    Init cuDeviceCanAccessPeer(can: Out<i32>, number: i32, peer: i32) => can_access_peer;
    Init cuDeviceGetP2PAttribute(value: Out<i32>, attribute: u32, number: i32, peer: i32) => peer_attribute;
    Init cuDeviceComputeCapability(major: Out<i32>, minor: Out<i32>, number: i32) => compute_capability;
}

fn init(flags: u32) -> Done {
    if flags != 0 {
        return Err(Status::INVALID_VALUE);
    }
    if settings().devices == 0 {
        return Err(Status::NO_DEVICE);
    }
    call::initialized();
    Ok(())
}

/// The version that the fixture of requests was recorded with.
pub(crate) const DRIVER_VERSION: i32 = 13000;

fn driver_version(version: Out<i32>) -> Done {
    version.set(DRIVER_VERSION)
}

fn error_name(code: u32, text: Out<*const c_char>) -> Done {
    let (name, _) = describe(code).ok_or(Status::INVALID_VALUE)?;
    text.set(name.as_ptr())
}

fn error_string(code: u32, text: Out<*const c_char>) -> Done {
    let (_, long) = describe(code).ok_or(Status::INVALID_VALUE)?;
    text.set(long.as_ptr())
}

fn count(count: Out<i32>) -> Done {
    count.set(settings().devices as i32)
}

fn get(number: Out<i32>, ordinal: i32) -> Done {
    number.set(device(ordinal)? as i32)
}

/// Stores a text with its NUL in a buffer, cut to what fits.
pub(crate) fn store_text(buffer: Out<u8>, capacity: i32, text: &str) -> Done {
    let room = usize::try_from(capacity).ok().filter(|room| *room > 0).ok_or(Status::INVALID_VALUE)?;
    if buffer.is_null() {
        return Err(Status::INVALID_VALUE);
    }
    let kept = text.len().min(room - 1);
    for (index, byte) in text.bytes().take(kept).chain([0]).enumerate() {
        buffer.set_at(index, byte);
    }
    Ok(())
}

fn name(buffer: Out<u8>, capacity: i32, number: i32) -> Done {
    let index = device(number)?;
    store_text(buffer, capacity, &format!("simcuda {index}"))
}

fn uuid(uuid: Out<Uuid>, number: i32) -> Done {
    let mut bytes = *b"simcuda device 0";
    bytes[15] = b'0' + device(number)? as u8;
    uuid.set(Uuid(bytes))
}

fn total_memory(bytes: Out<usize>, number: i32) -> Done {
    device(number)?;
    bytes.set(settings().memory as usize)
}

fn attribute(value: Out<i32>, attribute: u32, number: i32) -> Done {
    let index = device(number)? as i32;
    // Numbers of CUdevice_attribute; the values are those of a large GPU where a program could depend on them.
    let found = match attribute {
        1..=3 => 1024,
        4 => 64,
        5 => i32::MAX,
        6 | 7 => 65535,
        8 => 49152,
        9 => 65536,
        10 => 32,
        11 => i32::MAX,
        12 | 82 => 65536,
        13 => 1_980_000,
        14 => 512,
        15 | 19 | 31 | 41 | 78 | 79 | 80 | 90 => 1,
        16 => 8,
        // Page-locked memory has the same address on the device (91); VMM (102); host register (99); pools (115).
        91 | 95 | 96 | 98 | 99 | 102 => 1,
        33 => 0x10 + index,
        34 | 50 => 0,
        18 => i32::from(settings().integrated.contains(&(index as usize))),
        36 => 3_201_000,
        37 => 6144,
        38 => 50 << 20,
        39 => 2048,
        40 => 2,
        75 => 9,
        76 => 0,
        81 => 233_472,
        97 => 232_448,
        106 => 32,
        111 => 1024,
        // Host NUMA node of the device (134), and host-located handles (141, 143).
        134 => 0,
        141 | 143 => i32::from(!settings().no_host_location),
        number if number < 160 => 0,
        _ => return Err(Status::INVALID_VALUE),
    };
    value.set(found)
}

fn pci_text(index: usize) -> String {
    format!("0000:{:02x}:00.0", 0x10 + index)
}

fn pci_bus_id(buffer: Out<u8>, capacity: i32, number: i32) -> Done {
    store_text(buffer, capacity, &pci_text(device(number)?))
}

fn by_pci_bus_id(number: Out<i32>, text: crate::pointer::Text) -> Done {
    let wanted = text.get()?.to_ascii_lowercase();
    let index =
        (0..settings().devices).find(|index| pci_text(*index) == wanted).ok_or(Status::INVALID_DEVICE)?;
    number.set(index as i32)
}

fn can_access_peer(can: Out<i32>, number: i32, peer: i32) -> Done {
    can.set(i32::from(device(number)? != device(peer)?))
}

fn peer_attribute(value: Out<i32>, attribute: u32, number: i32, peer: i32) -> Done {
    if device(number)? == device(peer)? {
        return Err(Status::INVALID_DEVICE);
    }
    // 1 = performance rank, 2 = access supported, 3 = native atomics, 4 = arrays.
    value.set(match attribute {
        1 => 0,
        2 | 3 => 1,
        4 | 5 => 0,
        _ => return Err(Status::INVALID_VALUE),
    })
}

fn compute_capability(major: Out<i32>, minor: Out<i32>, number: i32) -> Done {
    device(number)?;
    major.set(9)?;
    minor.set(0)
}
