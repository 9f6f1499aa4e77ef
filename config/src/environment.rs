//! Finding our options among environment variables. The variables are passed in; only `load` reads the process's own.

use std::path::PathBuf;

use crate::error::{ConfigError, Origin};
use crate::file::Given;
use crate::options::{FILE_VARIABLE, REMOVED, VLLM_PREFIX, all};
use crate::value::Raw;

/// How alike two names must be for one to be suggested for the other.
const ALIKE: f64 = 0.75;

/// What the variables say.
#[derive(Debug, Default)]
pub(crate) struct Environment {
    pub(crate) entries: Vec<Given>,
    pub(crate) config_file: Option<PathBuf>,
    pub(crate) warnings: Vec<String>,
}

impl Environment {
    /// Sorts the variables that begin with `FT_`; all others are none of ours.
    pub(crate) fn read(variables: impl IntoIterator<Item = (String, String)>) -> Result<Self, ConfigError> {
        let mut found = Self::default();
        let mut unknown = Vec::new();
        for (name, value) in variables {
            if !name.starts_with("FT_") || name.starts_with(VLLM_PREFIX) {
                continue;
            }
            if name == FILE_VARIABLE {
                found.config_file = (!value.trim().is_empty()).then(|| PathBuf::from(value));
            } else if let Some(row) = all().find(|row| row.env_name() == name) {
                let origin = Origin::Variable(name);
                found.entries.push(Given { key: row.key.to_owned(), raw: Raw::Text(value), origin });
            } else if let Some(release) = removed_in(&name[3..].to_ascii_lowercase()) {
                found
                    .warnings
                    .push(format!("environment variable {name} was removed in {release} and is ignored"));
            } else {
                let meant = suggest(
                    &name[3..],
                    all().map(|row| row.env_name()[3..].to_owned()).chain(file_variable()),
                );
                unknown.push((name, meant.map(|meant| format!("FT_{meant}"))));
            }
        }
        // The environment has no order; messages should.
        unknown.sort();
        found.warnings.sort();
        if unknown.is_empty() { Ok(found) } else { Err(ConfigError::UnknownVariables(unknown)) }
    }
}

fn file_variable() -> impl Iterator<Item = String> {
    std::iter::once(FILE_VARIABLE[3..].to_owned())
}

/// The version that dropped an option of this name, if there was one.
pub(crate) fn removed_in(key: &str) -> Option<&'static str> {
    REMOVED.iter().find(|(name, _)| *name == key).map(|(_, release)| *release)
}

/// The key that was probably meant, if one is alike enough.
pub(crate) fn suggest_key(key: &str) -> Option<String> {
    suggest(key, all().map(|row| row.key.to_owned()))
}

fn suggest(name: &str, known: impl Iterator<Item = String>) -> Option<String> {
    known
        .map(|candidate| (strsim::normalized_damerau_levenshtein(name, &candidate), candidate))
        .filter(|(alike, _)| *alike >= ALIKE)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, candidate)| candidate)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(variables: &[(&str, &str)]) -> Result<Environment, ConfigError> {
        Environment::read(variables.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())))
    }

    #[test]
    fn an_unknown_name_is_refused_with_what_was_probably_meant() {
        let message = read(&[("FT_ZZZZ", "1"), ("FT_NUM_BLOKS", "6")]).unwrap_err().to_string();
        assert_eq!(
            message,
            "unknown environment variable FT_NUM_BLOKS; did you mean FT_NUM_BLOCKS?; \
             unknown environment variable FT_ZZZZ; docs/options.md lists the known ones"
        );
        assert!(read(&[("FT_CONFIGFILE", "a")]).unwrap_err().to_string().contains("FT_CONFIG_FILE?"));
        assert!(read(&[("FT_MAX_GPU_MEMORY", "a")]).unwrap_err().to_string().contains("FT_MAX_GPU_MEM?"));
        assert!(read(&[("FT_enabled", "1")]).is_err(), "names are upper case");
        assert!(read(&[("FT_", "1")]).is_err());
    }

    #[test]
    fn other_programs_variables_and_those_for_vllm_are_left_alone() {
        let found =
            read(&[("PATH", "/bin"), ("FTP_PROXY", "x"), ("FT_VLLM_TIMING_BATCH", "decode")]).unwrap();
        assert!(found.entries.is_empty() && found.warnings.is_empty());
    }

    #[test]
    fn a_removed_name_only_warns() {
        let found = read(&[("FT_WARMUP_ITERS", "3"), ("FT_LOG", "info")]).unwrap();
        assert_eq!(found.entries.len(), 1);
        assert_eq!(
            found.warnings,
            ["environment variable FT_WARMUP_ITERS was removed in 0.4.0 and is ignored"]
        );
    }

    #[test]
    fn the_file_variable_names_a_file_unless_it_is_empty() {
        assert_eq!(read(&[("FT_CONFIG_FILE", "a.toml")]).unwrap().config_file, Some(PathBuf::from("a.toml")));
        assert_eq!(read(&[("FT_CONFIG_FILE", "")]).unwrap().config_file, None);
    }
}
