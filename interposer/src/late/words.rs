//! Addresses of driver functions in the data of loaded libraries: tables that runtimes filled by lookups (cudart and its static copies keep theirs in
//! their data), and slots that the dynamic linker bound. An aligned word that is exactly the address of a hooked function becomes that of our function.

#![expect(unsafe_code, reason = "reads and writes the data of other libraries")]

use super::mappings::{Mapping, Mappings};
use super::objects::{self, Object};
use super::symbols::protect;
use crate::{hooks, resolve};
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};

const WORD: usize = size_of::<usize>();
const PAGE: usize = 4096;

/// Rewrites all of them; returns how many, and in how many libraries.
///
/// # Errors
/// A page of linker slots may not be written.
pub(super) fn rewrite(mappings: &Mappings, driver: &Range<usize>) -> Result<(usize, usize), String> {
    // On the heap, where nothing is rewritten.
    let mut known: Vec<(usize, usize)> = hooks::rows()
        .filter(|row| !row.original().is_null())
        .map(|row| (row.original().addr(), row.shell().addr()))
        .collect();
    known.sort_unstable();
    let search = Search { known, driver: driver.clone() };
    let (mut words, mut libraries, mut refused) = (0, 0, None);
    objects::for_each(|object| {
        // The driver calls its own functions, and we call the driver's.
        if object.holds(driver.start) || object.holds(resolve::own_dlsym()) {
            return;
        }
        match search.rewrite(object, mappings) {
            Ok(0) => {}
            Ok(found) => {
                words += found;
                libraries += 1;
            }
            Err(code) => refused = Some(code),
        }
    });
    match refused {
        None => Ok((words, libraries)),
        Some(code) => Err(format!(
            "slots of a library cannot be made writable: {}",
            std::io::Error::from_raw_os_error(code)
        )),
    }
}

/// What is looked for.
struct Search {
    /// The driver's address and ours of every hooked function, in order of the first.
    known: Vec<(usize, usize)>,
    /// Where the driver lies: nearly every word is told by it.
    driver: Range<usize>,
}

impl Search {
    fn replacement(&self, word: usize) -> Option<usize> {
        if !self.driver.contains(&word) {
            return None;
        }
        let at = self.known.binary_search_by_key(&word, |(driver, _)| *driver).ok()?;
        Some(self.known[at].1)
    }

    /// Rewrites the words of one object; the error is the system's code.
    fn rewrite(&self, object: &Object, mappings: &Mappings) -> Result<usize, i32> {
        let mut rewritten = 0;
        for segment in object.segments().filter(|segment| segment.flags & libc::PF_W != 0) {
            for mapping in mappings.within(&segment.range).filter(Mapping::is_readable) {
                rewritten += self.rewrite_in(&mapping)?;
            }
        }
        Ok(rewritten)
    }

    fn rewrite_in(&self, mapping: &Mapping) -> Result<usize, i32> {
        let mut rewritten = 0;
        let first = mapping.range.start.next_multiple_of(WORD);
        for at in (first..mapping.range.end & !(WORD - 1)).step_by(WORD) {
            // SAFETY: an aligned word of a readable page that stays mapped during the walk; others may write it, which is why it is read as an atomic.
            let word = unsafe { AtomicUsize::from_ptr(at as *mut usize) };
            let found = word.load(Ordering::Relaxed);
            let Some(ours) = self.replacement(found) else { continue };
            let page = at / PAGE * PAGE;
            // Slots that the linker bound for good are read-only afterwards.
            if !mapping.is_writable() {
                protect(page, PAGE, mapping.protection | libc::PROT_WRITE)
                    .map_err(|error| error.raw_os_error().unwrap_or(libc::EACCES))?;
            }
            // Whoever wrote another value meanwhile keeps it.
            if word.compare_exchange(found, ours, Ordering::AcqRel, Ordering::Relaxed).is_ok() {
                rewritten += 1;
            }
            if !mapping.is_writable() {
                // Left writable it does no harm.
                let _ = protect(page, PAGE, mapping.protection);
            }
        }
        Ok(rewritten)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn search() -> Search {
        Search { known: vec![(0x1000, 0x9000), (0x1800, 0x9800)], driver: 0x1000..0x2000 }
    }

    #[test]
    fn only_the_exact_address_of_a_hooked_function_is_replaced() {
        let search = search();
        assert_eq!(search.replacement(0x1000), Some(0x9000));
        assert_eq!(search.replacement(0x1800), Some(0x9800));
        for other in [0, 0x1001, 0x17ff, 0x1fff, 0x2000, 0x9000] {
            assert_eq!(search.replacement(other), None, "{other:#x}");
        }
    }

    #[test]
    fn words_are_rewritten_where_they_stand_and_nothing_beside_them() {
        // Written through its address alone, as the data of other libraries is.
        static MEMORY: [AtomicUsize; 4] = [
            AtomicUsize::new(0x1000),
            AtomicUsize::new(5),
            AtomicUsize::new(0x1800),
            AtomicUsize::new(0x1004),
        ];
        let start = MEMORY.as_ptr().expose_provenance();
        let mapping = Mapping {
            range: start..start + size_of_val(&MEMORY),
            protection: libc::PROT_READ | libc::PROT_WRITE,
        };
        assert_eq!(search().rewrite_in(&mapping), Ok(2));
        let now: Vec<usize> = MEMORY.iter().map(|word| word.load(Ordering::Relaxed)).collect();
        assert_eq!(now, [0x9000, 5, 0x9800, 0x1004]);
    }
}
