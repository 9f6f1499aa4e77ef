//! Tables of rows that stay on the GPU as long as passes would lose more by their rows than their memory saves: which these are, and what is asked for without them. When they go after all is
//! `replan`'s matter, where a plan gains by it (`tables`) or memory runs short (`giving`); how they go is the parent's.

use flextensor_core::plan::{PlanRequest, StayReason};
use flextensor_core::units::UnitId;

use super::super::world::{Unit, world};
use super::{are_wanted, bytes_of, go_to_host, only_by_rows, pay};
use crate::ffi::context::Context;

/// The tables stay on the GPU for now.
pub(in super::super) fn wait(tables: &[UnitId]) {
    let mut world = world();
    for &id in tables {
        if let Some(unit) = world.unit_mut(id).filter(|unit| unit.stay.is_none()) {
            unit.stay = Some(StayReason::RowsOnGpu);
        }
    }
}

/// They are weights like any others again.
pub(in super::super) fn wait_no_more(tables: &[UnitId]) {
    let mut world = world();
    for &id in tables {
        if let Some(unit) = world.unit_mut(id) {
            unit.no_more(StayReason::RowsOnGpu);
        }
    }
}

/// Tables of a context that wait, and the bytes that they hold.
pub(in super::super) struct Waiting {
    device: i32,
    tables: Vec<UnitId>,
    bytes: u64,
}

fn waits(unit: &Unit, device: i32) -> bool {
    unit.device == device && unit.stay == Some(StayReason::RowsOnGpu)
}

/// Whether any may wait on the device.
pub(in super::super) fn any(device: i32) -> bool {
    world().units.iter().any(|unit| waits(unit, device))
}

/// Those of a device and context. None where there are none, or a strategy chooses what streams.
pub(in super::super) fn on(device: i32, context: Context, request: &PlanRequest) -> Option<Waiting> {
    if !are_wanted(request) {
        return None;
    }
    let world = world();
    let here = |unit: &&Unit| unit.context == context && waits(unit, device);
    let tables = only_by_rows(&world, world.units.iter().filter(here).map(|unit| unit.id));
    let bytes = bytes_of(&world, &tables);
    (bytes > 0).then_some(Waiting { device, tables, bytes })
}

impl Waiting {
    /// What is asked for if they go.
    pub(in super::super) fn gone_from(&self, request: &PlanRequest) -> PlanRequest {
        PlanRequest { fixed_bytes: request.fixed_bytes.saturating_sub(self.bytes), ..request.clone() }
    }

    /// Whether passes gain where they lie in host memory. `others`: what is asked for then.
    pub(in super::super) fn pay(&self, others: &PlanRequest) -> bool {
        pay(others, &self.tables)
    }

    /// They go to host memory; returns the bytes that have become free. One switch-over at a time is the caller's promise, and that the context is current.
    pub(in super::super) fn go(&self) -> u64 {
        let gone = go_to_host(self.device, &self.tables);
        bytes_of(&world(), &gone)
    }

    /// They cannot go, and are weights like any others from now on.
    pub(in super::super) fn give_up(&self) {
        wait_no_more(&self.tables);
    }
}
