//! One device's ring in operation: its units, its pager, and what is asked of it. What the pager says is done by `streaming/perform`, the ring's end is `streaming/closing`'s.
//! What is streamed is decided by the plan and set up by `switch`; what a launch does with the verdicts is `launch`'s matter.

mod closing;
mod perform;
mod stream_names;

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

use flextensor_core::pager::{Command, CopyStream, Hit, Pager, Verdict};
use flextensor_core::units::UnitId;

use super::arena::PAGE;
#[cfg(feature = "seeded-faults")]
use super::check::seeds::{self, Seed};
use super::check::{self, By, RingCheck};
use super::devices::{MAX_DEVICES, index_of};
use super::graphs;
use super::shadow::Shadow;
use super::verify::Ledger;
use super::world::Unit;
use crate::ffi::context::{self, Context};
use crate::ffi::result::{CudaError, CudaResult};
use crate::ffi::stream::{self, Stream};
use crate::ffi::types::CUresult;
use crate::ffi::vmm::Handle;
use perform::Gpu;
use stream_names::{is_of_a_thread, stream_id};

pub(crate) use closing::{Counted, counted_by_gone_rings};
pub(super) use stream_names::program_stream;

/// One streamed unit as the runtime sees it.
pub(crate) struct StreamedUnit {
    /// Address of the unit's first page; the prefix starts here.
    pub(crate) base: u64,
    /// Address of the first streamed page.
    pub(crate) address: u64,
    /// Streamed pages.
    pub(crate) pages: u64,
    /// Bytes of its last weight on the page behind them, which is private: launches that are pointed at the view find a copy of them there.
    pub(crate) overhang: u64,
    /// That copy may have been written: it goes to the page when the unit is copied in.
    pub(crate) overhang_written: bool,
    pub(crate) shadow: Shadow,
    /// First ring page of its run.
    pub(crate) ring_start: u64,
    /// Held for its owner's whole forward.
    pub(crate) hold: bool,
    /// What is known of its bytes.
    pub(crate) ledger: Ledger,
}

/// Which ring, and how far it has come. The default is that of no ring.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct RingState {
    number: u64,
    added: u64,
}

/// A ring in operation.
pub(crate) struct Streaming {
    pub(crate) device: i32,
    pub(crate) context: Context,
    pub(crate) pager: Pager,
    gpu: Gpu,
    /// By unit number.
    units: Vec<Option<StreamedUnit>>,
    /// By unit number: addresses of its weights' first bytes.
    starts: Vec<Box<[u64]>>,
    pub(crate) ring: Vec<Handle>,
    commands: Vec<Command>,
    /// The first failure of a command, and what it was; from then on nothing more is promised.
    pub(crate) failed: Option<(CudaError, String)>,
    pub(crate) bytes_in: u64,
    pub(crate) bytes_back: u64,
    /// Where the last launch that showed a unit went.
    pub(crate) last_stream: Option<Stream>,
    /// Units that were ever added: orders that were set before know nothing of later ones.
    added: u64,
    /// Of all rings this one; 0 = one of nothing, which nobody sees.
    number: u64,
    /// What verifies all this, where that was asked for.
    check: Option<Box<RingCheck>>,
}

static DEVICES: [Mutex<Option<Box<Streaming>>>; MAX_DEVICES] = [const { Mutex::new(None) }; MAX_DEVICES];

/// Locks the ring of a device; none before its first switch-over.
pub(crate) fn ring_of(device: i32) -> MutexGuard<'static, Option<Box<Streaming>>> {
    DEVICES[index_of(device)].lock().unwrap_or_else(|poisoned| {
        let mut ring = poisoned.into_inner();
        // A panic with the lock held may have left decisions behind that were never enqueued.
        if let Some(ring) = ring.as_mut() {
            ring.fail(CudaError(CUresult::CUDA_ERROR_UNKNOWN), "internal error");
        }
        ring
    })
}

