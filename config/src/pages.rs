//! The pages that are made from the option table: `config/default.toml`, `docs/options.md` and the Python interface's
//! `option_fields.py`. Tests compare them with
//! the files; `BLESS=1 cargo test -p flextensor-config` rewrites the files.

use std::fmt::Write as _;

use crate::options::{GROUPS, REMOVED};
use crate::row::{Kind, Row, Support};

/// Every option as a commented line at its default, with its doc.
pub fn default_toml() -> String {
    let mut page = String::from(
        "# Every option of flextensor at its default. Made from config/src/options.rs; do not edit.\n\
         # Copy the lines that you want to change. FT_CONFIG_FILE=/path/to/file.toml reads the file;\n\
         # an environment variable wins over it.\n",
    );
    for group in GROUPS {
        let _ = write!(page, "\n# ---- {} ----\n", group.title);
        for row in group.rows {
            let _ = write!(
                page,
                "\n# {}\n# Allowed: {}. Variable: {}. Since {}.\n",
                row.doc,
                row.allowed(),
                row.env_name(),
                row.since
            );
            if let Some(limit) = limit(row) {
                let _ = writeln!(page, "# {limit}");
            }
            let _ = writeln!(page, "# {} = {}", row.key, toml_default(row));
        }
    }
    page
}

/// The reference page of all options.
pub fn options_md() -> String {
    let mut page = String::from(INTRODUCTION);
    for group in GROUPS {
        let _ = write!(
            page,
            "\n## {}\n\n| option | default | allowed | what it does |\n| --- | --- | --- | --- |\n",
            group.title
        );
        for row in group.rows {
            let default = row.default.map_or("none".to_owned(), |_| toml_default(row));
            let limit = limit(row).map_or(String::new(), |limit| format!(" **{limit}**"));
            let cells = [
                format!("`{}`", row.key),
                format!("`{default}`"),
                row.allowed(),
                format!("{}{limit}", row.doc),
            ];
            let _ = writeln!(
                page,
                "| {} |",
                cells.map(|cell| cell.replace('|', "\\|").replace('<', "\\<")).join(" | ")
            );
        }
    }
    page.push_str("\n## Names that were dropped\n\nAs variables or in files these warn and are ignored; as keywords they are refused.\n\n");
    for (name, release) in REMOVED {
        let _ = writeln!(page, "- `{name}` ({release})");
    }
    page
}

/// Types and meanings of the options for readers and checkers of Python.
pub fn option_fields_py() -> String {
    let mut page = String::from(
        "\"\"\"The options as attributes, with their types: for readers and type checkers. Values, rules and defaults are asked of\n\
         the native module by `config`.\n\nMade from config/src/options.rs; do not edit. `BLESS=1 cargo test -p flextensor-config` rewrites it.\n\"\"\"\n\n\
         from typing import Any, Literal\n\n\nclass OptionFields:\n    \"\"\"One attribute for each option.\"\"\"\n",
    );
    for row in GROUPS.iter().flat_map(|group| group.rows) {
        let _ = write!(page, "\n    {}: {}\n    \"\"\"{}\"\"\"\n", row.key, python_type(row), row.doc);
    }
    page
}

fn python_type(row: &Row) -> String {
    let plain = match row.kind {
        // An object with a method `compute` is taken too.
        _ if row.key == "load_strategy" => return "Any".to_owned(),
        Kind::Bool => "bool".to_owned(),
        Kind::Int { .. } | Kind::Bytes => "int".to_owned(),
        Kind::Float { .. } => "float".to_owned(),
        Kind::Choice(words) | Kind::Switch(words) => {
            format!(
                "Literal[{}]",
                words.iter().map(|word| format!("{word:?}")).collect::<Vec<_>>().join(", ")
            )
        }
        Kind::Patterns => "list[str]".to_owned(),
        Kind::Text | Kind::Amount | Kind::Budget => "str".to_owned(),
    };
    // The Python interface has a default for its patterns.
    if row.optional && row.kind != Kind::Patterns { format!("{plain} | None") } else { plain }
}

