//! Ways to change a part of a weight, each with its entry in the book: kernels that always write, copies from everywhere, fills.

use super::Stage;
use super::book::{Content, Part};
use super::dice::Dice;
use super::model::Model;
use harness::driver::{Failure, check};
use harness::gpu::Argument::Word;

impl Model {
    /// Changes one part of a weight on the main stream, behind all readers.
    pub(crate) fn write(&mut self, stage: &Stage, dice: &mut Dice, weight: usize) -> Result<(), Failure> {
        self.join(stage)?;
        self.place.written = true;
        let at = dice.index(self.weights[weight].parts.len());
        let part = self.weights[weight].parts[at];
        let content = self.change(stage, dice, part)?;
        self.weights[weight].parts[at].content = content;
        Ok(())
    }

    fn change(&mut self, stage: &Stage, dice: &mut Dice, part: Part) -> Result<Content, Failure> {
        let (gpu, driver) = (&stage.gpu, &stage.gpu.driver);
        let (main, bytes) = (self.place.main, part.bytes as usize);
        let seed = stage.fresh_seed();
        let written = Content::pattern(seed);
        match dice.below(9) {
            0 => {
                gpu.launch("fill", main, &[Word(part.address), Word(part.bytes), Word(seed)])?;
                Ok(written)
            }
            1 | 2 => {
                gpu.launch("write_words", main, &[Word(part.address), Word(part.bytes), Word(seed)])?;
                Ok(written)
            }
            3 => {
                let add = seed | 1;
                gpu.launch("scale_inplace", main, &[Word(part.address), Word(part.bytes / 8), Word(add)])?;
                Ok(part.content.plus(add))
            }
            4 => {
                // Pageable memory: the call returns when it is done, but it runs on the legacy stream, which waits for nobody here.
                self.synchronize(stage)?;
                gpu.upload(part.address, &written.bytes(part.bytes))?;
                Ok(written)
            }
            5 => {
                check("cuStreamSynchronize", driver.stream_synchronize(main))?;
                gpu.upload(self.place.pinned, &written.bytes(part.bytes))?;
                let code = driver.copy_h2d_async(part.address, self.place.pinned, bytes, main);
                check("cuMemcpyHtoDAsync", code)?;
                Ok(written)
            }
            6 => {
                let value = (seed % 251) as u8;
                check("cuMemsetD8Async", driver.set_d8_async(part.address, value, bytes, main))?;
                Ok(Content::Constant(u64::from_le_bytes([value; 8])))
            }
            7 => {
                let value = seed as u32;
                check("cuMemsetD32Async", driver.set_d32_async(part.address, value, bytes / 4, main))?;
                Ok(Content::Constant(u64::from(value) << 32 | u64::from(value)))
            }
            _ => self.copy_from_sibling(stage, dice, part),
        }
    }

    /// Copies from another part that is as long, by a copy or a kernel; a fill where there is none.
    fn copy_from_sibling(&mut self, stage: &Stage, dice: &mut Dice, part: Part) -> Result<Content, Failure> {
        let mut all = self.weights.iter().flat_map(|weight| &weight.parts);
        // A kernel that writes what is there already shows itself to be a reader: two such writes prove it one (rule 8).
        let differs = |other: &&Part| other.address != part.address && other.content != part.content;
        let other = all.rfind(|other| other.bytes >= part.bytes && differs(other)).copied();
        let Some(other) = other else {
            let seed = stage.fresh_seed();
            stage.gpu.launch("fill", self.place.main, &[Word(part.address), Word(part.bytes), Word(seed)])?;
            return Ok(Content::pattern(seed));
        };
        if dice.chance(50) {
            let arguments = [Word(part.address), Word(other.address), Word(part.bytes / 8)];
            stage.gpu.launch("copy_words", self.place.main, &arguments)?;
        } else {
            let bytes = part.bytes as usize;
            let code = stage.gpu.driver.copy_d2d_async(part.address, other.address, bytes, self.place.main);
            check("cuMemcpyDtoDAsync", code)?;
        }
        Ok(other.content)
    }
}