impl Streaming {
    /// A ring without units, and without its pages yet, in the current context.
    pub(crate) fn new(device: i32, context: Context, pages: u32, chunk_pages: u32) -> CudaResult<Self> {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let first = stream::create_nonblocking()?;
        let second = stream::create_nonblocking().inspect_err(|_| {
            let _ = stream::destroy(first);
        })?;
        let copies = [first, second];
        let check = check::is_on().then(|| Box::new(RingCheck::new(device, copies, pages, chunk_pages)));
        Ok(Self {
            device,
            context,
            pager: Pager::new(pages, chunk_pages).with_shared_events(shared_events(pages)),
            gpu: Gpu { copies, events: Vec::with_capacity(1024) },
            units: Vec::new(),
            starts: Vec::new(),
            ring: Vec::new(),
            commands: Vec::with_capacity(1024),
            failed: None,
            bytes_in: 0,
            bytes_back: 0,
            last_stream: None,
            added: 0,
            number: NEXT.fetch_add(1, Ordering::Relaxed),
            check,
        })
    }

    /// A ring of nothing, as a place to begin from where there is none.
    ///
    /// # Errors
    /// What the driver says where it makes no streams.
    pub(crate) fn of_nothing(device: i32, context: Context) -> CudaResult<Self> {
        Ok(Self { number: 0, ..Self::new(device, context, 0, 1)? })
    }

    /// What a plan stands on: another ring, or one to which more was added, is not the one that the plan was made for, however alike they are.
    pub(crate) fn state(&self) -> RingState {
        RingState { number: self.number, added: self.added }
    }

    /// The same with its pages.
    pub(crate) fn with_pages(mut self, ring: Vec<Handle>) -> Self {
        self.ring = ring;
        if let Some(check) = &mut self.check {
            check.attach(&self.ring);
        }
        self
    }

    /// Adds a unit; its pages are mapped to its run of the ring, its bytes are in its shadow. `known`: for its name.
    pub(crate) fn add(&mut self, unit: UnitId, known: Option<&Unit>, streamed: StreamedUnit) {
        self.added += 1;
        if let Some(check) = &mut self.check {
            check.add(unit, &streamed, known.map(Unit::name).unwrap_or_default());
        }
        self.pager.add_unit(unit, streamed.ring_start as u32, streamed.pages as u32);
        let index = unit.0 as usize;
        if self.units.len() <= index {
            self.units.resize_with(index + 1, || None);
            self.starts.resize_with(index + 1, Box::default);
        }
        let members = known.into_iter().flat_map(|unit| &unit.members);
        self.starts[index] = members.map(|member| member.address).collect();
        self.units[index] = Some(streamed);
    }

    /// The unit, while it is streamed.
    pub(crate) fn unit(&self, unit: UnitId) -> Option<&StreamedUnit> {
        self.units.get(unit.0 as usize)?.as_ref()
    }

    /// The unit, while it is streamed.
    pub(crate) fn unit_mut(&mut self, unit: UnitId) -> Option<&mut StreamedUnit> {
        self.units.get_mut(unit.0 as usize)?.as_mut()
    }

    /// Whether a weight of the unit begins at this address.
    pub(crate) fn begins_at(&self, unit: UnitId, address: u64) -> bool {
        self.starts.get(unit.0 as usize).is_some_and(|starts| starts.contains(&address))
    }

    /// Every unit that is streamed.
    pub(crate) fn streamed(&self) -> impl Iterator<Item = &StreamedUnit> {
        self.units.iter().flatten()
    }

    /// What the unit was here; it goes to another ring.
    pub(crate) fn take(&mut self, unit: UnitId) -> Option<StreamedUnit> {
        if let Some(check) = &mut self.check {
            check.remove(unit);
        }
        self.units.get_mut(unit.0 as usize)?.take()
    }

    /// The unit has private pages from now on.
    pub(crate) fn remove(&mut self, unit: UnitId) -> Option<StreamedUnit> {
        self.pager.remove(unit);
        self.take(unit)
    }

    /// What a call that needs the ring is answered once a command has failed: what it would read may be wrong.
    pub(crate) fn usable(&self) -> CudaResult<()> {
        self.failed.as_ref().map_or(Ok(()), |(error, _)| Err(*error))
    }

    /// Whether a call of the current context can be ordered here: an event marks streams of its own context only.
    pub(crate) fn serves_current_context(&self) -> CudaResult<bool> {
        Ok(context::current()? == self.context)
    }

