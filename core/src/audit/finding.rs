//! What an audit can find, and which rule it is about. Names of weights and kernels are the caller's to add.

use crate::units::UnitId;

/// A launch or copy of the program, by a number of the caller's.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Caller(pub u32);

macro_rules! kinds {
    ($($(#[$doc:meta])* $name:ident = $key:literal, $rule:literal, $what:literal;)+) => {
        /// What went wrong.
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
        pub enum Kind { $($(#[$doc])* $name,)+ }

        impl Kind {
            /// Every kind, in documented order.
            pub const ALL: &'static [Kind] = &[$(Kind::$name),+];

            /// Its key in reports.
            #[must_use]
            pub const fn key(self) -> &'static str {
                match self { $(Kind::$name => $key),+ }
            }

            /// The rule of the page protocol that was broken.
            #[must_use]
            pub const fn rule(self) -> u8 {
                match self { $(Kind::$name => $rule),+ }
            }

            /// What happened, as it goes on behind the name of a weight.
            #[must_use]
            pub const fn what(self) -> &'static str {
                match self { $(Kind::$name => $what),+ }
            }
        }
    };
}

kinds! {
    /// Pages that a launch may read hold another unit's bytes.
    NotInPlace = "not_in_place", 1, "is read while its pages hold something else";
    /// The launch's stream does not wait for the copy.
    LaunchBeforeCopy = "launch_before_copy", 1, "is read on a stream that does not wait for its copy";
    /// A copy goes over pages that a launch may still read or write.
    OverwrittenInUse = "overwritten_in_use", 3, "is overwritten on a copy stream that does not wait for all who use it";
    /// The same, before the launch has been enqueued.
    OverwrittenUnrecorded = "overwritten_between_check_and_enqueue", 2, "is overwritten between a launch's check and its enqueue";
    /// The same while its owner's forward goes on.
    OverwrittenHeld = "overwritten_while_held", 6, "is overwritten while its owner reads it through pointers";
    /// Changed pages go without a write-back.
    LostWrite = "lost_write", 3, "was changed and is overwritten without having been written back";
    /// A copy back out of pages that hold something else, or are still being written.
    WriteBackOutOfOrder = "write_back_out_of_order", 3, "is written back before its pages hold what was written";
    /// A copy or launch uses the shadow while something else writes it.
    ShadowOutOfOrder = "shadow_out_of_order", 4, "has its shadow used by something that does not wait for what writes it";
    /// Waits for nothing.
    UnrecordedWait = "unrecorded_wait", 10, "is ordered by an event that was never recorded";
}

/// One finding.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Finding {
    /// What went wrong.
    pub kind: Kind,
    /// Whose bytes are in danger; none where that is not known.
    pub unit: Option<UnitId>,
    /// What is copied over it, if that is the danger.
    pub by: Option<UnitId>,
    /// The launch that is not waited for, or does not wait.
    pub caller: Option<Caller>,
}
