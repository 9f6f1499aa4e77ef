//! Parameters of strategies: values as they come from files, command lines and Python, checked against what a
//! strategy allows. Which parameters there are is said where each strategy is made.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::StrategyError;

/// Parameters by name.
pub type Parameters = BTreeMap<String, Value>;

/// The value of one parameter.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Value {
    /// Not given: the default counts.
    None,
    /// Yes or no.
    Flag(bool),
    /// A whole number.
    Whole(i64),
    /// A number.
    Number(f64),
    /// A name.
    Text(String),
}

impl Value {
    /// Reads a value from a text: `none`, `true`, `false`, a number, or else a name.
    #[must_use]
    pub fn parse(text: &str) -> Value {
        let text = text.trim();
        match text.to_ascii_lowercase().as_str() {
            "" | "none" | "null" => Value::None,
            "true" => Value::Flag(true),
            "false" => Value::Flag(false),
            _ => {
                let whole = text.parse().map(Value::Whole);
                let number = || text.parse().map(Value::Number);
                whole.or_else(|_| number()).unwrap_or_else(|_| Value::Text(text.to_owned()))
            }
        }
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::None => f.write_str("none"),
            Value::Flag(flag) => write!(f, "{flag}"),
            Value::Whole(number) => write!(f, "{number}"),
            Value::Number(number) => write!(f, "{number}"),
            Value::Text(text) => write!(f, "`{text}`"),
        }
    }
}

/// Reads the parameters of one strategy. The first thing that is wrong is kept until [`Reader::finish`].
#[derive(Debug)]
pub(super) struct Reader<'a> {
    strategy: &'static str,
    given: &'a Parameters,
    asked: Vec<&'static str>,
    wrong: Option<StrategyError>,
}

impl<'a> Reader<'a> {
    pub(super) fn new(strategy: &'static str, given: &'a Parameters) -> Self {
        Reader { strategy, given, asked: Vec::new(), wrong: None }
    }

    /// What is wrong, if anything is; a parameter that nobody asked for is.
    pub(super) fn finish(self) -> Result<(), StrategyError> {
        let unknown = self.given.keys().find(|name| !self.asked.contains(&name.as_str()));
        match (self.wrong, unknown) {
            (Some(wrong), _) => Err(wrong),
            (None, Some(name)) => Err(StrategyError::UnknownParameter {
                strategy: self.strategy,
                given: name.clone(),
                allowed: self.asked.join(", "),
            }),
            (None, None) => Ok(()),
        }
    }

    /// What is wrong with the parameters that were asked for, if anything is.
    pub(super) fn finish_known(self) -> Result<(), StrategyError> {
        self.wrong.map_or(Ok(()), Err)
    }

    /// Keeps what is wrong between parameters that are allowed one by one.
    pub(super) fn require(&mut self, holds: bool, parameter: &'static str, given: i64, allowed: &str) {
        if !holds {
            self.refuse(parameter, &Value::Whole(given), allowed);
        }
    }

    /// As [`Reader::require`], for a number.
    pub(super) fn require_number(&mut self, holds: bool, parameter: &'static str, given: f64, allowed: &str) {
        if !holds {
            self.refuse(parameter, &Value::Number(given), allowed);
        }
    }

    pub(super) fn flag(&mut self, name: &'static str, default: bool) -> bool {
        match self.value(name) {
            None => default,
            Some(Value::Flag(flag)) => *flag,
            Some(other) => self.refused(name, other, "true or false", default),
        }
    }

    pub(super) fn whole(&mut self, name: &'static str, default: u32, least: u32) -> u32 {
        self.whole_or_none(name, least).unwrap_or(default)
    }

    pub(super) fn whole_or_none(&mut self, name: &'static str, least: u32) -> Option<u32> {
        let value = self.value(name)?;
        match value {
            Value::Whole(number) if u32::try_from(*number).is_ok_and(|number| number >= least) => {
                u32::try_from(*number).ok()
            }
            other => self.refused(name, other, &format!("a whole number from {least} on"), None),
        }
    }

    pub(super) fn seed(&mut self, default: u64) -> u64 {
        match self.value("seed") {
            None => default,
            Some(&Value::Whole(number)) if number >= 0 => number.unsigned_abs(),
            Some(other) => self.refused("seed", other, "a whole number from 0 on", default),
        }
    }

    /// A number above 0.
    pub(super) fn positive(&mut self, name: &'static str, default: f64) -> f64 {
        self.positive_or_none(name).unwrap_or(default)
    }

    /// A number above 0, if given.
    pub(super) fn positive_or_none(&mut self, name: &'static str) -> Option<f64> {
        self.number(name, "a number above 0", |number| number > 0.0)
    }

    /// Mebibytes, as bytes.
    pub(super) fn mebibytes(&mut self, name: &'static str, default: f64) -> u64 {
        let number = self.number(name, "a number of MiB from 0 on", |number| number >= 0.0);
        // Saturates far above any memory.
        (number.unwrap_or(default) * (1u64 << 20) as f64) as u64
    }

    /// A number from 0 to 1.
    pub(super) fn part(&mut self, name: &'static str, default: f64) -> f64 {
        self.number(name, "a number from 0 to 1", |number| (0.0..=1.0).contains(&number)).unwrap_or(default)
    }

    fn number(&mut self, name: &'static str, allowed: &str, fits: impl Fn(f64) -> bool) -> Option<f64> {
        let value = self.value(name)?;
        let number = match value {
            Value::Whole(number) => *number as f64,
            Value::Number(number) => *number,
            _ => f64::NAN,
        };
        if number.is_finite() && fits(number) {
            Some(number)
        } else {
            self.refused(name, value, allowed, None)
        }
    }

    /// One of several names.
    pub(super) fn choice<T: Copy>(
        &mut self,
        name: &'static str,
        default: T,
        choices: &[(&'static str, T)],
    ) -> T {
        let Some(value) = self.value(name) else { return default };
        let found = choices.iter().find(|(text, _)| matches!(value, Value::Text(given) if given == text));
        match found {
            Some((_, choice)) => *choice,
            None => {
                let texts: Vec<&str> = choices.iter().map(|(text, _)| *text).collect();
                self.refused(name, value, &texts.join(", "), default)
            }
        }
    }

    fn value(&mut self, name: &'static str) -> Option<&'a Value> {
        self.asked.push(name);
        self.given.get(name).filter(|value| **value != Value::None)
    }

    fn refused<T>(&mut self, parameter: &'static str, given: &Value, allowed: &str, instead: T) -> T {
        self.refuse(parameter, given, allowed);
        instead
    }

    fn refuse(&mut self, parameter: &'static str, given: &Value, allowed: &str) {
        let wrong = StrategyError::BadParameter {
            strategy: self.strategy,
            parameter,
            given: given.to_string(),
            allowed: allowed.to_owned(),
        };
        self.wrong.get_or_insert(wrong);
    }
}
