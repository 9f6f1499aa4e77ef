//! Sizes as people write them: "8GiB", "24 GB", "60%", "0:8GiB,1:16GiB". Which option takes which form is left to
//! the option table.

use std::fmt;

use serde::{Deserialize, Serialize, Serializer, de};

/// Names of units with their factors: 1000 for GB, 1024 for GiB. "G" alone is refused, because it is read both ways.
const UNITS: &[(&str, u64)] = &[
    ("", 1),
    ("b", 1),
    ("kb", 1_000),
    ("mb", 1_000_000),
    ("gb", 1_000_000_000),
    ("tb", 1_000_000_000_000),
    ("kib", 1 << 10),
    ("mib", 1 << 20),
    ("gib", 1 << 30),
    ("tib", 1 << 40),
];

/// Reads a size in bytes: a whole number, or a decimal number with a unit (any case, space allowed).
/// `None` if it is not such a text, is 0, or is more than `u64::MAX`. Parts of a byte are dropped.
pub fn parse_bytes(text: &str) -> Option<u64> {
    let text = text.trim();
    let end = text.find(|c: char| !(c.is_ascii_digit() || c == '.' || c == '_')).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let number = number.replace('_', "");
    let unit = unit.trim().to_ascii_lowercase();
    let (_, factor) = UNITS.iter().find(|(name, _)| *name == unit)?;
    let bytes = match number.split_once('.') {
        None => number.parse::<u64>().ok()?.checked_mul(*factor)?,
        // Bytes have no parts: "1.5" without a unit is more likely a mistake for a fraction.
        Some(_) if *factor == 1 => return None,
        Some((whole, part)) => decimal(whole, part, *factor)?,
    };
    (bytes > 0).then_some(bytes)
}

/// `whole.part * factor` in whole numbers, so that "8.1GB" is exact.
fn decimal(whole: &str, part: &str, factor: u64) -> Option<u64> {
    if whole.is_empty() || part.is_empty() || part.len() > 18 {
        return None;
    }
    let scale = 10_u128.pow(u32::try_from(part.len()).ok()?);
    let digits = u128::from(whole.parse::<u64>().ok()?) * scale + u128::from(part.parse::<u64>().ok()?);
    u64::try_from(digits * u128::from(factor) / scale).ok()
}

/// A size, or a part of a total that is known later.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Amount {
    /// Bytes, above 0.
    Bytes(u64),
    /// Per cent, above 0 and at most 100.
    Percent(f64),
}

impl Amount {
    /// Reads "8GiB", "24 GB", "1048576" or "60%". `None` if it is none of these.
    pub fn parse(text: &str) -> Option<Self> {
        match text.trim().strip_suffix('%') {
            None => parse_bytes(text).map(Self::Bytes),
            Some(number) => {
                let number = number.trim();
                let plain = !number.is_empty() && number.chars().all(|c| c.is_ascii_digit() || c == '.');
                let percent = number.parse::<f64>().ok().filter(|_| plain)?;
                (percent > 0.0 && percent <= 100.0).then_some(Self::Percent(percent))
            }
        }
    }

    /// The bytes meant, of a total of `total` bytes; rounded down. Not capped at the total.
    pub fn of(self, total: u64) -> u64 {
        match self {
            Self::Bytes(bytes) => bytes,
            Self::Percent(percent) => part_of(total, percent / 100.0),
        }
    }
}

/// `fraction` of `total` bytes, rounded down. `fraction` is in (0, 1].
#[expect(
    clippy::cast_possible_truncation,
    clippy::cast_sign_loss,
    clippy::cast_precision_loss,
    reason = "memory sizes are below 2^53 bytes, and the product of a size and a fraction in (0, 1] fits the size's type"
)]
pub fn part_of(total: u64, fraction: f64) -> u64 {
    (total as f64 * fraction) as u64
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Percent(percent) => write!(f, "{percent}%"),
            Self::Bytes(bytes) => {
                let unit = [("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)]
                    .into_iter()
                    .find(|(_, factor)| bytes % factor == 0);
                match unit {
                    Some((name, factor)) => write!(f, "{}{name}", bytes / factor),
                    None => write!(f, "{bytes}"),
                }
            }
        }
    }
}

/// A budget for each GPU.
#[derive(Clone, Debug, PartialEq)]
pub enum Budget {
    /// The same for every GPU.
    Each(Amount),
    /// By GPU index, ascending; a GPU that is not named has no budget.
    PerDevice(Vec<(u32, Amount)>),
}

impl Budget {
    /// Reads one amount, or "index:amount" for some GPUs, separated by commas. `None` if malformed, or if an index
    /// stands twice.
    pub fn parse(text: &str) -> Option<Self> {
        if !text.contains(':') {
            return Amount::parse(text).map(Self::Each);
        }
        let mut devices = Vec::new();
        for part in text.split(',') {
            let (device, amount) = part.split_once(':')?;
            let device: u32 = device.trim().parse().ok()?;
            if devices.iter().any(|(seen, _)| *seen == device) {
                return None;
            }
            devices.push((device, Amount::parse(amount)?));
        }
        devices.sort_unstable_by_key(|(device, _)| *device);
        Some(Self::PerDevice(devices))
    }

