//! A second, writable address of each ring page, for our own copies; and the search for ring pages under addresses that are no weight's: memory that an
//! allocator handed out again while it is still streamed.

#![expect(unsafe_code, reason = "reads the parameters of launches")]

use std::collections::{BTreeMap, HashSet};
use std::sync::{Mutex, MutexGuard};

use super::super::arena::{Arena, Meaning, PAGE};
use super::super::gate;
use super::super::scan::Parameters;
use super::{By, Kind, LOOKED, callers, count, found};
use crate::ffi::result::CudaResult;
use crate::ffi::vmm::{self, Handle, Memory};

/// The ring once more, in one piece.
#[derive(Debug)]
pub(super) struct Alias {
    base: u64,
    pages: u64,
}

impl Alias {
    /// Everything, or nothing and the driver's reason.
    pub(super) fn of(ring: &[Handle], device: i32) -> CudaResult<Self> {
        let bytes = ring.len() * PAGE as usize;
        let base = vmm::reserve(bytes, PAGE as usize, 0)?;
        let mapped = (0..)
            .zip(ring)
            .try_for_each(|(page, &handle)| vmm::map(base + page * PAGE, PAGE as usize, handle));
        let alias = Self { base, pages: ring.len() as u64 };
        match mapped.and_then(|()| vmm::allow(base, bytes, device)) {
            Ok(()) => Ok(alias),
            Err(error) => {
                alias.give_back();
                Err(error)
            }
        }
    }

    /// Nobody uses it any more.
    pub(super) fn give_back(self) {
        let bytes = (self.pages * PAGE) as usize;
        let _ = vmm::unmap(self.base, bytes);
        let _ = vmm::unreserve(self.base, bytes);
    }

    /// Pages from `first` on, as (pages, address), cut where the ring ends. More than the ring holds makes no sense.
    pub(super) fn runs(&self, first: u64, pages: u64) -> impl Iterator<Item = (u64, u64)> + use<> {
        let first = first % self.pages;
        let before_end = pages.min(self.pages - first);
        let runs = [(before_end, self.base + first * PAGE), (pages - before_end, self.base)];
        runs.into_iter().filter(|(pages, _)| *pages > 0)
    }
}

/// Pages of each device's ring, and the ring's number.
type Rings = BTreeMap<i32, (u64, HashSet<Memory>)>;

/// Taken after any other lock but those of names and findings.
fn rings() -> MutexGuard<'static, Rings> {
    static RINGS: Mutex<Rings> = Mutex::new(BTreeMap::new());
    RINGS.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// These are the pages of the device's ring from now on.
pub(super) fn note_ring(device: i32, number: u64, ring: &[Handle]) {
    rings().insert(device, (number, ring.iter().map(|page| page.memory()).collect()));
}

/// That ring is gone; another one may have taken its place.
pub(super) fn forget_ring(device: i32, number: u64) {
    let mut rings = rings();
    if rings.get(&device).is_some_and(|(known, _)| *known == number) {
        rings.remove(&device);
    }
}

/// Looks at what a launch shows beside weights. Behind the gate, so that no page is on its way.
///
/// # Safety
/// As for [`Parameters::each_weight`].
pub(crate) unsafe fn look_at_launch(arena: &Arena, parameters: Parameters, by: By) {
    let _inside = gate::enter();
    // SAFETY: the caller's promise.
    unsafe {
        parameters.each_address(arena, |shown| {
            if shown.meaning == Meaning::Nothing {
                look_at(shown.address, by);
            }
        });
    }
}

/// The same for the pages of a copy or fill.
pub(crate) fn look_at_range(arena: &Arena, pages: impl Iterator<Item = u64>) {
    let _inside = gate::enter();
    pages.filter(|&page| arena.meaning(page) == Meaning::Nothing).for_each(|page| look_at(page, By::Copy));
}

fn look_at(address: u64, by: By) {
    if rings().is_empty() {
        return;
    }
    count(&LOOKED.addresses, 1);
    let Ok(memory) = vmm::memory_at(address / PAGE * PAGE) else { return };
    if rings().values().any(|(_, ring)| ring.contains(&memory)) {
        let name = callers::name_of(callers::caller_of(by));
        let text = format!(
            "memory at {address:#x} is used by {name}, is no weight that is streamed, and still has pages of the ring (rule 12)"
        );
        found(Kind::Aliased.key(), text);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_goes_round_is_cut_where_the_ring_ends() {
        let alias = Alias { base: 1 << 40, pages: 6 };
        let runs = |first, pages| alias.runs(first, pages).collect::<Vec<_>>();
        assert_eq!(runs(1, 3), [(3, (1 << 40) + PAGE)]);
        assert_eq!(runs(4, 2), [(2, (1 << 40) + 4 * PAGE)]);
        assert_eq!(runs(4, 5), [(2, (1 << 40) + 4 * PAGE), (3, 1 << 40)]);
        assert_eq!(runs(7, 1), [(1, (1 << 40) + PAGE)]);
    }
}
