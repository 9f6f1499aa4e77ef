//! Patterns that select modules and parameters: reading them, and applying them to a list of modules.
//!
//! Pure: the caller lists the modules (see [`Module`]) and acts on the answer. Finding repeated blocks when no include
//! pattern is given is left to the caller too, because it needs the modules' Python types.
//!
//! Meaning:
//! - `<glob>` and `name:<glob>` match paths, `class:<glob>` matches a module's class name, short or full. `?` is one
//!   character.
//! - A name pattern that matches a module's path selects modules; there a segment that is a lone `*` is exactly one
//!   path segment (`layers.*` is each layer), and any other `*` is any text.
//! - A name pattern that matches no module selects parameters by their full names; there a lone `*` spans one or more
//!   segments. Units are then found by cutting segments from its right until it names modules; where only a star
//!   is left, they are the modules that hold the parameters.
//! - A selected module brings all parameters on and below it. The outermost match is the unit: no unit is inside another.
//! - Excludes come last; their lone `*` spans segments too. An excluded module takes everything below it along.

use crate::glob::{Glob, LoneStar};

/// A pattern that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    /// Nothing is left after trimming.
    #[error("is empty")]
    Empty,
    /// A prefix without a glob behind it.
    #[error("{0:?} has nothing behind its prefix")]
    NoBody(String),
    /// A prefix other than `name:` and `class:`.
    #[error("has the unknown prefix {0:?}")]
    UnknownPrefix(String),
}

/// A pattern of a list that cannot be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{list}[{index}] {problem}; allowed: <glob>, name:<glob> or class:<glob>")]
pub struct EntryError {
    /// `include_patterns` or `exclude_patterns`.
    pub list: &'static str,
    /// Position in the list, from 0.
    pub index: usize,
    /// What is wrong with it.
    pub problem: PatternError,
}

/// One pattern.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Pattern {
    /// Matches paths.
    Name(String),
    /// Matches class names.
    Class(String),
}

impl Pattern {
    /// Reads one entry; space around it and around its body is dropped.
    ///
    /// # Errors
    /// If it is empty, has a prefix without a body, or a prefix that is not known.
    pub fn parse(entry: &str) -> Result<Self, PatternError> {
        let entry = entry.trim();
        let Some((prefix, body)) = entry.split_once(':') else {
            return if entry.is_empty() {
                Err(PatternError::Empty)
            } else {
                Ok(Self::Name(entry.to_owned()))
            };
        };
        let body = body.trim();
        match prefix.trim() {
            "name" | "class" if body.is_empty() => Err(PatternError::NoBody(entry.to_owned())),
            "name" => Ok(Self::Name(body.to_owned())),
            "class" => Ok(Self::Class(body.to_owned())),
            other => Err(PatternError::UnknownPrefix(format!("{other}:"))),
        }
    }
}

/// A module of a model. List the root too (empty path), each module once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Module {
    /// Path from the root, as `layers.0.mlp`; empty for the root.
    pub path: String,
    /// Short class name, as `Linear`.
    pub class_name: String,
    /// Class name with its Python module, as `torch.nn.modules.linear.Linear`.
    pub class_full_name: String,
    /// Names of the parameters that the module holds itself, as `weight`.
    pub parameters: Vec<String>,
}

impl Module {
    fn parameter_path(&self, parameter: &str) -> String {
        if self.path.is_empty() { parameter.to_owned() } else { format!("{}.{parameter}", self.path) }
    }

    /// Whether this module is `other` or below it.
    fn is_in(&self, other: &str) -> bool {
        other.is_empty()
            || self.path.strip_prefix(other).is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
    }
}

/// Which modules and parameters patterns select.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selection {
    include: Option<Vec<Pattern>>,
    exclude: Vec<Pattern>,
}

/// The answer of [`Selection::apply`]; all lists go with the list of modules that was given.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selected {
    /// Indexes of the modules that are units (traps), ascending. Empty if no include patterns are set: the caller
    /// finds the units itself, then leaves out those that are excluded.
    pub traps: Vec<usize>,
    /// For each module, whether it is excluded, itself or with a module above it.
    pub excluded: Vec<bool>,
    /// For each module and each parameter that it holds, whether it may be streamed.
    pub streamable: Vec<Vec<bool>>,
    /// Include and exclude patterns, as given, that matched nothing.
    pub unmatched: Vec<String>,
}

impl Selection {
    /// Reads both lists. `None` as `include` means that nobody chose: every parameter that is not excluded may stream.
    ///
    /// # Errors
    /// The first entry that is not a pattern, by list and index.
    pub fn parse(include: Option<&[String]>, exclude: &[String]) -> Result<Self, EntryError> {
        let read = |list: &'static str, entries: &[String]| {
            let one = |(index, entry): (usize, &String)| {
                Pattern::parse(entry).map_err(|problem| EntryError { list, index, problem })
            };
            entries.iter().enumerate().map(one).collect::<Result<Vec<_>, _>>()
        };
        Ok(Self {
            include: include.map(|entries| read("include_patterns", entries)).transpose()?,
            exclude: read("exclude_patterns", exclude)?,
        })
    }

    /// Whether no include patterns are set, so that the caller finds the units.
    pub fn is_automatic(&self) -> bool {
        self.include.is_none()
    }

    /// Applies the patterns to a model.
    pub fn apply(&self, modules: &[Module]) -> Selected {
        let mut unmatched = Vec::new();
        let mut taken: Vec<Vec<bool>> =
            modules.iter().map(|module| vec![self.is_automatic(); module.parameters.len()]).collect();
        let mut units = vec![false; modules.len()];
        for pattern in self.include.iter().flatten() {
            let found = include(pattern, modules);
            if !found.matched {
                unmatched.push(pattern.to_string());
            }
            for index in found.units {
                units[index] = true;
            }
            for (module, parameter) in found.parameters {
                taken[module][parameter] = true;
            }
        }
        let mut excluded = vec![false; modules.len()];
        for pattern in &self.exclude {
            if !exclude(pattern, modules, &mut excluded, &mut taken) {
                unmatched.push(pattern.to_string());
            }
        }
        let outermost = |index: &usize| {
            let inside = |(other, module): (usize, &Module)| {
                other != *index && units[other] && modules[*index].is_in(&module.path)
            };
            units[*index] && !modules.iter().enumerate().any(inside)
        };
        let traps = (0..modules.len()).filter(outermost).filter(|index| !excluded[*index]).collect();
        Selected { traps, excluded, streamable: taken, unmatched }
    }
}

