//! What exists: managed regions, the units in them, the models that named them. One lock, taken by allocation, naming and passes, never by a
//! launch in steady state. Lock order: world, then a device's `Streaming`, then `words`.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard};

use flextensor_core::plan::{StayReason, UnitInfo};
use flextensor_core::units::{ModelId, UnitId};

use super::arena::{Arena, Meaning, PAGE};
use super::models::Model;
use super::regions::Region;
use super::switch::Decisions;
use crate::ffi::context::Context;

/// Units of at most one part in so many of all pages are small.
const SMALL_SHARE: u64 = 256;

/// Pages of the largest unit that is small among however many: 32 MiB.
const MOST_SMALL: u64 = 16;

/// One weight of one model inside a unit.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    pub(crate) model: ModelId,
    pub(crate) owner: u32,
    /// The enclosing trap, or -1.
    pub(crate) trap: i32,
    pub(crate) name: String,
    pub(crate) address: u64,
    pub(crate) bytes: u64,
}

/// Where a unit stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum UnitState {
    /// Its model's passes are being observed.
    Learning,
    /// It has private pages, by plan or for good.
    Resident,
    /// It has pages in the ring.
    Streamed,
    /// Its region was freed.
    Gone,
}

/// What may be streamed as a whole: the pages of one weight, or of several that lie side by side.
#[derive(Clone, Debug)]
pub(crate) struct Unit {
    pub(crate) id: UnitId,
    pub(crate) device: i32,
    pub(crate) context: Context,
    /// Address of its first page.
    pub(crate) base: u64,
    /// Address from which on its first page is its own.
    pub(crate) from: u64,
    pub(crate) pages: u64,
    /// Pages at its beginning that others have bytes on, and that are therefore never streamed: 0 or 1.
    pub(crate) shared: u64,
    /// Bytes of its last weight on the page behind its last one: they stay where they are.
    pub(crate) overhang: u64,
    pub(crate) members: Vec<Member>,
    /// May be read through pointers in memory: held for its owner's whole forward.
    pub(crate) hold: bool,
    /// Forwards read single rows of it: all its weights are such.
    pub(crate) by_rows: bool,
    /// The pages that it has to itself lie in host memory for good.
    pub(crate) in_host: bool,
    pub(crate) stay: Option<StayReason>,
    pub(crate) state: UnitState,
    /// Pages at its end that are in the ring.
    pub(crate) streamed: u64,
}

impl Unit {
    /// Bytes of its weights.
    pub(crate) fn bytes(&self) -> u64 {
        self.members.iter().map(|m| (m.address, m.bytes)).collect::<BTreeMap<_, _>>().values().sum()
    }

    /// The reason that it had to stay for is gone; another one is not.
    pub(crate) fn no_more(&mut self, gone: StayReason) {
        self.stay = self.stay.filter(|&reason| reason != gone);
    }

    /// It as the planner sees it; units of at most `small` pages are not split ([`World::small`]).
    pub(crate) fn info(&self, splittable: bool, small: u64, stay: Option<StayReason>) -> UnitInfo {
        let splittable = splittable && self.pages > small;
        // A shared page counts whole, as it does in what is held.
        let whole = self.pages * PAGE;
        let bytes = if self.shared > 0 { whole } else { self.bytes().min(whole) };
        UnitInfo { id: self.id, name: self.name(), bytes, pages: self.may_move(), splittable, stay }
    }

    /// Address of the first page that it has to itself.
    pub(crate) fn own_pages(&self) -> u64 {
        self.base + self.shared * PAGE
    }

    /// Pages at its end that can be streamed.
    pub(crate) fn may_move(&self) -> u64 {
        self.pages - self.shared
    }

    /// Says what its addresses mean to launches. What lies before its first weight on its first page is not its own.
    pub(crate) fn mean(&self, arena: &Arena, meaning: Meaning) {
        let first = self.base + PAGE;
        arena.set_meaning(first, self.pages.saturating_sub(1), meaning);
        arena.set_meaning_from(self.from, meaning);
        if self.overhang > 0 {
            arena.set_beginning(self.end_of_pages(), self.overhang, meaning);
        }
    }

    /// Address behind its last page.
    pub(crate) fn end_of_pages(&self) -> u64 {
        self.base + self.pages * PAGE
    }

    /// Address behind its last byte.
    pub(crate) fn end(&self) -> u64 {
        self.end_of_pages() + self.overhang
    }

    /// Whether the address is one of its own bytes, from its first weight to the end of its last one.
    pub(crate) fn owns(&self, address: u64) -> bool {
        (self.from..self.end()).contains(&address)
    }

    /// What the report calls it.
    pub(crate) fn name(&self) -> String {
        match self.members.as_slice() {
            [] => format!("{:#x}", self.base),
            [only] => only.name.clone(),
            [first, rest @ ..] if rest.iter().all(|m| m.address == first.address) => first.name.clone(),
            [first, rest @ ..] => format!("{} and {} more", first.name, rest.len()),
        }
    }
}

/// Everything that exists.
#[derive(Default)]
pub(crate) struct World {
    pub(crate) regions: BTreeMap<u64, Region>,
    /// By number; never shortened, so that a number always means the same.
    pub(crate) units: Vec<Unit>,
    pub(crate) models: BTreeMap<ModelId, Model>,
    pub(crate) models_made: u64,
    /// What the last switch-over on each device decided.
    pub(crate) decided: Decisions,
}

static WORLD: Mutex<Option<World>> = Mutex::new(None);

