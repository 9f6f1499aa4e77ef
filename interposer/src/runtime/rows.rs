//! Weights of which forwards read single rows, as embeddings are read: where weights are streamed and passes gain by it, their pages lie in host memory, under the
//! same addresses, until their model lets them go. Kernels read the few rows over the link; the table takes no GPU memory, and no copy. Where the rows would take
//! longer than the memory saves (core's `rows_pay`) the table stays on the GPU; that one of these goes later is `waiting`'s matter. Plans are for what remains (`switch`); how
//! pages move is `hosted`'s.

pub(super) mod waiting;

use std::collections::BTreeSet;

use flextensor_core::plan::{Objective, PassProfile, PlanRequest, StayReason, Table, rows_pay};
use flextensor_core::units::{Bytes, ModelId, UnitId};

use super::arena::{Meaning, PAGE, arena};
use super::exchange::close_the_gate;
use super::hosted::{exchange_pages, runs};
use super::switch::{Request, check_host_memory, only};
use super::world::{Unit, UnitState, World, world};
use super::{config, gate, graphs, home, learn, overflow, passes, peers, planned};
use crate::ffi::context;
use crate::ffi::result::{CudaError, CudaResult};
use crate::ffi::vmm::Handle;
use crate::log;

/// One unit on its way: its pages, and host pages for those that lie in GPU memory.
struct Going {
    id: UnitId,
    address: u64,
    pages: u64,
    fresh: Vec<Handle>,
}

/// The model's units that may lie in host memory, because nothing but their owners reads them, and by rows.
pub(super) fn tables(request: &Request) -> Vec<UnitId> {
    if request.early || !are_wanted(&request.plan) {
        return Vec::new();
    }
    only_by_rows(&world(), request.mine.iter().copied())
}

/// Whether tables belong in host memory at all: who chooses what streams has chosen what does not.
fn are_wanted(plan: &PlanRequest) -> bool {
    config().host_embeddings && !planned::is_by_a_strategy(plan)
}

/// Whether passes gain where these tables lie in host memory, by what is known of them so far. `all`: what is planned for, with or without them.
pub(super) fn pay(all: &PlanRequest, tables: &[UnitId]) -> bool {
    // Where memory is to be saved, this saves some.
    if all.objective != Objective::LeastTime {
        return true;
    }
    let mut others = all.clone();
    others.units.retain(|unit| !tables.contains(&unit.id));
    // What has no times yet says nothing of what takes longer.
    others.passes.retain(|pass| pass.resident_ms > 0.0);
    let ids: Vec<UnitId> = others.units.iter().map(|unit| unit.id).collect();
    others.passes = others.passes.into_iter().map(|pass| only(pass, &ids)).collect();
    let models: BTreeSet<ModelId> = others.passes.iter().map(|pass| pass.model).collect();
    let known: Vec<PassProfile> = learn::recorder(|recorder| {
        models.into_iter().flat_map(|model| recorder.collector.profiles(model)).collect()
    });
    let ms_in = |table: UnitId, pass: &PassProfile| -> f64 {
        let same = known.iter().find(|known| (known.model, known.shape) == (pass.model, pass.shape));
        let uses = same.into_iter().flat_map(|known| &known.uses).filter(|used| used.unit == table);
        uses.map(|used| used.compute_ms).sum()
    };
    let table = |&id: &UnitId| Table {
        bytes: bytes_of(&world(), &[id]),
        use_ms: others.passes.iter().map(|pass| ms_in(id, pass)).collect(),
    };
    let tables: Vec<Table> = tables.iter().map(table).collect();
    // What cannot be judged is not a plan either.
    rows_pay(&others, &tables).unwrap_or(true)
}

/// Bytes of whole pages of these units.
fn bytes_of(world: &World, units: &[UnitId]) -> u64 {
    units.iter().filter_map(|&id| world.unit(id)).map(|unit| unit.may_move() * PAGE).sum()
}

/// Brings tables to host memory, and says which went; for each of the others a line says why not. The device's context is current.
pub(super) fn go_to_host(device: i32, tables: &[UnitId]) -> Vec<UnitId> {
    if tables.is_empty() {
        return Vec::new();
    }
    if let Err(why) = bring(device, tables) {
        log::info!("weights that are read by rows do not go to host memory: {why}");
    }
    let world = world();
    let there = |&id: &UnitId| world.unit(id).is_some_and(|unit| unit.in_host);
    let gone: Vec<UnitId> = tables.iter().copied().filter(there).collect();
    if !gone.is_empty() {
        log::info!("{} of weights are read by rows from host memory", Bytes(bytes_of(&world, &gone)));
    }
    gone
}

