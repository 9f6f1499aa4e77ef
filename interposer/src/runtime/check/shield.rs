//! Write protection of one unit's own addresses. Shut: a kernel that writes there loses the context, on the GPU as on simcuda. Opened before a launch that may
//! write, a copy or a fill is let through; shut again when no launch that came since is on its way any more. Our own copies go through `alias`.

use super::{LOOKED, count};
use crate::ffi::event::{self, Event};
use crate::ffi::result::CudaResult;
use crate::ffi::stream::Stream;
use crate::ffi::vmm;

/// One unit's.
#[derive(Debug)]
pub(super) struct Shield {
    device: i32,
    address: u64,
    bytes: usize,
    state: State,
    /// Launches between check and enqueue.
    pins: u32,
    /// Marks the last launch on each stream since it was opened.
    uses: Vec<(Stream, Event)>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum State {
    Shut,
    Open,
    /// The driver does not protect.
    Never,
}

impl Shield {
    /// Shut, where the driver allows it. Nobody uses the unit.
    pub(super) fn new(device: i32, address: u64, bytes: u64, wanted: bool) -> Self {
        let state = if wanted { State::Open } else { State::Never };
        let mut shield = Self { device, address, bytes: bytes as usize, state, pins: 0, uses: Vec::new() };
        shield.shut();
        shield
    }

    pub(super) fn is_shut(&self) -> bool {
        self.state == State::Shut
    }

    /// A launch is about to come.
    pub(super) fn before(&mut self, writes: bool) -> CudaResult<()> {
        if writes && self.state == State::Shut {
            vmm::allow(self.address, self.bytes, self.device)?;
            count(&LOOKED.openings, 1);
            self.state = State::Open;
        } else if !writes {
            self.shut();
        }
        self.pins += 1;
        Ok(())
    }

    /// It has come.
    pub(super) fn after(&mut self, stream: Stream) {
        self.pins = self.pins.saturating_sub(1);
        if self.state != State::Open {
            return;
        }
        let known = self.uses.iter().find(|(known, _)| *known == stream).map(|(_, event)| *event);
        let marked = match known.map_or_else(|| event::create(false), Ok) {
            Ok(event) => {
                if known.is_none() {
                    self.uses.push((stream, event));
                }
                event::record(event, stream).is_ok()
            }
            Err(_) => false,
        };
        if !marked {
            // When it ends cannot be known.
            self.state = State::Never;
        }
    }

    /// Shuts it if nothing is on its way.
    pub(super) fn shut(&mut self) {
        let ended = |(_, event): &(Stream, Event)| event::query(*event).unwrap_or(false);
        if self.state != State::Open || self.pins > 0 || !self.uses.iter().all(ended) {
            return;
        }
        self.close();
        self.state = match vmm::allow_reads(self.address, self.bytes, self.device) {
            Ok(()) => State::Shut,
            Err(error) => {
                crate::log::info!("check: the driver does not write-protect weights: {error}");
                State::Never
            }
        };
        count(&LOOKED.protections, u64::from(self.state == State::Shut));
    }

    /// Gives its events back.
    pub(super) fn close(&mut self) {
        for (_, event) in self.uses.drain(..) {
            let _ = event::destroy(event);
        }
    }
}
