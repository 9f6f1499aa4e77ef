//! Links simcuda as `libcuda.so.1` and writes the exports that only answer "not supported".
//!
//! The names come from the fixture of requests that a real CUDA 13 stack makes; what `src/api` implements is left out.

use std::collections::BTreeSet;
use std::path::Path;
use std::{env, fs};

/// Identifiers of exported functions that the sources of `src/api` define.
fn implemented(api: &Path) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for entry in fs::read_dir(api).expect("src/api is readable") {
        let text = fs::read_to_string(entry.expect("src/api lists").path()).expect("a source file is UTF-8");
        let code = text.lines().filter(|line| !line.trim_start().starts_with("//"));
        for word in code.flat_map(|line| line.split(|c: char| !c.is_ascii_alphanumeric() && c != '_')) {
            if word.len() > 3 && word.starts_with("cu") && word.as_bytes()[2].is_ascii_uppercase() {
                names.insert(word.to_owned());
            }
        }
    }
    names
}

fn main() {
    for argument in ["-Wl,-soname,libcuda.so.1", "-Wl,-Bsymbolic", "-Wl,-z,nodelete"] {
        println!("cargo:rustc-cdylib-link-arg={argument}");
    }
    println!("cargo:rerun-if-changed=src/api");
    println!("cargo:rerun-if-changed=src/exported_names.rs");
    println!("cargo:rerun-if-changed=../fixtures/driver_symbols_13.tsv");
    println!("cargo:rerun-if-changed=build.rs");

    let fixture = fs::read_to_string("../fixtures/driver_symbols_13.tsv").expect("the fixture is readable");
    let mut wanted = BTreeSet::new();
    for line in fixture.lines().skip(1) {
        let fields: Vec<&str> = line.split('\t').collect();
        let [_, symbol, version, flags] = fields[..] else { continue };
        if symbol.is_empty() {
            continue;
        }
        let version = version.trim().parse().unwrap_or(0);
        // An empty version field is a plain dlsym of exactly that name.
        let base =
            if version == 0 { symbol.to_owned() } else { exported_names::export_name(symbol, version) };
        let forms = if version == 0 { Vec::new() } else { exported_names::forms(symbol) };
        for form in forms.into_iter().chain([base]) {
            if flags.trim() == "2" {
                wanted.insert(exported_names::per_thread_name(&form));
            }
            wanted.insert(form);
        }
    }
    let have = implemented(Path::new("src/api"));
    let mut out = String::from("not_supported! {\n");
    for name in wanted.difference(&have) {
        out.push_str(&format!("    {name}\n"));
    }
    out.push_str("}\n");
    let folder = env::var("OUT_DIR").expect("cargo sets OUT_DIR");
    fs::write(Path::new(&folder).join("not_supported.rs"), out).expect("OUT_DIR is writable");
}

#[path = "src/exported_names.rs"]
mod exported_names;
