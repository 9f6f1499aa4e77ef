//! Checksums of weights, page by page: of pages that were read out, and of whole shadows, by one thread or many. What is compared with what is `verify`'s and
//! `evidence`'s matter.

#![expect(unsafe_code, reason = "reads shadows")]

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use xxhash_rust::xxh3::xxh3_64;

use super::arena::PAGE;
use super::shadow::Shadow;

/// Checksums of the pages of this memory.
pub(super) fn of_pages(bytes: &[u8]) -> impl Iterator<Item = u64> {
    bytes.chunks(PAGE as usize).map(xxh3_64)
}

/// The checksum of memory whose pages have these.
pub(super) fn combined(pages: &[u64]) -> u64 {
    let bytes: Vec<u8> = pages.iter().flat_map(|sum| sum.to_le_bytes()).collect();
    xxh3_64(&bytes)
}

/// Checksum of a shadow. Torn reads are the caller's to detect.
pub(super) fn of_shadow(shadow: &Shadow) -> u64 {
    let sums: Vec<u64> = of_pages(bytes_of(shadow)).collect();
    combined(&sums)
}

/// The same by several threads: a proof should not take longer than a pass.
pub(super) fn of_shadow_fast(shadow: &Shadow) -> u64 {
    let bytes = bytes_of(shadow);
    let pages = bytes.len().div_ceil(PAGE as usize);
    let mut sums = vec![0; pages];
    let threads = std::thread::available_parallelism().map_or(2, usize::from).div_ceil(2).min(8);
    let share = pages.div_ceil(threads).max(1);
    let parts = bytes.chunks(share * PAGE as usize).zip(sums.chunks_mut(share));
    for_each_on_threads(parts, |(bytes, sums)| {
        of_pages(bytes).zip(sums).for_each(|(sum, slot)| *slot = sum);
    });
    combined(&sums)
}

/// Checksums of many shadows, by many threads, each as soon as `complete` has waited for it and says that it is; 0 for those that never are.
pub(super) fn of_shadows(shadows: &[Shadow], complete: impl Fn(usize) -> bool + Sync) -> Vec<u64> {
    let threads = std::thread::available_parallelism().map_or(4, usize::from).min(16).min(shadows.len());
    let sums: Vec<AtomicU64> = shadows.iter().map(|_| AtomicU64::new(0)).collect();
    let next = AtomicUsize::new(0);
    for_each_on_threads(0..threads, |_| {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some((shadow, sum)) = shadows.get(at).zip(sums.get(at)) else { return };
            if !complete(at) {
                return;
            }
            sum.store(of_shadow(shadow), Ordering::Relaxed);
        }
    });
    sums.into_iter().map(AtomicU64::into_inner).collect()
}

fn bytes_of(shadow: &Shadow) -> &[u8] {
    let (start, bytes) = shadow.bytes();
    // SAFETY: the caller keeps the shadow. A copy by the GPU may write it meanwhile; the result is thrown away then.
    unsafe { std::slice::from_raw_parts(start, bytes) }
}

/// Each part on a thread of its own; on this one where the system gives no more threads.
fn for_each_on_threads<T: Send>(parts: impl Iterator<Item = T>, work: impl Fn(T) + Sync) {
    let work = &work;
    std::thread::scope(|scope| {
        for part in parts {
            // A thread that cannot be made drops its work: the part stays where both can get it.
            let part = Mutex::new(Some(part));
            let part = std::sync::Arc::new(part);
            let theirs = std::sync::Arc::clone(&part);
            let take =
                |part: &Mutex<Option<T>>| part.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).take();
            let run = move || take(&theirs).into_iter().for_each(work);
            if std::thread::Builder::new().spawn_scoped(scope, run).is_err() {
                take(&part).into_iter().for_each(work);
            }
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_thread_and_many_find_the_same_checksum_and_a_changed_byte() {
        const PIECE: usize = PAGE as usize;
        let mut bytes: Vec<u8> = (0..PIECE * 3 + 17).map(|i| (i % 251) as u8).collect();
        let shadow = Shadow::of(&bytes);
        let sum = of_shadow(&shadow);
        assert_eq!(of_shadow_fast(&shadow), sum);
        assert_eq!(combined(&of_pages(&bytes).collect::<Vec<_>>()), sum);
        assert_eq!(of_shadows(&[shadow; 3], |_| true), [sum; 3]);
        assert_eq!(of_shadows(&[shadow; 3], |_| false), [0; 3], "no shadow was complete");
        bytes[PIECE * 2 + 5] ^= 1;
        assert_ne!(of_shadow_fast(&Shadow::of(&bytes)), sum);
    }
}
