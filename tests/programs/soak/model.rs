//! A model with the book of what its weights hold: short parts, each with a pattern of its own, so that one launch looks at little and all of them together at everything.

use super::Stage;
use super::dice::Dice;
use harness::driver::{Failure, check};
use harness::gpu::Argument::{Struct, Word};
use harness::gpu::{Handle, PAGE, Style};

/// Bytes with one pattern.
pub(crate) const PART: u64 = 128 << 10;

const MAY_STREAM: u32 = 1;
const STYLES: [Style; 4] = [Style::Parameters, Style::Packed, Style::Extended, Style::Programmatic];

/// One weight: the pattern of each part.
#[derive(Clone)]
pub(crate) struct Weight {
    pub(crate) name: String,
    address: u64,
    bytes: u64,
    seeds: Vec<u64>,
}

/// A few weights, each in an allocation of its own and held by a module of its own.
#[derive(Clone)]
pub(crate) struct Model {
    pub(crate) id: u64,
    pub(crate) weights: Vec<Weight>,
}

/// Refused calls in a row that a program would take for the end.
const FOR_GOOD: u64 = 50;

/// One thread's stream, page-locked memory for a part, and the calls of the thread that were refused.
pub(crate) struct Place {
    pub(crate) stream: u64,
    pinned: u64,
    /// The last kernel on the stream may have been a writer: nothing may start before it ends.
    written: bool,
    pub(crate) refused: u64,
    refused_in_a_row: u64,
}

impl Place {
    pub(crate) fn make(stage: &Stage) -> Result<Self, Failure> {
        let (stream, pinned) = (stage.gpu.stream()?, stage.gpu.host_alloc(PART as usize)?);
        Ok(Self { stream, pinned, written: false, refused: 0, refused_in_a_row: 0 })
    }

    /// A call that was refused has done nothing, and the program goes on; but not for ever. True if it was done.
    fn tolerate(&mut self, done: Result<(), Failure>) -> Result<bool, Failure> {
        let Err(failure) = done else {
            self.refused_in_a_row = 0;
            return Ok(true);
        };
        self.refused += 1;
        self.refused_in_a_row += 1;
        if self.refused_in_a_row < FOR_GOOD { Ok(false) } else { Err(failure) }
    }

    pub(crate) fn synchronize(&self, stage: &Stage) -> Result<(), Failure> {
        check("cuStreamSynchronize", stage.gpu.driver.stream_synchronize(self.stream))
    }

    pub(crate) fn end(self, stage: &Stage) -> Result<(), Failure> {
        check("cuStreamDestroy", stage.gpu.driver.stream_destroy(self.stream))?;
        check("cuMemFreeHost", stage.gpu.driver.host_free(self.pinned))
    }
}

impl Model {
    pub(crate) fn make(stage: &Stage, dice: &mut Dice) -> Result<Self, Failure> {
        let mut weights = Vec::new();
        for at in 0..dice.between(2, 4) {
            // Some weights end amid a page.
            let bytes = dice.between(1, 2) * PAGE as u64 + dice.below(2) * 4 * PART;
            let address = stage.gpu.alloc(bytes as usize)?;
            let seeds: Vec<u64> = (0..bytes / PART).map(|_| stage.fresh_seed()).collect();
            let name = format!("layers.{at}.weight");
            weights.push(Weight { name, address, bytes, seeds });
        }
        let stream = stage.gpu.stream()?;
        for weight in &weights {
            for (address, seed) in weight.parts() {
                stage.gpu.launch("fill", stream, &[Word(address), Word(PART), Word(seed)])?;
            }
        }
        check("cuStreamSynchronize", stage.gpu.driver.stream_synchronize(stream))?;
        check("cuStreamDestroy", stage.gpu.driver.stream_destroy(stream))?;
        let mut model = Self { id: 0, weights };
        model.name(stage);
        Ok(model)
    }

    fn name(&mut self, stage: &Stage) {
        let Some(ft) = &stage.ft else { return };
        self.id = ft.model_begin("soak");
        for (owner, weight) in (0..).zip(&self.weights) {
            ft.model_owner(self.id, owner, &format!("layers.{owner}"), "Linear", owner as i32);
            ft.model_weight(self.id, &weight.name, weight.address, weight.bytes, owner, MAY_STREAM);
        }
        ft.model_end(self.id);
    }

    /// A forward: mostly all weights in order, sometimes fewer or backwards.
    pub(crate) fn forward(&self, stage: &Stage, place: &mut Place, dice: &mut Dice) -> Result<(), Failure> {
        if let Some(ft) = &stage.ft {
            ft.pass_begin(self.id, dice.below(2));
        }
        let mut order: Vec<usize> = (0..self.weights.len()).collect();
        if dice.chance(5) {
            order.reverse();
        }
        if dice.chance(5) {
            order.truncate(dice.between(1, order.len() as u64) as usize);
        }
        let read = order.iter().try_for_each(|&at| self.read(stage, place, dice, at));
        if let Some(ft) = &stage.ft {
            ft.pass_end(self.id);
        }
        read?;
        place.synchronize(stage)
    }

