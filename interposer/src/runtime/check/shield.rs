//! Write protection of one unit's own addresses. Shut: a kernel that writes there loses the context, on the GPU as on simcuda. Opened before a launch that may
//! write, a copy or a fill is let through; shut again later. Access is changed only while nothing uses these addresses: the driver does not promise that a
//! kernel or a copy that is under way meanwhile sees either the one or the other. So launches are marked in both states, opening waits for those that are on
//! their way, shutting is left to a moment when there are none, and our own copies go through `alias`.

use std::sync::{Condvar, MutexGuard};

use flextensor_core::pager::{Access, Hit, StreamId};

use super::super::devices::{MAX_DEVICES, index_of};
use super::super::streaming::{Streaming, program_stream};
use super::{LOOKED, count, is_on};
use crate::ffi::context;
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
    /// What came since the access was changed last.
    uses: Vec<Use>,
    /// Launches that do not show the unit may read it behind those that do.
    held: bool,
    /// Some use has no mark: only waiting for the whole context tells when it ends.
    unmarked: bool,
}

/// Marks the last launch on a stream; no stream where it has ended.
#[derive(Debug)]
struct Use {
    stream: Option<StreamId>,
    end: Event,
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
        let (state, bytes) = (if wanted { State::Open } else { State::Never }, bytes as usize);
        let uses = Vec::new();
        let mut shield = Self { device, address, bytes, state, pins: 0, uses, held: false, unmarked: false };
        shield.shut();
        shield
    }

    pub(super) fn is_shut(&self) -> bool {
        self.state == State::Shut
    }

    /// Its addresses, as (start, end).
    pub(super) fn range(&self) -> (u64, u64) {
        (self.address, self.address + self.bytes as u64)
    }

    /// A launch is about to come; one that writes comes `in_turn`. `holds`: from now on launches that do not show the unit may read it.
    pub(super) fn before(&mut self, writes: bool, holds: bool) -> CudaResult<()> {
        if writes && self.state == State::Shut {
            self.open()?;
        } else if !writes {
            self.shut();
        }
        self.held |= holds;
        self.pins += 1;
        Ok(())
    }

    /// It has come.
    pub(super) fn after(&mut self, stream: Stream, id: StreamId) {
        self.pins = self.pins.saturating_sub(1);
        if self.state == State::Never {
            return;
        }
        let known = self.uses.iter().find(|known| known.stream == Some(id)).map(|known| known.end);
        let marked = known.map_or_else(|| event::create(false), Ok).and_then(|end| {
            if known.is_none() {
                self.uses.push(Use { stream: Some(id), end });
            }
            event::record(end, stream)
        });
        self.unmarked |= marked.is_err();
    }

    /// What reads the unit without showing it has been launched.
    pub(super) fn hold_ends(&mut self) {
        if std::mem::take(&mut self.held) {
            self.move_marks(|_| true);
        }
    }

    /// The program is about to destroy the stream, whose name may come back for another one.
    pub(super) fn stream_ends(&mut self, stream: StreamId) {
        if self.held {
            self.move_marks(|id| id == stream);
        }
        for known in self.uses.iter_mut().filter(|known| known.stream == Some(stream)) {
            known.stream = None;
        }
        self.uses.retain(|known| {
            let over = known.stream.is_none() && event::query(known.end).unwrap_or(false);
            if over {
                let _ = event::destroy(known.end);
            }
            !over
        });
    }

    /// Launches behind the marks may use the unit.
    fn move_marks(&mut self, which: impl Fn(StreamId) -> bool) {
        for known in &self.uses {
            let Some(id) = known.stream.filter(|&id| which(id)) else { continue };
            // Another thread's own default stream cannot be reached from here.
            let moved = program_stream(id).is_some_and(|stream| event::record(known.end, stream).is_ok());
            self.unmarked |= !moved;
        }
    }

    /// Waits until nothing uses the unit, and lets writers in.
    fn open(&mut self) -> CudaResult<()> {
        if self.held {
            self.move_marks(|_| true);
        }
        if std::mem::take(&mut self.unmarked) {
            context::synchronize()?;
        }
        self.uses.iter().try_for_each(|known| event::synchronize(known.end))?;
        self.close();
        vmm::allow(self.address, self.bytes, self.device)?;
        count(&LOOKED.openings, 1);
        self.state = State::Open;
        Ok(())
    }

    /// Shuts it if nothing is on its way.
    pub(super) fn shut(&mut self) {
        let ended = |known: &Use| event::query(known.end).unwrap_or(false);
        let used = self.pins > 0 || self.held || self.unmarked || !self.uses.iter().all(ended);
        if self.state != State::Open || used {
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
        for known in self.uses.drain(..) {
            let _ = event::destroy(known.end);
        }
    }

    /// Whether a launch that writes has to wait: others were checked and are not enqueued yet, so that nothing marks their end.
    pub(super) fn is_between(&self) -> bool {
        self.is_shut() && self.pins > 0
    }
}

type Ring<'a> = MutexGuard<'a, Option<Box<Streaming>>>;

/// Launches were enqueued on a device's ring.
static ENQUEUED: [Condvar; MAX_DEVICES] = [const { Condvar::new() }; MAX_DEVICES];

/// Of a launch that shows these units and has no part in the ring yet: returns when what it writes can be opened. It holds nothing that those it waits for need.
pub(crate) fn in_turn<'a>(device: i32, mut ring: Ring<'a>, hits: &[Hit]) -> Ring<'a> {
    if !is_on() {
        return ring;
    }
    let writes = |hit: &Hit| hit.access == Access::Write;
    while ring.as_ref().is_some_and(|ring| hits.iter().any(|hit| writes(hit) && ring.is_between(hit.unit))) {
        ring = enqueued(device).wait(ring).unwrap_or_else(|poisoned| poisoned.into_inner());
    }
    ring
}

/// Those that wait look again.
pub(super) fn note_enqueued(device: i32) {
    enqueued(device).notify_all();
}

fn enqueued(device: i32) -> &'static Condvar {
    &ENQUEUED[index_of(device)]
}
