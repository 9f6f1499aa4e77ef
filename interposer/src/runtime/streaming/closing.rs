//! The end of a ring: everything goes back to the driver, and what it counted to the sums of rings that are gone.

use std::sync::Mutex;

use super::super::verify;
use super::Streaming;
use crate::ffi::context;
use crate::ffi::event;
use crate::ffi::stream;
use crate::ffi::vmm;

/// What a ring counted: the pager's counters in the report's order, then bytes in and bytes back.
pub(crate) type Counted = [u64; 10];

/// Sums of rings that are gone.
static GONE: Mutex<Counted> = Mutex::new([0; 10]);

/// What rings counted that are gone.
pub(crate) fn counted_by_gone_rings() -> Counted {
    *GONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl Streaming {
    /// Gives everything back to the driver, and the host memory of what was in it. Nothing is mapped to its pages, nobody waits for its events, and the
    /// calling thread holds no ring's lock.
    pub(crate) fn close(mut self) {
        let mut check = self.check.take();
        let gone = context::with_current(self.context, || {
            self.drain()?;
            if let Some(mut check) = check.take() {
                check.close_events();
                check.close();
            }
            // As many as can be, also behind one that cannot.
            let events = self.gpu.events.iter().map(|&event| event::destroy(event));
            let closed = events.fold(Ok(()), Result::and);
            let copies = self.gpu.copies.iter().map(|&copy| stream::destroy(copy));
            let closed = copies.fold(closed, Result::and);
            verify::let_go(self.units.iter().flatten().map(|unit| unit.shadow).collect());
            closed
        });
        if let Err(error) = gone {
            crate::log::debug!("the copy streams of a ring could not be closed: {error}");
        }
        self.let_go_of_pages();
    }

    /// The same when its context is gone, and with it streams, events and registrations.
    pub(crate) fn close_without_context(mut self) {
        if let Some(check) = self.check.take() {
            check.close();
        }
        verify::let_go(self.units.iter().flatten().map(|unit| unit.shadow).collect());
        self.let_go_of_pages();
    }

    fn let_go_of_pages(self) {
        let mut gone = GONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
        gone.iter_mut().zip(self.counted()).for_each(|(sum, one)| *sum += one);
        drop(gone);
        for handle in self.ring {
            let _ = vmm::release(handle);
        }
    }
}