    /// The amount for a GPU, if it has one.
    pub fn amount(&self, device: u32) -> Option<Amount> {
        match self {
            Self::Each(amount) => Some(*amount),
            Self::PerDevice(devices) => {
                devices.iter().find(|(index, _)| *index == device).map(|(_, amount)| *amount)
            }
        }
    }

    /// Whether it says the same as a fraction of the total for every GPU, up to rounding.
    pub fn equals_fraction(&self, fraction: f64) -> bool {
        matches!(self, Self::Each(Amount::Percent(percent)) if (percent / 100.0 - fraction).abs() < 1e-9)
    }
}

impl fmt::Display for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Each(amount) => amount.fmt(f),
            Self::PerDevice(devices) => {
                let parts: Vec<String> =
                    devices.iter().map(|(device, amount)| format!("{device}:{amount}")).collect();
                f.write_str(&parts.join(","))
            }
        }
    }
}

/// In JSON a size with a meaning beyond bytes is its text, so that it reads back the same.
macro_rules! as_text {
    ($($name:ident),+) => {$(
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: de::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                let text = String::deserialize(deserializer)?;
                Self::parse(&text).ok_or_else(|| de::Error::custom(format!("{text:?} is not a size")))
            }
        }
    )+};
}

as_text!(Amount, Budget);

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    #[test]
    fn units_of_1000_and_1024_are_kept_apart() {
        assert_eq!(parse_bytes("8GiB"), Some(8 * GIB));
        assert_eq!(parse_bytes(" 24 GB "), Some(24_000_000_000));
        assert_eq!(parse_bytes("10mib"), Some(10 << 20));
        assert_eq!(parse_bytes("1.5 GiB"), Some(3 * GIB / 2));
        assert_eq!(parse_bytes("8.1GB"), Some(8_100_000_000));
        assert_eq!(parse_bytes("1_048_576"), Some(1 << 20));
        assert_eq!(parse_bytes("512 B"), Some(512));
    }

    #[test]
    fn nonsense_sizes_are_refused() {
        for text in [
            "",
            "0",
            "0GiB",
            "-1GiB",
            "8G",
            "8 gigs",
            "GiB",
            "0.6",
            "1.6",
            "1e9",
            "1.2.3GiB",
            ".5GiB",
            "5.GiB",
            "8GiB 4MiB",
            "99999999999999999999",
            "99999999TiB",
            "nan",
            "inf",
            "0.000000000001KB",
        ] {
            assert_eq!(parse_bytes(text), None, "{text:?}");
        }
    }

    #[test]
    fn percentages_are_above_0_and_at_most_100() {
        assert_eq!(Amount::parse("60%"), Some(Amount::Percent(60.0)));
        assert_eq!(Amount::parse("12.5 %"), Some(Amount::Percent(12.5)));
        assert_eq!(Amount::parse("100%"), Some(Amount::Percent(100.0)));
        for text in ["0%", "100.1%", "-5%", "%", "nan%", "inf%", "1e1%", "6 0%", "60%%"] {
            assert_eq!(Amount::parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn a_percentage_is_of_the_total_and_bytes_are_bytes() {
        assert_eq!(Amount::Percent(50.0).of(140 * GIB), 70 * GIB);
        assert_eq!(Amount::Percent(100.0).of(140 * GIB), 140 * GIB);
        assert_eq!(Amount::Bytes(5).of(3), 5);
    }

    #[test]
    fn a_budget_can_differ_between_gpus() {
        let budget = Budget::parse("1:16GiB, 0:50%").unwrap();
        assert_eq!(budget.amount(0), Some(Amount::Percent(50.0)));
        assert_eq!(budget.amount(1), Some(Amount::Bytes(16 * GIB)));
        assert_eq!(budget.amount(2), None);
        for text in
            ["0:8GiB,0:9GiB", "0:8GiB,16GiB", "a:8GiB", "0:", ":8GiB", "0:8GiB,", "-1:8GiB", "8GiB,16GiB"]
        {
            assert_eq!(Budget::parse(text), None, "{text:?}");
        }
    }

    #[test]
    fn what_is_printed_reads_back_the_same() {
        for text in ["8GiB", "1:16GiB,0:50%", "24 GB", "12.5%", "1048577"] {
            let budget = Budget::parse(text).unwrap();
            assert_eq!(Budget::parse(&budget.to_string()), Some(budget.clone()));
            let json = serde_json::to_string(&budget).unwrap();
            assert_eq!(serde_json::from_str::<Budget>(&json).unwrap(), budget);
        }
    }

    #[test]
    fn only_a_percentage_can_equal_a_fraction() {
        assert!(Budget::parse("70%").unwrap().equals_fraction(0.7));
        assert!(!Budget::parse("70%").unwrap().equals_fraction(0.71));
        assert!(!Budget::parse("8GiB").unwrap().equals_fraction(0.7));
        assert!(!Budget::parse("0:70%").unwrap().equals_fraction(0.7));
    }
}