impl std::fmt::Display for Pattern {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Name(glob) => f.write_str(glob),
            Self::Class(glob) => write!(f, "class:{glob}"),
        }
    }
}

/// What one include pattern selects.
#[derive(Default)]
struct Found {
    matched: bool,
    units: Vec<usize>,
    parameters: Vec<(usize, usize)>,
}

fn include(pattern: &Pattern, modules: &[Module]) -> Found {
    let units = match pattern {
        Pattern::Class(glob) => of_class(glob, modules),
        Pattern::Name(glob) => named(glob, LoneStar::OneSegment, modules),
    };
    if !units.is_empty() {
        let parameters = below(&units, modules);
        return Found { matched: true, units, parameters };
    }
    match pattern {
        Pattern::Class(_) => Found::default(),
        Pattern::Name(glob) => {
            let parameters = parameters_named(glob, modules);
            let units = units_of_cut(glob, &parameters, modules);
            Found { matched: !parameters.is_empty(), units, parameters }
        }
    }
}

/// Cuts segments from the right until the rest names modules with such parameters; its stars span segments as in the
/// whole pattern. Where only a star is left, which would name everything, the units are the modules that hold them.
fn units_of_cut(glob: &str, parameters: &[(usize, usize)], modules: &[Module]) -> Vec<usize> {
    let holds = |unit: &usize| parameters.iter().any(|(held, _)| modules[*held].is_in(&modules[*unit].path));
    let mut rest = glob;
    while let Some((shorter, _)) = rest.rsplit_once('.') {
        if shorter == "*" {
            let mut holders: Vec<usize> = parameters.iter().map(|(held, _)| *held).collect();
            holders.retain(|held| !modules[*held].path.is_empty());
            holders.dedup();
            return holders;
        }
        let units: Vec<usize> =
            named(shorter, LoneStar::ManySegments, modules).into_iter().filter(holds).collect();
        if !units.is_empty() {
            return units;
        }
        rest = shorter;
    }
    Vec::new()
}

/// Marks what one exclude pattern takes out; false if it matches nothing.
fn exclude(pattern: &Pattern, modules: &[Module], excluded: &mut [bool], taken: &mut [Vec<bool>]) -> bool {
    let (tops, parameters) = match pattern {
        Pattern::Class(glob) => (of_class(glob, modules), Vec::new()),
        Pattern::Name(glob) => {
            (named(glob, LoneStar::ManySegments, modules), parameters_named(glob, modules))
        }
    };
    for (module, parameter) in below(&tops, modules).into_iter().chain(parameters.iter().copied()) {
        taken[module][parameter] = false;
    }
    for (index, module) in modules.iter().enumerate() {
        excluded[index] |= tops.iter().any(|top| module.is_in(&modules[*top].path));
    }
    !tops.is_empty() || !parameters.is_empty()
}

/// Modules whose path matches. The root has no path and is never named.
fn named(glob: &str, star: LoneStar, modules: &[Module]) -> Vec<usize> {
    let glob = Glob::path(glob, star);
    (0..modules.len())
        .filter(|index| !modules[*index].path.is_empty() && glob.matches(&modules[*index].path))
        .collect()
}

fn of_class(glob: &str, modules: &[Module]) -> Vec<usize> {
    let glob = Glob::text(glob);
    let matches = |module: &Module| glob.matches(&module.class_name) || glob.matches(&module.class_full_name);
    (0..modules.len()).filter(|index| matches(&modules[*index])).collect()
}

fn parameters_named(glob: &str, modules: &[Module]) -> Vec<(usize, usize)> {
    let glob = Glob::path(glob, LoneStar::ManySegments);
    each_parameter(modules)
        .filter(|(module, parameter)| {
            let module = &modules[*module];
            glob.matches(&module.parameter_path(&module.parameters[*parameter]))
        })
        .collect()
}

/// Parameters held on or below any of these modules.
fn below(tops: &[usize], modules: &[Module]) -> Vec<(usize, usize)> {
    let inside: Vec<bool> =
        modules.iter().map(|module| tops.iter().any(|top| module.is_in(&modules[*top].path))).collect();
    each_parameter(modules).filter(|(module, _)| inside[*module]).collect()
}

fn each_parameter(modules: &[Module]) -> impl Iterator<Item = (usize, usize)> {
    modules
        .iter()
        .enumerate()
        .flat_map(|(index, module)| (0..module.parameters.len()).map(move |held| (index, held)))
}

#[cfg(test)]
#[path = "patterns_tests.rs"]
mod tests;
