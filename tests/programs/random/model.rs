//! Makes random models: regions with one or several weights, owners and traps over them, an order of use; and names them.

use super::Stage;
use super::book::{Content, Part, Weight};
use super::dice::Dice;
use super::graph::Captured;
use harness::driver::{Failure, check};
use harness::gpu::Argument::Word;
use std::collections::BTreeSet;

const MAY_STREAM: u32 = 1;
const INDIRECT: u32 = 2;
const ROWS: u32 = 4;
/// Most weights that one array of pointers names.
const IN_ARRAY: usize = 4;

/// How a model is meant to be used.
#[derive(Clone, Copy, Default)]
pub(crate) struct Plan {
    /// Several threads run its forwards: nobody changes it.
    pub(crate) read_only: bool,
}

/// A module: the weights it uses (by index), and the block it is in.
#[derive(Clone)]
pub(crate) struct Owner {
    pub(crate) weights: Vec<usize>,
    pub(crate) trap: i32,
    /// Reads its weights through an array of pointers too.
    pub(crate) indirect: bool,
}

/// One thread's streams and small memory for a model.
pub(crate) struct Place {
    pub(crate) main: u64,
    pub(crate) side: u64,
    pub(crate) event: u64,
    /// Device memory for pointers.
    pub(crate) array: u64,
    /// Page-locked memory as large as the largest weight.
    pub(crate) pinned: u64,
    /// Work on the side stream that the main stream has not waited for.
    pub(crate) forked: bool,
    /// The last kernel on the main stream may have been a writer: nothing may start before it ends.
    pub(crate) written: bool,
}

pub(crate) struct Model {
    pub(crate) id: u64,
    pub(crate) weights: Vec<Weight>,
    pub(crate) owners: Vec<Owner>,
    /// Owners in order of use; some may never appear.
    pub(crate) order: Vec<usize>,
    pub(crate) place: Place,
    /// Addresses that were weights once.
    pub(crate) stale: Vec<u64>,
    pub(crate) graph: Option<Captured>,
    pub(crate) read_only: bool,
    largest: u64,
}

impl Place {
    pub(crate) fn make(stage: &Stage, largest: u64) -> Result<Self, Failure> {
        let gpu = &stage.gpu;
        Ok(Self {
            main: gpu.stream()?,
            side: gpu.stream()?,
            event: gpu.event()?,
            array: gpu.alloc(8 * IN_ARRAY)?,
            pinned: gpu.host_alloc(largest as usize)?,
            forked: false,
            written: true,
        })
    }
}

impl Model {
    pub(crate) fn make(stage: &Stage, dice: &mut Dice, plan: Plan) -> Result<Self, Failure> {
        let mut weights = Vec::new();
        let mut owners: Vec<Owner> = Vec::new();
        for _ in 0..dice.between(3, 7) {
            let first = weights.len();
            let indirect = dice.chance(15);
            add_weights(stage, dice, &mut weights, indirect);
            let added = first..weights.len();
            if indirect || dice.chance(30) {
                owners.push(Owner { weights: added.collect(), trap: -1, indirect });
            } else {
                owners.extend(added.map(|weight| Owner { weights: vec![weight], trap: -1, indirect: false }));
            }
        }
        place(stage, dice, &mut weights)?;
        // A tie: one more owner of a weight that has one.
        if dice.chance(40) {
            owners.push(Owner { weights: vec![dice.index(weights.len())], trap: -1, indirect: false });
        }
        let block = dice.between(1, 3) as usize;
        if dice.chance(70) {
            owners.iter_mut().enumerate().for_each(|(at, owner)| owner.trap = (at / block) as i32);
        }
        let mut order: Vec<usize> = (0..owners.len()).collect();
        if dice.chance(50) {
            dice.shuffle(&mut order);
        }
        if order.len() > 2 && dice.chance(30) {
            order.pop();
        }
        if dice.chance(30) {
            order.push(order[dice.index(order.len())]);
        }
        let largest = weights.iter().map(|weight| weight.bytes).max().unwrap_or(8).max(1 << 20);
        let place = Place::make(stage, largest)?;
        let mut model = Self {
            id: 0,
            weights,
            owners,
            order,
            place,
            stale: Vec::new(),
            graph: None,
            read_only: plan.read_only,
            largest,
        };
        for at in 0..model.weights.len() {
            model.fill(stage, at)?;
        }
        model.synchronize(stage)?;
        model.name(stage);
        Ok(model)
    }

    /// The same model for another thread, with streams of its own. Only read.
    pub(crate) fn visit(&self, stage: &Stage) -> Result<Self, Failure> {
        Ok(Self {
            id: self.id,
            weights: self.weights.clone(),
            owners: self.owners.clone(),
            order: self.order.clone(),
            place: Place::make(stage, self.largest)?,
            stale: Vec::new(),
            graph: None,
            read_only: true,
            largest: self.largest,
        })
    }

