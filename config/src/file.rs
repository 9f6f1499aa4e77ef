//! Reading a configuration file: TOML, INI, JSON or YAML, by the ending of its name. What the keys and values mean is
//! left to `load`.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use crate::error::{ConfigError, Origin};
use crate::value::Raw;

/// Section of an INI file that holds our options; others belong to other programs.
const SECTION: &str = "flextensor";

/// A key with its value, as a source gives it.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Given {
    pub(crate) key: String,
    pub(crate) raw: Raw,
    pub(crate) origin: Origin,
}

/// The text of a configuration file.
#[derive(Clone, Debug)]
pub struct ConfigFile {
    path: PathBuf,
    text: String,
}

#[derive(Clone, Copy)]
enum Format {
    Toml,
    Ini,
    Json,
    Yaml,
}

impl ConfigFile {
    /// A file that was read already; `path` names it in messages, and its ending says the format.
    pub fn new(path: impl Into<PathBuf>, text: impl Into<String>) -> Self {
        Self { path: path.into(), text: text.into() }
    }

    /// Reads a file.
    ///
    /// # Errors
    /// If it cannot be read, or is not UTF-8.
    pub fn read(path: &Path) -> Result<Self, ConfigError> {
        match std::fs::read_to_string(path) {
            Ok(text) => Ok(Self::new(path, text)),
            Err(source) => Err(ConfigError::Unreadable { path: path.to_owned(), source }),
        }
    }

    /// The entries in the order of the file (TOML, JSON, YAML: of the keys).
    pub(crate) fn entries(&self) -> Result<Vec<Given>, ConfigError> {
        match self.format()? {
            Format::Toml => self.toml(),
            Format::Ini => self.ini(),
            Format::Json => self.json(),
            Format::Yaml => self.yaml(),
        }
    }

    fn format(&self) -> Result<Format, ConfigError> {
        let ending = self.path.extension().map(|ending| ending.to_string_lossy().to_ascii_lowercase());
        match ending.as_deref() {
            Some("toml") => Ok(Format::Toml),
            Some("ini" | "conf") => Ok(Format::Ini),
            Some("json") => Ok(Format::Json),
            Some("yaml" | "yml") => Ok(Format::Yaml),
            _ => Err(ConfigError::UnknownFormat { path: self.path.clone() }),
        }
    }

    fn toml(&self) -> Result<Vec<Given>, ConfigError> {
        let table: BTreeMap<String, toml::Spanned<toml::Value>> =
            toml::from_str(&self.text).map_err(|error| {
                let line = error.span().map(|span| self.line_at(span.start));
                self.syntax(line, first_line(error.message()))
            })?;
        let one = |(key, value): (String, toml::Spanned<toml::Value>)| {
            let line = self.line_at(value.span().start);
            match value.into_inner() {
                toml::Value::Table(_) => {
                    let message = format!("[{key}] is a table; options stand at the top level of the file");
                    Err(self.syntax(Some(line), &message))
                }
                value => Ok(self.given(key, from_toml(value), Some(line))),
            }
        };
        table.into_iter().map(one).collect()
    }

    fn ini(&self) -> Result<Vec<Given>, ConfigError> {
        self.ini_lines()?;
        // A backslash stands for itself, as in a path.
        let options = ini::ParseOption { enabled_escape: false, ..Default::default() };
        let parsed = ini::Ini::load_from_str_opt(&self.text, options)
            .map_err(|error| self.syntax(Some(error.line), &error.msg))?;
        if parsed.section(Some(SECTION)).is_none() {
            return Err(self.syntax(None, "section [flextensor] is missing; options stand below it"));
        }
        let mut entries: Vec<Given> = Vec::new();
        for (section, properties) in &parsed {
            match section {
                Some(SECTION) => {}
                None if !properties.is_empty() => {
                    return Err(self.syntax(
                        None,
                        "options stand above the first section; they belong below [flextensor]",
                    ));
                }
                _ => continue,
            }
            for (key, value) in properties {
                let key = key.to_ascii_lowercase();
                let line = self.line_of(|line| {
                    let name = line.split(['=', ':']).next().unwrap_or_default();
                    name.trim().eq_ignore_ascii_case(&key)
                });
                if entries.iter().any(|entry| entry.key == key) {
                    return Err(self.syntax(None, &format!("{key} is given twice")));
                }
                entries.push(self.given(key, Raw::Text(value.to_owned()), line));
            }
        }
        Ok(entries)
    }

    /// Refuses lines that are no section, comment or `key = value`: the parser would read such a line as the beginning of
    /// the next key, and the next option would be lost.
    fn ini_lines(&self) -> Result<(), ConfigError> {
        let stray =
            |line: &str| !line.is_empty() && !line.starts_with([';', '#', '[']) && !line.contains(['=', ':']);
        match self.text.lines().position(|line| stray(line.trim())) {
            Some(index) => {
                Err(self.syntax(Some(index + 1), "expected key = value, a [section] or a comment"))
            }
            None => Ok(()),
        }
    }

