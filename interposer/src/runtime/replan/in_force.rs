//! A prepared plan is put in force: between two forwards, or at once where memory runs short; what it brought is said and remembered. How pages move meanwhile is
//! `relay`'s matter.

use std::sync::atomic::{AtomicU64, Ordering};

use flextensor_core::units::Bytes;

use super::super::arena::PAGE;
use super::super::switch;
use super::super::world::world;
use super::super::{gate, graphs, passes, pressure, saved};
use super::prepared::{self, Prepared, give_up, keep};
use super::relay::{self, Relayed};
use super::target::Target;
use super::worth::Why;
use crate::ffi::context;
use crate::log;

/// Plans that were put in force.
static DONE: AtomicU64 = AtomicU64::new(0);

/// Plans that were worth it and could not be put in force.
static GIVEN_UP: AtomicU64 = AtomicU64::new(0);

/// New plans that were put in force so far, and that could not be.
pub(in super::super) fn counts() -> (u64, u64) {
    (DONE.load(Ordering::Relaxed), GIVEN_UP.load(Ordering::Relaxed))
}

/// A plan that was worth it cannot be put in force.
pub(super) fn refused(device: i32, why: &str) {
    log::info!("the plan for GPU {device} stays: {why}");
    GIVEN_UP.fetch_add(1, Ordering::Relaxed);
}

/// A forward has ended, and the calling thread holds nothing: puts a prepared plan in force, if there is one and nothing stands against it now.
pub(super) fn between_forwards(device: i32) {
    if !prepared::any() || graphs::any_capture() {
        return;
    }
    {
        // Before the plan is taken: who changes places meanwhile finds what is prepared, and gives it up.
        let Ok(_only) = switch::SWITCHING.try_lock() else { return };
        let Some(prepared) = prepared::take(device) else { return };
        let context = prepared.context;
        passes::in_context(context, || put_in_force(prepared));
    }
    // Whoever has freed weights meanwhile found neither the plan, which this thread had, nor the ring, while places could change.
    prepared::discard_stale(device);
    switch::retire_empty_ring(device);
}

fn put_in_force(prepared: Prepared) {
    // What the program has enqueued so far is waited for before the gate closes: other threads need not wait for it.
    let waited = context::synchronize();
    if waited.is_err() || !relay::is_calm(&world(), prepared.device) {
        return keep(prepared);
    }
    let device = prepared.device;
    match carry_out(prepared) {
        Carried::Out(done) => announce(*done),
        Carried::Busy(prepared) => keep(*prepared),
        Carried::Refused(why) => refused(device, &why),
    }
}

/// What came of a prepared plan.
pub(super) enum Carried {
    /// It is in force.
    Out(Box<InForce>),
    /// Not at this moment; nothing has changed.
    Busy(Box<Prepared>),
    /// It was given up, and everything is as it was, unless an error line said otherwise.
    Refused(String),
}

/// A plan that has come into force.
pub(super) struct InForce {
    prepared: Prepared,
    closed_ms: f64,
}

/// Closes the gate, and puts a prepared plan in force. Its context is current.
pub(super) fn carry_out(mut prepared: Prepared) -> Carried {
    let closed = gate::close();
    let begun = std::time::Instant::now();
    let relayed = relay::relay(&mut prepared);
    let closed_ms = begun.elapsed().as_secs_f64() * 1e3;
    drop(closed);
    match relayed {
        Ok(Relayed::Busy) => Carried::Busy(Box::new(prepared)),
        Ok(Relayed::Done(before)) => {
            before.close();
            Carried::Out(Box::new(InForce { prepared, closed_ms }))
        }
        Err(why) => {
            give_up(prepared);
            Carried::Refused(why)
        }
    }
}

fn announce(done: InForce) {
    let remapped: u64 = done.prepared.targets.iter().map(Target::remapped).sum();
    let (Prepared { device, plan, request, why, .. }, closed_ms) = (&done.prepared, done.closed_ms);
    let because = match why {
        Why::Model => "another model came",
        Why::Drift => "passes took other times than expected",
        Why::Chosen => "the program chose what is streamed",
        Why::Asked => "the program asked for it",
        Why::Budget => "a weight that became private exceeded the budget",
        Why::Pressure | Why::Room => return promoted(done),
    };
    log::notice!(
        "a new plan on GPU {device} ({because}): resident {}, ring {}, streamed {} a pass, expected {:.1} ms, bound {:.1} ms; {} mapped anew in {closed_ms:.0} ms",
        Bytes(plan.resident_bytes + request.fixed_bytes),
        Bytes(plan.ring_bytes),
        Bytes(plan.streamed_bytes),
        plan.predicted_ms,
        plan.bound_ms,
        Bytes(remapped * PAGE)
    );
    saved::replanned(request, plan);
    done.remember();
    DONE.fetch_add(1, Ordering::Relaxed);
}

/// Weights that had made room have come back; a ring in which nothing is left goes.
fn promoted(done: InForce) {
    let (device, ring_is_left) = (done.prepared.device, done.ring_is_left());
    let all = !ring_is_left || done.prepared.is_within_options();
    let bytes = done.prepared.plan.peak_bytes.saturating_sub(done.prepared.peak_before);
    done.remember();
    if !ring_is_left {
        switch::let_ring_go(device);
    }
    pressure::note_promotion(device, bytes, all);
}

impl InForce {
    /// Whether anything is streamed by it. A ring of nothing has to go: models that come later would be put into it.
    pub(super) fn ring_is_left(&self) -> bool {
        self.prepared.ring_after > 0
    }

    /// Bytes of GPU memory that have become free by it.
    pub(super) fn freed(&self) -> u64 {
        self.prepared.peak_before.saturating_sub(self.prepared.plan.peak_bytes)
    }

    /// The plan is the one that the device has from now on. A shortage's is nothing for the next run: a profile keeps the one that was made for the options.
    pub(super) fn remember(self) {
        let Prepared { device, plan, request, .. } = self.prepared;
        let mut world = world();
        if let Some(decided) = world.decided.get_mut(&device) {
            decided.fixed_bytes = request.fixed_bytes;
            decided.total_bytes = request.total_bytes();
            decided.closed_ms = self.closed_ms;
            decided.plan = plan;
        }
    }
}
