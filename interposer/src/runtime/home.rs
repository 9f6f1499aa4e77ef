//! Who leaves host memory, and who has to go there: what is resident by plan, what forwards use though nobody has named it, and, on a GPU that was too small
//! for the weights that were loaded, weights that make room. How pages change places is `hosted`'s matter.

use std::sync::atomic::{AtomicBool, Ordering};

use flextensor_core::units::{Bytes, UnitId};

use super::arena::{Arena, PAGE};
use super::hosted::{exchange_pages, pages_at, runs, to_gpu, weight_bytes};
use super::regions::Region;
use super::streaming::ring_of;
use super::switch::Request;
use super::world::{Unit, UnitState, World, world};
use super::{gate, graphs, overflow, passes, peers};
use crate::ffi::context::Context;
use crate::ffi::result::CudaError;
use crate::ffi::vmm::Handle;
use crate::{log, quiet};

/// What is resident by plan leaves host memory; then what else there is, as far as the budget has room. Uses GPU pages out of `pool` first. The gate is
/// closed, and the GPU drained.
pub(super) fn settle(world: &mut World, request: &Request, pool: &mut Vec<Handle>) {
    for &id in &request.mine {
        let Some(unit) = world.unit(id) else { continue };
        let (address, pages) = (unit.base, unit.pages - unit.streamed);
        bring_home(world, request.device, address, pages, pool);
    }
    bring_home_what_fits(world, request.device, request.plan.budget, pool);
}

/// Host pages among the `pages` pages from `address` on give way to GPU pages. Those that cannot stay where they are: right, and slow.
pub(super) fn bring_home(world: &mut World, device: i32, address: u64, pages: u64, pool: &mut Vec<Handle>) {
    for (first, pages) in runs(world, address, pages, true) {
        let address = address + first * PAGE;
        if let Err(error) = to_gpu(world, device, address, pages, pool) {
            let bytes = Bytes(pages * PAGE);
            log::info!("{bytes} of weights stay in host memory, and are read over the link: {error}");
        }
    }
}

/// The same for all memory of a device that no unit being learnt lies in.
fn bring_home_what_fits(world: &mut World, device: i32, budget: Option<u64>, pool: &mut Vec<Handle>) {
    let ring = ring_of(device).as_ref().map_or(0, |ring| ring.ring_bytes());
    let here = |region: &&Region| region.device == device && region.host_bytes() > 0;
    let bases: Vec<(u64, u64)> =
        world.regions.values().filter(here).map(|region| (region.base, region.pages())).collect();
    for (base, pages) in bases {
        let units = world.units_in(base, pages);
        if units.iter().filter_map(|&id| world.unit(id)).any(|unit| unit.state == UnitState::Learning) {
            continue;
        }
        // Pages in front of streamed ones lie in views too: where the plan could not bring them home, they stay.
        let may_come = |unit: &&Unit| unit.streamed == 0 && !unit.in_host;
        let whole = units.iter().filter_map(|&id| world.unit(id)).filter(may_come);
        let mut places: Vec<(u64, u64)> = whole.map(|unit| (unit.base, unit.pages)).collect();
        // Others have bytes on these.
        let shared = units.iter().filter_map(|&id| world.unit(id)).filter(|unit| unit.in_host);
        places.extend(shared.map(|unit| (unit.base, unit.shared)));
        places.extend(world.gaps(base, pages));
        let used: u64 =
            world.regions.values().filter(|region| region.device == device).map(Region::private_bytes).sum();
        let in_host = |&(address, pages): &(u64, u64)| pages_at(world, address, pages).len() as u64 * PAGE;
        let wanted: u64 = places.iter().map(in_host).sum();
        if budget.is_none_or(|budget| used + ring + wanted <= budget) {
            for (address, pages) in places {
                bring_home(world, device, address, pages, pool);
            }
        }
    }
}

/// Regions wait to leave host memory.
static SHOWN: AtomicBool = AtomicBool::new(false);

/// A launch shows memory in host pages that nobody has named. In a forward that is no weight of a model that is still to come, but memory that the program
/// uses for everything, such as a block that its allocator keeps: it leaves host memory before the next forward.
pub(super) fn shown(arena: &Arena, address: u64) {
    let mut world = world();
    if !quiet::any_untold() && world.models.values().all(|model| model.open == 0) {
        return;
    }
    let Some(region) = world.region_of_mut(address) else { return };
    region.shown = true;
    arena.clear_in_host(region.base, region.pages());
    SHOWN.store(true, Ordering::Release);
}

