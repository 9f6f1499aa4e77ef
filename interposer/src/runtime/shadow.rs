//! Pinned host memory for shadows: one range of addresses, huge pages, touched by many threads, registered in chunks that no copy crosses.
//! Directly in front of each shadow its unit's view continues with the unit's private prefix, where the unit is split.
//! Filling shadows, and deciding how many there are, is `switch`'s matter.

#![expect(unsafe_code, reason = "maps, touches and registers memory")]

use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use super::arena::PAGE;
use crate::ffi::{host, vmm};

/// Longest registration: a longer one holds the driver's locks for long, and stalls launches.
const CHUNK: u64 = 1 << 30;

static PINNED: AtomicU64 = AtomicU64::new(0);

/// Pinned host bytes of this process that are ours.
pub(crate) fn pinned_bytes() -> u64 {
    PINNED.load(Ordering::Relaxed)
}

/// One unit's shadow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shadow {
    start: usize,
    bytes: u64,
    /// Address that stands for the unit's first page in launches that must not see the ring: prefix, then shadow. None if it could not be had.
    pub(crate) view: Option<u64>,
}

impl Shadow {
    /// The shadow's bytes from `offset` on as `(offset, bytes, address)`, cut where a registration ends.
    pub(crate) fn pieces(
        &self,
        offset: u64,
        bytes: u64,
    ) -> impl Iterator<Item = (u64, u64, *const u8)> + use<> {
        let (start, end) = (self.start, offset + bytes);
        let mut at = offset;
        std::iter::from_fn(move || {
            if at >= end {
                return None;
            }
            let piece = (end - at).min(CHUNK - at % CHUNK);
            let from = at;
            at += piece;
            Some((from, piece, std::ptr::with_exposed_provenance(start + from as usize)))
        })
    }

    /// A shadow of memory that somebody else holds, for tests.
    #[cfg(test)]
    pub(crate) fn of(bytes: &[u8]) -> Self {
        Self { start: bytes.as_ptr().expose_provenance(), bytes: bytes.len() as u64, view: None }
    }

    /// The whole shadow. Whoever reads must know that nobody writes meanwhile.
    pub(crate) fn bytes(&self) -> (*const u8, usize) {
        (std::ptr::with_exposed_provenance(self.start), self.bytes as usize)
    }
}

/// What a unit needs: `prefix` pages of view in front of `pages` pages of shadow.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Wanted {
    pub(crate) prefix: u64,
    pub(crate) pages: u64,
}

/// Makes pinned, touched shadows for all units, or nothing.
///
/// # Errors
/// A sentence that names what was refused, and how many bytes were asked for.
pub(crate) fn make(wanted: &[Wanted]) -> Result<Vec<Shadow>, String> {
    let total: u64 = wanted.iter().map(|w| (w.prefix + w.pages) * PAGE).sum();
    if total == 0 {
        return Ok(Vec::new());
    }
    let mut at = reserve(total)?;
    let mut shadows = Vec::with_capacity(wanted.len());
    for want in wanted {
        let prefix = want.prefix * PAGE;
        let start = at + prefix as usize;
        let bytes = want.pages * PAGE;
        commit(start, bytes)?;
        let view = if prefix == 0 { Some(start as u64) } else { open_prefix(at, prefix) };
        shadows.push(Shadow { start, bytes, view });
        at = start + bytes as usize;
    }
    touch(&shadows);
    for shadow in &shadows {
        register(shadow)?;
    }
    Ok(shadows)
}

/// A range of addresses that both the driver and the kernel have free. The driver chooses: it takes back only addresses of its own liking.
fn reserve(bytes: u64) -> Result<usize, String> {
    let refused = |error| format!("no address range of {} MiB for pinned memory: {error}", bytes >> 20);
    let base = vmm::reserve(bytes as usize, PAGE as usize, 0).map_err(refused)?;
    vmm::unreserve(base, bytes as usize).map_err(refused)?;
    Ok(base as usize)
}

