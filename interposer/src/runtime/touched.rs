//! Host memory that is faulted in ahead of the switch-over, while the program still learns: first touches are the slow part of pinning, most of all in a virtual
//! machine that gets its memory page by page. The pages move to their shadows' addresses later; what is left goes back.

#![expect(unsafe_code, reason = "maps, touches and moves memory")]

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use super::arena::PAGE;
use super::shadow;

/// Bytes that a thread touches at a time.
const STEP: usize = 32 << 20;

/// Memory being touched by threads of its own.
struct Pool {
    start: usize,
    bytes: usize,
    next: Arc<AtomicUsize>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

static POOL: Mutex<Option<Pool>> = Mutex::new(None);

/// Threads that touching may use.
pub(super) fn threads() -> usize {
    std::thread::available_parallelism().map_or(4, usize::from).min(16)
}

/// Starts touching memory for shadows of about `bytes`. Does nothing while that is under way, or where there is no memory.
pub(crate) fn prepare(bytes: u64) {
    let mut pool = POOL.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    if bytes == 0 || pool.is_some() {
        return;
    }
    let bytes = bytes.next_multiple_of(PAGE) as usize;
    let Some(start) = map_aligned(bytes) else { return };
    let (next, stop) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
    let spawn = |_| {
        let (next, stop) = (Arc::clone(&next), Arc::clone(&stop));
        let work = move || touch_steps(start, bytes, &next, &stop);
        std::thread::Builder::new().name("ft-touch".into()).spawn(work).ok()
    };
    let threads = (0..threads()).filter_map(spawn).collect();
    *pool = Some(Pool { start, bytes, next, stop, threads });
}

fn touch_steps(start: usize, bytes: usize, next: &AtomicUsize, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        let from = next.fetch_add(1, Ordering::Relaxed) * STEP;
        if from >= bytes {
            return;
        }
        touch(start + from, STEP.min(bytes - from));
    }
}

/// Faults in a range that belongs to us and that nobody uses yet.
pub(super) fn touch(start: usize, bytes: usize) {
    for offset in (0..bytes).step_by(4096) {
        let byte = std::ptr::with_exposed_provenance_mut::<u8>(start + offset);
        // SAFETY: the caller's range is mapped, writable, ours, and unused.
        unsafe { byte.write_volatile(0) };
    }
}

