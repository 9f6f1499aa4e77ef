//! The driver's list of exported names: each name of our table gets the address of our function. The dynamic linker answers `dlsym` and binds other
//! libraries by this list, so every later lookup finds us, whichever way round the libraries stand in its search order.

#![expect(unsafe_code, reason = "reads and writes the driver's symbol table")]

use super::objects::{self, Object};
use crate::hooks;
use std::ffi::CStr;
use std::ops::Range;

/// Entries of the dynamic section that are needed here.
const DT_NULL: i64 = 0;
const DT_HASH: i64 = 4;
const DT_STRTAB: i64 = 5;
const DT_SYMTAB: i64 = 6;
const DT_GNU_HASH: i64 = 0x6fff_fef5;
/// Kind of a symbol that is a function.
const STT_FUNC: u8 = 2;
const PAGE: usize = 4096;

/// Gives our addresses to the names of the driver that lies at `driver`; returns how many.
///
/// # Errors
/// The list has a form that is not known, or may not be written.
pub(super) fn rewrite(driver: &Range<usize>) -> Result<usize, String> {
    let mut outcome = Err("the driver has no list of exported names".to_owned());
    let mut table = None;
    objects::for_each(|object| {
        if object.holds(driver.start) {
            table = Table::of(object);
        }
    });
    // Outside the walk: the driver is pinned, and messages allocate.
    if let Some(table) = table {
        outcome = table.rewrite();
    }
    outcome
}

/// The symbol table of an object.
struct Table {
    base: usize,
    symbols: *mut libc::Elf64_Sym,
    count: usize,
    names: *const libc::c_char,
    /// `PROT_*` bits of the pages that it lies on.
    protection: i32,
}

impl Table {
    fn of(object: &Object) -> Option<Self> {
        let (mut symbols, mut names, mut hash, mut gnu_hash) = (0, 0, 0, 0);
        // The linker has made addresses of these entries where it could write them.
        let absolute = |value: u64| {
            if (value as usize) < object.base { object.base + value as usize } else { value as usize }
        };
        for at in object.dynamic().step_by(16) {
            // SAFETY: the dynamic section consists of pairs of 64-bit words, up to a pair of kind 0.
            let [kind, value] = unsafe { *(at as *const [u64; 2]) };
            match kind as i64 {
                DT_NULL => break,
                DT_SYMTAB => symbols = absolute(value),
                DT_STRTAB => names = absolute(value),
                DT_HASH => hash = absolute(value),
                DT_GNU_HASH => gnu_hash = absolute(value),
                _ => {}
            }
        }
        if symbols == 0 || names == 0 {
            return None;
        }
        let count = if hash != 0 {
            half_word(hash, 1)
        } else if gnu_hash != 0 {
            count_by_gnu_hash(gnu_hash)
        } else {
            return None;
        };
        let segment = object.segments().find(|segment| segment.range.contains(&symbols))?;
        let bits =
            [(libc::PF_R, libc::PROT_READ), (libc::PF_W, libc::PROT_WRITE), (libc::PF_X, libc::PROT_EXEC)];
        let protection = bits.iter().filter(|(flag, _)| segment.flags & flag != 0).map(|(_, bit)| bit).sum();
        Some(Self {
            base: object.base,
            symbols: symbols as *mut _,
            count,
            names: names as *const _,
            protection,
        })
    }

    /// Where our function of the symbol stands, if the symbol means the driver's function that we know under its name.
    fn wanted(&self, symbol: &libc::Elf64_Sym) -> Option<usize> {
        if symbol.st_shndx == 0 || symbol.st_info & 0xf != STT_FUNC {
            return None;
        }
        // SAFETY: a symbol's name is an offset into the table of NUL-terminated names.
        let name = unsafe { self.names.add(symbol.st_name as usize) };
        // SAFETY: as above.
        let row = hooks::row_of_name(unsafe { CStr::from_ptr(name) }.to_bytes())?;
        let address = self.base.wrapping_add(symbol.st_value as usize);
        (address == row.original().addr()).then(|| row.shell().addr())
    }

    fn rewrite(&self) -> Result<usize, String> {
        let first = self.symbols.addr() / PAGE * PAGE;
        let end = self.symbols.addr() + self.count * size_of::<libc::Elf64_Sym>();
        let bytes = end.next_multiple_of(PAGE) - first;
        // Other rights stay: these pages may hold code as well, which runs meanwhile.
        protect(first, bytes, self.protection | libc::PROT_WRITE)
            .map_err(|error| format!("the driver's list of names cannot be made writable: {error}"))?;
        let mut rewritten = 0;
        for index in 0..self.count {
            // SAFETY: the index is below the number of symbols.
            let symbol = unsafe { self.symbols.add(index) };
            // SAFETY: as above; the linker writes no symbol table.
            if let Some(ours) = self.wanted(unsafe { &*symbol }) {
                // SAFETY: as above.
                let value = unsafe { &raw mut (*symbol).st_value };
                // SAFETY: the pages are writable now; a symbol's value is an aligned word, which readers see whole.
                unsafe { value.write_volatile(ours.wrapping_sub(self.base) as u64) };
                rewritten += 1;
            }
        }
        // Left writable it does no harm.
        let _ = protect(first, bytes, self.protection);
        Ok(rewritten)
    }
}

/// The number of symbols by the newer kind of hash table: the end of the chain that begins last.
fn count_by_gnu_hash(section: usize) -> usize {
    // Four words, a filter of 64-bit words, buckets, chains.
    let word = |index: usize| half_word(section, index);
    let (buckets, first_symbol, filter_words) = (word(0), word(1), word(2));
    let bucket = 4 + 2 * filter_words;
    let chain = bucket + buckets;
    let last = (0..buckets).map(|at| word(bucket + at)).max().unwrap_or(0);
    if last < first_symbol {
        return first_symbol;
    }
    // The lowest bit of a chain's word marks its end.
    let mut at = last;
    while word(chain + at - first_symbol) & 1 == 0 {
        at += 1;
    }
    at + 1
}

/// A 32-bit word of a hash section, by its place there.
fn half_word(section: usize, index: usize) -> usize {
    // SAFETY: callers pass the address of a section of the loaded driver, and a place that the words before it say is there.
    let word = unsafe { *((section + 4 * index) as *const u32) };
    word as usize
}

/// Changes the rights of whole pages.
pub(super) fn protect(address: usize, bytes: usize, protection: i32) -> std::io::Result<()> {
    // SAFETY: callers pass pages of a loaded object, and only ever add the right to write, or take it back.
    let code = unsafe { libc::mprotect(address as *mut libc::c_void, bytes, protection) };
    if code == 0 { Ok(()) } else { Err(std::io::Error::last_os_error()) }
}
