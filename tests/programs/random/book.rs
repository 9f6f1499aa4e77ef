//! The book of truth: what every byte of every weight must be, by what the program last wrote there.

use harness::pattern::mix;

/// What a stretch of memory holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Content {
    /// Word `i` is `mix(seed, i)` plus `added`.
    Pattern { seed: u64, added: u64 },
    /// Every word is this.
    Constant(u64),
}

impl Content {
    pub(crate) fn pattern(seed: u64) -> Self {
        Self::Pattern { seed, added: 0 }
    }

    /// The seed, if a `check` kernel can verify it.
    pub(crate) fn seed(self) -> Option<u64> {
        match self {
            Self::Pattern { seed, added: 0 } => Some(seed),
            _ => None,
        }
    }

    pub(crate) fn word(self, index: u64) -> u64 {
        match self {
            Self::Pattern { seed, added } => mix(seed, index).wrapping_add(added),
            Self::Constant(word) => word,
        }
    }

    /// After `add` was added to every word.
    pub(crate) fn plus(self, add: u64) -> Self {
        match self {
            Self::Pattern { seed, added } => Self::Pattern { seed, added: added.wrapping_add(add) },
            Self::Constant(word) => Self::Constant(word.wrapping_add(add)),
        }
    }

    pub(crate) fn bytes(self, length: u64) -> Vec<u8> {
        (0..length / 8).flat_map(|index| self.word(index).to_le_bytes()).collect()
    }

    /// How many words of `data` are not what they must be.
    pub(crate) fn wrong_words(self, data: &[u8]) -> u64 {
        let words = data.chunks_exact(8).enumerate();
        words.filter(|(index, chunk)| **chunk != self.word(*index as u64).to_le_bytes()).count() as u64
    }
}

/// A stretch of a weight with one content. Parts of a weight lie one behind the other.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Part {
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    pub(crate) content: Content,
}

/// One weight.
#[derive(Clone, Debug)]
pub(crate) struct Weight {
    pub(crate) address: u64,
    pub(crate) bytes: u64,
    pub(crate) parts: Vec<Part>,
    /// The allocation it lies in.
    pub(crate) region: u64,
    pub(crate) excluded: bool,
    /// Read through pointers in memory by its owner.
    pub(crate) indirect: bool,
    /// Named as a table of which single rows are read.
    pub(crate) by_rows: bool,
}
