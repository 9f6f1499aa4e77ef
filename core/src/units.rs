//! Plain values that every part speaks in: byte amounts as people write them, and the numbers that name units
//! and models. What they mean for a plan is said in `plan`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::error::CoreError;

/// One kibibyte in bytes.
pub const KIB: u64 = 1 << 10;
/// One mebibyte in bytes.
pub const MIB: u64 = 1 << 20;
/// One gibibyte in bytes.
pub const GIB: u64 = 1 << 30;

/// An amount of memory in bytes. Parses `8GiB`, `8 GB`, `512M`, `1073741824`; prints in the largest binary
/// unit.
///
/// `KiB`, `MiB`, `GiB`, `TiB` and the bare letters `K`, `M`, `G`, `T` are powers of 1024; `KB`, `MB`, `GB`, `TB` are powers of 1000. Case does
/// not matter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Bytes(pub u64);

impl FromStr for Bytes {
    type Err = CoreError;

    fn from_str(text: &str) -> Result<Self, CoreError> {
        let refuse = || CoreError::BadBytes { given: text.to_owned() };
        let trimmed = text.trim();
        let digits =
            trimmed.find(|c: char| !(c.is_ascii_digit() || c == '.' || c == '_')).unwrap_or(trimmed.len());
        let (number, suffix) = trimmed.split_at(digits);
        let number = number.replace('_', "");
        let scale = match suffix.trim().to_ascii_lowercase().as_str() {
            "" | "b" => 1,
            "k" | "kib" => KIB,
            "m" | "mib" => MIB,
            "g" | "gib" => GIB,
            "t" | "tib" => GIB * 1024,
            "kb" => 1_000,
            "mb" => 1_000_000,
            "gb" => 1_000_000_000,
            "tb" => 1_000_000_000_000,
            _ => return Err(refuse()),
        };
        if let Ok(whole) = number.parse::<u64>() {
            return whole.checked_mul(scale).map(Bytes).ok_or_else(refuse);
        }
        let fraction: f64 = number.parse().map_err(|_| refuse())?;
        let bytes = fraction * scale as f64;
        // 2^63 is far above any memory and still exact as a float, so the cast below cannot saturate unseen.
        if !bytes.is_finite() || bytes >= (1u64 << 63) as f64 {
            return Err(refuse());
        }
        Ok(Bytes(bytes.round() as u64))
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (unit, name) in [(GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")] {
            if self.0 >= unit {
                return if self.0.is_multiple_of(unit) {
                    write!(f, "{} {name}", self.0 / unit)
                } else {
                    write!(f, "{:.2} {name}", self.0 as f64 / unit as f64)
                };
            }
        }
        write!(f, "{} B", self.0)
    }
}

/// Names one unit: the smallest thing that is streamed as a whole. Chosen by the caller, unique within a
/// process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct UnitId(pub u32);

/// Names one model (the number `ft_model_begin` gave).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ModelId(pub u64);

/// The text with its control characters escaped: messages are single lines, and what they name may be any text of a file.
#[must_use]
pub fn one_line(text: &str) -> String {
    let shown = |character: char| {
        let escaped = character.is_control().then(|| character.escape_default());
        let plain = escaped.is_none().then_some(character);
        escaped.into_iter().flatten().chain(plain)
    };
    text.chars().flat_map(shown).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn people_s_spellings_of_memory_are_understood() {
        for (text, bytes) in [
            ("8GiB", 8 * GIB),
            (" 8 gib ", 8 * GIB),
            ("1.5G", 3 * GIB / 2),
            ("512M", 512 * MIB),
            ("10MB", 10_000_000),
            ("4096", 4096),
            ("1_000", 1000),
            ("2KiB", 2048),
            ("0", 0),
        ] {
            assert_eq!(text.parse::<Bytes>().ok(), Some(Bytes(bytes)), "{text}");
        }
    }

    #[test]
    fn nonsense_is_refused_by_its_own_words() {
        for text in
            ["", "GiB", "-1", "8 gigs", "1e3", "nan", "inf", "99999999999TiB", "1.2.3", "9999999999999.5T"]
        {
            let error = text.parse::<Bytes>().expect_err(text);
            assert!(error.to_string().contains(&format!("`{text}`")), "{error}");
        }
    }

    #[test]
    fn amounts_print_in_the_largest_unit() {
        assert_eq!(Bytes(8 * GIB).to_string(), "8 GiB");
        assert_eq!(Bytes(8 * GIB + 512 * MIB).to_string(), "8.50 GiB");
        assert_eq!(Bytes(2 * MIB).to_string(), "2 MiB");
        assert_eq!(Bytes(100).to_string(), "100 B");
    }
}
