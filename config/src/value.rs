//! From a value as some source gives it to a value of an option: types, ranges, words. One function for all sources,
//! so that a text means the same in a variable and in a file. Rules between two options are left to `rules`.

use std::fmt;

use serde_json::{Number, Value};

use crate::patterns;
use crate::row::{Kind, Row};
use crate::size::{Amount, Budget, parse_bytes};

/// A value as a file, a variable or a keyword gives it.
#[derive(Clone, Debug, PartialEq)]
pub enum Raw {
    /// null, None.
    None,
    /// A boolean.
    Bool(bool),
    /// A whole number.
    Int(i128),
    /// A number with a fraction.
    Float(f64),
    /// A text; variables and INI files know only texts.
    Text(String),
    /// A list.
    List(Vec<Raw>),
    /// Something that no option takes, by its name.
    Other(&'static str),
}

impl fmt::Display for Raw {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::Bool(value) => value.fmt(f),
            Self::Int(value) => value.fmt(f),
            Self::Float(value) => fmt::Debug::fmt(value, f),
            Self::Text(value) => write!(f, "{value:?}"),
            Self::Other(name) => write!(f, "<{name}>"),
            Self::List(items) => {
                let parts: Vec<String> = items.iter().map(ToString::to_string).collect();
                write!(f, "[{}]", parts.join(", "))
            }
        }
    }
}

impl From<bool> for Raw {
    fn from(value: bool) -> Self {
        Self::Bool(value)
    }
}

impl From<i64> for Raw {
    fn from(value: i64) -> Self {
        Self::Int(value.into())
    }
}

impl From<f64> for Raw {
    fn from(value: f64) -> Self {
        Self::Float(value)
    }
}

impl From<&str> for Raw {
    fn from(value: &str) -> Self {
        Self::Text(value.to_owned())
    }
}

/// Whether a text says "no value".
fn says_none(text: &str) -> bool {
    ["", "none", "null"].iter().any(|word| text.trim().eq_ignore_ascii_case(word))
}

/// The value of an option as JSON of the type that its [`crate::Config`] field has, or what would be allowed.
pub(crate) fn convert(row: &Row, raw: &Raw) -> Result<Value, String> {
    let none = match raw {
        Raw::None => true,
        Raw::Text(text) => says_none(text),
        _ => false,
    };
    if none {
        return match row.kind {
            _ if row.optional => Ok(Value::Null),
            // An empty list is written as an empty text where there are only texts.
            Kind::Patterns => Ok(Value::Array(Vec::new())),
            _ => Err(row.allowed()),
        };
    }
    if row.kind == Kind::Patterns {
        return pattern_list(row, raw);
    }
    scalar(row.kind, raw).ok_or_else(|| row.allowed())
}

fn scalar(kind: Kind, raw: &Raw) -> Option<Value> {
    match kind {
        Kind::Bool => boolean(raw).map(Value::Bool),
        Kind::Switch(words) => {
            let word = match boolean(raw) {
                Some(on) => {
                    if on {
                        "on"
                    } else {
                        "off"
                    }
                }
                None => text(raw)?.trim(),
            };
            words.iter().find(|known| **known == word).map(|known| (*known).into())
        }
        Kind::Int { min } => {
            let number = whole(raw).and_then(|number| u32::try_from(number).ok())?;
            (number >= min).then(|| number.into())
        }
        Kind::Float { above, inclusive, most } => {
            let number = decimal(raw)?;
            let in_range = number <= most && (number > above || (inclusive && number == above));
            // JSON has no infinity, so that one is refused here.
            in_range.then(|| Number::from_f64(number).map(Value::Number)).flatten()
        }
        Kind::Choice(words) => {
            let word = text(raw)?.trim();
            words.iter().find(|known| **known == word).map(|known| (*known).into())
        }
        Kind::Text => text(raw).map(|text| text.trim().into()),
        Kind::Bytes => parse_bytes(&size_text(raw)?).map(Into::into),
        Kind::Amount => Amount::parse(&size_text(raw)?).map(|amount| amount.to_string().into()),
        Kind::Budget => Budget::parse(&size_text(raw)?).map(|budget| budget.to_string().into()),
        Kind::Patterns => None,
    }
}

fn text(raw: &Raw) -> Option<&str> {
    match raw {
        Raw::Text(text) => Some(text),
        _ => None,
    }
}

fn boolean(raw: &Raw) -> Option<bool> {
    match raw {
        Raw::Bool(value) => Some(*value),
        Raw::Int(0) => Some(false),
        Raw::Int(1) => Some(true),
        Raw::Text(text) => match text.trim().to_ascii_lowercase().as_str() {
            "true" | "1" | "yes" | "y" | "on" => Some(true),
            "false" | "0" | "no" | "n" | "off" => Some(false),
            _ => None,
        },
        _ => None,
    }
}

fn whole(raw: &Raw) -> Option<i128> {
    match raw {
        Raw::Int(number) => Some(*number),
        Raw::Text(text) => text.trim().parse().ok(),
        _ => None,
    }
}

#[expect(clippy::cast_precision_loss, reason = "an option with a fraction loses nothing that it could use")]
fn decimal(raw: &Raw) -> Option<f64> {
    match raw {
        Raw::Int(number) => Some(*number as f64),
        Raw::Float(number) => Some(*number),
        Raw::Text(text) => text.trim().parse().ok(),
        _ => None,
    }
}

