//! What a program does between forwards: writes, looks, captures, lets weights and models go and makes new ones, replaces streams.

use super::Stage;
use super::dice::Dice;
use super::model::{Model, parts_of};
use harness::driver::{Failure, check};

impl Model {
    pub(crate) fn between(&mut self, stage: &Stage, dice: &mut Dice) -> Result<(), Failure> {
        self.join(stage)?;
        let weight = dice.index(self.weights.len());
        match dice.below(20) {
            0..=7 => self.write(stage, dice, weight),
            8..=10 => {
                let parts = self.weights[weight].parts.clone();
                parts.into_iter().try_for_each(|part| self.download_and_compare(stage, part))
            }
            11 => self.read(stage, dice, weight),
            12 => self.capture(stage, dice),
            13 | 14 => self.launch_graph(stage),
            15 => self.send_address(stage, dice),
            16 => self.replace_region(stage, dice, weight),
            17 => self.replace_stream(stage),
            18 => {
                let _ = stage.ft.as_ref().map(|ft| ft.weight_private(self.weights[weight].address));
                Ok(())
            }
            _ => self.name_again(stage, dice),
        }
    }

    /// The program loads its model anew: drops it and names it again, in another order of use.
    fn name_again(&mut self, stage: &Stage, dice: &mut Dice) -> Result<(), Failure> {
        if let Some(ft) = &stage.ft {
            ft.model_drop(self.id);
        }
        if dice.chance(50) {
            dice.shuffle(&mut self.order);
        }
        self.name(stage);
        Ok(())
    }

    /// An address goes to device memory by a small copy; a kernel that does not show it reads through it.
    fn send_address(&mut self, stage: &Stage, dice: &mut Dice) -> Result<(), Failure> {
        let part = self.weights[dice.index(self.weights.len())].parts[0];
        let Some(seed) = part.content.seed() else { return Ok(()) };
        self.synchronize(stage)?;
        stage.gpu.upload(self.place.array, &part.address.to_le_bytes())?;
        self.launch_indirect(stage, part.bytes, vec![seed])?;
        self.synchronize(stage)
    }

    /// Frees the allocation of a weight, and makes new ones for all weights that were in it.
    fn replace_region(&mut self, stage: &Stage, dice: &mut Dice, weight: usize) -> Result<(), Failure> {
        self.drop_graph(stage)?;
        let region = self.weights[weight].region;
        stage.gpu.free(region)?;
        for at in 0..self.weights.len() {
            if self.weights[at].region != region {
                continue;
            }
            let bytes = self.weights[at].bytes;
            let address = stage.gpu.alloc(bytes as usize)?;
            let weight = &mut self.weights[at];
            self.stale.push(weight.address);
            (weight.address, weight.region) = (address, address);
            weight.parts = parts_of(dice, address, bytes, weight.indirect);
            self.fill(stage, at)?;
        }
        Ok(())
    }

    /// The streams are destroyed, with work on them, and others take their place.
    fn replace_stream(&mut self, stage: &Stage) -> Result<(), Failure> {
        // What comes on the new stream must stand behind what the old one still carries.
        stage.gpu.record(self.place.event, self.place.main)?;
        for stream in [self.place.main, self.place.side] {
            check("cuStreamDestroy", stage.gpu.driver.stream_destroy(stream))?;
        }
        (self.place.main, self.place.side) = (stage.gpu.stream()?, stage.gpu.stream()?);
        stage.gpu.wait(self.place.main, self.place.event)
    }
}