    /// Check mode: what is write-protected now, as (start, end), sorted.
    pub(super) fn write_protected(&self) -> Vec<(u64, u64)> {
        self.check.as_ref().map_or_else(Vec::new, |check| check.write_protected())
    }

    /// Check mode: whether launches that show the unit were checked and are not enqueued yet, while it is protected.
    pub(crate) fn is_between(&self, unit: UnitId) -> bool {
        self.check.as_ref().is_some_and(|check| check.is_between(unit))
    }

    /// From now on whoever needs the ring gets this error.
    pub(super) fn fail(&mut self, error: CudaError, what: &str) {
        if self.failed.is_none() {
            crate::log::error!(
                "the ring of GPU {} failed: {what}: {error}; calls that need it fail from now on",
                self.device
            );
            self.failed = Some((error, format!("{what}: {error}")));
            if let Some(check) = &mut self.check {
                check.failed(error);
            }
        }
    }

    /// Prepares a launch and enqueues what it waits for. When a command fails, the launch must not be made ([`Streaming::usable`]).
    pub(crate) fn acquire(&mut self, stream: Stream, hits: &[Hit], verdicts: &mut [Verdict], by: By) {
        if let Some(check) = &mut self.check {
            check.prepares(hits, by);
        }
        self.pager.acquire(stream_id(stream), hits, verdicts, &mut self.commands);
        self.perform();
        if let Some(check) = self.check.as_mut().filter(|_| self.failed.is_none())
            && let Err(error) = check.checked(stream_id(stream), hits, verdicts, by)
        {
            self.fail(error, "a weight that is about to be written could not be opened");
        }
        #[cfg(feature = "seeded-faults")]
        if seeds::is(Seed::ReleasedEarly) {
            self.pager.launched(stream_id(stream), hits, verdicts, &mut self.commands);
            self.pager.close_marks(&mut self.commands);
            self.perform();
        }
    }

    /// Records a launch, then prefetches.
    pub(crate) fn launched(&mut self, stream: Stream, hits: &[Hit], verdicts: &[Verdict], by: By) {
        self.last_stream = Some(stream);
        if let Some(check) = &mut self.check {
            check.enqueued((stream, stream_id(stream)), hits, verdicts, by);
        }
        #[cfg(feature = "seeded-faults")]
        if seeds::is(Seed::ReleasedEarly) {
            return self.prefetch(stream);
        }
        self.pager.launched(stream_id(stream), hits, verdicts, &mut self.commands);
        // Later another thread could not reach this one's own stream, and what a captured stream is told is the capture's.
        if is_of_a_thread(stream) || graphs::any_capture() {
            self.pager.close_marks(&mut self.commands);
        }
        self.perform();
        self.prefetch(stream);
    }

    /// Copies ahead as far as pages are to be had.
    pub(crate) fn prefetch(&mut self, stream: Stream) {
        self.pager.prefetch(stream_id(stream), &self.gpu, &mut self.commands);
        self.perform();
    }

    /// The owner of these units returned.
    pub(crate) fn end_uses(&mut self, units: impl Iterator<Item = UnitId>) {
        for unit in units {
            self.pager.end_use(unit, &mut self.commands);
            if let Some(check) = &mut self.check {
                check.hold_ends(unit);
            }
        }
        self.perform();
    }

    /// Rule 12: the unit's users are done and its bytes are in its shadow when this returns true. Blocks.
    pub(crate) fn evict(&mut self, unit: UnitId) -> CudaResult<bool> {
        let free = self.pager.evict(unit, &mut self.commands);
        if let Some(check) = self.check.as_mut().filter(|_| free) {
            check.audit().evicts(unit);
        }
        self.perform();
        if free {
            self.settle_overhang(unit, CopyStream::Demand)?;
            stream::synchronize(self.gpu.copies[CopyStream::Demand as usize])?;
            if let Some(check) = &mut self.check {
                check.audit().waited_for(CopyStream::Demand);
            }
        }
        // After a failure nobody knows what the shadow holds.
        self.usable().map(|()| free)
    }

