//! Checksums of one unit's shadow, page by page: compared on the copy stream directly before a copy in, taken anew behind a write-back. Behind our back a shadow must not
//! change. Ring pages that leave are compared with them too. Functions run on a thread of the driver, in the order of the stream, and call nothing of it.

#![expect(unsafe_code, reason = "reads shadows, and passes jobs to the driver")]

use std::sync::{Arc, Mutex, MutexGuard};

use xxhash_rust::xxh3::xxh3_64;

use super::super::arena::PAGE;
use super::super::shadow::Shadow;
use super::{Kind, LOOKED, count, found};
use crate::ffi::result::CudaResult;
use crate::ffi::stream::{self, Stream};
use crate::ffi::types::c_void;

/// What is known of one shadow.
#[derive(Debug)]
pub(super) struct Sums {
    name: String,
    book: Mutex<Book>,
}

#[derive(Debug)]
struct Book {
    pages: Vec<Option<u64>>,
    /// Counts launches that were pointed at the shadow and may write it: what was seen before them says nothing of it.
    epoch: u64,
}

/// What a job does when its turn comes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Task {
    /// The shadow's pages must be what they were.
    Compare,
    /// They were written: these are their sums from now on.
    Take,
    /// Bytes of the ring, at this address of the host, must be what the shadow's are.
    CompareRing(usize),
}

struct Job {
    task: Task,
    sums: Arc<Sums>,
    first: u64,
    pages: u64,
    shadow: Shadow,
    epoch: u64,
}

impl Sums {
    /// Of a shadow that is complete and that nobody writes.
    pub(super) fn of(name: String, shadow: &Shadow, pages: u64) -> Arc<Self> {
        let pages = (0..pages).map(|page| Some(sum(shadow_page(shadow, page)))).collect();
        Arc::new(Self { name, book: Mutex::new(Book { pages, epoch: 0 }) })
    }

    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// A launch that may write the shadow is about to be enqueued.
    pub(super) fn forget(&self) {
        let mut book = self.book();
        book.epoch += 1;
        book.pages.fill(None);
    }

    /// Enqueues a task for pages of the unit.
    pub(super) fn enqueue(
        self: &Arc<Self>,
        task: Task,
        shadow: Shadow,
        pages: std::ops::Range<u64>,
        on: Stream,
    ) -> CudaResult<()> {
        let epoch = self.book().epoch;
        let count = pages.end - pages.start;
        let job = Job { task, sums: Arc::clone(self), first: pages.start, pages: count, shadow, epoch };
        let data = Box::into_raw(Box::new(job));
        // SAFETY: the job is called once; shadows stay until the copy streams are drained.
        let enqueued = unsafe { stream::call_host(on, run, data.cast()) };
        if enqueued.is_err() {
            // SAFETY: the driver did not take it.
            drop(unsafe { Box::from_raw(data) });
        }
        enqueued
    }
}

/// Runs on a thread of the driver.
unsafe extern "C" fn run(data: *mut c_void) {
    // SAFETY: the data is the job that was enqueued, and is called once.
    let job = unsafe { Box::from_raw(data.cast::<Job>()) };
    // A panic must not reach the driver; what it was about is lost with it.
    let _ = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| job.run()));
}

impl Job {
    fn run(&self) {
        for page in self.first..self.first + self.pages {
            let bytes = match self.task {
                Task::CompareRing(host) => host_page(host, page - self.first),
                Task::Compare | Task::Take => shadow_page(&self.shadow, page),
            };
            let now = sum(bytes);
            let mut book = self.sums.book();
            // A launch has written the shadow since, or is about to.
            if book.epoch != self.epoch {
                return;
            }
            let Some(known) = book.pages.get_mut(page as usize) else { return };
            let differs = known.is_some_and(|known| known != now);
            match self.task {
                Task::CompareRing(_) => {
                    drop(book);
                    count(&LOOKED.ring_pages, 1);
                    if differs {
                        self.report_ring(page);
                    }
                }
                Task::Compare | Task::Take => {
                    *known = Some(now);
                    drop(book);
                    count(&LOOKED.shadow_pages, 1);
                    if differs && self.task == Task::Compare {
                        self.report_shadow(page);
                    }
                }
            }
        }
    }

    fn report_shadow(&self, page: u64) {
        let name = &self.sums.name;
        let text = format!(
            "{name} has other bytes in page {page} of its shadow than were last written there: they are about to be copied in (rule 4)"
        );
        found(Kind::ShadowChanged.key(), text);
    }

    fn report_ring(&self, page: u64) {
        let name = &self.sums.name;
        let text = format!(
            "{name} has other bytes in page {page} in the ring than in its shadow, though nothing that is known to write has used it (rule 8)"
        );
        found(Kind::RingDiffers.key(), text);
    }
}

fn sum(bytes: *const u8) -> u64 {
    // SAFETY: the page belongs to a shadow, or to a buffer of ours, that is kept while jobs are enqueued. A racing write tears bytes, and is what is looked for.
    let bytes = unsafe { std::slice::from_raw_parts(bytes, PAGE as usize) };
    xxh3_64(bytes)
}

fn shadow_page(shadow: &Shadow, page: u64) -> *const u8 {
    host_page(shadow.bytes().0.expose_provenance(), page)
}

fn host_page(start: usize, page: u64) -> *const u8 {
    std::ptr::with_exposed_provenance(start + (page * PAGE) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings_of(key: &str) -> u64 {
        super::super::findings().by_kind.get(key).copied().unwrap_or(0)
    }

    /// One test, because findings are the process's.
    #[test]
    fn a_changed_page_is_found_unless_somebody_may_have_written_it() {
        let mut bytes = vec![1_u8; 3 * PAGE as usize];
        let shadow = Shadow::of(&bytes);
        let sums = Sums::of("layers.0.weight".into(), &shadow, 3);
        let job_of = |task, pages| Job {
            task,
            sums: Arc::clone(&sums),
            first: 0,
            pages,
            shadow,
            epoch: sums.book().epoch,
        };
        let job = |task| job_of(task, 3);
        job(Task::Compare).run();
        assert_eq!(findings_of("shadow_changed"), 0);
        let late = job(Task::Compare);
        bytes[2 * PAGE as usize + 7] = 2;
        job(Task::Compare).run();
        assert_eq!(findings_of("shadow_changed"), 1);
        bytes[0] = 3;
        job(Task::Take).run();
        job(Task::Compare).run();
        assert_eq!(findings_of("shadow_changed"), 1, "a write-back is no change behind our back");
        bytes[0] = 4;
        sums.forget();
        late.run();
        job(Task::Compare).run();
        assert_eq!(findings_of("shadow_changed"), 1, "a launch may have written it");
        let ring = vec![4_u8; PAGE as usize];
        job_of(Task::CompareRing(ring.as_ptr().expose_provenance()), 1).run();
        assert_eq!(findings_of("ring_differs"), 1);
    }
}
