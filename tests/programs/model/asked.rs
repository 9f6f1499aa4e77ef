//! What a transformer program is asked on its command line, and the tokens that go from forward to forward.

use super::network::Shape;

/// Sizes, and how many forwards.
pub(crate) struct Asked {
    pub(crate) shape: Shape,
    pub(crate) forwards: u32,
}

impl Asked {
    /// `[--layers N] [--dim N] [--forwards N] [--tokens N]`.
    pub(crate) fn from_arguments() -> Self {
        let shape = Shape { layers: 3, dim: 1664, heads: 13, vocabulary: 2048, tokens: 4 };
        let mut asked = Self { shape, forwards: 16 };
        let mut words = std::env::args().skip(1);
        while let Some(word) = words.next() {
            let value = words.next().and_then(|value| value.parse::<u32>().ok());
            let value = value.unwrap_or_else(|| panic!("{word} wants a number"));
            match word.as_str() {
                "--layers" => asked.shape.layers = value,
                "--dim" => (asked.shape.dim, asked.shape.heads) = (value, (value / 128).max(1)),
                "--tokens" => asked.shape.tokens = value,
                "--forwards" => asked.forwards = value,
                other => panic!("{other} is not known; allowed: --layers, --dim, --tokens, --forwards"),
            }
        }
        asked
    }

    /// The first tokens.
    pub(crate) fn ids(&self) -> Vec<u32> {
        (0..self.shape.tokens).map(|token| token * 37 % self.shape.vocabulary).collect()
    }

    /// The next forward reads what the last one predicted, so that a wrong byte goes on.
    pub(crate) fn next(&self, ids: &mut [u32], predicted: u32) {
        ids.rotate_left(1);
        if let Some(last) = ids.last_mut() {
            *last = predicted;
        }
    }
}

/// A hash of bytes.
pub(crate) fn fnv(bytes: &[u8]) -> u64 {
    bytes
        .iter()
        .fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}
