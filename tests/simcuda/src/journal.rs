//! What happened: traffic, peaks, detections. The exit report and the `simcuda_stat` control symbol read it; counts of
//! calls live with the exports (`call`).

use crate::locks::lock;
use crate::settings::settings;
use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Misuse that simcuda notices. A GPU would answer most of these with wrong bytes and no word.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Detection {
    /// A kernel or copy touched an address without memory or without access.
    UnmappedAccess,
    /// A kernel or copy wrote a mapping that is read-only.
    ReadOnlyWrite,
    /// Memory was unmapped while queued or running work uses it.
    UnmapInUse,
    /// The access of memory was set while queued or running work uses it at that address.
    AccessInUse,
    /// Host memory was unregistered while queued or running work uses it.
    UnregisterInUse,
    /// Two operations touch the same physical bytes, one writes, and nothing orders them.
    Unordered,
    /// A wait on an event that was never recorded; the driver accepts it and waits for nothing.
    UnrecordedWait,
    /// A kernel's input changed between the start and the end of its run.
    ChangedWhileRead,
    /// A stream was destroyed while a thread waits for it by its handle, which the driver leaves undefined.
    DestroyedInUse,
}

impl Detection {
    pub(crate) const ALL: [Self; 9] = [
        Self::UnmappedAccess,
        Self::ReadOnlyWrite,
        Self::UnmapInUse,
        Self::AccessInUse,
        Self::UnregisterInUse,
        Self::Unordered,
        Self::UnrecordedWait,
        Self::ChangedWhileRead,
        Self::DestroyedInUse,
    ];

    /// The key in the journal.
    pub(crate) fn key(self) -> &'static str {
        match self {
            Self::UnmappedAccess => "unmapped_access",
            Self::ReadOnlyWrite => "read_only_write",
            Self::UnmapInUse => "unmap_in_use",
            Self::AccessInUse => "access_in_use",
            Self::UnregisterInUse => "unregister_in_use",
            Self::Unordered => "unordered",
            Self::UnrecordedWait => "unrecorded_wait",
            Self::ChangedWhileRead => "changed_while_read",
            Self::DestroyedInUse => "destroyed_in_use",
        }
    }
}

/// Messages kept for the report; the counts go on.
const MESSAGES: usize = 40;

/// Running totals of the process.
pub(crate) struct Journal {
    pub(crate) h2d_bytes: AtomicU64,
    pub(crate) d2h_bytes: AtomicU64,
    pub(crate) d2d_bytes: AtomicU64,
    pub(crate) device_bytes: AtomicU64,
    pub(crate) device_bytes_peak: AtomicU64,
    pub(crate) host_located_bytes: AtomicU64,
    pub(crate) launches: AtomicU64,
    /// `cuMemFree` calls that had to wait for work that used the memory; legal, since the driver waits too.
    pub(crate) free_waited: AtomicU64,
    pub(crate) faults_delivered: AtomicU64,
    counts: [AtomicU64; Detection::ALL.len()],
    messages: Mutex<Vec<String>>,
    kernels: Mutex<BTreeMap<&'static str, u64>>,
}

static JOURNAL: Journal = Journal {
    h2d_bytes: AtomicU64::new(0),
    d2h_bytes: AtomicU64::new(0),
    d2d_bytes: AtomicU64::new(0),
    device_bytes: AtomicU64::new(0),
    device_bytes_peak: AtomicU64::new(0),
    host_located_bytes: AtomicU64::new(0),
    launches: AtomicU64::new(0),
    free_waited: AtomicU64::new(0),
    faults_delivered: AtomicU64::new(0),
    counts: [const { AtomicU64::new(0) }; Detection::ALL.len()],
    messages: Mutex::new(Vec::new()),
    kernels: Mutex::new(BTreeMap::new()),
};

/// The journal of this process.
pub(crate) fn journal() -> &'static Journal {
    &JOURNAL
}

impl Journal {
    /// Notes a detection; in strict mode the process ends here.
    #[expect(clippy::print_stderr, reason = "strict mode ends the process with one line")]
    pub(crate) fn detect(&self, what: Detection, message: &str) {
        self.counts[what as usize].fetch_add(1, Relaxed);
        let line = format!("{}: {message}", what.key());
        if settings().strict {
            eprintln!("simcuda: {line}");
            std::process::abort();
        }
        let mut messages = lock(&self.messages);
        if messages.len() < MESSAGES {
            messages.push(line);
        }
    }

    pub(crate) fn count(&self, what: Detection) -> u64 {
        self.counts[what as usize].load(Relaxed)
    }

    pub(crate) fn detections(&self) -> u64 {
        self.counts.iter().map(|count| count.load(Relaxed)).sum()
    }

    pub(crate) fn messages(&self) -> Vec<String> {
        lock(&self.messages).clone()
    }

    /// Counts a kernel that begins to run.
    pub(crate) fn launched(&self, kernel: &'static str) {
        self.launches.fetch_add(1, Relaxed);
        *lock(&self.kernels).entry(kernel).or_default() += 1;
    }

    pub(crate) fn kernels(&self) -> BTreeMap<&'static str, u64> {
        lock(&self.kernels).clone()
    }

    /// Adds device memory and keeps the peak.
    pub(crate) fn device_grew(&self, bytes: u64) {
        let now = self.device_bytes.fetch_add(bytes, Relaxed) + bytes;
        self.device_bytes_peak.fetch_max(now, Relaxed);
    }
}
