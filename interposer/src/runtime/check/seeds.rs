//! Faults on demand, between the pager and the driver: tests of the check mode put one into a program, and see that it is found. Only in builds with the
//! feature `seeded-faults`; `FLEXTENSOR_SEEDED_FAULT` names the one. What finds it is the siblings' matter.

#![expect(unsafe_code, reason = "changes a shadow")]

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use flextensor_core::pager::{Command, StreamId};

use super::super::shadow::Shadow;

/// What goes wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Seed {
    /// Streams of the program but the first one do not wait for copies.
    SecondStream,
    /// Of several readers that a copy has to wait for, it waits for the last one only.
    OneReader,
    /// The pager hears that a launch is enqueued before it is.
    ReleasedEarly,
    /// Copies are not followed by their event.
    Unrecorded,
    /// What was changed is not written back.
    LostWrite,
    /// A shadow gets another byte before its first copy in.
    ShadowChanged,
    /// A weight that is let go keeps its ring pages.
    Aliased,
    /// No fault by itself: weights are not write-protected.
    Unprotected,
}

const NAMES: [(&str, Seed); 8] = [
    ("second stream", Seed::SecondStream),
    ("one reader", Seed::OneReader),
    ("released early", Seed::ReleasedEarly),
    ("unrecorded", Seed::Unrecorded),
    ("lost write", Seed::LostWrite),
    ("shadow changed", Seed::ShadowChanged),
    ("aliased", Seed::Aliased),
    ("unprotected", Seed::Unprotected),
];

fn seed() -> Option<Seed> {
    static SEED: OnceLock<Option<Seed>> = OnceLock::new();
    *SEED.get_or_init(|| {
        let name = std::env::var("FLEXTENSOR_SEEDED_FAULT").ok()?;
        NAMES.into_iter().find(|(known, _)| *known == name).map(|(_, seed)| seed)
    })
}

/// Whether this is the fault of this run.
pub(crate) fn is(one: Seed) -> bool {
    seed() == Some(one)
}

/// Leaves out what the fault leaves out.
pub(crate) fn spoil(commands: &mut Vec<Command>) {
    match seed() {
        Some(Seed::SecondStream) => {
            commands.retain(
                |command| !matches!(command, Command::WaitOnStream { stream, .. } if is_second(*stream)),
            );
        }
        Some(Seed::OneReader) => {
            let waits = |command: &Command| matches!(command, Command::WaitOnCopy { .. });
            let mut left = commands.iter().filter(|command| waits(command)).count();
            commands.retain(|command| {
                let leaves = waits(command) && left > 1;
                left -= usize::from(waits(command));
                !leaves
            });
        }
        Some(Seed::Unrecorded) => commands.retain(|command| !matches!(command, Command::RecordCopy { .. })),
        Some(Seed::LostWrite) => commands.retain(|command| !matches!(command, Command::WriteBack { .. })),
        _ => {}
    }
}

fn is_second(stream: StreamId) -> bool {
    static FIRST: OnceLock<StreamId> = OnceLock::new();
    *FIRST.get_or_init(|| stream) != stream
}

/// Changes one byte of the first shadow that this is asked for.
pub(crate) fn scribble(shadow: &Shadow) {
    static DONE: AtomicBool = AtomicBool::new(false);
    if DONE.swap(true, Ordering::Relaxed) {
        return;
    }
    let byte = shadow.bytes().0.cast_mut();
    // SAFETY: the shadow is alive; that somebody reads it meanwhile is the fault that is wanted.
    let now = unsafe { byte.read_volatile() };
    // SAFETY: as above.
    unsafe { byte.write_volatile(now ^ 1) };
}