    /// A forward that ends early: it looks at one part of one weight.
    pub(crate) fn glance(&self, stage: &Stage, place: &mut Place, dice: &mut Dice) -> Result<(), Failure> {
        if let Some(ft) = &stage.ft {
            ft.pass_begin(self.id, 2);
        }
        let read = self.read(stage, place, dice, 0);
        if let Some(ft) = &stage.ft {
            ft.pass_end(self.id);
        }
        read?;
        place.synchronize(stage)
    }

    /// The module of a weight checks some of its parts, in any style of launch.
    fn read(&self, stage: &Stage, place: &mut Place, dice: &mut Dice, at: usize) -> Result<(), Failure> {
        let told = stage.ft.as_ref().filter(|ft| ft.wants(self.id) & 1 != 0);
        if let Some(ft) = told {
            ft.owner_enter(self.id, at as u32);
        }
        let weight = &self.weights[at];
        let mut launched = Ok(());
        for _ in 0..2 {
            let (address, seed) = weight.part(dice.index(weight.seeds.len()));
            let launch = if dice.chance(20) {
                // The first word is stale: another weight's address that nobody follows.
                let other = &self.weights[dice.index(self.weights.len())];
                let words = vec![other.address, address, PART, seed, stage.counter, 0, 0, 0];
                stage.gpu.launch("check_struct", place.stream, &[Struct(words)])
            } else {
                let styles = if place.written { &STYLES[..3] } else { &STYLES[..] };
                let style = styles[dice.index(styles.len())];
                let arguments = [address, PART, seed, stage.counter].map(Word);
                stage.gpu.launch_as("check", Handle::Kernel, style, place.stream, &arguments)
            };
            let done = place.tolerate(launch);
            place.written &= !matches!(done, Ok(true));
            launched = launched.and(done.map(|_| ()));
        }
        if let Some(ft) = told {
            ft.owner_exit(self.id, at as u32);
        }
        launched
    }

    /// Writes one part between forwards: by a kernel, by a copy, or by a copy from another part.
    pub(crate) fn write(&mut self, stage: &Stage, place: &mut Place, dice: &mut Dice) -> Result<(), Failure> {
        let (from, to) = (dice.index(self.weights.len()), dice.index(self.weights.len()));
        let at = dice.index(self.weights[to].seeds.len());
        let (address, before) = self.weights[to].part(at);
        let fresh = stage.fresh_seed();
        let driver = &stage.gpu.driver;
        let (written, seed) = match dice.below(3) {
            0 => {
                let arguments = [address, PART, fresh].map(Word);
                (stage.gpu.launch("write_words", place.stream, &arguments), fresh)
            }
            1 => {
                place.synchronize(stage)?;
                stage.gpu.upload(place.pinned, &harness::pattern::filled(fresh, PART as usize))?;
                let code = driver.copy_h2d_async(address, place.pinned, PART as usize, place.stream);
                (check("cuMemcpyHtoDAsync", code), fresh)
            }
            _ => {
                let (source, seed) = self.weights[from].part(dice.index(self.weights[from].seeds.len()));
                if seed == before {
                    return Ok(());
                }
                let code = driver.copy_d2d_async(address, source, PART as usize, place.stream);
                (check("cuMemcpyDtoDAsync", code), seed)
            }
        };
        if place.tolerate(written)? {
            place.written = true;
            self.weights[to].seeds[at] = seed;
        }
        Ok(())
    }

    /// Wrong words that the host finds in all weights.
    pub(crate) fn wrong_words(&self, stage: &Stage) -> Result<u64, Failure> {
        let mut wrong = 0;
        for weight in &self.weights {
            let data = stage.gpu.download(weight.address, weight.bytes as usize)?;
            for (part, &seed) in data.chunks_exact(PART as usize).zip(&weight.seeds) {
                wrong += harness::pattern::mismatches(seed, part) as u64;
            }
        }
        Ok(wrong)
    }

    /// Lets everything go.
    pub(crate) fn end(self, stage: &Stage) -> Result<(), Failure> {
        if let Some(ft) = &stage.ft {
            ft.model_drop(self.id);
        }
        self.weights.iter().try_for_each(|weight| stage.gpu.free(weight.address))
    }
}

impl Weight {
    fn part(&self, at: usize) -> (u64, u64) {
        (self.address + at as u64 * PART, self.seeds[at])
    }

    fn parts(&self) -> impl Iterator<Item = (u64, u64)> + '_ {
        (0..self.seeds.len()).map(|at| self.part(at))
    }
}
