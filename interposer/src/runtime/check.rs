//! Check mode (`FT_CHECK`, docs/check-mode.md): what is found is said in one line, counted, and ends the process where that was asked for.
//! Order is audited in `ring`, bytes in `sums`, write protection is `shield`'s and aliased pages are `alias`' matter. When it is off, nothing of this exists.

#![expect(unsafe_code, reason = "ends the process, and registers an exit handler")]

mod alias;
mod callers;
mod flight;
mod lines;
mod ring;
#[cfg(feature = "seeded-faults")]
pub(crate) mod seeds;
mod shield;
mod sums;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

use flextensor_config::choices::CheckMode;
use serde_json::{Value, json};

use super::devices::MAX_DEVICES;
use super::streaming::ring_of;
use crate::log;

pub(crate) use alias::{look_at_launch, look_at_range};
pub(crate) use callers::{By, forget_kernels};
pub(crate) use ring::RingCheck;
pub(crate) use shield::in_turn;

/// Status of a process that the first finding ended.
const ABORT_STATUS: i32 = 86;

/// Lines of one kind that are shown; all are counted.
const LINES_OF_A_KIND: u64 = 16;

/// Lines that the report keeps.
const LINES_KEPT: usize = 64;

const OFF: u8 = 0;
const ON: u8 = 1;
const ABORT: u8 = 2;

static MODE: AtomicU8 = AtomicU8::new(OFF);

/// Whether this run is checked. Never changes after the start.
#[inline]
pub(crate) fn is_on() -> bool {
    MODE.load(Ordering::Relaxed) != OFF
}

/// Takes over the option.
pub(crate) fn start(mode: CheckMode) {
    let mode = match mode {
        CheckMode::Off => return,
        CheckMode::On => ON,
        CheckMode::Abort => ABORT,
    };
    MODE.store(mode, Ordering::Relaxed);
    extern "C" fn at_exit() {
        if crate::init::active() {
            let _inside = crate::guard::enter();
            let _ = std::panic::catch_unwind(say_at_exit);
        }
    }
    // SAFETY: the handler stays loaded: the library is never unloaded.
    unsafe { libc::atexit(at_exit) };
}

/// What can be found beside what an audit finds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// A shadow is not what was last written to it.
    ShadowChanged,
    /// Ring pages that nobody changed, as far as is known, are not what was copied there.
    RingDiffers,
    /// The context was lost while weights were write-protected.
    ProtectedWritten,
    /// Ring pages stand under an address of which no weight is known.
    Aliased,
}

impl Kind {
    const ALL: [Kind; 4] = [Kind::ShadowChanged, Kind::RingDiffers, Kind::ProtectedWritten, Kind::Aliased];

    const fn key(self) -> &'static str {
        match self {
            Kind::ShadowChanged => "shadow_changed",
            Kind::RingDiffers => "ring_differs",
            Kind::ProtectedWritten => "protected_written",
            Kind::Aliased => "aliased_page",
        }
    }
}

/// What was looked at, so that a run without findings can be told from one without checks.
#[derive(Debug, Default)]
struct Looked {
    launches: AtomicU64,
    copies: AtomicU64,
    shadow_pages: AtomicU64,
    ring_pages: AtomicU64,
    poisoned_pages: AtomicU64,
    addresses: AtomicU64,
    protections: AtomicU64,
    openings: AtomicU64,
}

static LOOKED: Looked = Looked {
    launches: AtomicU64::new(0),
    copies: AtomicU64::new(0),
    shadow_pages: AtomicU64::new(0),
    ring_pages: AtomicU64::new(0),
    poisoned_pages: AtomicU64::new(0),
    addresses: AtomicU64::new(0),
    protections: AtomicU64::new(0),
    openings: AtomicU64::new(0),
};

fn count(of: &AtomicU64, more: u64) {
    of.fetch_add(more, Ordering::Relaxed);
}

#[derive(Debug, Default)]
struct Findings {
    by_kind: BTreeMap<&'static str, u64>,
    lines: Vec<String>,
}

/// Taken after any other lock.
fn findings() -> MutexGuard<'static, Findings> {
    static FINDINGS: Mutex<Findings> = Mutex::new(Findings { by_kind: BTreeMap::new(), lines: Vec::new() });
    FINDINGS.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// One finding: `text` says what, which weight, which kernel if that is known, and which rule.
fn found(key: &'static str, text: String) {
    let mut findings = findings();
    let many = findings.by_kind.entry(key).or_default();
    *many += 1;
    let many = *many;
    if many <= LINES_OF_A_KIND {
        log::error!("check: {text} [{key}]");
    }
    if many == LINES_OF_A_KIND {
        log::error!("check: more of [{key}] is counted only");
    }
    if findings.lines.len() < LINES_KEPT {
        findings.lines.push(text);
    }
    drop(findings);
    if MODE.load(Ordering::Relaxed) == ABORT {
        // Exit handlers would need locks that this thread may hold.
        // SAFETY: ends the process at once.
        unsafe { libc::_exit(ABORT_STATUS) };
    }
}

/// For the report; null where nothing is checked.
pub(crate) fn report() -> Value {
    if !is_on() {
        return Value::Null;
    }
    let findings = findings();
    let load = |of: &AtomicU64| of.load(Ordering::Relaxed);
    let mut kinds = serde_json::Map::new();
    let audited = flextensor_core::audit::Kind::ALL.iter().map(|kind| kind.key());
    for key in audited.chain(Kind::ALL.map(Kind::key)) {
        kinds.insert(key.to_owned(), json!(findings.by_kind.get(key).copied().unwrap_or(0)));
    }
    json!({
        "findings": findings.by_kind.values().sum::<u64>(),
        "kinds": kinds,
        "lines": findings.lines,
        "looked_at": {
            "launches": load(&LOOKED.launches),
            "copies": load(&LOOKED.copies),
            "shadow_pages": load(&LOOKED.shadow_pages),
            "ring_pages": load(&LOOKED.ring_pages),
            "poisoned_pages": load(&LOOKED.poisoned_pages),
            "addresses": load(&LOOKED.addresses),
            "protections": load(&LOOKED.protections),
            "openings": load(&LOOKED.openings),
        },
    })
}

/// The last look, and the verdict.
fn say_at_exit() {
    for device in 0..MAX_DEVICES as i32 {
        if let Some(ring) = ring_of(device).as_mut() {
            ring.look_once_more();
        }
    }
    let many: u64 = findings().by_kind.values().sum();
    let (launches, copies) = (LOOKED.launches.load(Ordering::Relaxed), LOOKED.copies.load(Ordering::Relaxed));
    log::notice!("check: {many} findings in {launches} uses of streamed weights and {copies} copies");
}
