//! Launches that use write-protected weights and are not known to have ended: one of them is to blame when the context is lost. The driver does not say which.

use std::collections::VecDeque;

use flextensor_core::audit::Caller;
use flextensor_core::units::UnitId;

use crate::ffi::event::{self, Event};
use crate::ffi::result::{CudaError, CudaResult};
use crate::ffi::stream::Stream;
use crate::ffi::types::CUresult;

/// More than these are not remembered: the oldest go.
const LENGTH: usize = 64;

#[derive(Debug, Default)]
pub(super) struct Flight {
    /// Behind each its event, or why there is none: the context was lost already, perhaps to this launch.
    list: VecDeque<(CudaResult<Event>, UnitId, Caller)>,
    spare: Vec<Event>,
    lost: bool,
}

/// Whether the error is what an access that the GPU refuses leaves: the first where a kernel made it, the second where a copy did.
pub(super) fn is_fault(error: CudaError) -> bool {
    matches!(error.0, CUresult::CUDA_ERROR_ILLEGAL_ADDRESS | CUresult::CUDA_ERROR_LAUNCH_FAILED)
}

impl Flight {
    /// A launch was enqueued that uses the unit.
    pub(super) fn note(&mut self, stream: Stream, unit: UnitId, caller: Caller) {
        if self.list.len() == LENGTH
            && let Some((event, ..)) = self.list.pop_front()
        {
            self.spare.extend(event);
        }
        let event = match self.spare.pop().map_or_else(|| event::create(false), Ok) {
            Ok(event) => event,
            Err(error) if is_fault(error) => return self.list.push_back((Err(error), unit, caller)),
            Err(_) => return,
        };
        match event::record(event, stream) {
            // Where the context is lost already, the event says so too.
            Ok(()) => self.list.push_back((Ok(event), unit, caller)),
            Err(error) if is_fault(error) => self.list.push_back((Ok(event), unit, caller)),
            Err(_) => self.spare.push(event),
        }
    }

    /// Forgets what has ended. The error and those that may be to blame, once, if the context was lost meanwhile.
    pub(super) fn settle(&mut self) -> Option<(CudaError, Vec<(UnitId, Caller)>)> {
        while let Some(&(event, ..)) = self.list.front() {
            match event.and_then(event::query) {
                Ok(true) => {
                    self.list.pop_front();
                    self.spare.extend(event);
                }
                Ok(false) => return None,
                Err(error) if is_fault(error) => return self.blame().map(|suspects| (error, suspects)),
                Err(_) => return None,
            }
        }
        None
    }

    /// The context is lost: those that may be to blame, the first time that this is asked.
    pub(super) fn blame(&mut self) -> Option<Vec<(UnitId, Caller)>> {
        let mut suspects: Vec<(UnitId, Caller)> = Vec::new();
        for &(_, unit, caller) in &self.list {
            if !suspects.contains(&(unit, caller)) {
                suspects.push((unit, caller));
            }
        }
        (!std::mem::replace(&mut self.lost, true)).then_some(suspects)
    }

    /// Gives all events back.
    pub(super) fn close(&mut self) {
        let list = self.list.drain(..).filter_map(|(event, ..)| event.ok());
        for event in list.chain(self.spare.drain(..)) {
            let _ = event::destroy(event);
        }
    }
}
