//! What a launch shows of streamed units, and what the pager says of each. How the shown is found, and how sure it is, is the caller's matter.

use crate::units::UnitId;

/// Whether a hit may change the unit's bytes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Access {
    /// Proven to read only.
    Read,
    /// Writes, or is not proven to read only.
    Write,
}

/// How sure the caller is that a hit is a use (rule 7).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Certainty {
    /// Nothing is known of this word of this kernel.
    Unknown,
    /// This word of this kernel has been a use before.
    Live,
    /// The hit lies in its owner's forward, or is a copy by address.
    Owner,
}

/// One streamed unit that a launch shows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Hit {
    /// The unit.
    pub unit: UnitId,
    /// What the launch may do to it.
    pub access: Access,
    /// How sure it is that the launch uses it.
    pub certainty: Certainty,
    /// Nobody may overwrite the unit until [`Pager::end_use`](super::Pager::end_use): launches that do not show it may read it.
    pub hold: bool,
    /// Every word that shows the unit can be pointed at its view.
    pub can_redirect: bool,
}

/// What the launch has to do about one hit.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Verdict {
    /// The unit is in place and pinned, the stream ordered behind its copy.
    #[default]
    Ready,
    /// The same, and a use of the unit began with this launch.
    Began,
    /// Point the word at the unit's view: it is doubtful (rule 7), or its pages are needed for another unit of the launch (rule 6).
    Redirect,
    /// A use whose pages cannot be had (rule 6): redirect it, or give the unit private pages.
    Conflict,
}

impl Verdict {
    /// Whether the launch may read the unit at its own address.
    #[must_use]
    pub fn in_place(self) -> bool {
        matches!(self, Verdict::Ready | Verdict::Began)
    }
}