    /// Tells the library, if there is one.
    pub(crate) fn name(&mut self, stage: &Stage) {
        let Some(ft) = &stage.ft else { return };
        self.id = ft.model_begin("random");
        for (number, owner) in (0..).zip(&self.owners) {
            ft.model_owner(self.id, number, &format!("blocks.{number}"), "Block", owner.trap);
        }
        for (number, owner) in (0..).zip(&self.owners) {
            for &at in &owner.weights {
                let weight = &self.weights[at];
                let streams = if weight.excluded { 0 } else { MAY_STREAM };
                let rows = if weight.by_rows { ROWS } else { 0 };
                let flags = streams | rows | if owner.indirect { INDIRECT } else { 0 };
                let name = format!("blocks.{number}.{at}");
                ft.model_weight(self.id, &name, weight.address, weight.bytes, number, flags);
            }
        }
        ft.model_end(self.id);
    }

    /// Writes a new pattern to all parts by a kernel on the main stream.
    pub(crate) fn fill(&mut self, stage: &Stage, at: usize) -> Result<(), Failure> {
        self.place.written = true;
        for part in &mut self.weights[at].parts {
            let seed = stage.fresh_seed();
            stage.gpu.launch("fill", self.place.main, &[Word(part.address), Word(part.bytes), Word(seed)])?;
            part.content = Content::pattern(seed);
        }
        Ok(())
    }

    pub(crate) fn synchronize(&self, stage: &Stage) -> Result<(), Failure> {
        for stream in [self.place.side, self.place.main] {
            check("cuStreamSynchronize", stage.gpu.driver.stream_synchronize(stream))?;
        }
        Ok(())
    }

    /// All regions, each once.
    pub(crate) fn regions(&self) -> BTreeSet<u64> {
        self.weights.iter().map(|weight| weight.region).collect()
    }

    /// Lets everything go.
    pub(crate) fn end(mut self, stage: &Stage) -> Result<(), Failure> {
        self.drop_graph(stage)?;
        if let Some(ft) = &stage.ft {
            ft.model_drop(self.id);
        }
        for region in self.regions() {
            stage.gpu.free(region)?;
        }
        stage.gpu.free(self.place.array)?;
        for stream in [self.place.main, self.place.side] {
            check("cuStreamDestroy", stage.gpu.driver.stream_destroy(stream))?;
        }
        Ok(())
    }
}

/// Weights that one allocation will hold: one, or several side by side. Their addresses are still 0, and `region` is the number of the first of them.
fn add_weights(stage: &Stage, dice: &mut Dice, weights: &mut Vec<Weight>, indirect: bool) {
    let unit = if stage.large { 10 << 20 } else { 1 << 20 };
    let count = if indirect {
        dice.between(2, 3)
    } else if dice.chance(25) {
        dice.between(2, 4)
    } else {
        1
    };
    let size = |dice: &mut Dice| {
        let most = 6 << 20;
        (unit + dice.below(most)) / count / 512 * 512 + 512
    };
    let same = size(dice);
    let excluded = dice.chance(10);
    let by_rows = dice.chance(15);
    let region = weights.len() as u64;
    for _ in 0..count {
        let bytes = if indirect { same } else { size(dice) };
        weights.push(Weight { address: 0, bytes, parts: Vec::new(), region, excluded, indirect, by_rows });
    }
}

/// Gives weights their memory: an allocation for each region, or one for all, as a loader leaves it that asks for everything at once.
fn place(stage: &Stage, dice: &mut Dice, weights: &mut [Weight]) -> Result<(), Failure> {
    let pooled = dice.chance(30);
    if pooled {
        weights.iter_mut().for_each(|weight| weight.region = 0);
    }
    for together in weights.chunk_by_mut(|a, b| a.region == b.region) {
        // Holes, as an allocator leaves them: at the end, and in a pool also between weights.
        let hole = |dice: &mut Dice, percent| {
            if dice.chance(percent) { dice.below(3 << 20) / 512 * 512 } else { 0 }
        };
        let between: Vec<u64> = together.iter().map(|_| if pooled { hole(dice, 15) } else { 0 }).collect();
        let end = hole(dice, 20) + if pooled && dice.chance(50) { 64 << 20 } else { 0 };
        let bytes = together.iter().map(|weight| weight.bytes).chain(between.iter().copied()).sum::<u64>();
        let region = stage.gpu.alloc((bytes + end) as usize)?;
        let mut address = region;
        for (weight, hole) in together.iter_mut().zip(between) {
            address += hole;
            (weight.address, weight.region) = (address, region);
            weight.parts = parts_of(dice, address, weight.bytes, weight.indirect);
            address += weight.bytes;
        }
    }
    Ok(())
}

/// Cuts a weight at random words.
pub(crate) fn parts_of(dice: &mut Dice, address: u64, bytes: u64, whole: bool) -> Vec<Part> {
    let mut cuts = BTreeSet::from([0, bytes]);
    if !whole {
        for _ in 0..dice.below(3) {
            cuts.insert(dice.between(1, bytes / 8 - 1) * 8);
        }
    }
    let cuts: Vec<u64> = cuts.into_iter().collect();
    let part = |pair: &[u64]| Part {
        address: address + pair[0],
        bytes: pair[1] - pair[0],
        content: Content::Constant(0),
    };
    cuts.windows(2).map(part).collect()
}
