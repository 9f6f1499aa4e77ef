//! What a handler answers to a call, and the counters of calls that it let pass. Words for the counters are the report's job.

use crate::ffi::types::CUresult;
use std::sync::atomic::{AtomicU64, Ordering};

/// The answer of a handler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// The handler did the call (itself or through the original); the program gets this code.
    Done(CUresult),
    /// The call is none of our business; the shell calls the original and counts the reason.
    Bypass(Reason),
    /// The handler could not do the call; the program gets this code. Counted.
    Fail(CUresult),
}

macro_rules! reasons {
    ($($(#[doc = $doc:literal])+ $name:ident = $key:literal,)*) => {
        /// Why a call went straight to the driver.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(dead_code, reason = "the handlers' vocabulary")]
        pub(crate) enum Reason {
            $($(#[doc = $doc])+ $name,)*
        }

        impl Reason {
            /// Every reason, in the order of the report.
            pub(crate) const ALL: &'static [Reason] = &[$(Reason::$name,)*];

            /// The reason's key in the report.
            pub(crate) const fn key(self) -> &'static str {
                match self {
                    $(Reason::$name => $key,)*
                }
            }
        }
    };
}

reasons! {
    /// Nothing that we manage is named by the call.
    NotManaged = "not_managed",
    /// An allocation below `managed_min_bytes`.
    TooSmall = "too_small",
    /// The device or context is not one that we manage.
    OtherDevice = "other_device",
    /// The call is only watched, never changed.
    Observed = "observed",
    /// We switched ourselves off.
    SwitchedOff = "switched_off",
}

static BYPASSES: [AtomicU64; Reason::ALL.len()] = [const { AtomicU64::new(0) }; Reason::ALL.len()];
static FAILURES: AtomicU64 = AtomicU64::new(0);
static PANICS: AtomicU64 = AtomicU64::new(0);

/// One call went straight to the driver for this reason.
pub(crate) fn count_bypass(reason: Reason) {
    BYPASSES[reason as usize].fetch_add(1, Ordering::Relaxed);
}

/// A handler failed a call.
pub(crate) fn count_failure() {
    FAILURES.fetch_add(1, Ordering::Relaxed);
}

/// A handler panicked; the program got `CUDA_ERROR_UNKNOWN`. True for the first time, which deserves a line.
pub(crate) fn count_panic() -> bool {
    PANICS.fetch_add(1, Ordering::Relaxed) == 0
}

/// Key and number of calls of every reason that was ever given.
pub(crate) fn bypasses() -> impl Iterator<Item = (&'static str, u64)> {
    let counted =
        Reason::ALL.iter().map(|&reason| (reason.key(), BYPASSES[reason as usize].load(Ordering::Relaxed)));
    counted.filter(|&(_, calls)| calls > 0)
}

/// Calls that a handler failed, and calls in which a handler panicked.
pub(crate) fn failures() -> (u64, u64) {
    (FAILURES.load(Ordering::Relaxed), PANICS.load(Ordering::Relaxed))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bypasses_are_counted_by_reason() {
        count_bypass(Reason::OtherDevice);
        count_bypass(Reason::OtherDevice);
        let counted: Vec<_> = bypasses().filter(|&(key, _)| key == "other_device").collect();
        assert_eq!(counted, [("other_device", 2)]);
    }
}