/// Makes part of the range readable and writable, with huge pages where the kernel has them.
fn commit(start: usize, bytes: u64) -> Result<(), String> {
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED_NOREPLACE;
    let at = std::ptr::with_exposed_provenance_mut(start);
    // SAFETY: a mapping that replaces nothing touches nothing that exists.
    let got = unsafe { libc::mmap(at, bytes as usize, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
    if got != at {
        return Err(format!("no {} MiB of host memory: {}", bytes >> 20, std::io::Error::last_os_error()));
    }
    // SAFETY: advice on our own mapping; a refusal only costs speed.
    let _ = unsafe { libc::madvise(at, bytes as usize, libc::MADV_HUGEPAGE) };
    // A child that is forked must not turn pinned pages into copies of themselves.
    // SAFETY: advice on our own mapping.
    let _ = unsafe { libc::madvise(at, bytes as usize, libc::MADV_DONTFORK) };
    Ok(())
}

/// Gives the prefix's addresses to the driver, so that the unit's private pages can be mapped there. None if it takes others.
fn open_prefix(at: usize, bytes: u64) -> Option<u64> {
    let got = vmm::reserve(bytes as usize, PAGE as usize, at as u64)
        .inspect_err(|error| crate::log::debug!("no view at {at:#x}: {error}"))
        .ok()?;
    if got == at as u64 {
        return Some(got);
    }
    crate::log::debug!("no view at {at:#x}: the driver gave {got:#x}");
    let _ = vmm::unreserve(got, bytes as usize);
    None
}

/// Faults every page in, in parallel: a single thread zeroes a few GB/s only.
fn touch(shadows: &[Shadow]) {
    const STEP: u64 = 32 << 20;
    let steps: Vec<(usize, u64)> = shadows
        .iter()
        .flat_map(|s| {
            (0..s.bytes).step_by(STEP as usize).map(|o| (s.start + o as usize, STEP.min(s.bytes - o)))
        })
        .collect();
    let next = AtomicUsize::new(0);
    let threads = std::thread::available_parallelism().map_or(4, usize::from).min(16).min(steps.len().max(1));
    std::thread::scope(|scope| {
        for _ in 0..threads {
            scope.spawn(|| {
                while let Some(&(start, bytes)) = steps.get(next.fetch_add(1, Ordering::Relaxed)) {
                    for offset in (0..bytes as usize).step_by(4096) {
                        let byte = std::ptr::with_exposed_provenance_mut::<u8>(start + offset);
                        // SAFETY: the byte lies in memory that `commit` made and nobody else knows yet.
                        unsafe { byte.write_volatile(0) };
                    }
                }
            });
        }
    });
}

fn register(shadow: &Shadow) -> Result<(), String> {
    for (_, bytes, start) in shadow.pieces(0, shadow.bytes) {
        // SAFETY: the memory is ours and stays mapped until the process ends.
        unsafe { host::register(start.cast_mut(), bytes as usize) }
            .map_err(|error| format!("pinning {} MiB of host memory was refused: {error}", bytes >> 20))?;
        PINNED.fetch_add(bytes, Ordering::Relaxed);
    }
    Ok(())
}

/// Host bytes that may be taken: what the kernel says is available, and what the control group leaves, less a twentieth.
pub(crate) fn available_bytes() -> Option<u64> {
    let meminfo = std::fs::read_to_string("/proc/meminfo").ok()?;
    let kib = |key: &str| {
        meminfo
            .lines()
            .find_map(|l| l.strip_prefix(key)?.trim().strip_suffix("kB")?.trim().parse::<u64>().ok())
    };
    let mut available = kib("MemAvailable:")? << 10;
    let read = |name: &str| {
        std::fs::read_to_string(format!("/sys/fs/cgroup/{name}")).ok()?.trim().parse::<u64>().ok()
    };
    if let (Some(max), Some(current)) = (read("memory.max"), read("memory.current")) {
        available = available.min(max.saturating_sub(current));
    }
    Some(available / 20 * 19)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_piece_of_a_shadow_crosses_a_registration() {
        let shadow = Shadow { start: 1 << 40, bytes: 3 * CHUNK, view: None };
        let pieces: Vec<_> =
            shadow.pieces(CHUNK - PAGE, CHUNK + 2 * PAGE).map(|(offset, bytes, _)| (offset, bytes)).collect();
        assert_eq!(pieces, [(CHUNK - PAGE, PAGE), (CHUNK, CHUNK), (2 * CHUNK, PAGE)]);
    }

    #[test]
    fn what_is_available_is_less_than_the_machine_has() {
        let available = available_bytes().expect("a Linux machine tells");
        assert!(available > 0 && available < 1 << 50);
    }
}
