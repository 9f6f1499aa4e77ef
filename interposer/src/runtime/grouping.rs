//! From weights as they were named to units: which weights are streamed together, and which pages are theirs. A region that weights fill is one unit, as allocators of
//! large tensors give it; one that holds a whole model, or has holes, is cut into pieces of whole pages (`core::pieces`).

use std::collections::{BTreeMap, BTreeSet};

use flextensor_core::pieces::{self, Extent, Piece};
use flextensor_core::plan::StayReason;
use flextensor_core::units::{ModelId, UnitId};

use super::arena::{Meaning, PAGE, arena};
use super::learn::{self, Holder};
use super::models::{INDIRECT, MAY_STREAM, Named, ROWS};
use super::regions::Region;
use super::streaming::ring_of;
use super::world::{Member, Unit, UnitState, World};

/// Part of a region's pages that its weights must cover to be one unit; the rest may hold anything, and every hit of it costs a copy.
const MIN_COVER: f64 = 0.9;

/// Regions of more pages are one unit only where they hold one weight: 64 MiB, three times what allocators share among small tensors.
const MOST_SHARED: u64 = 32;

/// What came of a model's weights.
pub(super) struct Grouped {
    pub(super) units: BTreeSet<UnitId>,
    /// Bytes of weights that lie on no unit's pages.
    pub(super) fixed_bytes: u64,
}

/// Puts the weights of a model into units: those that are there already, and new ones.
pub(super) fn group(world: &mut World, model: ModelId, named: &[Named]) -> Grouped {
    let mut units = BTreeSet::new();
    let mut fixed: BTreeMap<u64, u64> = BTreeMap::new();
    let mut outside = 0;
    for (base, weights) in by_region(world, named) {
        let made = base.map(|base| units_of_region(world, model, base, &weights)).unwrap_or_default();
        match (base, made.is_empty()) {
            (Some(base), false) => {
                outside += bytes_outside(world, model, base, &weights);
                units.extend(made);
            }
            _ => fixed.extend(weights.iter().map(|weight| (weight.address, weight.bytes))),
        }
    }
    Grouped { units, fixed_bytes: fixed.values().sum::<u64>() + outside }
}

fn by_region(world: &World, named: &[Named]) -> BTreeMap<Option<u64>, Vec<Named>> {
    let mut groups: BTreeMap<Option<u64>, Vec<Named>> = BTreeMap::new();
    for weight in named {
        let region = world
            .region_of(weight.address)
            .filter(|region| weight.address + weight.bytes <= region.base + region.pages() * PAGE);
        groups.entry(region.map(|region| region.base)).or_default().push(weight.clone());
    }
    groups
}

/// The units that these weights of one region are in. Weights that can be in none are left out.
fn units_of_region(world: &mut World, model: ModelId, base: u64, weights: &[Named]) -> BTreeSet<UnitId> {
    let mut units = BTreeSet::new();
    let mut new: Vec<&Named> = Vec::new();
    let pages = world.regions.get(&base).map_or(0, Region::pages);
    let known = world.units_in(base, pages);
    for weight in weights {
        let there = units_at(world, &known, weight);
        if there.is_empty() {
            new.push(weight);
        }
        for unit in there {
            join(world, unit, model, weight);
            units.insert(unit);
        }
    }
    let extents: Vec<Extent> = new.iter().map(|weight| extent(world, model, weight)).collect();
    for piece in pieces_of(world, base, &extents) {
        let inside = |weight: &&&Named| {
            weight.address < piece.end(PAGE) + piece.overhang && weight.address + weight.bytes > piece.from
        };
        let members: Vec<&Named> = new.iter().filter(inside).copied().collect();
        units.extend(make(world, model, base, piece, &members));
    }
    units
}

/// Bytes of a region's weights that lie on no unit's pages.
fn bytes_outside(world: &World, model: ModelId, base: u64, weights: &[Named]) -> u64 {
    let Some(region) = world.regions.get(&base) else { return 0 };
    let units = world.units_in(base, region.pages()).into_iter().filter_map(|id| world.unit(id));
    let pages: Vec<(u64, u64)> = units.map(|unit| (unit.base, unit.end_of_pages())).collect();
    let extents: Vec<Extent> = weights.iter().map(|weight| extent(world, model, weight)).collect();
    pieces::bytes_outside(&extents, &pages)
}

/// Those of these units that have bytes of the weight on their pages.
fn units_at(world: &World, known: &[UnitId], weight: &Named) -> Vec<UnitId> {
    let end = weight.address + weight.bytes;
    let here = |unit: &&Unit| unit.from < end && weight.address < unit.end();
    known.iter().filter_map(|&id| world.unit(id)).filter(here).map(|unit| unit.id).collect()
}

