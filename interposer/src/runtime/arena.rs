//! The one range of addresses that holds every managed region, and what each of its pages means to a launch.
//! Physical memory behind the addresses is `regions`' matter.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};

use flextensor_core::units::UnitId;

use crate::ffi::result::CudaResult;
use crate::ffi::vmm;
use crate::quiet;

/// Bytes of one page: the driver's granularity, and the unit of everything here.
pub(crate) const PAGE: u64 = 2 << 20;

/// Addresses that are reserved once: far more than any machine's memory, so that they are never short.
const ARENA_BYTES: u64 = 1 << 40;

/// Upper halves of words that are looked at together.
pub(crate) const HALVES: usize = 16;
/// Bits of an upper half that addresses within a stretch as long as the arena may differ in.
const LOW_BITS: u32 = ARENA_BYTES.trailing_zeros() - 32;

/// What a launch that shows an address has to do. Packed into one word, so that one load answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Meaning {
    /// Nothing: no weight, or one that stays.
    Nothing,
    /// A weight whose model is being learnt.
    Learning(UnitId),
    /// A weight with pages in the ring.
    Streamed(UnitId),
    /// Memory that nobody has named, in host pages.
    InHost,
}

const LEARNING: u64 = 1 << 32;
const STREAMED: u64 = 2 << 32;
const IN_HOST: u64 = 3 << 32;
const KIND: u64 = 3 << 32;
/// The page's first bytes mean something else, which is said in the second table.
const BEGINS_OTHERWISE: u64 = 1 << 34;
/// Above: the byte of the page from which on the first table holds, or up to which the second one does.
const BORDER: u32 = 35;

impl Meaning {
    fn pack(self) -> u64 {
        match self {
            Meaning::Nothing => 0,
            Meaning::Learning(unit) => LEARNING | u64::from(unit.0),
            Meaning::Streamed(unit) => STREAMED | u64::from(unit.0),
            Meaning::InHost => IN_HOST,
        }
    }

    fn unpack(word: u64) -> Self {
        match word & KIND {
            LEARNING => Meaning::Learning(UnitId(word as u32)),
            STREAMED => Meaning::Streamed(UnitId(word as u32)),
            IN_HOST => Meaning::InHost,
            _ => Meaning::Nothing,
        }
    }
}

/// The reserved range.
pub(crate) struct Arena {
    base: u64,
    pages: Box<[AtomicU64]>,
    /// What the first bytes of a page mean, where a weight ends amid it.
    beginnings: Box<[AtomicU64]>,
    space: Mutex<BTreeMap<u64, u64>>,
}

static ARENA: OnceLock<Arena> = OnceLock::new();

/// The arena, once a region has been made.
#[inline]
pub(crate) fn arena() -> Option<&'static Arena> {
    ARENA.get()
}

/// No page comes to mean anything while launches are not looked at.
fn loud_for(meaning: Meaning) -> Option<quiet::Loud> {
    (meaning != Meaning::Nothing).then(quiet::loud)
}

/// The arena; reserves it at the first call.
pub(crate) fn arena_or_reserve() -> CudaResult<&'static Arena> {
    if let Some(arena) = ARENA.get() {
        return Ok(arena);
    }
    let base = vmm::reserve(ARENA_BYTES as usize, PAGE as usize, 0)?;
    let table = || (0..ARENA_BYTES / PAGE).map(|_| AtomicU64::new(0)).collect();
    let all = BTreeMap::from([(0, ARENA_BYTES / PAGE)]);
    let arena = Arena { base, pages: table(), beginnings: table(), space: Mutex::new(all) };
    if ARENA.set(arena).is_err() {
        // Another thread was first; addresses that nobody uses can go back, and if not, they cost nothing.
        let _ = vmm::unreserve(base, ARENA_BYTES as usize);
    }
    ARENA.get().ok_or(crate::ffi::result::CudaError(crate::ffi::types::CUresult::CUDA_ERROR_UNKNOWN))
}

impl Arena {
    /// An arena without pages, for tests of what looks for addresses in it.
    #[cfg(test)]
    pub(crate) fn at(base: u64) -> Self {
        let (pages, beginnings) = (Box::default(), Box::default());
        Arena { base, pages, beginnings, space: Mutex::new(BTreeMap::new()) }
    }

    /// First address.
    pub(crate) fn base(&self) -> u64 {
        self.base
    }

    /// Length in bytes.
    pub(crate) fn bytes(&self) -> u64 {
        ARENA_BYTES
    }

    /// Whether the address lies in the range. One subtraction and one compare: nearly every word of a launch ends here.
    #[inline]
    pub(crate) fn contains(&self, address: u64) -> bool {
        address.wrapping_sub(self.base) < ARENA_BYTES
    }

