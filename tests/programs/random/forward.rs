//! One forward of a random model: owners in an order that is mostly the usual one, each reading its weights in one of many ways.

use super::Stage;
use super::book::Part;
use super::dice::Dice;
use super::model::Model;
use harness::driver::{Failure, check};
use harness::gpu::Argument::{Struct, Word};
use harness::gpu::{Argument, Handle, Style};
use std::sync::atomic::Ordering;

const OWNERS: u32 = 1;
const TRAPS: u32 = 2;
const HELD_OWNERS: u32 = 4;
const STYLES: [Style; 4] = [Style::Parameters, Style::Packed, Style::Extended, Style::Programmatic];

impl Model {
    pub(crate) fn forward(&mut self, stage: &Stage, dice: &mut Dice) -> Result<(), Failure> {
        let shape = dice.below(2);
        if let Some(ft) = &stage.ft {
            ft.pass_begin(self.id, shape);
        }
        let mut trap = -1;
        for owner in self.todays_order(dice) {
            let next = self.owners[owner].trap;
            if next != trap {
                self.trap_event(stage, trap, false);
                self.trap_event(stage, next, true);
                trap = next;
            }
            self.owner_event(stage, owner, true);
            self.run_owner(stage, dice, owner)?;
            self.owner_event(stage, owner, false);
        }
        self.trap_event(stage, trap, false);
        if let Some(ft) = &stage.ft {
            ft.pass_end(self.id);
        }
        self.join(stage)
    }

    /// Mostly the usual order; sometimes backwards, with holes, cut short, or with a guest.
    fn todays_order(&self, dice: &mut Dice) -> Vec<usize> {
        let mut order = self.order.clone();
        if dice.chance(8) {
            order.reverse();
        }
        if dice.chance(10) {
            order.retain(|_| dice.chance(70));
        }
        if dice.chance(8) {
            order.truncate(dice.index(order.len() + 1));
        }
        if dice.chance(8) {
            order.insert(dice.index(order.len() + 1), dice.index(self.owners.len()));
        }
        if dice.chance(5) {
            dice.shuffle(&mut order);
        }
        order
    }

    fn trap_event(&self, stage: &Stage, trap: i32, enters: bool) {
        let (Some(ft), Ok(trap)) = (&stage.ft, u32::try_from(trap)) else { return };
        if ft.wants(self.id) & TRAPS == 0 {
            return;
        }
        if enters { ft.trap_enter(self.id, trap) } else { ft.trap_exit(self.id, trap) }
    }

    fn owner_event(&self, stage: &Stage, owner: usize, enters: bool) {
        let Some(ft) = &stage.ft else { return };
        let wanted = OWNERS | if self.owners[owner].indirect { HELD_OWNERS } else { 0 };
        if ft.wants(self.id) & wanted == 0 {
            return;
        }
        let owner = owner as u32;
        if enters { ft.owner_enter(self.id, owner) } else { ft.owner_exit(self.id, owner) }
    }

    fn run_owner(&mut self, stage: &Stage, dice: &mut Dice, owner: usize) -> Result<(), Failure> {
        let weights = self.owners[owner].weights.clone();
        if self.owners[owner].indirect {
            self.read_indirectly(stage, &weights)?;
        }
        let times = if dice.chance(15) { 2 } else { 1 };
        for _ in 0..times {
            for &weight in &weights {
                self.read(stage, dice, weight)?;
            }
        }
        if weights.len() > 1 && dice.chance(30) {
            self.read_two(stage, weights[0], weights[1])?;
        }
        // Now and then a weight of somebody else.
        if dice.chance(5) {
            let other = dice.index(self.weights.len());
            self.read(stage, dice, other)?;
        }
        if !self.read_only && dice.chance(8) {
            let written = weights[dice.index(weights.len())];
            self.write(stage, dice, written)?;
            self.read(stage, dice, written)?;
        }
        Ok(())
    }

    /// Reads all parts of a weight, by kernels where they can verify them.
    pub(crate) fn read(&mut self, stage: &Stage, dice: &mut Dice, weight: usize) -> Result<(), Failure> {
        for part in self.weights[weight].parts.clone() {
            match part.content.seed() {
                Some(seed) => self.launch_check(stage, dice, part, seed)?,
                None => self.download_and_compare(stage, part)?,
            }
        }
        Ok(())
    }

