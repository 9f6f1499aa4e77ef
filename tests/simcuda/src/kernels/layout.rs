//! Parameter layouts: sizes in order, at their natural alignment, as a compiler lays them out.

use super::call::Run;
use crate::exec::hazard::Use;
use crate::memory::space::Denied;

/// When in its run a kernel is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    Start,
    Middle,
    End,
}

/// What a kernel reaches through addresses in memory.
pub(crate) type Indirect = fn(&Run) -> Result<Vec<Use>, Denied>;

/// A kernel: its parameters and what it does.
pub(crate) struct Kernel {
    pub(crate) name: &'static str,
    /// Bytes of each parameter. Up to 8 bytes are aligned to their size, larger ones (structs) to 8.
    pub(crate) parameters: &'static [usize],
    /// What it reads and writes, from its arguments alone.
    pub(crate) uses: fn(&Arguments) -> Vec<Use>,
    /// What it reads and writes beyond that, once its inputs are in place.
    pub(crate) indirect: Option<Indirect>,
    /// Whether the run compares its inputs between the phases; a kernel that verifies every word itself need not.
    pub(crate) compare_inputs: bool,
    pub(crate) body: fn(&Run, Phase) -> Result<(), Denied>,
}

/// Offset and size of each parameter.
pub(crate) fn layout(sizes: &[usize]) -> Vec<(usize, usize)> {
    let mut end = 0usize;
    sizes
        .iter()
        .map(|&size| {
            let offset = end.next_multiple_of(size.clamp(1, 8));
            end = offset + size;
            (offset, size)
        })
        .collect()
}

impl Kernel {
    /// Bytes of all parameters together.
    pub(crate) fn parameter_bytes(&self) -> usize {
        layout(self.parameters).last().map_or(0, |(offset, size)| offset + size)
    }
}

/// The arguments of one launch, copied when it was made.
#[derive(Clone, Debug)]
pub(crate) struct Arguments {
    pub(crate) bytes: Vec<u8>,
    offsets: Vec<(usize, usize)>,
}

impl Arguments {
    /// Arguments in the layout of `kernel`; missing bytes count as zero.
    pub(crate) fn new(kernel: &Kernel, mut bytes: Vec<u8>) -> Self {
        bytes.resize(kernel.parameter_bytes(), 0);
        Self { bytes, offsets: layout(kernel.parameters) }
    }

    /// The 64-bit word at `word` of parameter `index`.
    pub(crate) fn struct_word(&self, index: usize, word: usize) -> u64 {
        let at = self.offsets[index].0 + word * 8;
        let mut value = [0; 8];
        value.copy_from_slice(&self.bytes[at..at + 8]);
        u64::from_le_bytes(value)
    }

    /// A 64-bit parameter.
    pub(crate) fn word(&self, index: usize) -> u64 {
        self.struct_word(index, 0)
    }

    /// A 32-bit parameter.
    pub(crate) fn number(&self, index: usize) -> u64 {
        u64::from(self.bits(index))
    }

    /// A 32-bit float parameter.
    pub(crate) fn float(&self, index: usize) -> f32 {
        f32::from_bits(self.bits(index))
    }

    fn bits(&self, index: usize) -> u32 {
        let at = self.offsets[index].0;
        let mut value = [0; 4];
        value.copy_from_slice(&self.bytes[at..at + 4]);
        u32::from_le_bytes(value)
    }
}

#[cfg(test)]
mod tests {
    use super::layout;

    #[test]
    fn parameters_are_aligned_to_their_size_and_structs_to_eight() {
        assert_eq!(layout(&[8, 4, 8, 4, 4, 24]), vec![(0, 8), (8, 4), (16, 8), (24, 4), (28, 4), (32, 24)]);
    }
}
