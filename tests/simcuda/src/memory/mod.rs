//! Device memory: physical handles, addresses, registered host memory, and checked access to their bytes.
//!
//! - `os`: the system calls (one shared memory file is the physical memory of all devices)
//! - `physical`: physical allocations and the device limit
//! - `handles`: reference counts of `cuMemCreate` handles
//! - `space`: reservations, mappings, allocations, registered host ranges
//! - `access`: reading and writing bytes with the checks that a GPU's page tables make

pub(crate) mod access;
pub(crate) mod handles;
pub(crate) mod os;
pub(crate) mod physical;
pub(crate) mod space;

/// Bytes of one page: granularity of handles, mappings and the ring.
pub(crate) const PAGE: u64 = 2 << 20;

/// Rounds up to a multiple of `unit`; `None` on overflow.
pub(crate) fn round_up(value: u64, unit: u64) -> Option<u64> {
    Some(value.checked_add(unit - 1)? / unit * unit)
}
