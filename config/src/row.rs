//! What a row of the option table can say: the kinds of values, and whether the option has an effect yet. The rows
//! themselves are left to `options`.

/// What values an option takes.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// A switch.
    Bool,
    /// A whole number, at least `min` and at most `u32::MAX`.
    Int {
        /// Smallest allowed value.
        min: u32,
    },
    /// A number above `above` (or equal to it if `inclusive`), at most `most`.
    Float {
        /// Lower end of the range.
        above: f64,
        /// Whether `above` itself is allowed.
        inclusive: bool,
        /// Largest allowed value.
        most: f64,
    },
    /// A switch that knows words besides: `off` and `on` are those of the switch.
    Switch(&'static [&'static str]),
    /// One word of a list.
    Choice(&'static [&'static str]),
    /// Any text that is not blank.
    Text,
    /// Patterns that select modules and parameters.
    Patterns,
    /// A size: bytes, or a number with a unit.
    Bytes,
    /// A size, or a percentage of a total that is known later.
    Amount,
    /// A size or percentage for every GPU, or one for each GPU by its index.
    Budget,
}

/// Whether setting an option has an effect in this version.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Support {
    /// It does what its doc line says.
    Supported,
    /// Any value but the default is refused; the text names what it waits for.
    Later(&'static str),
    /// Only these values are refused; the text names what they wait for.
    ValuesLater(&'static [&'static str], &'static str),
    /// It does what its doc line says in programs that use the Python interface; the library alone takes it and says
    /// that it has no effect.
    PythonOnly,
    /// The Python interface takes any value, so that programs that set it keep running, and says at `offload()` that it
    /// has no effect yet; the library alone refuses any value but the default. The text names what it waits for.
    PythonTakes(&'static str),
}

/// One option.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Name in files, keywords and [`crate::Config`].
    pub key: &'static str,
    /// What values it takes.
    pub kind: Kind,
    /// The default as a text of the same form that the environment takes; `None` = no value.
    pub default: Option<&'static str>,
    /// Whether "no value" (none, null, an empty text) may be given.
    pub optional: bool,
    /// First version that knows the option.
    pub since: &'static str,
    /// One line for people.
    pub doc: &'static str,
    /// Whether it has an effect now.
    pub support: Support,
}

impl Row {
    /// Name of the environment variable: `FT_` and the key in upper case.
    pub fn env_name(&self) -> String {
        format!("FT_{}", self.key.to_ascii_uppercase())
    }

    /// Says which values are allowed, in the words used by errors and by the documentation.
    pub fn allowed(&self) -> String {
        let values = match self.kind {
            Kind::Bool => "true or false (also 1/0, yes/no, y/n, on/off)".to_owned(),
            Kind::Switch(words) => {
                let more = words.iter().filter(|word| !["off", "on"].contains(word));
                let more: Vec<&str> = more.copied().collect();
                format!("off or on (also 0/1, false/true, no/yes, n/y), or {}", more.join(", "))
            }
            Kind::Int { min } => format!("a whole number, {min} or more"),
            Kind::Float { above, inclusive, most } => {
                let low = if inclusive { format!("{above} or more") } else { format!("above {above}") };
                if most.is_finite() {
                    format!("a number, {low} and at most {most}")
                } else {
                    format!("a number, {low}")
                }
            }
            Kind::Choice(words) => format!("one of {}", words.join(", ")),
            Kind::Text => "a text that is not blank".to_owned(),
            Kind::Patterns => "a list of <glob>, name:<glob> or class:<glob>".to_owned(),
            Kind::Bytes => "bytes above 0, as 1048576, 8GiB or 24 GB".to_owned(),
            Kind::Amount => "bytes above 0 as 8GiB or 24 GB, or a percentage as 60%".to_owned(),
            Kind::Budget => {
                "bytes above 0 as 8GiB or 24 GB, a percentage as 60%, or one for each GPU as 0:8GiB,1:16GiB"
                    .to_owned()
            }
        };
        if self.optional { format!("{values}; or none") } else { values }
    }
}

/// Rows that belong together on a page.
#[derive(Clone, Copy, Debug)]
pub struct Group {
    /// Heading of the group.
    pub title: &'static str,
    /// Its options, in the order in which they are documented.
    pub rows: &'static [Row],
}

/// A row with a default.
pub(crate) const fn row(
    key: &'static str,
    kind: Kind,
    default: &'static str,
    since: &'static str,
    doc: &'static str,
    support: Support,
) -> Row {
    Row { key, kind, default: Some(default), optional: false, since, doc, support }
}

/// A row without a default: it has no value until it is set.
pub(crate) const fn unset(
    key: &'static str,
    kind: Kind,
    since: &'static str,
    doc: &'static str,
    support: Support,
) -> Row {
    Row { key, kind, default: None, optional: true, since, doc, support }
}
