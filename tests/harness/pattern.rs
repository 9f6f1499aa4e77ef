//! The test pattern: word `i` of a range with seed `s` is `mix(s, i)`. simcuda's kernels compute the same one.

/// Word `index` of the pattern with this seed.
#[must_use]
pub fn mix(seed: u64, index: u64) -> u64 {
    let mut word = (index ^ seed.rotate_left(32)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    word ^= word >> 29;
    word.wrapping_mul(0xBF58_476D_1CE4_E5B9) ^ seed
}

/// The bytes of a range of `bytes` (a multiple of 8) filled with the pattern.
#[must_use]
pub fn filled(seed: u64, bytes: usize) -> Vec<u8> {
    (0..bytes as u64 / 8).flat_map(|index| mix(seed, index).to_le_bytes()).collect()
}

/// How many words of `data` differ from the pattern.
#[must_use]
pub fn mismatches(seed: u64, data: &[u8]) -> usize {
    let words = data.chunks_exact(8).enumerate();
    words.filter(|(index, chunk)| **chunk != mix(seed, *index as u64).to_le_bytes()).count()
}
