//! Copies and memsets, and the engines that bound their speed: one per device and direction across the link.
//!
//! With `SIMCUDA_LATE_US` an asynchronous copy starts late and moves its bytes in pieces, so that work which should have
//! waited for it sees old or half-new bytes.

use super::hazard::Use;
use crate::journal::journal;
use crate::locks::lock;
use crate::memory::access::{self, End};
use crate::memory::physical::DEVICES;
use crate::memory::space::Denied;
use crate::settings::settings;
use std::sync::Mutex;
use std::sync::atomic::Ordering::Relaxed;
use std::thread;
use std::time::{Duration, Instant};

/// Between which memories a copy moves bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Direction {
    HostToDevice,
    DeviceToHost,
    /// Within devices, or within the host.
    Inside,
}

impl Direction {
    pub(crate) fn label(self) -> &'static str {
        match self {
            Self::HostToDevice => "copy host to device",
            Self::DeviceToHost => "copy device to host",
            Self::Inside => "copy inside",
        }
    }
}

/// One contiguous part of a copy.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Row {
    pub(crate) target: End,
    pub(crate) source: End,
    pub(crate) bytes: u64,
}

/// A copy of one or more rows.
#[derive(Debug)]
pub(crate) struct CopyJob {
    pub(crate) rows: Vec<Row>,
    pub(crate) direction: Direction,
    /// Whether the copy may be late; a synchronous one is not.
    pub(crate) asynchronous: bool,
    /// A copy of the source made at the call; the rows point into it.
    pub(crate) staging: Option<Vec<u8>>,
    /// Whoever asked expects bytes that are half old and half new, and takes no harm of them.
    pub(crate) torn: bool,
    /// It names the contexts of both ends, so that each is reached by its owner.
    pub(crate) by_owners: bool,
}

static H2D: [Mutex<()>; DEVICES] = [const { Mutex::new(()) }; DEVICES];
static D2H: [Mutex<()>; DEVICES] = [const { Mutex::new(()) }; DEVICES];

/// Pieces that a late copy is cut into.
const LATE_PIECES: u64 = 8;

/// Largest piece between two looks at the clock.
const PIECE: u64 = 1 << 20;

impl CopyJob {
    fn bytes(&self) -> u64 {
        self.rows.iter().map(|row| row.bytes).sum()
    }

    pub(crate) fn uses(&self) -> Vec<Use> {
        let mut uses = Vec::new();
        for row in &self.rows {
            if let End::Mapped(address) = row.source
                && !self.torn
            {
                uses.push(Use::read(address, row.bytes));
            }
            if let End::Mapped(address) = row.target {
                uses.push(Use::write(address, row.bytes));
            }
        }
        uses
    }

    /// Moves the bytes.
    pub(crate) fn run(&self, device: usize) -> Result<(), Denied> {
        let pace = &settings().pace;
        let late = if self.asynchronous { pace.late() } else { Duration::ZERO };
        if !late.is_zero() {
            thread::sleep(late);
        }
        let journal = journal();
        let (engine, speed, count) = match self.direction {
            Direction::HostToDevice => (Some(&H2D[device]), pace.h2d.load(Relaxed), &journal.h2d_bytes),
            Direction::DeviceToHost => (Some(&D2H[device]), pace.d2h.load(Relaxed), &journal.d2h_bytes),
            Direction::Inside => (None, 0, &journal.d2d_bytes),
        };
        let _busy = engine.map(lock);
        let total = self.bytes();
        let piece = if late.is_zero() { PIECE } else { total.div_ceil(LATE_PIECES).clamp(8, PIECE) };
        let start = Instant::now();
        let mut moved = 0;
        for row in &self.rows {
            let mut at = 0;
            while at < row.bytes {
                let length = piece.min(row.bytes - at);
                access::copy((device, self.by_owners), row.target, row.source, at, length)?;
                at += length;
                moved += length;
                if speed > 0 {
                    let due = Duration::from_secs_f64(moved as f64 / speed as f64);
                    thread::sleep(due.saturating_sub(start.elapsed()));
                } else if !late.is_zero() && moved < total {
                    thread::sleep(late / LATE_PIECES as u32);
                }
            }
        }
        count.fetch_add(total, Relaxed);
        Ok(())
    }
}

/// A memset of one or more rows.
#[derive(Debug)]
pub(crate) struct SetJob {
    pub(crate) address: u64,
    pub(crate) pitch: u64,
    pub(crate) value: u32,
    /// Bytes of an element: 1, 2 or 4.
    pub(crate) unit: u64,
    pub(crate) width: u64,
    pub(crate) height: u64,
}

impl SetJob {
    pub(crate) fn uses(&self) -> Vec<Use> {
        let bytes = self.width * self.unit;
        (0..self.height).map(|row| Use::write(self.address + row * self.pitch, bytes)).collect()
    }

    /// Writes the pattern.
    pub(crate) fn run(&self, device: usize) -> Result<(), Denied> {
        for row in 0..self.height {
            access::set(device, self.address + row * self.pitch, self.value, self.unit, self.width)?;
        }
        Ok(())
    }
}
