//! What can go wrong in decisions: each variant names the thing, the value given and what is allowed.
//! Who gets to see it (the program as a CUDA error, the user as a line) is decided by the caller.

use crate::units::UnitId;

/// An error of `core`.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum CoreError {
    /// A text is no amount of memory.
    #[error(
        "memory size `{given}` is not a number with one of the units B, KiB, MiB, GiB, TiB, KB, MB, GB, TB (example: 8GiB)"
    )]
    BadBytes {
        /// The text as given.
        given: String,
    },
    /// A request contradicts itself: the page size is zero.
    #[error("page size 0 is not allowed: give the size of a ring page in bytes (2097152 on today's GPUs)")]
    ZeroPageSize,
    /// Two units of a request have the same id.
    #[error("unit id {} is given twice: every unit of a request needs its own", unit.0)]
    DuplicateUnit {
        /// The id.
        unit: UnitId,
    },
    /// A pass uses a unit that the request does not describe.
    #[error("a pass uses unit {}, which the request does not describe: add it to the units", unit.0)]
    UnknownUnit {
        /// The id.
        unit: UnitId,
    },
    /// Two units that are held together were laid on one ring page; such a layout would never finish.
    #[error("units {} and {} are held together but share ring pages: the ring of {ring_pages} pages is too small for this layout", first.0, second.0)]
    HeldTogetherOverlap {
        /// The unit that was there first.
        first: UnitId,
        /// The unit that would overwrite it.
        second: UnitId,
        /// The length of the ring.
        ring_pages: u64,
    },
    /// A run is longer than the ring.
    #[error("unit {} streams {pages} pages, more than the ring's {ring_pages}", unit.0)]
    RunExceedsRing {
        /// The unit.
        unit: UnitId,
        /// Its streamed pages.
        pages: u64,
        /// The length of the ring.
        ring_pages: u64,
    },
}
