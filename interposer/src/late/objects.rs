//! The objects that the dynamic linker has loaded, walked under its lock: none of them goes away meanwhile. What is done inside a walk neither allocates
//! nor takes a lock.

#![expect(unsafe_code, reason = "the dynamic linker's walk, and its program headers")]

use std::ffi::{c_int, c_void};
use std::ops::Range;

/// One loaded object.
pub(super) struct Object<'a> {
    /// What is added to the addresses in its file.
    pub(super) base: usize,
    headers: &'a [libc::Elf64_Phdr],
}

/// A part of an object's file as it lies in memory.
pub(super) struct Segment {
    pub(super) range: Range<usize>,
    /// `PF_*` bits.
    pub(super) flags: u32,
}

impl Object<'_> {
    /// Its loadable parts.
    pub(super) fn segments(&self) -> impl Iterator<Item = Segment> {
        self.headers
            .iter()
            .filter(|header| header.p_type == libc::PT_LOAD)
            .map(|header| Segment { range: self.range(header), flags: header.p_flags })
    }

    /// Its dynamic section; empty if it has none.
    pub(super) fn dynamic(&self) -> Range<usize> {
        let header = self.headers.iter().find(|header| header.p_type == libc::PT_DYNAMIC);
        header.map_or(0..0, |header| self.range(header))
    }

    /// Whether an address lies in it.
    pub(super) fn holds(&self, address: usize) -> bool {
        self.segments().any(|segment| segment.range.contains(&address))
    }

    fn range(&self, header: &libc::Elf64_Phdr) -> Range<usize> {
        let start = self.base.wrapping_add(header.p_vaddr as usize);
        start..start.wrapping_add(header.p_memsz as usize)
    }
}

type Work<'a> = &'a mut dyn FnMut(&Object);

/// Calls `work` with each loaded object.
pub(super) fn for_each(mut work: impl FnMut(&Object)) {
    let mut work: Work = &mut work;
    // SAFETY: the callback is called only during this call, with the pointer that is passed here.
    unsafe { libc::dl_iterate_phdr(Some(visit), (&raw mut work).cast()) };
}

unsafe extern "C" fn visit(info: *mut libc::dl_phdr_info, _size: usize, work: *mut c_void) -> c_int {
    // SAFETY: dl_iterate_phdr passes a valid description.
    let info = unsafe { &*info };
    if info.dlpi_phdr.is_null() {
        return 0;
    }
    // SAFETY: the pointer that `for_each` passed, which nothing else uses during the walk.
    let work = unsafe { &mut *work.cast::<Work>() };
    // SAFETY: the linker's table of `dlpi_phnum` program headers, which lives as long as the object.
    let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    work(&Object { base: info.dlpi_addr as usize, headers });
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_walk_meets_the_object_of_a_function_once() {
        let address = visit as *const c_void;
        let mut met = 0;
        for_each(|object| met += usize::from(object.holds(address.addr())));
        assert_eq!(met, 1);
    }
}