fn limit(row: &Row) -> Option<String> {
    match row.support {
        Support::Supported => None,
        Support::Later(waits_for) => Some(format!("Not supported yet: waits for {waits_for}.")),
        Support::ValuesLater(values, waits_for) => {
            Some(format!("Not supported yet: {} waits for {waits_for}.", values.join(", ")))
        }
        Support::PythonOnly => Some("Only in programs that use the Python interface.".to_owned()),
        Support::PythonTakes(waits_for) => Some(format!(
            "Not supported yet: waits for {waits_for}; the Python interface takes it without effect."
        )),
    }
}

/// The default as TOML. TOML has no null: "none" says it.
fn toml_default(row: &Row) -> String {
    match (row.kind, row.default) {
        (Kind::Patterns, Some("")) => "[]".to_owned(),
        (Kind::Bool | Kind::Int { .. } | Kind::Float { .. }, Some(text)) => text.to_owned(),
        (_, text) => format!("{:?}", text.unwrap_or("none")),
    }
}

const INTRODUCTION: &str = "\
# Options

Made from `config/src/options.rs`; do not edit. `BLESS=1 cargo test -p flextensor-config` rewrites this page.

Each option has one name in files and as a keyword, and one variable: `FT_` and the name in upper case (`max_gpu_mem`,
`FT_MAX_GPU_MEM`). All options below exist since 0.1.0.

**Sources.** A variable wins over the file, the file over the default; in the Python interface a keyword wins over all.
`FT_CONFIG_FILE` names the file: `.toml`, `.json`, `.yaml`, `.yml` with the options at the top level, or `.ini`, `.conf`
with the options below `[flextensor]`.

**What is on.** When the library is preloaded it is on unless `FT_ENABLED=0` (or `enabled` in the file) says otherwise;
with `FT_ENABLED=0` nothing else is looked at. In the Python interface variables alone do not switch it on: set
`FT_ENABLED=1`, use a file, or pass `enabled=True`.

**Mistakes.** A value that is not allowed is refused with its place, what was given and what is allowed. An unknown `FT_`
variable is refused too; an unknown name in a file or keyword is ignored with a warning. `FT_VLLM_*` variables belong to
the vLLM worker. A value that is marked *not supported yet* is refused rather than ignored.

**Texts.** `none`, `null` and the empty text mean no value. Switches take `true/1/yes/y/on` and `false/0/no/n/off` in any
case. Lists in variables and INI files are separated by commas. Sizes: `8GiB` = 8 x 1024^3, `24 GB` = 24 x 1000^3, a plain
whole number = bytes; `8G` is refused, because it is read both ways.

**Patterns.** `layers.*` and `name:layers.*` match paths, `class:DecoderLayer` matches a class by its short or full name.
`?` is one character. Where a name pattern names modules, a `*` between dots is exactly one path segment; where it names
parameters (`*.weight`), and in excludes, it spans segments. A matched module brings everything below it; the outermost
match is the unit; excludes come last.
";

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;
    use crate::options::all;
    use crate::{ConfigFile, preload};

    fn compare(path: &str, expected: &str) {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(path);
        if std::env::var_os("BLESS").is_some() {
            std::fs::write(&path, expected).unwrap();
        }
        let found = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            found == expected,
            "{} is stale; run BLESS=1 cargo test -p flextensor-config",
            path.display()
        );
    }

    #[test]
    fn the_default_file_is_what_the_table_says() {
        compare("default.toml", &default_toml());
    }

    #[test]
    fn the_options_page_is_what_the_table_says() {
        compare("../docs/options.md", &options_md());
    }

    #[test]
    fn the_fields_of_python_are_what_the_table_says() {
        compare("../pyhook/python/flextensor/option_fields.py", &option_fields_py());
    }

    #[test]
    fn the_page_may_say_that_all_options_are_as_old() {
        assert!(all().all(|row| row.since == "0.1.0"), "give options.md a column for the version");
    }

    #[test]
    fn the_default_file_with_every_line_active_changes_nothing() {
        let active: Vec<String> = default_toml()
            .lines()
            .filter_map(|line| line.strip_prefix("# "))
            .filter(|line| all().any(|row| line.starts_with(&format!("{} = ", row.key))))
            .map(str::to_owned)
            .collect();
        assert_eq!(active.len(), all().count());
        let from_file = preload([], Some(&ConfigFile::new("default.toml", active.join("\n")))).unwrap();
        let mut defaults = preload([], None).unwrap();
        defaults.origins = from_file.origins.clone();
        assert_eq!(from_file, defaults);
    }
}