/// One piece where the weights fill a region that few share, otherwise what can be cut out.
fn pieces_of(world: &World, base: u64, extents: &[Extent]) -> Vec<Piece> {
    let Some(region) = world.regions.get(&base) else { return Vec::new() };
    let (Some(first), Some(end)) =
        (extents.iter().map(|extent| extent.start).min(), extents.iter().map(|extent| extent.end).max())
    else {
        return Vec::new();
    };
    let asked = region.base + region.bytes;
    let (first, end) = (first / PAGE * PAGE, end.next_multiple_of(PAGE));
    // What lies behind the allocation's end is nobody's.
    let fills = covered(extents) >= MIN_COVER * (end.min(asked) - first) as f64;
    let few = region.pages() <= MOST_SHARED || pieces::islands(extents).len() == 1;
    if fills && few && world.units_in(base, region.pages()).is_empty() {
        return vec![Piece { from: first, base: first, pages: (end - first) / PAGE, shared: 0, overhang: 0 }];
    }
    pieces::pieces(extents, asked, PAGE)
}

/// Bytes that at least one of the weights covers.
fn covered(extents: &[Extent]) -> f64 {
    pieces::islands(extents).iter().map(|island| island.end - island.start).sum::<u64>() as f64
}

/// The weight becomes one of the unit's.
fn join(world: &mut World, id: UnitId, model: ModelId, weight: &Named) {
    let member = member(world, model, weight);
    let hold = weight.flags & INDIRECT != 0;
    let by_rows = weight.flags & ROWS != 0;
    let holder = Holder { model, owner: member.owner, trap: member.trap };
    let Some(unit) = world.unit_mut(id) else { return };
    unit.members.push(member);
    unit.hold |= hold;
    unit.by_rows &= by_rows;
    let is_table = unit.by_rows && !unit.hold;
    if !is_table {
        unit.no_more(StayReason::RowsOnGpu);
    }
    // Whoever reads it otherwise has it placed anew.
    if unit.in_host && !is_table {
        unit.in_host = false;
        unit.no_more(StayReason::Rows);
        unit.state = UnitState::Learning;
        if let Some(arena) = arena() {
            unit.mean(arena, Meaning::Learning(id));
        }
    }
    // It may be in the ring already.
    if hold
        && let Some(ring) = ring_of(unit.device).as_mut()
        && let Some(streamed) = ring.unit_mut(id)
    {
        streamed.hold = true;
    }
    learn::recorder(|recorder| recorder.add_holders(id, vec![holder]));
}

/// A new unit of these pages.
fn make(world: &mut World, model: ModelId, base: u64, piece: Piece, weights: &[&Named]) -> Option<UnitId> {
    let members: Vec<Member> = weights.iter().map(|weight| member(world, model, weight)).collect();
    let holders = members.iter().map(|m| Holder { model, owner: m.owner, trap: m.trap }).collect();
    let excluded = weights.iter().any(|weight| weight.flags & MAY_STREAM == 0);
    let region = world.regions.get(&base)?;
    let kept = region.kept.range(piece.base..piece.end(PAGE)).next().map(|(_, &reason)| reason);
    let id = UnitId(world.units.len() as u32);
    let unit = Unit {
        id,
        device: region.device,
        context: region.context,
        base: piece.base,
        from: piece.from,
        pages: piece.pages,
        shared: piece.shared,
        overhang: piece.overhang,
        members,
        hold: weights.iter().any(|weight| weight.flags & INDIRECT != 0),
        in_host: false,
        by_rows: weights.iter().all(|weight| weight.flags & ROWS != 0),
        stay: kept.or(excluded.then_some(StayReason::Excluded)),
        state: UnitState::Learning,
        streamed: 0,
    };
    unit.mean(arena()?, Meaning::Learning(id));
    world.units.push(unit);
    learn::recorder(|recorder| recorder.add_holders(id, holders));
    Some(id)
}

fn member(world: &World, model: ModelId, weight: &Named) -> Member {
    Member {
        model,
        owner: weight.owner,
        trap: trap_of(world, model, weight),
        name: weight.name.clone(),
        address: weight.address,
        bytes: weight.bytes,
    }
}

/// The trap that the weight's owner is in, or -1.
fn trap_of(world: &World, model: ModelId, weight: &Named) -> i32 {
    let owners = world.models.get(&model).map(|model| &model.owners);
    owners.and_then(|owners| owners.get(&weight.owner)).map_or(-1, |owner| owner.trap)
}

fn extent(world: &World, model: ModelId, weight: &Named) -> Extent {
    Extent {
        start: weight.address,
        end: weight.address + weight.bytes,
        block: trap_of(world, model, weight),
        streamable: weight.flags & MAY_STREAM != 0,
        indirect: weight.flags & INDIRECT != 0,
    }
}
