//! One launch: its uses, and a run in three phases over its time.

use super::layout::{Arguments, Kernel, Phase};
use crate::exec::hazard::{self, Stamp, Use};
use crate::journal::{Detection, journal};
use crate::memory::access;
use crate::memory::space::Denied;
use crate::settings::settings;
use std::thread;

/// A launch, as it stands in a queue or a graph.
#[derive(Clone)]
pub(crate) struct KernelCall {
    pub(crate) kernel: &'static Kernel,
    pub(crate) arguments: Arguments,
    /// Programmatic stream serialization: may start when the kernel before it has started.
    pub(crate) programmatic: bool,
    pub(crate) grid: [u32; 3],
    pub(crate) block: [u32; 3],
    pub(crate) shared: u32,
    /// The handle that was launched.
    pub(crate) function: u64,
}

/// What a kernel body sees.
pub(crate) struct Run<'a> {
    pub(crate) device: usize,
    pub(crate) arguments: &'a Arguments,
}

/// A sum that any changed word changes.
fn digest(device: usize, uses: &[Use]) -> Result<u64, Denied> {
    let mut sum = 0u64;
    for used in uses {
        access::read_words(device, used.address & !7, used.bytes / 8, |index, word| {
            sum = sum.wrapping_add(word.wrapping_mul(2 * index + 1));
        })?;
    }
    Ok(sum)
}

impl KernelCall {
    pub(crate) fn uses(&self) -> Vec<Use> {
        (self.kernel.uses)(&self.arguments)
    }

    /// Inputs that nothing of the kernel itself writes.
    fn inputs(uses: &[Use]) -> Vec<Use> {
        let written =
            |read: &Use| uses.iter().any(|used| used.writes && used.overlaps(read.address, read.bytes));
        uses.iter().filter(|used| !used.writes && !written(used)).copied().collect()
    }

    /// Runs to the end on the calling thread.
    pub(crate) fn run(&self, device: usize, stamp: &Stamp) -> Result<(), Denied> {
        let run = Run { device, arguments: &self.arguments };
        journal().launched(self.kernel.name);
        let mut uses = self.uses();
        hazard::enter(stamp, &uses);
        if let Some(indirect) = self.kernel.indirect {
            let more = indirect(&run)?;
            hazard::enter(stamp, &more);
            uses.extend(more);
        }
        let inputs = if self.kernel.compare_inputs { Self::inputs(&uses) } else { Vec::new() };
        let pause = settings().pace.kernel() / 2;
        let first = digest(device, &inputs)?;
        let mut changed = false;
        for phase in [Phase::Start, Phase::Middle, Phase::End] {
            if phase != Phase::Start {
                if !pause.is_zero() {
                    thread::sleep(pause);
                }
                changed |= digest(device, &inputs)? != first;
            }
            (self.kernel.body)(&run, phase)?;
        }
        if changed {
            let message = format!("an input of {} changed while it ran", self.kernel.name);
            journal().detect(Detection::ChangedWhileRead, &message);
        }
        Ok(())
    }
}
