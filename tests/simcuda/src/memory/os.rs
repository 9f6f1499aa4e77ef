//! The system calls below the address space. Addresses are plain numbers above this file.
//!
//! All functions work on ranges that `space` owns: it hands out device addresses itself, in a part of the address space
//! where nothing else is placed, and it alone maps there.
#![expect(unsafe_code, reason = "mmap and friends")]

use std::io::{Error, Result};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

fn check(result: i32) -> Result<()> {
    if result == 0 { Ok(()) } else { Err(Error::last_os_error()) }
}

fn map(address: u64, bytes: u64, protection: i32, flags: i32, fd: i32, offset: u64) -> Result<u64> {
    let pointer = address as *mut libc::c_void;
    // SAFETY: every caller in this file passes either no address, an address with MAP_FIXED_NOREPLACE, or an address
    // with MAP_FIXED inside a range that `space` has reserved for itself, so no foreign mapping is replaced.
    let got = unsafe { libc::mmap(pointer, bytes as usize, protection, flags, fd, offset as libc::off_t) };
    if got == libc::MAP_FAILED { Err(Error::last_os_error()) } else { Ok(got as u64) }
}

/// The file that stands for physical memory: sparse, so that offsets are never reused.
pub(crate) fn memory_file() -> Result<OwnedFd> {
    // SAFETY: the name is NUL-terminated.
    let fd = unsafe { libc::memfd_create(c"simcuda".as_ptr(), libc::MFD_CLOEXEC) };
    if fd < 0 {
        return Err(Error::last_os_error());
    }
    // SAFETY: the descriptor was just created and nobody else has it.
    let file = unsafe { OwnedFd::from_raw_fd(fd) };
    // SAFETY: the descriptor is open.
    check(unsafe { libc::ftruncate(file.as_raw_fd(), 1 << 45) })?;
    Ok(file)
}

/// Gives the bytes of a physical allocation back to the system.
pub(crate) fn discard(file: &OwnedFd, offset: u64, bytes: u64) -> Result<()> {
    let mode = libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE;
    // SAFETY: the descriptor is open.
    check(unsafe { libc::fallocate(file.as_raw_fd(), mode, offset as libc::off_t, bytes as libc::off_t) })
}

/// Takes an address range without memory; fails when something is there already.
pub(crate) fn reserve(address: u64, bytes: u64) -> Result<()> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED_NOREPLACE;
    let got = map(address, bytes, libc::PROT_NONE, flags, -1, 0)?;
    if got == address {
        return Ok(());
    }
    give_back(got, bytes)?;
    Err(Error::from_raw_os_error(libc::EEXIST))
}

/// Puts physical memory behind a reserved range, without access yet.
pub(crate) fn place(address: u64, bytes: u64, file: &OwnedFd, offset: u64) -> Result<()> {
    map(address, bytes, libc::PROT_NONE, libc::MAP_SHARED | libc::MAP_FIXED, file.as_raw_fd(), offset)
        .map(|_| ())
}

/// Takes the memory away from a range that stays reserved.
pub(crate) fn displace(address: u64, bytes: u64) -> Result<()> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE | libc::MAP_FIXED;
    map(address, bytes, libc::PROT_NONE, flags, -1, 0).map(|_| ())
}

/// Sets what may be done with a mapped range.
pub(crate) fn protect(address: u64, bytes: u64, read: bool, write: bool) -> Result<()> {
    let protection = match (read, write) {
        (_, true) => libc::PROT_READ | libc::PROT_WRITE,
        (true, false) => libc::PROT_READ,
        (false, false) => libc::PROT_NONE,
    };
    // SAFETY: the range belongs to `space`, and its readers hold the space's lock while they read.
    check(unsafe { libc::mprotect(address as *mut libc::c_void, bytes as usize, protection) })
}

/// Returns an address range to the system.
pub(crate) fn give_back(address: u64, bytes: u64) -> Result<()> {
    // SAFETY: the range was mapped by this file and `space` has forgotten it.
    check(unsafe { libc::munmap(address as *mut libc::c_void, bytes as usize) })
}

/// Whether anything lies at the address.
pub(crate) fn is_mapped(address: u64) -> bool {
    const SMALLEST: u64 = 4096;
    let page = (address - address % SMALLEST) as *mut libc::c_void;
    // SAFETY: the call touches no memory; it fails where none is mapped.
    unsafe { libc::msync(page, SMALLEST as usize, libc::MS_ASYNC) == 0 }
}

/// Fresh host memory, page aligned and zero.
pub(crate) fn host_memory(bytes: u64) -> Result<u64> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
    map(0, bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0)
}