    /// Whether one of these may be the upper half of an address in the range: it lies in two neighbouring stretches of its own length. Sixteen answers at once,
    /// because nearly every word of a launch ends here.
    #[inline(always)]
    pub(crate) fn may_hold_any(&self, halves: &[u32; HALVES]) -> bool {
        let first = (self.base >> 32) as u32 & !((1 << LOW_BITS) - 1);
        let mut any = 0;
        for half in halves {
            any |= u32::from(half.wrapping_sub(first) >> (LOW_BITS + 1) == 0);
        }
        any != 0
    }

    /// What a launch has to do about this address.
    #[inline]
    pub(crate) fn meaning(&self, address: u64) -> Meaning {
        let offset = address.wrapping_sub(self.base);
        if offset >= ARENA_BYTES {
            return Meaning::Nothing;
        }
        match self.pages.get((offset / PAGE) as usize) {
            Some(page) => {
                let word = page.load(Ordering::Acquire);
                if word & BEGINS_OTHERWISE != 0
                    && let Some(beginning) = self.beginnings.get((offset / PAGE) as usize)
                {
                    let beginning = beginning.load(Ordering::Acquire);
                    if offset % PAGE < beginning >> BORDER {
                        return Meaning::unpack(beginning);
                    }
                }
                if offset % PAGE < word >> BORDER { Meaning::Nothing } else { Meaning::unpack(word) }
            }
            None => Meaning::Nothing,
        }
    }

    /// Whether launches that show one of these pages have nothing to do.
    pub(crate) fn means_nothing(&self, address: u64, count: u64) -> bool {
        let first = (address.wrapping_sub(self.base) / PAGE) as usize;
        let nothing = |page: &AtomicU64| page.load(Ordering::Acquire) & (KIND | BEGINS_OTHERWISE) == 0;
        self.pages.iter().skip(first).take(count as usize).all(nothing)
    }

    /// Sets the meaning of `count` pages from the one at `address` on.
    pub(crate) fn set_meaning(&self, address: u64, count: u64, meaning: Meaning) {
        let _loud = loud_for(meaning);
        let first = (address.wrapping_sub(self.base) / PAGE) as usize;
        for page in self.pages.iter().skip(first).take(count as usize) {
            page.store(meaning.pack(), Ordering::Release);
        }
    }

    /// Sets the meaning of one page's bytes from `address` on, and leaves that of those before it. The callers hold the world.
    pub(crate) fn set_meaning_from(&self, address: u64, meaning: Meaning) {
        let _loud = loud_for(meaning);
        let offset = address.wrapping_sub(self.base);
        if let Some(page) = self.pages.get((offset / PAGE) as usize) {
            let before = page.load(Ordering::Acquire) & BEGINS_OTHERWISE;
            page.store(meaning.pack() | before | (offset % PAGE) << BORDER, Ordering::Release);
        }
    }

    /// Host pages among these mean nothing from now on; what lies on the others, and before it, stays.
    pub(crate) fn clear_in_host(&self, address: u64, count: u64) {
        let first = (address.wrapping_sub(self.base) / PAGE) as usize;
        for page in self.pages.iter().skip(first).take(count as usize) {
            let word = page.load(Ordering::Acquire);
            if Meaning::unpack(word) == Meaning::InHost {
                page.store(word & BEGINS_OTHERWISE, Ordering::Release);
            }
        }
    }

    /// Sets the meaning of the first `bytes` bytes of the page at `address`, and leaves that of the others. The callers hold the world.
    pub(crate) fn set_beginning(&self, address: u64, bytes: u64, meaning: Meaning) {
        let _loud = loud_for(meaning);
        let index = (address.wrapping_sub(self.base) / PAGE) as usize;
        if let (Some(page), Some(beginning)) = (self.pages.get(index), self.beginnings.get(index)) {
            if meaning == Meaning::Nothing {
                // Whatever comes to lie there next is not hidden by what was.
                page.fetch_and(!BEGINS_OTHERWISE, Ordering::AcqRel);
                return;
            }
            beginning.store(meaning.pack() | bytes << BORDER, Ordering::Release);
            page.fetch_or(BEGINS_OTHERWISE, Ordering::AcqRel);
        }
    }

    /// Takes addresses for `count` pages. One more page stays empty behind them: an address one past a region's end must not be the next one's first.
    pub(crate) fn take(&self, count: u64) -> Option<u64> {
        let wanted = count + 1;
        let mut space = self.space.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let (&start, &free) = space.iter().find(|&(_, &free)| free >= wanted)?;
        space.remove(&start);
        if free > wanted {
            space.insert(start + wanted, free - wanted);
        }
        Some(self.base + start * PAGE)
    }

