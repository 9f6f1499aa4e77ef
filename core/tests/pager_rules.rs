//! One small program for each guard of the page protocol, run in many orders of the GPU's queues: it fails when that guard is
//! taken out (the table is in `docs/page-protocol.md`). Programs that mix everything are `pager_properties`' matter.

#[path = "pager_rules/copies.rs"]
mod copies;
#[path = "pager_rules/doubtful.rs"]
mod doubtful;
#[path = "pager_rules/holds.rs"]
mod holds;
#[path = "pager_rules/order.rs"]
mod order;
mod pager_model;
#[path = "pager_rules/private.rs"]
mod private;
#[path = "pager_rules/shadows.rs"]
mod shadows;
#[path = "pager_rules/together.rs"]
mod together;

use flextensor_core::units::{ModelId, UnitId};
use pager_model::world::World;

const MODEL: ModelId = ModelId(0);
const SHAPE: u64 = 1;

/// Two units on the same pages of a ring of four.
const SAME: &[(u32, u32)] = &[(0, 2), (0, 2)];
/// One unit on two pages, and two on one page of it each.
const SPLIT: &[(u32, u32)] = &[(0, 2), (0, 1), (1, 1)];

/// Runs the program in many orders; steps happen between its calls as well.
fn in_every_order(units: &[(u32, u32)], program: impl Fn(&mut World)) {
    for seed in 0..200 {
        let mut world = World::new(4, 2, units, seed);
        program(&mut world);
        world.finish().unwrap_or_else(|fault| panic!("seed {seed}: {fault}"));
    }
}

fn set_order(world: &mut World, units: &[u32]) {
    let uses: Vec<_> = units.iter().map(|&unit| (UnitId(unit), unit)).collect();
    world.pager.set_order(MODEL, &uses);
}