/// What was shown leaves host memory, as far as GPUs have room: a budget is for weights. The calling thread is not inside the gate.
pub(super) fn bring_home_what_was_shown() {
    if !SHOWN.load(Ordering::Acquire) {
        return;
    }
    let _closed = gate::close();
    // A later forward brings it home then.
    if graphs::any_capture() || !SHOWN.swap(false, Ordering::AcqRel) {
        return;
    }
    let mut world = world();
    let take = |region: &mut Region| {
        let place = (region.base, region.pages(), region.device, region.context);
        std::mem::take(&mut region.shown).then_some(place)
    };
    let shown: Vec<(u64, u64, i32, Context)> = world.regions.values_mut().filter_map(take).collect();
    for (base, pages, device, context) in shown {
        // Weights are placed by plans, and what lies beside them is not.
        let beside = world.gaps(base, pages);
        let moved = passes::in_context(context, || {
            peers::wait_to_move(device)?;
            for (address, pages) in beside {
                bring_home(&mut world, device, address, pages, &mut Vec::new());
            }
            Ok(())
        });
        if let Some(Err::<(), CudaError>(error)) = moved {
            log::info!("memory stays in the host: waiting for the GPU failed: {error}");
        }
    }
}

/// A forward is about to begin on a device that was too small for the weights that were loaded: the last named of those that are being learnt go to host
/// memory, until activations have room. The device's context is current.
pub(super) fn leave_room(device: i32) {
    let excess = |world: &World| {
        let ring_bytes = ring_of(device).as_ref().map_or(0, |ring| ring.ring_bytes());
        let limit = overflow::limit(world, ring_bytes, device, None)?;
        let weights = world.private_weight_bytes(device).saturating_sub(weight_bytes(world, device));
        weights.checked_sub(limit).filter(|&excess| excess > 0)
    };
    if excess(&world()).is_none() {
        return;
    }
    let _closed = gate::close();
    if graphs::any_capture() {
        return;
    }
    if let Err(error) = peers::wait_to_move(device) {
        return log::info!("no room can be made on GPU {device}: waiting for it failed: {error}");
    }
    let mut world = world();
    let learnt = |unit: &&Unit| unit.device == device && unit.state == UnitState::Learning;
    let ids: Vec<UnitId> = world.units.iter().filter(learnt).map(|unit| unit.id).collect();
    if passes::are_read_through_pointers(&world, &ids) {
        return;
    }
    let units: Vec<(u64, u64, Context)> =
        world.units.iter().rev().filter(learnt).map(|unit| (unit.base, unit.pages, unit.context)).collect();
    for (address, pages, context) in units {
        if excess(&world).is_none() {
            return;
        }
        if !pages_at(&world, address, pages).is_empty() {
            continue;
        }
        let fresh = overflow::pages(pages, context);
        if let Err(error) = fresh.and_then(|fresh| exchange_pages(&mut world, device, address, fresh)) {
            return log::info!("no more room can be made on GPU {device}: {error}");
        }
    }
}

/// An allocation has no room, and weights of the device are still being learnt: the last named of them go to host memory, where they are right however they are
/// read, and are streamed from the next pass on. Returns the bytes that became free, at least `least`; the calling thread is not inside the gate.
///
/// # Errors
/// A sentence; everything is where it was then, as far as it could be brought back.
pub(super) fn give_way(device: i32, least: u64, wanted: u64) -> Result<u64, String> {
    let _closed = gate::close();
    if graphs::any_capture() {
        return Err("a graph is captured".to_owned());
    }
    let (units, bytes) = learnt(&world(), device, wanted);
    if bytes < least {
        return Err(format!("weights that are learnt could free {}", Bytes(bytes)));
    }
    if !overflow::host_has_room(bytes) {
        return Err("host memory has no room for weights that are learnt".to_owned());
    }
    peers::wait_to_move(device).map_err(|error| format!("waiting for the GPU failed: {error}"))?;
    overflow::note_short(device);
    let mut world = world();
    let mut gone = 0;
    for (at, &(address, pages, context)) in units.iter().enumerate() {
        let fresh = overflow::pages(pages, context);
        match fresh.and_then(|fresh| exchange_pages(&mut world, device, address, fresh)) {
            Ok(()) => gone += pages * PAGE,
            Err(_) if gone >= least => return Ok(gone),
            Err(error) => {
                for &(address, pages, _) in &units[..at] {
                    bring_home(&mut world, device, address, pages, &mut Vec::new());
                }
                return Err(format!("weights that are learnt could not go to host memory: {error}"));
            }
        }
    }
    Ok(gone)
}

/// Addresses, pages and contexts of the last named units of a device that are learnt and may move, and their bytes: as many as `wanted` bytes need.
fn learnt(world: &World, device: i32, wanted: u64) -> (Vec<(u64, u64, Context)>, u64) {
    let read = passes::read_through_pointers(world);
    let may_go = |unit: &&Unit| {
        unit.device == device
            && unit.state == UnitState::Learning
            && unit.stay.is_none()
            && !read.contains(&unit.id)
            && !world.is_kept(unit.base)
            && pages_at(world, unit.base, unit.pages).is_empty()
    };
    let (mut units, mut bytes) = (Vec::new(), 0);
    for unit in world.units.iter().rev().filter(may_go) {
        if bytes >= wanted {
            break;
        }
        bytes += unit.pages * PAGE;
        units.push((unit.base, unit.pages, unit.context));
    }
    (units, bytes)
}