    fn launch_check(&mut self, stage: &Stage, dice: &mut Dice, part: Part, seed: u64) -> Result<(), Failure> {
        let mut style = STYLES[dice.index(STYLES.len())];
        let handle = if dice.chance(50) { Handle::Kernel } else { Handle::Function };
        let (weight, bytes, seed) = (Word(part.address), Word(part.bytes), Word(seed));
        let counter = Word(stage.counter);
        let (name, arguments) = match dice.below(10) {
            0 | 1 => ("check_struct", vec![self.with_stale_words(dice, part, stage.counter)]),
            2 => ("check_slow", vec![weight, bytes, seed, counter, Word(dice.below(800))]),
            _ => ("check", vec![weight, bytes, seed, counter]),
        };
        let stream = if dice.chance(20) { self.fork(stage)? } else { self.place.main };
        if stream == self.place.main
            && std::mem::take(&mut self.place.written)
            && style == Style::Programmatic
        {
            style = Style::Extended;
        }
        stage.gpu.launch_as(name, handle, style, stream, &arguments)
    }

    /// The struct of `check_struct`: its first word and its last three are never followed, and hold whatever was there.
    fn with_stale_words(&self, dice: &mut Dice, part: Part, counter: u64) -> Argument {
        let mut some = || match dice.below(4) {
            0 => 0,
            1 if !self.stale.is_empty() => self.stale[dice.index(self.stale.len())],
            _ => {
                let weight = &self.weights[dice.index(self.weights.len())];
                weight.address + dice.below(weight.bytes)
            }
        };
        let seed = part.content.seed().unwrap_or(0);
        Struct(vec![some(), part.address, part.bytes, seed, counter, some(), some(), 0])
    }

    fn read_two(&mut self, stage: &Stage, one: usize, other: usize) -> Result<(), Failure> {
        let (one, other) = (self.weights[one].parts[0], self.weights[other].parts[0]);
        let (Some(first), Some(second)) = (one.content.seed(), other.content.seed()) else { return Ok(()) };
        let arguments = [one.address, one.bytes, first, other.address, other.bytes, second, stage.counter];
        stage.gpu.launch("check_two", self.place.main, &arguments.map(Word))
    }

    /// Lets a kernel store the addresses, and another one read through them.
    fn read_indirectly(&mut self, stage: &Stage, weights: &[usize]) -> Result<(), Failure> {
        let parts: Vec<Part> = weights.iter().map(|&at| self.weights[at].parts[0]).collect();
        let Some(seeds) = parts.iter().map(|part| part.content.seed()).collect::<Option<Vec<u64>>>() else {
            return Ok(());
        };
        let mut arguments = vec![Word(self.place.array)];
        arguments.extend((0..4).map(|at| Word(parts.get(at).map_or(0, |part| part.address))));
        arguments.push(Word(parts.len() as u64));
        stage.gpu.launch("prepare_pointers", self.place.main, &arguments)?;
        self.place.written = true;
        self.launch_indirect(stage, parts[0].bytes, seeds)
    }

    /// `check` of each weight that the array of pointers names.
    pub(crate) fn launch_indirect(
        &self,
        stage: &Stage,
        bytes: u64,
        mut seeds: Vec<u64>,
    ) -> Result<(), Failure> {
        let count = seeds.len() as u64;
        seeds.resize(4, 0);
        let arguments =
            [Word(self.place.array), Word(count), Word(bytes), Struct(seeds), Word(stage.counter)];
        stage.gpu.launch("check_indirect", self.place.main, &arguments)
    }

    /// The side stream, behind all of the main stream.
    fn fork(&mut self, stage: &Stage) -> Result<u64, Failure> {
        stage.gpu.record(self.place.event, self.place.main)?;
        stage.gpu.wait(self.place.side, self.place.event)?;
        self.place.forked = true;
        Ok(self.place.side)
    }

    /// The main stream goes on behind the side stream.
    pub(crate) fn join(&mut self, stage: &Stage) -> Result<(), Failure> {
        if std::mem::take(&mut self.place.forked) {
            stage.gpu.record(self.place.event, self.place.side)?;
            stage.gpu.wait(self.place.main, self.place.event)?;
        }
        Ok(())
    }

    pub(crate) fn download_and_compare(&mut self, stage: &Stage, part: Part) -> Result<(), Failure> {
        let driver = &stage.gpu.driver;
        let code =
            driver.copy_d2h_async(self.place.pinned, part.address, part.bytes as usize, self.place.main);
        check("cuMemcpyDtoHAsync", code)?;
        check("cuStreamSynchronize", driver.stream_synchronize(self.place.main))?;
        let data = stage.gpu.download(self.place.pinned, part.bytes as usize)?;
        stage.wrong.fetch_add(part.content.wrong_words(&data), Ordering::Relaxed);
        Ok(())
    }

    /// Every byte of every weight, by copies.
    pub(crate) fn verify_all(&mut self, stage: &Stage) -> Result<(), Failure> {
        self.join(stage)?;
        for part in self.weights.iter().flat_map(|weight| weight.parts.clone()).collect::<Vec<_>>() {
            self.download_and_compare(stage, part)?;
        }
        Ok(())
    }
}