/// Those of the units that only their owners read, by rows.
fn only_by_rows(world: &World, units: impl Iterator<Item = UnitId>) -> Vec<UnitId> {
    let units = units.filter_map(|id| world.unit(id)).filter(|unit| may_go(unit));
    learn::recorder(|recorder| {
        let known = |unit: &&Unit| recorder.was_shown(unit.id) && !recorder.was_read_elsewhere(unit.id);
        units.filter(known).map(|unit| unit.id).collect()
    })
}

fn may_go(unit: &Unit) -> bool {
    let free = match unit.stay {
        None => unit.state == UnitState::Learning,
        Some(StayReason::RowsOnGpu) => matches!(unit.state, UnitState::Learning | UnitState::Resident),
        Some(_) => false,
    };
    free && !unit.hold && unit.by_rows && unit.may_move() > 0
}

fn bring(device: i32, wanted: &[UnitId]) -> Result<(), String> {
    let mut going = make_pages(wanted)?;
    let gone = match close_the_gate(wanted) {
        Err(why) => Err(why),
        Ok(_) if graphs::any_capture() => Err("a graph is captured".to_owned()),
        Ok(_closed) => peers::wait_to_move(device)
            .map_err(|error| format!("waiting for the GPU failed: {error}"))
            .map(|()| going.iter_mut().for_each(|unit| settle(device, unit))),
    };
    for unit in going {
        overflow::release(unit.fresh);
    }
    gone
}

/// Host pages for all that lie in GPU memory: made before anything stands still.
fn make_pages(wanted: &[UnitId]) -> Result<Vec<Going>, String> {
    let places: Vec<(UnitId, u64, u64, u64)> = {
        let world = world();
        let outside = |unit: &Unit| runs(&world, unit.own_pages(), unit.may_move(), false);
        let units = wanted.iter().filter_map(|&id| world.unit(id));
        let count = |unit: &Unit| outside(unit).iter().map(|(_, pages)| pages).sum();
        units.map(|unit| (unit.id, unit.own_pages(), unit.may_move(), count(unit))).collect()
    };
    check_host_memory(places.iter().map(|(.., outside)| outside * PAGE).sum(), 0)?;
    let context = context::current().map_err(|error| error.to_string())?;
    let mut going: Vec<Going> = Vec::new();
    for (id, address, pages, outside) in places {
        match overflow::pages(outside, context) {
            Ok(fresh) => going.push(Going { id, address, pages, fresh }),
            Err(error) => {
                going.into_iter().for_each(|unit| overflow::release(unit.fresh));
                return Err(format!("host pages were refused: {error}"));
            }
        }
    }
    Ok(going)
}

/// Behind the closed gate, with the GPU drained: the unit's pages in GPU memory give way to its host pages, or it stays as it is.
fn settle(device: i32, going: &mut Going) {
    let mut world = world();
    // Much may have been said of it meanwhile.
    if !world.unit(going.id).is_some_and(may_go) {
        return;
    }
    if let Err(error) = exchange(&mut world, device, going) {
        return log::info!("a weight that is read by rows does not go to host memory: {error}");
    }
    let Some(unit) = world.unit_mut(going.id) else { return };
    unit.state = UnitState::Resident;
    unit.stay = Some(StayReason::Rows);
    unit.in_host = true;
    if let Some(arena) = arena() {
        unit.mean(arena, Meaning::Nothing);
    }
}

/// The unit's pages leave host memory, behind the gate that the caller has closed. True where none of them is left there.
pub(super) fn come_home(world: &mut World, id: UnitId) -> bool {
    let Some(unit) = world.unit(id).filter(|unit| unit.in_host) else { return true };
    let (device, context, address, pages) = (unit.device, unit.context, unit.own_pages(), unit.may_move());
    let moved = passes::in_context(context, || {
        peers::wait_to_move(device)?;
        home::bring_home(world, device, address, pages, &mut Vec::new());
        Ok(())
    });
    if let Some(Err::<(), CudaError>(error)) = moved {
        log::info!("weights stay in host memory: waiting for the GPU failed: {error}");
    }
    let home = runs(world, address, pages, true).is_empty();
    if let Some(unit) = world.unit_mut(id).filter(|_| home) {
        unit.in_host = false;
        unit.no_more(StayReason::Rows);
    }
    home
}

/// What went to host memory for a plan that did not come into force comes back. The calling thread holds nothing.
pub(super) fn bring_back(gone: &[UnitId]) {
    if gone.is_empty() {
        return;
    }
    let _closed = gate::close();
    let mut world = world();
    for &id in gone {
        come_home(&mut world, id);
    }
}

fn exchange(world: &mut World, device: i32, going: &mut Going) -> CudaResult<()> {
    for (first, pages) in runs(world, going.address, going.pages, false) {
        let fresh = going.fresh.split_off(going.fresh.len().saturating_sub(pages as usize));
        exchange_pages(world, device, going.address + first * PAGE, fresh)?;
    }
    Ok(())
}
