//! The address space that kernels and copies see: reservations, mappings, allocations, registered host memory.
//!
//! Decides what may be mapped, unmapped and reached (the limits a GPU driver has); `os` does it, `access` uses it.

use super::physical::{self, Physical, Place};
use super::{PAGE, os, round_up};
use crate::locks::{read, write};
use crate::status::{Done, Status};
use std::collections::BTreeMap;
use std::sync::{Arc, RwLock, RwLockReadGuard};

/// Device addresses begin here; host memory of a Linux process lies far above.
const FIRST_ALLOCATION: u64 = 0x2000_0000_0000;
/// Bytes from which a reservation stands at the wanted address.
const CHUNK: u64 = 32 << 20;
const FIRST_RESERVATION: u64 = 0x3000_0000_0000;
const END: u64 = 0x5000_0000_0000;

/// A range with physical memory.
pub(crate) struct Mapping {
    /// Bytes mapped.
    pub(crate) bytes: u64,
    /// Bytes that the program asked for; the same unless it is an allocation.
    pub(crate) requested: u64,
    pub(crate) object: Arc<Physical>,
    /// Bit n: device n may read.
    pub(crate) readers: u32,
    /// Bit n: device n may write.
    pub(crate) writers: u32,
    /// Access of the processor: read, write.
    pub(crate) host: (bool, bool),
    /// The context of a `cuMemAlloc` allocation; `None` for `cuMemMap`.
    pub(crate) allocation: Option<u64>,
}

/// Page-locked host memory.
pub(crate) struct HostRange {
    pub(crate) bytes: u64,
    /// Made by `cuMemHostAlloc`, so `cuMemFreeHost` gives it back.
    pub(crate) allocated: bool,
    pub(crate) flags: u32,
}

#[derive(Default)]
pub(crate) struct Space {
    pub(crate) reservations: BTreeMap<u64, u64>,
    pub(crate) mappings: BTreeMap<u64, Mapping>,
    pub(crate) host: BTreeMap<u64, HostRange>,
    next_allocation: u64,
    /// Pairs (device that reaches, device that owns) with peer access to plain allocations.
    peers: Vec<(usize, usize)>,
}

/// Why an access is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Denied {
    /// No memory, or no access, at this address.
    Unmapped(u64),
    /// The mapping at this address is read-only.
    ReadOnly(u64),
}

/// A stretch of physical memory behind a range of addresses. Host memory has object 0 and its address as offset.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece {
    pub(crate) object: u64,
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
}

/// How the driver sees a range of host memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HostKind {
    Pageable,
    Pinned,
    /// Begins in a registration and ends elsewhere.
    Crossing,
}

static SPACE: RwLock<Option<Space>> = RwLock::new(None);

/// Runs `body` with the address space locked for changes; it waits for accesses in progress.
pub(crate) fn change<T>(body: impl FnOnce(&mut Space) -> T) -> T {
    body(write(&SPACE).get_or_insert_default())
}