    fn json(&self) -> Result<Vec<Given>, ConfigError> {
        let value: serde_json::Value = serde_json::from_str(&self.text).map_err(|error| {
            let message = error.to_string();
            let message = message.split(" at line ").next().unwrap_or_default();
            self.syntax(Some(error.line()), message)
        })?;
        let serde_json::Value::Object(object) = value else {
            return Err(self.syntax(None, "a mapping of options to values is expected"));
        };
        let one = |(key, value)| {
            let quoted = format!("{key:?}");
            let line = self.line_of(|line| {
                line.match_indices(&quoted)
                    .any(|(at, _)| line[at + quoted.len()..].trim_start().starts_with(':'))
            });
            self.given(key, from_json(&value), line)
        };
        Ok(object.into_iter().map(one).collect())
    }

    fn yaml(&self) -> Result<Vec<Given>, ConfigError> {
        let value: serde_yaml_ng::Value = serde_yaml_ng::from_str(&self.text).map_err(|error| {
            let message = error.to_string();
            let message = message.split(" at line ").next().unwrap_or_default();
            self.syntax(error.location().map(|location| location.line()), message)
        })?;
        let mapping = match value {
            serde_yaml_ng::Value::Null => return Ok(Vec::new()),
            serde_yaml_ng::Value::Mapping(mapping) => mapping,
            _ => return Err(self.syntax(None, "a mapping of options to values is expected")),
        };
        let one = |(key, value): (serde_yaml_ng::Value, serde_yaml_ng::Value)| match key {
            serde_yaml_ng::Value::String(key) => {
                let line = self.line_of(|line| {
                    line.split_once(':')
                        .is_some_and(|(name, _)| name.trim_end().trim_matches(['"', '\'']) == key)
                });
                Ok(self.given(key, from_yaml(value), line))
            }
            other => Err(self.syntax(None, &format!("key {other:?} is not a text"))),
        };
        mapping.into_iter().map(one).collect()
    }

    fn given(&self, key: String, raw: Raw, line: Option<usize>) -> Given {
        Given { key, raw, origin: Origin::File { path: self.path.clone(), line } }
    }

    fn syntax(&self, line: Option<usize>, message: &str) -> ConfigError {
        let place = Origin::File { path: self.path.clone(), line };
        ConfigError::Syntax { place, message: message.to_owned() }
    }

    fn line_at(&self, offset: usize) -> usize {
        let before = self.text.as_bytes().iter().take(offset);
        1 + before.filter(|byte| **byte == b'\n').count()
    }

    /// The line, from 1, if exactly one line is it: these parsers give no positions, and a wrong one is worse than none.
    fn line_of(&self, is_it: impl Fn(&str) -> bool) -> Option<usize> {
        let mut lines =
            self.text.lines().enumerate().filter(|(_, line)| is_it(line)).map(|(index, _)| index + 1);
        lines.next().filter(|_| lines.next().is_none())
    }
}

fn first_line(message: &str) -> &str {
    message.lines().next().unwrap_or_default()
}

fn from_toml(value: toml::Value) -> Raw {
    match value {
        toml::Value::String(text) => Raw::Text(text),
        toml::Value::Integer(number) => Raw::Int(number.into()),
        toml::Value::Float(number) => Raw::Float(number),
        toml::Value::Boolean(value) => Raw::Bool(value),
        toml::Value::Datetime(_) => Raw::Other("date"),
        toml::Value::Array(items) => Raw::List(items.into_iter().map(from_toml).collect()),
        toml::Value::Table(_) => Raw::Other("table"),
    }
}

fn from_json(value: &serde_json::Value) -> Raw {
    match value {
        serde_json::Value::Null => Raw::None,
        serde_json::Value::Bool(value) => Raw::Bool(*value),
        serde_json::Value::Number(number) => number
            .as_i128()
            .map_or_else(|| number.as_f64().map_or(Raw::Other("number"), Raw::Float), Raw::Int),
        serde_json::Value::String(text) => Raw::Text(text.clone()),
        serde_json::Value::Array(items) => Raw::List(items.iter().map(from_json).collect()),
        serde_json::Value::Object(_) => Raw::Other("mapping"),
    }
}