    /// Every unit has to be copied in again: ring pages were used for something else.
    pub(crate) fn forget_bytes(&mut self) {
        self.pager.forget_bytes();
        if let Some(check) = &mut self.check {
            check.audit().forget_bytes();
        }
    }

    /// A last look for what was lost meanwhile. No call of the program needs it.
    pub(crate) fn look_once_more(&mut self) {
        let context = self.context;
        let Some(check) = &mut self.check else { return };
        // A context that is lost cannot be made current: its events say so all the same.
        let looked = context::with_current(context, || {
            check.look_once_more();
            Ok(())
        });
        if looked.is_err() {
            check.look_once_more();
        }
    }

    /// Waits for both copy streams.
    pub(crate) fn drain(&self) -> CudaResult<()> {
        self.gpu.copies.iter().try_for_each(|&copy| stream::synchronize(copy))
    }

    /// Whether copies have not ended.
    pub(crate) fn is_copying(&self) -> bool {
        self.gpu.copies.iter().any(|&copy| stream::query(copy) == Ok(false))
    }

    /// The stream of copies that nobody foresaw.
    pub(crate) fn demand_stream(&self) -> Stream {
        self.gpu.copies[CopyStream::Demand as usize]
    }

    /// Whether nothing is streamed.
    pub(crate) fn is_empty(&self) -> bool {
        self.units.iter().all(Option::is_none)
    }

    /// What it has counted so far.
    pub(crate) fn counted(&self) -> Counted {
        let c = self.pager.counters();
        [
            c.uses,
            c.visits,
            c.redirects,
            c.mispredictions,
            c.demand_loads,
            c.conflicts,
            c.pages_in,
            c.pages_back,
            self.bytes_in,
            self.bytes_back,
        ]
    }

    /// Bytes of GPU memory that the ring holds.
    pub(crate) fn ring_bytes(&self) -> u64 {
        self.ring.len() as u64 * PAGE
    }

    /// Bytes of pinned host memory that shadows hold.
    pub(crate) fn host_bytes(&self) -> u64 {
        self.units.iter().flatten().map(|unit| unit.pages * PAGE).sum()
    }

    /// Streamed units, and those of them that doubtful launches can be pointed away from.
    pub(crate) fn units_and_views(&self) -> (u64, u64) {
        let views = self.units.iter().flatten().filter(|unit| unit.shadow.view.is_some()).count();
        (self.units.iter().flatten().count() as u64, views as u64)
    }
}

/// Pages of small units behind which an event stands: each costs four driver calls, of about a microsecond each. What is behind comes as much later as these take on the link,
/// 0.15 ms; a short ring cannot spare as much.
fn shared_events(ring_pages: u32) -> u32 {
    const MOST: u32 = 4;
    const PART_OF_RING: u32 = 4;
    (ring_pages / PART_OF_RING).clamp(1, MOST)
}

/// A capture begins: streams may come to belong to it at any time.
pub(crate) fn close_marks() {
    for_each_ring(|ring| {
        ring.pager.close_marks(&mut ring.commands);
        ring.perform();
    });
}

/// The program destroys a stream.
pub(crate) fn forget_stream(stream: Stream) {
    for_each_ring(|ring| {
        ring.last_stream = ring.last_stream.filter(|&last| last != stream);
        ring.pager.forget_stream(stream_id(stream), &mut ring.commands);
        if let Some(check) = &mut ring.check {
            check.stream_ends(stream_id(stream));
        }
        ring.perform();
        if let Some(check) = &mut ring.check {
            check.audit().stream_ended(stream_id(stream));
        }
    });
}

/// In the ring's own context: the calling thread may be at work on another GPU, where an event that is made, or the default stream, would be that one's.
fn for_each_ring(mut work: impl FnMut(&mut Streaming)) {
    for device in 0..MAX_DEVICES as i32 {
        if let Some(ring) = ring_of(device).as_mut() {
            let elsewhere = !ring.serves_current_context().unwrap_or(true);
            let mut there = |ring: &mut Streaming| {
                context::with_current(ring.context, || {
                    work(ring);
                    Ok(())
                })
            };
            // What cannot be done from here says so itself.
            if !elsewhere || there(ring).is_err() {
                work(ring);
            }
        }
    }
}