/// A size is a text, or a whole number of bytes. A number with a fraction could mean a part of the total: refused.
fn size_text(raw: &Raw) -> Option<String> {
    match raw {
        Raw::Text(text) => Some(text.clone()),
        Raw::Int(number) => Some(number.to_string()),
        _ => None,
    }
}

fn pattern_list(row: &Row, raw: &Raw) -> Result<Value, String> {
    let entries: Vec<String> = match raw {
        Raw::Text(text) => text.split(',').map(|entry| entry.trim().to_owned()).collect(),
        Raw::List(items) => items
            .iter()
            .map(|item| text(item).map(|entry| entry.trim().to_owned()).ok_or_else(|| row.allowed()))
            .collect::<Result<_, _>>()?,
        _ => return Err(row.allowed()),
    };
    for (index, entry) in entries.iter().enumerate() {
        patterns::Pattern::parse(entry)
            .map_err(|problem| format!("{}; entry {index} {problem}", row.allowed()))?;
    }
    Ok(entries.into())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::options::find;

    fn read(key: &str, raw: impl Into<Raw>) -> Result<Value, String> {
        convert(find(key).unwrap(), &raw.into())
    }

    #[test]
    fn switches_take_the_usual_words_in_any_case() {
        for word in ["true", "1", "yes", "y", "on", "TRUE", " On "] {
            assert_eq!(read("enabled", word), Ok(json!(true)), "{word}");
        }
        for word in ["false", "0", "no", "n", "off", "FALSE", "Off"] {
            assert_eq!(read("enabled", word), Ok(json!(false)), "{word}");
        }
        for word in ["maybe", "2", "", "none"] {
            assert!(read("enabled", word).is_err(), "{word}");
        }
        assert_eq!(read("enabled", 1), Ok(json!(true)));
        assert!(read("enabled", 2).is_err());
    }

    #[test]
    fn no_value_is_none_null_or_nothing_and_only_where_it_is_allowed() {
        for word in ["none", "NULL", "", "  "] {
            assert_eq!(read("max_gpu_mem_fraction", word), Ok(Value::Null), "{word:?}");
            assert!(read("gpu_device", word).is_err(), "{word:?}");
        }
        assert_eq!(convert(find("shm_namespace").unwrap(), &Raw::None), Ok(Value::Null));
        assert_eq!(read("exclude_patterns", ""), Ok(json!([])));
        assert_eq!(read("include_patterns", ""), Ok(Value::Null));
    }

    #[test]
    fn numbers_outside_their_range_are_refused() {
        assert_eq!(read("profiling_iters", 0), Ok(json!(0)));
        assert_eq!(read("num_blocks", "6"), Ok(json!(6)));
        assert_eq!(read("max_gpu_mem_fraction", 1), Ok(json!(1.0)));
        assert_eq!(read("shm_wait_timeout", "0"), Ok(json!(0.0)));
        for (key, text) in [
            ("gpu_device", "-1"),
            ("discovery_iters", "-1"),
            ("discovery_iters", "1.5"),
            ("discovery_iters", "4294967296"),
            ("num_blocks", "1"),
            ("num_blocks", "x"),
            ("max_gpu_mem_fraction", "0"),
            ("max_gpu_mem_fraction", "1.01"),
            ("max_gpu_mem_fraction", "nan"),
            ("transfer_budget_scale", "0"),
            ("transfer_budget_scale", "inf"),
            ("shm_wait_timeout", "-1"),
        ] {
            assert_eq!(read(key, text), Err(find(key).unwrap().allowed()), "{key} = {text}");
        }
        assert!(read("gpu_device", true).is_err());
        assert!(read("discovery_iters", 1.0).is_err());
    }

    #[test]
    fn words_must_be_on_the_list() {
        assert_eq!(read("pinned_memory_mode", "host_register"), Ok(json!("host_register")));
        assert_eq!(read("log", "loud"), Err("one of error, warn, notice, info, debug".to_owned()));
        assert!(read("mode", 1).is_err());
    }

    #[test]
    fn sizes_are_texts_or_whole_bytes() {
        assert_eq!(read("managed_min_bytes", "10MiB"), Ok(json!(10 << 20)));
        assert_eq!(read("managed_min_bytes", 4096), Ok(json!(4096)));
        assert_eq!(read("max_gpu_mem", "8GiB"), Ok(json!("8GiB")));
        assert_eq!(read("max_gpu_mem", 1 << 30), Ok(json!("1GiB")));
        assert_eq!(read("host_mem_limit", "50%"), Ok(json!("50%")));
        assert!(read("max_gpu_mem", 0.6).is_err());
        assert!(read("max_gpu_mem", "lots").is_err());
        assert!(read("managed_min_bytes", "50%").is_err());
        assert!(read("host_mem_limit", "0:8GiB").is_err());
    }

    #[test]
    fn lists_are_split_at_commas_and_trimmed() {
        assert_eq!(read("include_patterns", " layers.* , class:A "), Ok(json!(["layers.*", "class:A"])));
        let list = Raw::List(vec![" head ".into()]);
        assert_eq!(convert(find("exclude_patterns").unwrap(), &list), Ok(json!(["head"])));
        let mixed = Raw::List(vec!["head".into(), 3.into()]);
        assert!(convert(find("exclude_patterns").unwrap(), &mixed).is_err());
    }

    #[test]
    fn a_bad_pattern_is_named_by_its_index() {
        let message = read("include_patterns", "layers.*,klass:A").unwrap_err();
        assert!(message.contains("entry 1") && message.contains("klass:"), "{message}");
        assert!(read("include_patterns", "a,,b").unwrap_err().contains("entry 1"));
    }
}
