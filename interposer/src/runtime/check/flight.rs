//! Launches that use write-protected weights and are not known to have ended: one of them is to blame when the context is lost. The driver does not say which.

use std::collections::VecDeque;

use flextensor_core::audit::Caller;
use flextensor_core::units::UnitId;

use crate::ffi::event::{self, Event};
use crate::ffi::result::CudaError;
use crate::ffi::stream::Stream;
use crate::ffi::types::CUresult;

/// More than these are not remembered: the oldest go.
const LENGTH: usize = 64;

#[derive(Debug, Default)]
pub(super) struct Flight {
    list: VecDeque<(Event, UnitId, Caller)>,
    spare: Vec<Event>,
    lost: bool,
    /// Why a launch could not be marked: the context was lost already.
    unmarked: Option<CudaError>,
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
            && event != Event::LOST
        {
            self.spare.push(event);
        }
        let event = match self.spare.pop().map_or_else(|| event::create(false), Ok) {
            Ok(event) => event,
            // The context is lost already, perhaps to this launch.
            Err(error) if is_fault(error) => {
                self.unmarked = Some(error);
                return self.list.push_back((Event::LOST, unit, caller));
            }
            Err(_) => return,
        };
        match event::record(event, stream) {
            // Where the context is lost already, the event says so too.
            Ok(()) => self.list.push_back((event, unit, caller)),
            Err(error) if is_fault(error) => self.list.push_back((event, unit, caller)),
            Err(_) => self.spare.push(event),
        }
    }

    /// Forgets what has ended. The error and those that may be to blame, once, if the context was lost meanwhile.
    pub(super) fn settle(&mut self) -> Option<(CudaError, Vec<(UnitId, Caller)>)> {
        if let Some(error) = self.unmarked {
            return self.blame().map(|suspects| (error, suspects));
        }
        while let Some(&(event, ..)) = self.list.front() {
            match event::query(event) {
                Ok(true) => {
                    self.list.pop_front();
                    self.spare.push(event);
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
        let list = self.list.drain(..).map(|(event, ..)| event);
        for event in list.chain(self.spare.drain(..)).filter(|&event| event != Event::LOST) {
            let _ = event::destroy(event);
        }
    }
}
