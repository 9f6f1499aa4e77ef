//! Physical allocations: a stretch of the memory file each, counted against the limit of its device.

use super::os;
use crate::exec::hazard;
use crate::journal::journal;
use crate::settings::settings;
use crate::status::Status;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};

/// Most devices that can be simulated.
pub(crate) const DEVICES: usize = 16;

/// Where physical memory lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Place {
    /// On this device.
    Device(usize),
    /// In host memory (`HOST` and `HOST_NUMA` locations).
    Host,
}

/// One physical allocation. Its memory goes back when the last handle and the last mapping are gone.
#[derive(Debug)]
pub(crate) struct Physical {
    /// Identity in the hazard table; never reused.
    pub(crate) id: u64,
    /// First byte in the memory file.
    pub(crate) offset: u64,
    pub(crate) bytes: u64,
    pub(crate) place: Place,
    /// The location kind and id that the program asked for.
    pub(crate) location: (u32, i32),
}

static USED: [AtomicU64; DEVICES] = [const { AtomicU64::new(0) }; DEVICES];

/// Bytes of each device that other processes hold.
static OTHERS: AtomicU64 = AtomicU64::new(0);

/// Other processes hold so many bytes of each device from now on, or all that is free.
pub(crate) fn others_hold(bytes: u64) {
    OTHERS.store(bytes, Relaxed);
}

/// Bytes that are free on a device.
pub(crate) fn free(device: usize) -> u64 {
    settings().memory.saturating_sub(used(device).saturating_add(OTHERS.load(Relaxed)))
}

/// The file that holds all physical memory.
pub(crate) fn file() -> Result<&'static OwnedFd, Status> {
    static FILE: OnceLock<Option<OwnedFd>> = OnceLock::new();
    FILE.get_or_init(|| os::memory_file().ok()).as_ref().ok_or(Status::OPERATING_SYSTEM)
}

/// Bytes in use on a device.
fn used(device: usize) -> u64 {
    USED[device].load(Relaxed)
}

impl Physical {
    /// Takes `bytes` of physical memory.
    ///
    /// # Errors
    /// `OUT_OF_MEMORY` beyond the limit of the device; `OPERATING_SYSTEM` when there is no memory file.
    pub(crate) fn create(bytes: u64, place: Place, location: (u32, i32)) -> Result<Arc<Self>, Status> {
        static NEXT_ID: AtomicU64 = AtomicU64::new(1);
        static NEXT_OFFSET: AtomicU64 = AtomicU64::new(0);
        file()?;
        match place {
            Place::Device(device) => {
                let limit = settings().memory.saturating_sub(OTHERS.load(Relaxed));
                let fits = |used: u64| used.checked_add(bytes).filter(|sum| *sum <= limit);
                USED[device].fetch_update(Relaxed, Relaxed, fits).map_err(|_| Status::OUT_OF_MEMORY)?;
                journal().device_grew(bytes);
            }
            Place::Host => {
                journal().host_located_bytes.fetch_add(bytes, Relaxed);
            }
        }
        // Offsets start on pages, so that a hazard page never holds two allocations.
        let stretch = bytes.div_ceil(super::PAGE) * super::PAGE;
        let offset = NEXT_OFFSET.fetch_add(stretch, Relaxed);
        Ok(Arc::new(Self { id: NEXT_ID.fetch_add(1, Relaxed), offset, bytes, place, location }))
    }
}

impl Drop for Physical {
    fn drop(&mut self) {
        hazard::forget(self.id, self.bytes);
        if let Ok(file) = file() {
            // The memory is lost to the process if this fails, which a test would notice as memory growth only.
            let _ = os::discard(file, self.offset, self.bytes);
        }
        match self.place {
            Place::Device(device) => {
                USED[device].fetch_sub(self.bytes, Relaxed);
                journal().device_bytes.fetch_sub(self.bytes, Relaxed);
            }
            Place::Host => {
                journal().host_located_bytes.fetch_sub(self.bytes, Relaxed);
            }
        }
    }
}
