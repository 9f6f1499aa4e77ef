//! Room for another model that comes to a device with a plan in force: at once, or as soon as what stood against it is over. A plan for both is `replan`'s matter.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard};

use flextensor_core::units::Bytes;

use super::super::devices::{MAX_DEVICES, bit_of, index_of};
use super::super::streaming::ring_of;
use super::super::world::{UnitState, world};
use super::super::{config, hosted, replan, switch};
use super::calm::MOST_PATIENCE;
use crate::account;
use crate::ffi::{context, device};
use crate::log;

/// Another model came to a device with a plan in force, which may have used up the budget: what that plan keeps gives way, so that the budget holds while the newcomer
/// is learnt, or is exceeded by as little as can be. A plan for both follows when it has been. The calling thread holds no lock and is not inside the gate.
pub(in super::super) fn hold_budget(device: i32) {
    if bytes_over(device).is_none() {
        return;
    }
    let _only = switch::SWITCHING.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    let Some(over) = bytes_over(device) else { return };
    match make_room_for_newcomer(device, over) {
        Ok(bytes) => {
            log::info!("{} more of weights are streamed on GPU {device}: another model came", Bytes(bytes));
        }
        Err(why) => log::info!("no weights on GPU {device} make room for another model now: {why}"),
    }
    let Some(over) = bytes_over(device) else { return };
    log::info!(
        "the budget of GPU {device} is exceeded by {} until another model has been learnt",
        Bytes(over)
    );
    owed()[index_of(device)] = Some(Owed { wait: 1, passes: 0 });
    ANY_OWED.fetch_or(bit_of(device), Ordering::Relaxed);
}

/// Bytes by which weights exceed the budget of a device with a plan in force.
pub(in super::super) fn bytes_over(device: i32) -> Option<u64> {
    let total = device::total_memory(device).map_or(0, |bytes| bytes as u64);
    let budget = config().max_gpu_mem_for(device.unsigned_abs(), total)?;
    let world = world();
    let ring = ring_of(device).as_ref().map_or(0, |ring| ring.ring_bytes());
    let over = (hosted::gpu_weight_bytes(&world, device) + ring).saturating_sub(budget);
    (over > 0 && world.decided.contains_key(&device)).then_some(over)
}

fn make_room_for_newcomer(device: i32, over: u64) -> Result<u64, String> {
    let there = account::context_of(device).ok_or("the device has no context")?;
    context::with_current(there, || Ok(replan::give_what_can(device, over)))
        .unwrap_or_else(|error| Err(format!("its context is not to be had: {error}")))
}

/// A budget that could not be held when another model came: what stood against it, a capture or a forward, may be over, while nobody knows whether that model ever runs.
#[derive(Clone, Copy)]
struct Owed {
    /// Passes from one try to the next.
    wait: u64,
    passes: u64,
}

/// Bit n: the budget of device n is owed.
static ANY_OWED: AtomicU64 = AtomicU64::new(0);
static OWED: Mutex<[Option<Owed>; MAX_DEVICES]> = Mutex::new([None; MAX_DEVICES]);

/// Whether the budget of any device is owed.
pub(in super::super) fn is_any_owed() -> bool {
    ANY_OWED.load(Ordering::Relaxed) != 0
}

fn owed() -> MutexGuard<'static, [Option<Owed>; MAX_DEVICES]> {
    OWED.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl Owed {
    /// A pass has ended. True if it is time to try again; the next try comes after twice as many passes.
    fn is_due(&mut self) -> bool {
        self.passes += 1;
        let due = self.passes >= self.wait;
        if due {
            (self.wait, self.passes) = ((self.wait * 2).min(MOST_PATIENCE), 0);
        }
        due
    }
}

/// A forward has ended on the device, and the calling thread holds nothing: a budget that is owed is tried for again.
pub(in super::super) fn settle_owed(device: i32) {
    if ANY_OWED.load(Ordering::Relaxed) & bit_of(device) == 0 {
        return;
    }
    let due = owed()[index_of(device)].as_mut().is_some_and(Owed::is_due);
    if !due {
        return;
    }
    let Ok(_only) = switch::SWITCHING.try_lock() else { return };
    // A newcomer that has been learnt gets a plan together with the others.
    let over = bytes_over(device).filter(|_| is_learning(device));
    if let Some(over) = over {
        match make_room_for_newcomer(device, over) {
            Ok(bytes) => log::info!("{} more of weights are streamed on GPU {device}", Bytes(bytes)),
            Err(why) => log::debug!("the budget of GPU {device} stays exceeded: {why}"),
        }
    }
    if over.is_none() || bytes_over(device).is_none() {
        owed()[index_of(device)] = None;
        ANY_OWED.fetch_and(!bit_of(device), Ordering::Relaxed);
    }
}

/// Whether weights of the device are still learnt.
fn is_learning(device: i32) -> bool {
    world().units.iter().any(|unit| unit.device == device && unit.state == UnitState::Learning)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_that_cannot_be_held_is_tried_for_ever_more_seldom() {
        let mut owed = Owed { wait: 1, passes: 0 };
        let tries = (0..3000).filter(|_| owed.is_due()).count();
        assert_eq!(tries, 11, "after 1, 3, 7 ... 1023, 2047 passes");
    }
}
