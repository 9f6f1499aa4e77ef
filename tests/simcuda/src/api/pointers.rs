//! What a pointer is.
#![expect(unsafe_code, reason = "exports under fixed names")]

use crate::abi::{MEMORY_DEVICE, MEMORY_HOST};
use crate::call::exports;
use crate::exec::context;
use crate::memory::physical::Place;
use crate::memory::space;
use crate::pointer::{In, Out};
use crate::status::{Done, Status};

exports! {
    Init cuPointerGetAttribute(data: Out<u64>, attribute: u32, address: u64) => attribute;
    Init cuPointerGetAttributes(count: u32, list: In<u32>, data: In<u64>, address: u64) => attributes;
    Init cuPointerSetAttribute(value: In<u64>, attribute: u32, address: u64) => set_attribute;
}

/// What is known about an address.
struct Known {
    context: u64,
    memory: u32,
    device: i32,
    device_pointer: u64,
    host_pointer: u64,
    start: u64,
    bytes: u64,
    id: u64,
}

fn known(address: u64) -> Option<Known> {
    let view = space::view();
    if let Some((base, mapping)) = view.mapping(address) {
        let (memory, device, start) = match mapping.object.place {
            Place::Device(device) => (MEMORY_DEVICE, device as i32, base),
            Place::Host => (MEMORY_HOST, 0, base),
        };
        return Some(Known {
            context: mapping.allocation.unwrap_or(0),
            memory,
            device,
            device_pointer: address,
            host_pointer: if memory == MEMORY_HOST { address } else { 0 },
            start,
            bytes: mapping.requested,
            id: mapping.object.id,
        });
    }
    let (base, range) = view.host_range(address)?;
    let current = context::peek();
    Some(Known {
        context: current.as_ref().map_or(0, |context| context.handle),
        memory: MEMORY_HOST,
        device: current.map_or(0, |context| context.device as i32),
        device_pointer: address,
        host_pointer: address,
        start: base,
        bytes: range.bytes,
        id: base >> 12,
    })
}

/// Bytes of the value of an attribute; the others do not exist here.
fn width(attribute: u32) -> Result<u32, Status> {
    match attribute {
        2 | 9 | 10 => Ok(4),
        6 | 8 | 13 | 15 | 21 => Ok(1),
        1 | 3 | 4 | 7 | 11 | 12 | 14 | 16 | 17 | 18 | 19 | 20 => Ok(8),
        _ => Err(Status::INVALID_VALUE),
    }
}

fn value(attribute: u32, known: &Known) -> Result<u64, Status> {
    Ok(match attribute {
        1 => known.context,
        2 => u64::from(known.memory),
        3 => known.device_pointer,
        4 if known.host_pointer == 0 => return Err(Status::INVALID_VALUE),
        4 => known.host_pointer,
        7 | 20 => known.id,
        9 => known.device as u64,
        11 | 19 => known.start,
        12 | 18 => known.bytes,
        13 => 1,
        16 => 3,
        _ => 0,
    })
}

fn store(data: Out<u64>, width: u32, value: u64) -> Done {
    if data.is_null() {
        return Err(Status::INVALID_VALUE);
    }
    let bytes: Out<u8> = data.bytes();
    for (index, byte) in value.to_le_bytes().into_iter().take(width as usize).enumerate() {
        bytes.set_at(index, byte);
    }
    Ok(())
}

fn attribute(data: Out<u64>, attribute: u32, address: u64) -> Done {
    let width = width(attribute)?;
    let known = known(address).ok_or(Status::INVALID_VALUE)?;
    store(data, width, value(attribute, &known)?)
}

/// Unknown pointers are no error here: every attribute is zero then.
fn attributes(count: u32, list: In<u32>, data: In<u64>, address: u64) -> Done {
    let known = known(address);
    let targets = data.list(count as usize)?;
    for (attribute, target) in list.list(count as usize)?.into_iter().zip(targets) {
        let found = match &known {
            // The ordinal of a pointer that is not of a device is CU_DEVICE_INVALID.
            None if attribute == 9 => u64::from(-2i32 as u32),
            None => 0,
            Some(known) => value(attribute, known).unwrap_or(0),
        };
        store(Out::at(target), width(attribute)?, found)?;
    }
    Ok(())
}

fn set_attribute(_: In<u64>, attribute: u32, address: u64) -> Done {
    known(address).ok_or(Status::INVALID_VALUE)?;
    // CU_POINTER_ATTRIBUTE_SYNC_MEMOPS is the only one that can be set.
    if attribute == 6 { Ok(()) } else { Err(Status::INVALID_VALUE) }
}