    /// Gives the addresses of [`Arena::take`] back.
    pub(crate) fn give_back(&self, address: u64, count: u64) {
        let mut space = self.space.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        let (mut start, mut length) = ((address - self.base) / PAGE, count + 1);
        if let Some((&before, &free)) = space.range(..start).next_back()
            && before + free == start
        {
            space.remove(&before);
            start = before;
            length += free;
        }
        if let Some(after) = space.remove(&(start + length)) {
            length += after;
        }
        space.insert(start, length);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arena_of(pages: u64) -> Arena {
        Arena {
            base: 1 << 44,
            pages: (0..pages).map(|_| AtomicU64::new(0)).collect(),
            beginnings: (0..pages).map(|_| AtomicU64::new(0)).collect(),
            space: Mutex::new(BTreeMap::from([(0, pages)])),
        }
    }

    #[test]
    fn every_meaning_survives_packing() {
        for meaning in [
            Meaning::Nothing,
            Meaning::InHost,
            Meaning::Learning(UnitId(0)),
            Meaning::Streamed(UnitId(77)),
            Meaning::Learning(UnitId(u32::MAX)),
        ] {
            assert_eq!(Meaning::unpack(meaning.pack()), meaning);
        }
    }

    #[test]
    fn pages_mean_nothing_when_none_of_their_bytes_does() {
        let arena = arena_of(4);
        let unit = Meaning::Learning(UnitId(1));
        let nothing = || arena.means_nothing(arena.base, 4);
        assert!(nothing());
        arena.set_meaning(arena.base + 2 * PAGE, 1, unit);
        assert!(!nothing() && arena.means_nothing(arena.base, 2));
        arena.set_meaning(arena.base + 2 * PAGE, 1, Meaning::Nothing);
        arena.set_beginning(arena.base + 3 * PAGE, 512, unit);
        assert!(!nothing());
        arena.set_beginning(arena.base + 3 * PAGE, 512, Meaning::Nothing);
        arena.set_meaning_from(arena.base + 512, Meaning::InHost);
        assert!(!nothing());
        arena.set_meaning_from(arena.base + 512, Meaning::Nothing);
        assert!(nothing());
    }

    #[test]
    fn host_pages_mean_nothing_any_more_and_weights_beside_them_what_they_did() {
        let arena = arena_of(4);
        let unit = Meaning::Streamed(UnitId(1));
        arena.set_meaning(arena.base, 2, Meaning::InHost);
        arena.set_beginning(arena.base + PAGE, 512, unit);
        arena.set_meaning(arena.base + 2 * PAGE, 1, unit);
        arena.clear_in_host(arena.base, 3);
        assert_eq!(arena.meaning(arena.base), Meaning::Nothing);
        assert_eq!(arena.meaning(arena.base + PAGE), unit);
        assert_eq!(arena.meaning(arena.base + PAGE + 512), Meaning::Nothing);
        assert_eq!(arena.meaning(arena.base + 2 * PAGE), unit);
    }

    #[test]
    fn a_page_that_two_weights_share_means_each_of_them_where_it_lies() {
        let arena = arena_of(4);
        let (page, first, second) = (arena.base + PAGE, UnitId(1), UnitId(2));
        let meaning_of_a_third = Meaning::Streamed(UnitId(3));
        for streamed in [false, true] {
            let meaning = if streamed { Meaning::Streamed } else { Meaning::Learning };
            arena.set_beginning(page, 512, meaning(first));
            arena.set_meaning(page + PAGE, 1, meaning(second));
            arena.set_meaning_from(page + 1024, meaning(second));
            assert_eq!(arena.meaning(page + 511), meaning(first));
            assert_eq!(arena.meaning(page + 512), Meaning::Nothing);
            assert_eq!(arena.meaning(page + 1023), Meaning::Nothing);
            assert_eq!(arena.meaning(page + 1024), meaning(second));
        }
        arena.set_meaning_from(page + 1024, Meaning::Nothing);
        assert_eq!(arena.meaning(page + 1024), Meaning::Nothing);
        assert_eq!(arena.meaning(page), Meaning::Streamed(first));
        // The first weight goes, and another one comes to lie where its end was.
        arena.set_beginning(page, 512, Meaning::Nothing);
        arena.set_meaning_from(page, meaning_of_a_third);
        assert_eq!(arena.meaning(page), meaning_of_a_third);
        assert_eq!(arena.meaning(page + 511), meaning_of_a_third);
        arena.set_meaning(page, 1, Meaning::Nothing);
        assert_eq!(arena.meaning(page), Meaning::Nothing);
    }

    #[test]
    fn the_page_behind_a_region_belongs_to_nobody() {
        let arena = arena_of(16);
        let first = arena.take(3).expect("room for three");
        let second = arena.take(3).expect("room for three more");
        assert_eq!(second, first + 4 * PAGE);
        arena.set_meaning(second, 3, Meaning::Learning(UnitId(5)));
        assert_eq!(arena.meaning(first + 3 * PAGE), Meaning::Nothing);
        assert_eq!(arena.meaning(second + 1), Meaning::Learning(UnitId(5)));
    }

    #[test]
    fn given_back_addresses_join_and_are_found_again() {
        let arena = arena_of(12);
        let taken: Vec<u64> = (0..3).map(|_| arena.take(3).expect("room")).collect();
        assert_eq!(arena.take(1), None);
        arena.give_back(taken[0], 3);
        arena.give_back(taken[2], 3);
        arena.give_back(taken[1], 3);
        assert_eq!(arena.take(11), Some(taken[0]));
    }
}
