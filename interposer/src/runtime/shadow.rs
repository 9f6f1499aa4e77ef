//! Pinned host memory for shadows: one range of addresses, huge pages, touched by many threads, registered in chunks that no copy crosses.
//! Directly in front of each shadow its unit's view continues with the unit's private prefix, where the unit is split.
//! Filling shadows, and deciding how many there are, is `switch`'s matter.

#![expect(unsafe_code, reason = "maps, touches and registers memory")]

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};

use super::arena::{PAGE, arena};
use super::leftover::{self, Pinned};
use super::overflow::release;
use super::pinning::{self, CHUNK, Pinning};
use super::touched::{self, Touched};
use super::views::{self, Opened};
use crate::ffi::vmm::Handle;

/// One unit's shadow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shadow {
    start: usize,
    /// Bytes of the streamed pages.
    bytes: u64,
    /// Bytes behind them for what hangs over: a page, or none.
    behind: u64,
    /// Address that stands for the unit's first page in launches that must not see the ring: prefix, then shadow. None if it could not be had.
    pub(crate) view: Option<u64>,
    /// Bytes of addresses in front of it that belong to it, where it is made of the driver's host pages; none where it is registered memory.
    of_pages: Option<u64>,
    /// Bytes of a reservation in front of it, where it is registered memory behind one.
    opened: u64,
    /// How the driver knows it; host pages are pinned by themselves.
    pinning: Pinning,
}

impl Shadow {
    /// The shadow's bytes from `offset` on as `(offset, bytes, address)`, cut where a registration ends.
    pub(crate) fn pieces(
        &self,
        offset: u64,
        bytes: u64,
    ) -> impl Iterator<Item = (u64, u64, *const u8)> + use<> {
        let (start, end, chunk) = (self.start, offset + bytes, self.pinning.chunk());
        let mut at = offset;
        std::iter::from_fn(move || {
            if at >= end {
                return None;
            }
            let piece = (end - at).min(chunk - at % chunk);
            let from = at;
            at += piece;
            Some((from, piece, std::ptr::with_exposed_provenance(start + from as usize)))
        })
    }

    /// A shadow of memory that somebody else holds, for tests.
    #[cfg(test)]
    pub(crate) fn of(bytes: &[u8]) -> Self {
        Self::registered(bytes.as_ptr().expose_provenance(), (bytes.len() as u64, 0), None)
    }

    fn registered(start: usize, (bytes, behind): (u64, u64), view: Option<u64>) -> Self {
        let prefix = view.map_or(0, |view| start as u64 - view);
        let opened = if prefix == 0 { 0 } else { views::reserved_for(prefix) };
        Self { start, bytes, behind, view, of_pages: None, opened, pinning: Pinning::Pieces(CHUNK) }
    }

    /// Bytes of its memory.
    fn all(&self) -> u64 {
        self.bytes + self.behind
    }

    /// The `bytes` bytes that hang over, behind those of the streamed pages, as (offset, bytes, address). None where it has no room for them, as host pages do not.
    pub(super) fn overhang(&self, bytes: u64) -> Option<(u64, u64, *const u8)> {
        let at = self.start + self.bytes as usize;
        (0 < bytes && bytes <= self.behind)
            .then(|| (self.bytes, bytes, std::ptr::with_exposed_provenance(at)))
    }

    /// A shadow of these host pages, which are mapped behind `before` bytes of the reservation at `reserved`. They stay whoever's they are. `whole`: one copy may
    /// reach over several of them.
    pub(super) fn of_host_pages(reserved: u64, before: u64, pages: &[Handle], whole: bool) -> Self {
        let bytes = pages.len() as u64 * PAGE;
        let start = (reserved + before) as usize;
        let lent = pages.iter().map(|&page| (page, false)).collect();
        pages_of_shadows().insert(start, lent);
        let pinning = Pinning::Pieces(if whole { CHUNK } else { PAGE });
        Self { start, bytes, behind: 0, view: Some(reserved), of_pages: Some(before), opened: 0, pinning }
    }

    /// Those of these pages that it is made of are its own from now on, and count as host memory of shadows; returns the others.
    pub(super) fn keep_pages(&self, pages: Vec<Handle>) -> Vec<Handle> {
        let mut all = pages_of_shadows();
        let Some(known) = all.get_mut(&self.start) else { return pages };
        let mut others = Vec::new();
        for page in pages {
            match known.iter_mut().find(|(mine, _)| *mine == page) {
                Some((_, own)) => {
                    if !std::mem::replace(own, true) {
                        pinning::count_pinned(PAGE);
                    }
                }
                None => others.push(page),
            }
        }
        others
    }

    /// The host pages that it is made of, if it is; they are the caller's from now on.
    pub(super) fn take_pages(&self) -> Option<Vec<Handle>> {
        let mut all = pages_of_shadows();
        let known = all.get_mut(&self.start).filter(|known| known.iter().all(|(_, own)| *own))?;
        pinning::count_gone(known.len() as u64 * PAGE);
        Some(known.iter_mut().map(|(page, own)| (*page, *own = false).0).collect())
    }