/// The address space, unchanged while the guard lives.
pub(crate) struct View(RwLockReadGuard<'static, Option<Space>>);

/// Looks at the address space.
pub(crate) fn view() -> View {
    View(read(&SPACE))
}

impl std::ops::Deref for View {
    type Target = Space;
    fn deref(&self) -> &Space {
        static EMPTY: Space = Space {
            reservations: BTreeMap::new(),
            mappings: BTreeMap::new(),
            host: BTreeMap::new(),
            next_allocation: 0,
            peers: Vec::new(),
        };
        self.0.as_ref().unwrap_or(&EMPTY)
    }
}

/// The entry whose range holds `address`.
fn holding<T>(map: &BTreeMap<u64, T>, address: u64, bytes: impl Fn(&T) -> u64) -> Option<(u64, &T)> {
    let (base, entry) = map.range(..=address).next_back()?;
    (address - base < bytes(entry)).then_some((*base, entry))
}

fn overlaps<T>(map: &BTreeMap<u64, T>, address: u64, length: u64, bytes: impl Fn(&T) -> u64) -> bool {
    map.range(..address + length).next_back().is_some_and(|(base, entry)| base + bytes(entry) > address)
}

impl Space {
    pub(crate) fn mapping(&self, address: u64) -> Option<(u64, &Mapping)> {
        holding(&self.mappings, address, |mapping| mapping.bytes)
    }

    pub(crate) fn host_range(&self, address: u64) -> Option<(u64, &HostRange)> {
        holding(&self.host, address, |range| range.bytes)
    }

    /// Whether the address is the driver's: it lies where device memory is handed out, and no host memory has come to lie there, registered or not, behind or in place
    /// of a reservation.
    pub(crate) fn is_device_address(&self, address: u64) -> bool {
        let reserved = || holding(&self.reservations, address, |size| *size).is_some();
        match address {
            FIRST_ALLOCATION..FIRST_RESERVATION => self.host_range(address).is_none(),
            FIRST_RESERVATION..END => reserved() || !os::is_mapped(address),
            _ => false,
        }
    }

    /// Reserves addresses, at `wanted` if it is free.
    pub(crate) fn reserve(&mut self, bytes: u64, alignment: u64, wanted: u64) -> Result<u64, Status> {
        if bytes == 0 || !bytes.is_multiple_of(PAGE) || (alignment != 0 && !alignment.is_power_of_two()) {
            return Err(Status::INVALID_VALUE);
        }
        let unit = alignment.max(PAGE);
        // The driver serves less than a chunk of its own from chunks that it has, wherever these lie.
        if wanted != 0 && bytes >= CHUNK && wanted.is_multiple_of(unit) && self.take(wanted, bytes) {
            return Ok(wanted);
        }
        let mut candidate = round_up(FIRST_RESERVATION, unit).ok_or(Status::INVALID_VALUE)?;
        let taken: Vec<(u64, u64)> = self.reservations.iter().map(|(base, size)| (*base, *size)).collect();
        for (base, size) in taken.into_iter().chain([(END, 0)]) {
            // Host memory may lie where a reservation was given back.
            while base >= candidate && base - candidate >= bytes {
                if self.take(candidate, bytes) {
                    return Ok(candidate);
                }
                candidate = round_up(candidate + bytes, unit).ok_or(Status::OUT_OF_MEMORY)?;
            }
            candidate = candidate.max(round_up(base + size, unit).ok_or(Status::OUT_OF_MEMORY)?);
        }
        Err(Status::OUT_OF_MEMORY)
    }

    fn take(&mut self, address: u64, bytes: u64) -> bool {
        let free = !overlaps(&self.reservations, address, bytes, |size| *size);
        let taken = free && os::reserve(address, bytes).is_ok();
        if taken {
            self.reservations.insert(address, bytes);
        }
        taken
    }

    /// Gives a whole reservation back; nothing may be mapped in it.
    pub(crate) fn free_reservation(&mut self, address: u64, bytes: u64) -> Done {
        if self.reservations.get(&address) != Some(&bytes)
            || overlaps(&self.mappings, address, bytes, |mapping| mapping.bytes)
        {
            return Err(Status::INVALID_VALUE);
        }
        self.reservations.remove(&address);
        os::give_back(address, bytes).map_err(|_| Status::OPERATING_SYSTEM)
    }

    /// Maps a whole handle. Parts and offsets are not supported, as on a GPU.
    pub(crate) fn map(&mut self, address: u64, bytes: u64, offset: u64, object: Arc<Physical>) -> Done {
        if bytes == 0 || !address.is_multiple_of(PAGE) || bytes > object.bytes {
            return Err(Status::INVALID_VALUE);
        }
        if offset != 0 || bytes != object.bytes {
            return Err(Status::NOT_SUPPORTED);
        }
        let inside = holding(&self.reservations, address, |size| *size)
            .is_some_and(|(base, size)| address + bytes <= base + size);
        if !inside || overlaps(&self.mappings, address, bytes, |mapping| mapping.bytes) {
            return Err(Status::INVALID_VALUE);
        }
        os::place(address, bytes, physical::file()?, object.offset).map_err(|_| Status::OUT_OF_MEMORY)?;
        let none = Mapping {
            bytes,
            requested: bytes,
            object,
            readers: 0,
            writers: 0,
            host: (false, false),
            allocation: None,
        };
        self.mappings.insert(address, none);
        Ok(())
    }

    /// The mappings made by `map` in a range that begins and ends with one; holes between are no error, as on a GPU.
    ///
    /// # Errors
    /// `INVALID_VALUE` when an end of the range is not mapped, or the range cuts a mapping.
    pub(crate) fn spanned(&self, address: u64, bytes: u64) -> Result<Vec<u64>, Status> {
        let bases = self.uncut(address, bytes)?;
        let ends = self.mapping(address).is_some() && self.mapping(address + bytes - 1).is_some();
        if ends { Ok(bases) } else { Err(Status::INVALID_VALUE) }
    }

    /// The mappings made by `map` that lie in the range; holes are no error, as on a GPU.
    ///
    /// # Errors
    /// `INVALID_VALUE` when the range cuts a mapping, or is not inside one reservation.
    pub(crate) fn uncut(&self, address: u64, bytes: u64) -> Result<Vec<u64>, Status> {
        let end = address.checked_add(bytes).filter(|end| *end > address).ok_or(Status::INVALID_VALUE)?;
        let reserved = holding(&self.reservations, address, |size| *size);
        let cut = |at: u64| self.mapping(at).is_some_and(|(base, _)| base != at);
        if reserved.is_none_or(|(base, size)| end > base + size) || cut(address) || cut(end) {
            return Err(Status::INVALID_VALUE);
        }
        Ok(self.mappings.range(address..end).map(|(base, _)| *base).collect())
    }

    /// Unmaps whole mappings.
    pub(crate) fn unmap(&mut self, address: u64, bytes: u64) -> Done {
        for base in self.uncut(address, bytes)? {
            if let Some(mapping) = self.mappings.remove(&base) {
                os::displace(base, mapping.bytes).map_err(|_| Status::OPERATING_SYSTEM)?;
            }
        }
        Ok(())
    }

    /// Sets the access of a device (`Some`) or the processor (`None`) to whole mappings.
    pub(crate) fn set_access(
        &mut self,
        address: u64,
        bytes: u64,
        who: Option<usize>,
        flags: (bool, bool),
    ) -> Done {
        for base in self.spanned(address, bytes)? {
            let Some(mapping) = self.mappings.get_mut(&base) else { continue };
            match who {
                Some(device) => {
                    let set = |mask: u32, on: bool| (mask & !(1 << device)) | (u32::from(on) << device);
                    mapping.readers = set(mapping.readers, flags.0);
                    mapping.writers = set(mapping.writers, flags.1);
                }
                None => mapping.host = flags,
            }
            // Kernels run as host threads, so the pages open up for whoever may do most; `allowed` tells them apart.
            let open = (mapping.readers != 0 || mapping.host.0, mapping.writers != 0 || mapping.host.1);
            os::protect(base, mapping.bytes, open.0, open.1).map_err(|_| Status::OPERATING_SYSTEM)?;
        }
        Ok(())
    }

    /// `cuMemAlloc`: memory and addresses in one.
    pub(crate) fn allocate(&mut self, bytes: u64, device: usize, context: u64) -> Result<u64, Status> {
        let length = round_up(bytes, 4096).filter(|_| bytes > 0).ok_or(Status::INVALID_VALUE)?;
        let object =
            Physical::create(length, Place::Device(device), (crate::abi::LOCATION_DEVICE, device as i32))?;
        let unit = if bytes >= 1 << 20 { PAGE } else { 4096 };
        // A page without memory stays between allocations, so that a stray access is noticed.
        let address =
            round_up(self.next_allocation.max(FIRST_ALLOCATION) + 4096, unit).ok_or(Status::OUT_OF_MEMORY)?;
        if address + length > FIRST_RESERVATION {
            return Err(Status::OUT_OF_MEMORY);
        }
        self.next_allocation = address + length;
        os::reserve(address, length).map_err(|_| Status::OUT_OF_MEMORY)?;
        os::place(address, length, physical::file()?, object.offset).map_err(|_| Status::OUT_OF_MEMORY)?;
        os::protect(address, length, true, true).map_err(|_| Status::OUT_OF_MEMORY)?;
        let peers = self.peers.iter().filter(|(_, owner)| *owner == device);
        let mask = peers.fold(1 << device, |mask, (peer, _)| mask | 1 << peer);
        let mapping = Mapping {
            bytes: length,
            requested: bytes,
            object,
            readers: mask,
            writers: mask,
            host: (false, false),
            allocation: Some(context),
        };
        self.mappings.insert(address, mapping);
        Ok(address)
    }

    /// The bytes of the allocation that begins at `address`.
    pub(crate) fn allocation(&self, address: u64) -> Result<u64, Status> {
        let mapping = self.mappings.get(&address).filter(|mapping| mapping.allocation.is_some());
        mapping.map(|mapping| mapping.bytes).ok_or(Status::INVALID_VALUE)
    }

    /// Frees the allocation that begins at `address`.
    pub(crate) fn free(&mut self, address: u64) -> Done {
        let bytes = self.allocation(address)?;
        self.mappings.remove(&address);
        os::give_back(address, bytes).map_err(|_| Status::OPERATING_SYSTEM)
    }

    /// Frees what a destroyed context still holds.
    pub(crate) fn free_context(&mut self, context: u64) {
        let left = self.mappings.iter().filter(|(_, mapping)| mapping.allocation == Some(context));
        for address in left.map(|(address, _)| *address).collect::<Vec<_>>() {
            // An address that was just listed is an allocation; the system call is the only thing that can fail.
            let _ = self.free(address);
        }
    }

    /// Lets a device reach the plain allocations of another one, or no more. Mappings have their own access.
    pub(crate) fn enable_peer(&mut self, device: usize, owner: usize, on: bool) {
        self.peers.retain(|pair| *pair != (device, owner));
        if on {
            self.peers.push((device, owner));
        }
        for mapping in self.mappings.values_mut() {
            if mapping.allocation.is_some() && mapping.object.place == Place::Device(owner) {
                let bit = u32::from(on) << device;
                mapping.readers = mapping.readers & !(1 << device) | bit;
                mapping.writers = mapping.writers & !(1 << device) | bit;
            }
        }
    }

    /// Page-locks host memory.
    pub(crate) fn register(&mut self, address: u64, range: HostRange) -> Done {
        let end = address.checked_add(range.bytes).ok_or(Status::INVALID_VALUE)?;
        let reserved = overlaps(&self.reservations, address, range.bytes, |size| *size);
        let mapped = overlaps(&self.mappings, address, range.bytes, |mapping| mapping.bytes);
        if address == 0 || range.bytes == 0 || reserved || mapped || end > 1 << 47 {
            return Err(Status::INVALID_VALUE);
        }
        if overlaps(&self.host, address, range.bytes, |range| range.bytes) {
            return Err(Status::HOST_MEMORY_ALREADY_REGISTERED);
        }
        self.host.insert(address, range);
        Ok(())
    }

    /// How a range of host memory is registered.
    pub(crate) fn host_kind(&self, address: u64, bytes: u64) -> HostKind {
        if let Some((base, range)) = self.host_range(address) {
            let whole = address + bytes <= base + range.bytes;
            return if whole { HostKind::Pinned } else { HostKind::Crossing };
        }
        // What begins outside is pageable wherever it ends, as measured.
        HostKind::Pageable
    }

    /// The device whose access counts when `device` copies from or to an address: plain allocations are copied between devices whatever peers were
    /// enabled, mappings are only where the copy names both contexts (`by_owners`).
    pub(crate) fn copier(&self, device: usize, address: u64, by_owners: bool) -> usize {
        match self.mapping(address) {
            Some((_, mapping)) if by_owners || mapping.allocation.is_some() => match mapping.object.place {
                Place::Device(owner) => owner,
                Place::Host => device,
            },
            _ => device,
        }
    }

    /// Checks that a device may reach a range.
    pub(crate) fn allowed(
        &self,
        device: usize,
        address: u64,
        bytes: u64,
        writes: bool,
    ) -> Result<(), Denied> {
        let end = address.checked_add(bytes).ok_or(Denied::Unmapped(address))?;
        let mut at = address;
        while at < end {
            if let Some((base, mapping)) = self.mapping(at) {
                let bit = 1 << device;
                if mapping.readers & bit == 0 {
                    return Err(Denied::Unmapped(at));
                }
                if writes && mapping.writers & bit == 0 {
                    return Err(Denied::ReadOnly(at));
                }
                at = base + mapping.bytes;
            } else if let Some((base, range)) = self.host_range(at) {
                at = base + range.bytes;
            } else {
                return Err(Denied::Unmapped(at));
            }
        }
        Ok(())
    }

    /// The physical memory behind a range; addresses without memory are left out.
    pub(crate) fn pieces(&self, address: u64, bytes: u64) -> Vec<Piece> {
        let mut pieces = Vec::new();
        let (mut at, end) = (address, address.saturating_add(bytes));
        while at < end {
            let (next, object, offset) = if let Some((base, mapping)) = self.mapping(at) {
                (base + mapping.bytes, mapping.object.id, at - base)
            } else if let Some((base, range)) = self.host_range(at) {
                (base + range.bytes, 0, at)
            } else {
                break;
            };
            pieces.push(Piece { object, offset, bytes: next.min(end) - at });
            at = next;
        }
        pieces
    }
}