fn map_aligned(bytes: usize) -> Option<usize> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    let padded = bytes + PAGE as usize;
    // SAFETY: a fresh mapping at an address of the kernel's choice touches nothing that exists.
    let base =
        unsafe { libc::mmap(std::ptr::null_mut(), padded, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
    if base == libc::MAP_FAILED {
        return None;
    }
    let base = base.expose_provenance();
    let start = base.next_multiple_of(PAGE as usize);
    for (from, to) in [(base, start), (start + bytes, base + padded)] {
        if from < to {
            // SAFETY: a part of the fresh mapping that nobody knows: what it was too long by.
            let _ = unsafe { libc::munmap(std::ptr::with_exposed_provenance_mut(from), to - from) };
        }
    }
    let at = std::ptr::with_exposed_provenance_mut(start);
    // SAFETY: advice on our own mapping; a refusal only costs speed.
    let _ = unsafe { libc::madvise(at, bytes, libc::MADV_HUGEPAGE) };
    // Pages keep this when they move: a forked child must not turn pinned pages into copies of themselves.
    // SAFETY: advice on our own mapping.
    let _ = unsafe { libc::madvise(at, bytes, libc::MADV_DONTFORK) };
    Some(start)
}

/// Touched memory that is handed out piece by piece; the rest goes back when this is dropped. The default is none.
#[derive(Default)]
pub(super) struct Touched {
    start: usize,
    touched: usize,
    used: usize,
    bytes: usize,
}

/// Ends the touching, and gives out what was touched.
pub(super) fn take() -> Touched {
    let pool = POOL.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take();
    let Some(pool) = pool else { return Touched::default() };
    pool.stop.store(true, Ordering::Relaxed);
    for thread in pool.threads {
        let _ = thread.join();
    }
    // Steps are taken in order, and each that was taken has been finished.
    let touched = (pool.next.load(Ordering::Relaxed).saturating_mul(STEP)).min(pool.bytes);
    Touched { start: pool.start, touched, used: 0, bytes: pool.bytes }
}

impl Touched {
    /// Touched bytes that nobody has yet: memory that the process has taken already.
    pub(super) fn left(&self) -> u64 {
        (self.touched - self.used) as u64
    }

    /// Moves touched pages over the first bytes of a mapping of ours at `to`, as many as there are. Returns their number; none if nothing lies at these bytes any more.
    pub(super) fn move_to(&mut self, to: usize, bytes: usize) -> Option<usize> {
        let count = bytes.min(self.touched - self.used) / PAGE as usize * PAGE as usize;
        if count == 0 {
            return Some(0);
        }
        let from = std::ptr::with_exposed_provenance_mut(self.start + self.used);
        let target: *mut libc::c_void = std::ptr::with_exposed_provenance_mut(to);
        let flags = libc::MREMAP_MAYMOVE | libc::MREMAP_FIXED;
        // SAFETY: both ranges are ours; the target holds nothing yet.
        let moved = unsafe { libc::mremap(from, count, count, flags, target) };
        if moved != target {
            // Kernels before 6.17 take away what lies at the target before they find out that they cannot move.
            return shadow::map(to, count as u64, libc::MAP_FIXED).map(|_| 0);
        }
        self.used += count;
        Some(count)
    }
}

impl Drop for Touched {
    fn drop(&mut self) {
        if self.used < self.bytes {
            let rest = std::ptr::with_exposed_provenance_mut(self.start + self.used);
            // SAFETY: the rest is ours, and nobody knows it.
            let _ = unsafe { libc::munmap(rest, self.bytes - self.used) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn touched_pages_move_to_where_they_are_wanted() {
        prepare(4 * PAGE);
        while POOL
            .lock()
            .expect("no test panics with it")
            .as_ref()
            .is_some_and(|p| p.next.load(Ordering::Relaxed) == 0)
        {
            std::thread::yield_now();
        }
        let mut touched = take();
        assert_eq!(touched.left(), 4 * PAGE);
        let target = map_aligned(8 * PAGE as usize).expect("a little memory");
        let page = PAGE as usize;
        assert_eq!(touched.move_to(target, 3 * page), Some(3 * page));
        assert_eq!(touched.move_to(target + 3 * page, 5 * page), Some(page));
        assert_eq!(touched.move_to(target + 4 * page, page), Some(0), "nothing is left");
        assert_eq!(touched.left(), 0);
        touch(target, 4 * page);
    }

    #[test]
    fn pages_that_cannot_be_moved_leave_memory_where_they_were_wanted() {
        let page = PAGE as usize;
        let source = map_aligned(2 * page).expect("a little memory");
        let target = map_aligned(2 * page).expect("a little memory");
        let hole = std::ptr::with_exposed_provenance_mut(source);
        // SAFETY: the mapping above, which nobody else knows. What is not there cannot be moved.
        assert_eq!(unsafe { libc::munmap(hole, 2 * page) }, 0);
        let mut touched = Touched { start: source, touched: 2 * page, used: 0, bytes: 2 * page };
        assert_eq!(touched.move_to(target, 2 * page), Some(0));
        assert_eq!(touched.left(), 2 * PAGE);
        touch(target, 2 * page);
        std::mem::forget(touched);
    }

    /// Mappings of this process.
    fn mappings() -> usize {
        std::fs::read_to_string("/proc/self/maps").expect("a Linux system").lines().count()
    }

    #[test]
    fn memory_that_was_touched_ahead_leaves_no_addresses_behind() {
        let round = || {
            let start = map_aligned(PAGE as usize).expect("a little memory");
            drop(Touched { start, touched: 0, used: 0, bytes: PAGE as usize });
        };
        round();
        let before = mappings();
        (0..64).for_each(|_| round());
        assert!(mappings() < before + 32, "{} mappings after {before}", mappings());
    }
}