    /// Addresses of the view in front of it, as (address, bytes).
    pub(super) fn prefix_of_view(&self) -> Option<(u64, u64)> {
        let view = self.view?;
        Some((view, self.start as u64 - view)).filter(|(_, bytes)| *bytes > 0)
    }

    fn unmap_pages(&self, before: u64) {
        let start = self.start as u64;
        let pages = pages_of_shadows().remove(&self.start).unwrap_or_default();
        leftover::unmap(start, self.bytes);
        // Refused while a view's beginning is still mapped.
        leftover::unreserve(start - before, before + self.bytes);
        let own: Vec<Handle> = pages.into_iter().filter_map(|(page, own)| own.then_some(page)).collect();
        pinning::count_gone(own.len() as u64 * PAGE);
        release(own);
    }

    /// Copies the last `bytes` bytes of its pages to the end of another shadow. Whoever asks must know that nobody uses those bytes there, and that what is written here
    /// meanwhile does not count.
    pub(crate) fn copy_end_to(&self, other: &Shadow, bytes: u64) {
        let bytes = bytes.min(self.bytes).min(other.bytes);
        let from = std::ptr::with_exposed_provenance::<u8>(self.start + (self.bytes - bytes) as usize);
        let to = std::ptr::with_exposed_provenance_mut::<u8>(other.start + (other.bytes - bytes) as usize);
        // SAFETY: both ranges lie in shadows that the caller keeps; two shadows never overlap.
        unsafe { std::ptr::copy_nonoverlapping(from, to, bytes as usize) };
    }

    /// The whole shadow. Whoever reads must know that nobody writes meanwhile.
    pub(crate) fn bytes(&self) -> (*const u8, usize) {
        (std::ptr::with_exposed_provenance(self.start), self.all() as usize)
    }
}

/// The pages of shadows that are made of host pages, by where these begin, and whether they are the shadow's own.
type PagesOfShadows = BTreeMap<usize, Vec<(Handle, bool)>>;

fn pages_of_shadows() -> MutexGuard<'static, PagesOfShadows> {
    static PAGES: Mutex<PagesOfShadows> = Mutex::new(BTreeMap::new());
    PAGES.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// What a unit needs: `prefix` pages of view in front of `pages` pages of shadow, and one more page where its last weight hangs over.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    pub(crate) prefix: u64,
    pub(crate) pages: u64,
    pub(crate) hangs_over: bool,
}

impl Wanted {
    fn bytes(&self) -> (u64, u64) {
        (self.pages * PAGE, if self.hangs_over { PAGE } else { 0 })
    }

    /// Host memory that it takes.
    pub(super) fn all(&self) -> u64 {
        let (pages, behind) = self.bytes();
        pages + behind
    }
}

/// Makes touched shadows for all units, or nothing; out of memory that was touched ahead as far as there is any. They are pinned as far as the driver does that; what
/// it does not pin has no view, since kernels cannot read it.
///
/// # Errors
/// A sentence that names what was refused, and how many bytes were asked for.
pub(super) fn make(wanted: &[Wanted], ahead: Touched) -> Result<Vec<Shadow>, String> {
    let mut made = Made { shadows: Vec::with_capacity(wanted.len()), pinned: 0 };
    // All prefixes get their addresses before anything is pinned: next to pinned memory the driver may refuse them.
    let pins = pinning::is_wanted();
    let open = |want: &Wanted| pins.then(|| views::open(want.prefix * PAGE, want.all())).flatten();
    let opened: Vec<_> = wanted.iter().map(open).collect();
    let mut opened = opened.into_iter();
    for want in wanted {
        let placed = place(want.prefix * PAGE, opened.next().flatten(), want.bytes());
        if placed.is_err() {
            opened.by_ref().flatten().for_each(Opened::give_back);
        }
        made.shadows.push(placed?);
    }
    fault_in(&made.shadows, ahead)?;
    for shadow in &mut made.shadows {
        // SAFETY: the memory is ours and stays mapped until it is unregistered or the process ends.
        shadow.pinning = unsafe { pinning::pin(shadow.start, shadow.all()) };
        if shadow.pinning == Pinning::Pageable {
            shadow.view = None;
        }
        made.pinned += 1;
    }
    Ok(std::mem::take(&mut made.shadows))
}

/// Gives shadows back that nobody uses: not the GPU, and no check. A context is current.
pub(crate) fn give_back(shadows: Vec<Shadow>) {
    let (of_pages, shadows): (Vec<_>, Vec<_>) =
        shadows.into_iter().partition(|shadow| shadow.of_pages.is_some());
    for shadow in of_pages {
        shadow.unmap_pages(shadow.of_pages.unwrap_or(0));
    }
    let pinned = shadows.len();
    drop(Made { shadows, pinned });
    leftover::try_again(arena());
}

/// Shadows under construction: undone when dropped.
struct Made {
    shadows: Vec<Shadow>,
    /// The first so many have been pinned, as far as that went.
    pinned: usize,
}

