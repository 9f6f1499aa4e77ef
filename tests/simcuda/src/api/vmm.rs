//! Virtual memory management: reservations, handles, mappings, access.
#![expect(unsafe_code, reason = "exports under fixed names")]

use crate::abi::{
    AccessDescription, AllocationProperties, LOCATION_DEVICE, LOCATION_HOST, LOCATION_HOST_NUMA, Location,
};
use crate::call::exports;
use crate::exec::context::device;
use crate::exec::stream;
use crate::journal::{Detection, journal};
use crate::memory::physical::{Physical, Place};
use crate::memory::{PAGE, handles, space};
use crate::pointer::{In, Out};
use crate::settings::settings;
use crate::status::{Done, Status};

exports! {
    Init cuMemGetAllocationGranularity(bytes: Out<usize>, properties: In<AllocationProperties>, option: u32) => granularity;
    Init cuMemAddressReserve(address: Out<u64>, bytes: usize, alignment: usize, wanted: u64, flags: u64) => reserve;
    Init cuMemAddressFree(address: u64, bytes: usize) => free_addresses;
    Init cuMemCreate(handle: Out<u64>, bytes: usize, properties: In<AllocationProperties>, flags: u64) => create;
    Init cuMemRelease(handle: u64) => release;
    Init cuMemMap(address: u64, bytes: usize, offset: usize, handle: u64, flags: u64) => map;
    Init cuMemUnmap(address: u64, bytes: usize) => unmap;
    Init cuMemSetAccess(address: u64, bytes: usize, list: In<AccessDescription>, count: usize) => set_access;
    Init cuMemGetAccess(flags: Out<u64>, location: In<Location>, address: u64) => get_access;
    Init cuMemRetainAllocationHandle(handle: Out<u64>, address: u64) => retain;
    Init cuMemGetAllocationPropertiesFromHandle(properties: Out<AllocationProperties>, handle: u64) => properties;
}

/// `CU_MEM_ALLOCATION_TYPE_PINNED`.
const PINNED: u32 = 1;

/// Where the properties put memory.
fn place(properties: &AllocationProperties) -> Result<Place, Status> {
    let Location { kind, id } = properties.location;
    if properties.kind != PINNED {
        return Err(Status::INVALID_VALUE);
    }
    match kind {
        LOCATION_DEVICE => Ok(Place::Device(device(id)?)),
        LOCATION_HOST | LOCATION_HOST_NUMA if settings().no_host_location => Err(Status::NOT_SUPPORTED),
        LOCATION_HOST => Ok(Place::Host),
        // Only node 0 exists; HOST_NUMA_CURRENT is not a place for a handle.
        LOCATION_HOST_NUMA if id == 0 => Ok(Place::Host),
        _ => Err(Status::INVALID_VALUE),
    }
}

fn granularity(bytes: Out<usize>, properties: In<AllocationProperties>, option: u32) -> Done {
    place(&properties.get()?)?;
    if option > 1 {
        return Err(Status::INVALID_VALUE);
    }
    bytes.set(PAGE as usize)
}

fn reserve(address: Out<u64>, bytes: usize, alignment: usize, wanted: u64, flags: u64) -> Done {
    if flags != 0 || address.is_null() {
        return Err(Status::INVALID_VALUE);
    }
    address.set(space::change(|space| space.reserve(bytes as u64, alignment as u64, wanted))?)
}

fn free_addresses(address: u64, bytes: usize) -> Done {
    space::change(|space| space.free_reservation(address, bytes as u64))
}

fn create(handle: Out<u64>, bytes: usize, properties: In<AllocationProperties>, flags: u64) -> Done {
    let properties = properties.get()?;
    let place = place(&properties)?;
    let bytes = bytes as u64;
    if flags != 0 || handle.is_null() || bytes == 0 || !bytes.is_multiple_of(PAGE) {
        return Err(Status::INVALID_VALUE);
    }
    if properties.handle_types != 0 {
        return Err(Status::NOT_SUPPORTED);
    }
    let location = (properties.location.kind, properties.location.id);
    handle.set(handles::retain(&Physical::create(bytes, place, location)?))
}

fn release(handle: u64) -> Done {
    handles::release(handle)
}

fn map(address: u64, bytes: usize, offset: usize, handle: u64, flags: u64) -> Done {
    if flags != 0 {
        return Err(Status::INVALID_VALUE);
    }
    let object = handles::object(handle)?;
    space::change(|space| space.map(address, bytes as u64, offset as u64, object))
}

fn unmap(address: u64, bytes: usize) -> Done {
    let bytes = bytes as u64;
    space::view().uncut(address, bytes)?;
    if let Some(user) = stream::user_of(address, bytes) {
        let message = format!("{address:#x} + {bytes:#x} is unmapped while {user}");
        journal().detect(Detection::UnmapInUse, &message);
    }
    space::change(|space| space.unmap(address, bytes))
}

fn set_access(address: u64, bytes: usize, list: In<AccessDescription>, count: usize) -> Done {
    let list = list.list(count)?;
    if list.is_empty() {
        return Err(Status::INVALID_VALUE);
    }
    space::view().spanned(address, bytes as u64)?;
    if let Some(user) = stream::user_of(address, bytes as u64) {
        let message = format!("access of {address:#x} + {bytes:#x} is set while {user}");
        journal().detect(Detection::AccessInUse, &message);
    }
    for entry in &list {
        let flags = match entry.flags {
            0 => (false, false),
            1 => (true, false),
            3 => (true, true),
            _ => return Err(Status::INVALID_VALUE),
        };
        let who = match entry.location.kind {
            LOCATION_DEVICE => Some(device(entry.location.id)?),
            LOCATION_HOST | LOCATION_HOST_NUMA => None,
            _ => return Err(Status::INVALID_VALUE),
        };
        space::change(|space| space.set_access(address, bytes as u64, who, flags))?;
    }
    Ok(())
}

fn get_access(flags: Out<u64>, location: In<Location>, address: u64) -> Done {
    let location = location.get()?;
    let view = space::view();
    let (_, mapping) = view.mapping(address).ok_or(Status::INVALID_VALUE)?;
    let (reads, writes) = match location.kind {
        LOCATION_DEVICE => {
            let bit = 1 << device(location.id)?;
            (mapping.readers & bit != 0, mapping.writers & bit != 0)
        }
        LOCATION_HOST | LOCATION_HOST_NUMA => mapping.host,
        _ => return Err(Status::INVALID_VALUE),
    };
    flags.set(if writes { 3 } else { u64::from(reads) })
}

fn retain(handle: Out<u64>, address: u64) -> Done {
    let view = space::view();
    let (_, mapping) = view.mapping(address).ok_or(Status::INVALID_VALUE)?;
    if mapping.allocation.is_some() {
        return Err(Status::INVALID_VALUE);
    }
    handle.set(handles::retain(&mapping.object))
}

fn properties(properties: Out<AllocationProperties>, handle: u64) -> Done {
    let (kind, id) = handles::object(handle)?.location;
    properties.set(AllocationProperties {
        kind: PINNED,
        handle_types: 0,
        location: Location { kind, id },
        win32: std::ptr::null_mut(),
        flags: [0; 8],
    })
}
