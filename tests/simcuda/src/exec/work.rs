//! What a queue entry does when its turn comes.

use super::context::Context;
use super::copy::{CopyJob, SetJob};
use super::event::Record;
use super::hazard::{self, Stamp, Use};
use super::stream::Stream;
use crate::journal::{Detection, journal};
use crate::kernels::call::KernelCall;
use crate::memory::space::Denied;
use crate::status::Status;
use std::sync::Arc;

/// A function of the program that a stream calls.
#[derive(Clone, Copy, Debug)]
pub(crate) enum HostCall {
    /// `cuLaunchHostFunc`.
    Function { function: u64, data: u64 },
    /// `cuStreamAddCallback`.
    Callback { function: u64, stream: u64, data: u64 },
}

/// One entry of a stream, or one node of a graph.
#[derive(Clone)]
pub(crate) enum Work {
    /// Nothing: its waits are the point.
    Wait,
    Record(Arc<Record>),
    Copy(Arc<CopyJob>),
    Set(Arc<SetJob>),
    Kernel(Arc<KernelCall>),
    Host(HostCall),
}

/// Reports an access that a GPU would answer with error 700, and takes the context, as a GPU does.
pub(crate) fn fault(context: Option<&Context>, label: &str, denied: Denied) {
    let (what, message) = match denied {
        Denied::Unmapped(address) => {
            (Detection::UnmappedAccess, format!("{label} touches {address:#x}, where it has no memory"))
        }
        Denied::ReadOnly(address) => {
            (Detection::ReadOnlyWrite, format!("{label} writes {address:#x}, which is mapped for reading"))
        }
    };
    journal().detect(what, &message);
    if let Some(context) = context {
        context.lose(Status::ILLEGAL_ADDRESS);
    }
}

impl Work {
    /// For messages and the hazard table.
    pub(crate) fn label(&self) -> &'static str {
        match self {
            Self::Wait => "wait",
            Self::Record(_) => "event record",
            Self::Copy(job) => job.direction.label(),
            Self::Set(_) => "memset",
            Self::Kernel(call) => call.kernel.name,
            Self::Host(_) => "host function",
        }
    }

    /// What it will read and write, as far as its arguments tell.
    pub(crate) fn uses(&self) -> Vec<Use> {
        match self {
            Self::Wait | Self::Record(_) | Self::Host(_) => Vec::new(),
            Self::Copy(job) => job.uses(),
            Self::Set(job) => job.uses(),
            Self::Kernel(call) => call.uses(),
        }
    }

    /// Runs to the end on the calling thread.
    pub(crate) fn run(&self, stream: &Stream, stamp: &Stamp) {
        let context = stream.context.upgrade();
        let lost = context.as_ref().is_none_or(|context| context.usable().is_err());
        let result = match self {
            Self::Wait => Ok(()),
            Self::Record(record) => {
                record.happen();
                Ok(())
            }
            // A lost context runs nothing more; records still happen, so that nobody waits for ever.
            _ if lost => Ok(()),
            Self::Copy(job) => {
                hazard::enter(stamp, &job.uses());
                job.run(stream.device)
            }
            Self::Set(job) => {
                hazard::enter(stamp, &job.uses());
                job.run(stream.device)
            }
            Self::Kernel(call) => call.run(stream.device, stamp),
            Self::Host(call) => {
                call.run();
                Ok(())
            }
        };
        if let Err(denied) = result {
            fault(context.as_deref(), self.label(), denied);
        }
    }
}

#[expect(unsafe_code, reason = "calls a function of the program")]
mod host {
    use super::HostCall;
    use std::mem::transmute;

    impl HostCall {
        pub(super) fn run(self) {
            match self {
                Self::Function { function, data } => {
                    // SAFETY: the program passed this number as a CUhostFn; it is not null, the caller of the driver checked.
                    let function: extern "C" fn(u64) = unsafe { transmute(function as *const ()) };
                    function(data);
                }
                Self::Callback { function, stream, data } => {
                    // SAFETY: the program passed this number as a CUstreamCallback; it is not null, as above.
                    let function: extern "C" fn(u64, u32, u64) = unsafe { transmute(function as *const ()) };
                    function(stream, 0, data);
                }
            }
        }
    }
}