fn from_yaml(value: serde_yaml_ng::Value) -> Raw {
    match value {
        serde_yaml_ng::Value::Null => Raw::None,
        serde_yaml_ng::Value::Bool(value) => Raw::Bool(value),
        serde_yaml_ng::Value::Number(number) => match (number.as_i64(), number.as_u64(), number.as_f64()) {
            (Some(number), ..) => Raw::Int(number.into()),
            (_, Some(number), _) => Raw::Int(number.into()),
            (.., Some(number)) => Raw::Float(number),
            _ => Raw::Other("number"),
        },
        serde_yaml_ng::Value::String(text) => Raw::Text(text),
        serde_yaml_ng::Value::Sequence(items) => Raw::List(items.into_iter().map(from_yaml).collect()),
        serde_yaml_ng::Value::Mapping(_) => Raw::Other("mapping"),
        serde_yaml_ng::Value::Tagged(_) => Raw::Other("tagged value"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(name: &str, text: &str) -> Vec<(String, Raw, Option<usize>)> {
        let line = |origin| match origin {
            Origin::File { line, .. } => line,
            _ => None,
        };
        let mut entries: Vec<_> = ConfigFile::new(name, text)
            .entries()
            .unwrap()
            .into_iter()
            .map(|given| (given.key, given.raw, line(given.origin)))
            .collect();
        entries.sort_by(|a, b| a.0.cmp(&b.0));
        entries
    }

    fn refuse(name: &str, text: &str) -> String {
        ConfigFile::new(name, text).entries().unwrap_err().to_string()
    }

    #[test]
    fn all_formats_give_the_same_keys_with_their_lines() {
        let patterns = Raw::List(vec!["layers.*".into(), "head".into()]);
        let typed = [
            ("enabled".to_owned(), Raw::Bool(true), Some(2)),
            ("include_patterns".to_owned(), patterns, Some(4)),
            ("num_blocks".to_owned(), Raw::Int(6), Some(3)),
        ];
        let toml = "# ours\nenabled = true\nnum_blocks = 6\ninclude_patterns = [\"layers.*\", \"head\"]\n";
        assert_eq!(entries("a.toml", toml), typed);
        let json =
            "{\n\"enabled\": true,\n \"num_blocks\" : 6,\n\"include_patterns\": [\"layers.*\", \"head\"]}";
        assert_eq!(entries("a.JSON", json), typed);
        for name in ["a.yaml", "a.yml"] {
            let yaml = "# ours\nenabled: true\nnum_blocks: 6\ninclude_patterns:\n  - layers.*\n  - head\n";
            assert_eq!(entries(name, yaml), typed);
        }
        let texts = [
            ("enabled".to_owned(), "yes".into(), Some(3)),
            ("include_patterns".to_owned(), "layers.*, head".into(), Some(5)),
        ];
        for name in ["a.ini", "a.conf"] {
            let ini =
                "; ours\n[flextensor]\nEnabled = yes\n\ninclude_patterns: layers.*, head\n[other]\nx = 1\n";
            assert_eq!(entries(name, ini), texts);
        }
    }

    #[test]
    fn broken_files_are_refused_with_their_line() {
        assert!(refuse("a.toml", "enabled = true\nnum_blocks =\n").starts_with("a.toml:2: "));
        assert!(refuse("a.json", "{\n\"enabled\": what\n}").starts_with("a.json:2: "));
        assert!(refuse("a.yaml", "enabled: true\nx: [1,\ny: }\n").starts_with("a.yaml:3: "));
        assert!(
            refuse("a.ini", "[flextensor]\nenabled = 1\nwhat is this\nlog = info\n").starts_with("a.ini:3: ")
        );
        assert!(refuse("a.ini", "[flextensor]\nenabled = 1\n[broken\n").starts_with("a.ini:"));
        assert!(refuse("a.ini", "[flextensor]\n= 1\n").starts_with("a.ini:2: "));
        assert!(refuse("a.toml", "enabled = true\nenabled = false\n").starts_with("a.toml:2: "));
    }

    #[test]
    fn options_that_stand_elsewhere_are_refused() {
        assert!(refuse("a.toml", "[flextensor]\nenabled = true\n").contains("top level"));
        assert!(refuse("a.ini", "enabled = 1\n").contains("[flextensor] is missing"));
        assert!(
            refuse("a.ini", "enabled = 1\n[flextensor]\nnum_blocks = 6\n")
                .contains("above the first section")
        );
        assert!(refuse("a.ini", "[flextensor]\nlog = info\nlog = debug\n").contains("log is given twice"));
        assert!(refuse("a.json", "[1]").contains("mapping"));
        assert!(refuse("a.yaml", "- a\n").contains("mapping"));
        assert!(refuse("a.yaml", "1: a\n").contains("not a text"));
    }

    #[test]
    fn an_empty_yaml_or_toml_file_sets_nothing() {
        assert!(entries("a.yaml", "").is_empty());
        assert!(entries("a.toml", "# nothing\n").is_empty());
    }

    #[test]
    fn a_key_that_could_stand_on_two_lines_has_no_line() {
        let line_of_log =
            |text| entries("a.json", text).into_iter().find(|entry| entry.0 == "log").unwrap().2;
        assert_eq!(line_of_log("{\"report\": \"log\",\n\"log\": \"info\"}"), Some(2));
        assert_eq!(line_of_log("{\"report\": {\"log\": 1},\n\"log\": \"info\"}"), None);
    }

    #[test]
    fn a_file_is_known_by_its_ending_and_must_be_there() {
        assert!(refuse("a.txt", "").contains(".toml, .ini, .conf, .json, .yaml, .yml"));
        assert!(refuse("config", "").contains("unknown format"));
        let missing = ConfigFile::read(Path::new("/nonexistent/flextensor.toml")).unwrap_err();
        assert!(matches!(&missing, ConfigError::Unreadable { source, .. }
            if source.kind() == std::io::ErrorKind::NotFound));
    }

    #[test]
    fn a_backslash_in_an_ini_file_stands_for_itself() {
        assert_eq!(entries("a.ini", "[flextensor]\nreport = a\\tb\n")[0].1, "a\\tb".into());
    }
}