/// The locked world.
pub(crate) struct WorldGuard(MutexGuard<'static, Option<World>>);

impl std::ops::Deref for WorldGuard {
    type Target = World;
    fn deref(&self) -> &World {
        match self.0.as_ref() {
            Some(world) => world,
            None => unreachable!("`world` fills it before it gives the guard out"),
        }
    }
}

impl std::ops::DerefMut for WorldGuard {
    fn deref_mut(&mut self) -> &mut World {
        self.0.get_or_insert_default()
    }
}

/// Locks the world.
pub(crate) fn world() -> WorldGuard {
    let mut guard = WORLD.lock().unwrap_or_else(|poisoned| poisoned.into_inner());
    guard.get_or_insert_default();
    WorldGuard(guard)
}

impl World {
    /// The region that holds the address.
    pub(crate) fn region_of(&self, address: u64) -> Option<&Region> {
        let (_, region) = self.regions.range(..=address).next_back()?;
        (address < region.base + region.pages() * PAGE).then_some(region)
    }

    /// The region that holds the address.
    pub(crate) fn region_of_mut(&mut self, address: u64) -> Option<&mut Region> {
        let base = self.region_of(address)?.base;
        self.regions.get_mut(&base)
    }

    /// What lies at the address stays where it is, also what is no weight yet, or a resident one. False if the address means something else by now: what is
    /// resident may have been put into a ring meanwhile.
    pub(crate) fn keep(&mut self, arena: &Arena, address: u64, meaning: Meaning, reason: StayReason) -> bool {
        if arena.meaning(address) != meaning {
            return false;
        }
        let here = |unit: &&mut Unit| unit.state != UnitState::Gone && unit.owns(address);
        let page = address / PAGE * PAGE;
        let mut on_its_own = false;
        if let Some(unit) = self.units.iter_mut().find(here) {
            unit.stay = Some(reason);
            on_its_own = page < unit.end_of_pages();
        }
        // A page of another unit, or of none: it must not move either.
        if !on_its_own && let Some(region) = self.region_of_mut(address) {
            region.kept.insert(page, reason);
        }
        true
    }

    /// Nothing, or somebody else's bytes, lie behind the unit's addresses from now on. It counts as streamed, and is in no ring: calls that show it fail
    /// with an error, which is better than what they would find there.
    pub(crate) fn lost(&mut self, arena: &Arena, id: UnitId) {
        if let Some(unit) = self.unit_mut(id) {
            unit.state = UnitState::Streamed;
            unit.stay.get_or_insert(StayReason::Private);
            unit.mean(arena, Meaning::Streamed(id));
        }
    }

    /// Whether something on this page must stay that is in no unit, or in the one before.
    pub(crate) fn is_kept(&self, page: u64) -> bool {
        self.region_of(page).is_some_and(|region| region.kept.contains_key(&page))
    }

    /// The unit of this number.
    pub(crate) fn unit(&self, id: UnitId) -> Option<&Unit> {
        self.units.get(id.0 as usize)
    }

    /// The unit of this number.
    pub(crate) fn unit_mut(&mut self, id: UnitId) -> Option<&mut Unit> {
        self.units.get_mut(id.0 as usize)
    }

    /// Living units on a page of the region.
    pub(crate) fn units_in(&self, base: u64, pages: u64) -> Vec<UnitId> {
        let end = base + pages * PAGE;
        let inside = |u: &&Unit| u.state != UnitState::Gone && u.base >= base && u.base < end;
        self.units.iter().filter(inside).map(|u| u.id).collect()
    }

    /// Pages up to which units of a device are small: a few whole ones do as well as parts of all of them, and launches that show the others cost nothing then.
    pub(crate) fn small(&self, device: i32) -> u64 {
        let living = self.units.iter().filter(|u| u.device == device && u.state != UnitState::Gone);
        (living.map(|unit| unit.pages).sum::<u64>() / SMALL_SHARE).min(MOST_SMALL)
    }

    /// The living unit that owns the address, and is read by rows in host memory for good, or may go there.
    pub(crate) fn table_at(&self, address: u64) -> Option<UnitId> {
        let is_table = |u: &Unit| u.in_host || u.stay == Some(StayReason::RowsOnGpu);
        let here = |u: &&Unit| is_table(u) && u.state != UnitState::Gone && u.owns(address);
        self.units.iter().find(here).map(|unit| unit.id)
    }

    /// Runs of a region's pages, as (address, count), that no living unit lies on.
    pub(crate) fn gaps(&self, base: u64, pages: u64) -> Vec<(u64, u64)> {
        let units = self.units_in(base, pages).into_iter().filter_map(|id| self.unit(id));
        let mut taken: Vec<(u64, u64)> = units.map(|unit| (unit.base, unit.end_of_pages())).collect();
        taken.sort_unstable();
        taken.push((base + pages * PAGE, 0));
        let mut at = base;
        let mut gaps = Vec::new();
        for (start, end) in taken {
            if start > at {
                gaps.push((at, (start - at) / PAGE));
            }
            at = at.max(end);
        }
        gaps
    }

    /// Bytes of a device's weights that lie in host memory for good.
    pub(crate) fn bytes_kept_in_host(&self, device: i32) -> u64 {
        let kept = |unit: &&Unit| unit.device == device && unit.in_host && unit.state != UnitState::Gone;
        self.units.iter().filter(kept).map(|unit| unit.may_move() * PAGE).sum()
    }

    /// Bytes of weights on a device that only they hold, wherever these lie: whole units' private pages, and weights outside units.
    pub(crate) fn private_weight_bytes(&self, device: i32) -> u64 {
        let living = |u: &&Unit| u.device == device && u.state != UnitState::Gone;
        let units: u64 = self.units.iter().filter(living).map(|u| (u.pages - u.streamed) * PAGE).sum();
        let fixed: u64 = self.models.values().filter(|m| m.device == device).map(|m| m.fixed_bytes).sum();
        units + fixed
    }
}
