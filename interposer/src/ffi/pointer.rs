//! What lies at an address that may be anything: which memory the driver takes it for, and host memory that may not be there at all.

#![expect(unsafe_code, reason = "typed calls into the driver and the system")]

use super::context::Context;
use super::real::driver;
use super::types::*;

/// `CU_POINTER_ATTRIBUTE_MEMORY_TYPE`.
const MEMORY_TYPE: c_uint = 2;

/// `CU_POINTER_ATTRIBUTE_CONTEXT`.
const CONTEXT: c_uint = 1;

/// `CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL`.
const DEVICE_ORDINAL: c_uint = 9;

/// The device and the context of memory of a device; none for host memory, and where the driver does not tell.
pub(crate) fn owner(address: u64) -> Option<(i32, Context)> {
    if place(address) != Place::Device {
        return None;
    }
    let mut raw: CUcontext = std::ptr::null_mut();
    // SAFETY: the attribute is a context, and the pointer is to a local that lives through the call.
    unsafe { driver().cuPointerGetAttribute((&raw mut raw).cast(), CONTEXT, address) }.ok().ok()?;
    let mut device: c_int = 0;
    // SAFETY: the attribute is a number, and the pointer is to a local that lives through the call.
    unsafe { driver().cuPointerGetAttribute((&raw mut device).cast(), DEVICE_ORDINAL, address) }.ok().ok()?;
    let context = Context::from(raw);
    (!context.is_none()).then_some((device, context))
}

/// Where an address leads.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    /// Memory of a device, or nothing that may be read here.
    Device,
    /// Host memory that the driver knows.
    Pinned,
    /// Nothing that the driver knows: pageable host memory, if anything.
    Unknown,
}

/// Where the driver says that the address leads.
pub(crate) fn place(address: u64) -> Place {
    let mut kind: c_uint = 0;
    // SAFETY: the attribute is an unsigned number, and the pointer is to a local that lives through the call.
    let code = unsafe { driver().cuPointerGetAttribute((&raw mut kind).cast(), MEMORY_TYPE, address) };
    match code {
        CUresult::CUDA_ERROR_INVALID_VALUE => Place::Unknown,
        CUresult::CUDA_SUCCESS if kind == memory_type::HOST => Place::Pinned,
        _ => Place::Device,
    }
}

/// Reads words of host memory at `address`, which need not be mapped: returns how many whole words were read.
pub(crate) fn read_if_mapped(address: u64, words: &mut [u64]) -> usize {
    let bytes = size_of_val(words);
    let to = libc::iovec { iov_base: words.as_mut_ptr().cast(), iov_len: bytes };
    let from =
        libc::iovec { iov_base: std::ptr::with_exposed_provenance_mut(address as usize), iov_len: bytes };
    let this = std::process::id().cast_signed();
    // SAFETY: the target is a slice of ours; the source is read by the system, which answers with an error where nothing is mapped.
    let read = unsafe { libc::process_vm_readv(this, &to, 1, &from, 1, 0) };
    usize::try_from(read).unwrap_or(0) / size_of::<u64>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_that_is_not_there_is_not_read_and_is_no_fault() {
        let here = [1_u64, 2, 3];
        let mut words = [0; 3];
        assert_eq!(read_if_mapped(here.as_ptr().expose_provenance() as u64, &mut words), 3);
        assert_eq!(words, here);
        assert_eq!(read_if_mapped(8, &mut words), 0);
    }
}