impl Drop for Made {
    fn drop(&mut self) {
        for (at, shadow) in self.shadows.iter().enumerate() {
            let memory = (shadow.start, shadow.all());
            let pieces = if at < self.pinned {
                pinning::registrations(shadow.start, shadow.all(), shadow.pinning)
            } else {
                Vec::new()
            };
            leftover::unpin(Pinned { memory, pieces });
            if shadow.opened > 0 {
                // Refused while a view's beginning is still mapped.
                leftover::unreserve(shadow.start as u64 - shadow.opened, shadow.opened);
            }
        }
    }
}

/// One shadow: directly behind its prefix's addresses, if there are any; anywhere, and without a view of a prefix, if these cannot be had.
fn place(prefix: u64, opened: Option<Opened>, wanted: (u64, u64)) -> Result<Shadow, String> {
    let bytes = wanted.0 + wanted.1;
    if let Some(opened) = opened {
        // The range is ours, and holds nothing: replacing it is right.
        match map(opened.end, bytes, libc::MAP_FIXED) {
            Some(start) => return Ok(Shadow::registered(start, wanted, Some(start as u64 - prefix))),
            None => opened.give_back(),
        }
    }
    let start = map(0, bytes, 0).ok_or_else(|| no_memory(bytes))?;
    Ok(Shadow::registered(start, wanted, (prefix == 0).then_some(start as u64)))
}

/// Anonymous memory at an address, or anywhere for 0, with huge pages where the kernel has them.
pub(super) fn map(at: usize, bytes: u64, how: i32) -> Option<usize> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | how;
    let hint = std::ptr::with_exposed_provenance_mut(at);
    // SAFETY: the caller's range is ours and holds nothing, or the kernel chooses one.
    let got = unsafe { libc::mmap(hint, bytes as usize, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
    if got == libc::MAP_FAILED {
        return None;
    }
    // SAFETY: advice on our own mapping; a refusal only costs speed.
    let _ = unsafe { libc::madvise(got, bytes as usize, libc::MADV_HUGEPAGE) };
    // A child that is forked must not turn pinned pages into copies of themselves.
    // SAFETY: advice on our own mapping.
    let _ = unsafe { libc::madvise(got, bytes as usize, libc::MADV_DONTFORK) };
    Some(got.expose_provenance())
}

/// Faults every page in: with pages that were touched ahead as far as they go, then by many threads, since a single one zeroes a few GB/s only.
///
/// # Errors
/// A sentence, where the system takes memory away and gives none.
fn fault_in(shadows: &[Shadow], mut touched: Touched) -> Result<(), String> {
    const STEP: u64 = 32 << 20;
    let mut steps: Vec<(usize, usize)> = Vec::new();
    for shadow in shadows {
        let ready =
            touched.move_to(shadow.start, shadow.all() as usize).ok_or_else(|| no_memory(shadow.all()))?;
        let ready = ready as u64;
        let rest = (ready..shadow.all()).step_by(STEP as usize);
        steps.extend(rest.map(|at| (shadow.start + at as usize, STEP.min(shadow.all() - at) as usize)));
    }
    let next = AtomicUsize::new(0);
    let work = || {
        while let Some(&(start, bytes)) = steps.get(next.fetch_add(1, Ordering::Relaxed)) {
            touched::touch(start, bytes);
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..touched::threads().min(steps.len()) {
            // Where the system gives no more threads, those that there are do it all.
            let _ = std::thread::Builder::new().spawn_scoped(scope, work);
        }
        work();
    });
    Ok(())
}

fn no_memory(bytes: u64) -> String {
    format!("no {} MiB of host memory: {}", bytes >> 20, std::io::Error::last_os_error())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn host_pages_of_a_shadow_count_when_they_are_its_own_and_not_while_they_are_a_region_s() {
        let pages: Vec<Handle> = (1..=3).map(Handle::in_host_of_nobody).collect();
        let before = pinning::pinned_bytes();
        let counted = || pinning::pinned_bytes() - before;
        let shadow = Shadow::of_host_pages(1 << 41, 0, &pages, true);
        assert_eq!(counted(), 0, "the region counts them");
        let stranger = Handle::in_host_of_nobody(9);
        assert_eq!(shadow.keep_pages(vec![pages[1], stranger]), [stranger]);
        assert_eq!(counted(), PAGE);
        assert!(shadow.take_pages().is_none(), "two are not its own");
        shadow.keep_pages(pages.clone());
        assert_eq!(counted(), 3 * PAGE);
        assert_eq!(shadow.take_pages(), Some(pages));
        assert_eq!(counted(), 0);
    }

    #[test]
    fn no_piece_of_a_shadow_crosses_a_registration() {
        let shadow = Shadow::registered(1 << 40, (3 * CHUNK, 0), None);
        let pieces: Vec<_> =
            shadow.pieces(CHUNK - PAGE, CHUNK + 2 * PAGE).map(|(offset, bytes, _)| (offset, bytes)).collect();
        assert_eq!(pieces, [(CHUNK - PAGE, PAGE), (CHUNK, CHUNK), (2 * CHUNK, PAGE)]);
    }
}
