//! Which operation last read or wrote each physical byte, and whether the next one is ordered after it.
//!
//! The table is by physical page, so two addresses of one page meet here, and by bytes within it, so neighbours do not.

use super::clock::Clock;
use crate::journal::{Detection, journal};
use crate::locks::lock;
use crate::memory::{PAGE, space};
use std::collections::HashMap;
use std::sync::Mutex;

/// A range of addresses that an operation reads or writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Use {
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    pub(crate) writes: bool,
}

impl Use {
    pub(crate) fn read(address: u64, bytes: u64) -> Self {
        Self { address, bytes, writes: false }
    }

    pub(crate) fn write(address: u64, bytes: u64) -> Self {
        Self { address, bytes, writes: true }
    }

    pub(crate) fn overlaps(&self, address: u64, bytes: u64) -> bool {
        self.bytes > 0 && self.address < address.saturating_add(bytes) && address < self.address + self.bytes
    }
}

/// Who uses: an entry of a stream, and what is ordered before it.
#[derive(Clone, Debug)]
pub(crate) struct Stamp {
    pub(crate) lane: usize,
    pub(crate) sequence: u64,
    pub(crate) before: Clock,
    pub(crate) label: &'static str,
}

struct Access {
    low: u64,
    high: u64,
    writes: bool,
    lane: usize,
    sequence: u64,
    label: &'static str,
    address: u64,
}

type Table = HashMap<(u64, u64), Vec<Access>>;

static TABLE: Mutex<Option<Table>> = Mutex::new(None);

/// Entries kept for one page before the ones that have finished are dropped.
const CROWD: usize = 96;

fn describe(stamp: &Stamp, access: &Access, used: &Use) -> String {
    let verb = |writes| if writes { "writes" } else { "reads" };
    format!(
        "{} (stream lane {}, entry {}) {} {:#x} while nothing orders it after {} (lane {}, entry {}) that {} the same bytes through {:#x}",
        stamp.label,
        stamp.lane,
        stamp.sequence,
        verb(used.writes),
        used.address,
        access.label,
        access.lane,
        access.sequence,
        verb(access.writes),
        access.address,
    )
}

/// Enters one stretch of one page; returns what it collides with.
fn enter_page(page: &mut Vec<Access>, low: u64, high: u64, stamp: &Stamp, used: &Use) -> Option<String> {
    let mut collision = None;
    page.retain(|access| {
        let own = access.lane == stamp.lane && access.sequence == stamp.sequence;
        let ordered = own || stamp.before.covers(access.lane, access.sequence);
        let meets = access.low < high && low < access.high;
        if meets && !ordered && (access.writes || used.writes) && collision.is_none() {
            collision = Some(describe(stamp, access, used));
        }
        // What is ordered before a use of all its bytes cannot collide with anything that is ordered after this use.
        let inside = low <= access.low && access.high <= high;
        let superseded = used.writes || (!access.writes && access.lane == stamp.lane);
        !(inside && ordered && superseded)
    });
    if page.len() > CROWD {
        let finished = Clock::finished();
        page.retain(|access| !finished.covers(access.lane, access.sequence));
    }
    page.push(Access {
        low,
        high,
        writes: used.writes,
        lane: stamp.lane,
        sequence: stamp.sequence,
        label: stamp.label,
        address: used.address,
    });
    collision
}

/// Enters the uses of an operation that begins to run, and reports those that nothing orders.
pub(crate) fn enter(stamp: &Stamp, uses: &[Use]) {
    for used in uses {
        let pieces = space::view().pieces(used.address, used.bytes);
        let mut collision = None;
        {
            let mut table = lock(&TABLE);
            let table = table.get_or_insert_default();
            for piece in pieces {
                let (mut at, end) = (piece.offset, piece.offset + piece.bytes);
                while at < end {
                    let next = (at / PAGE + 1) * PAGE;
                    let page = table.entry((piece.object, at / PAGE)).or_default();
                    collision = enter_page(page, at, next.min(end), stamp, used).or(collision);
                    at = next;
                }
            }
        }
        if let Some(message) = collision {
            journal().detect(Detection::Unordered, &message);
        }
    }
}

/// Forgets a physical allocation that is given back.
pub(crate) fn forget(object: u64, bytes: u64) {
    let mut table = lock(&TABLE);
    if let Some(table) = table.as_mut() {
        for page in 0..bytes.div_ceil(PAGE) {
            table.remove(&(object, page));
        }
    }
}
