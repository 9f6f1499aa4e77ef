//! The table checks itself, and writes docs/hooks.md.

use super::*;
use std::collections::BTreeSet;

#[test]
fn every_name_stands_once_in_the_table() {
    let names: BTreeSet<_> = rows().map(|row| row.name).collect();
    assert_eq!(names.len(), rows().count());
    assert!(names.iter().all(|name| name.starts_with("cu")));
}

#[test]
fn every_row_has_its_own_shell_and_slot() {
    let shells: BTreeSet<_> = rows().map(|row| row.shell().addr()).collect();
    assert_eq!(shells.len(), rows().count(), "two rows with one shell would mix up originals");
    let slots: BTreeSet<_> = rows().map(|row| std::ptr::from_ref(row.original).addr()).collect();
    assert_eq!(slots.len(), rows().count());
}

/// docs/hooks.md as the table says it.
fn page() -> String {
    let mut page = String::from(
        "# Hooked driver functions\n\n\
         Generated from the table in `interposer/src/hooks.rs`; `BLESS=1 cargo test -p flextensor-interposer` rewrites this page.\n\
         A program that asks for any other function gets the driver's own address. Names that end in `_ptsz` or `_ptds` are the forms in which a\n\
         null stream means the calling thread's own. How to add a row: [adding-a-hook.md](adding-a-hook.md).\n\n\
         | driver function | why | handler |\n| --- | --- | --- |\n",
    );
    for row in rows() {
        page += &format!("| `{}` | {} | `{}` |\n", row.name, row.doc.trim(), row.handler);
    }
    page
}

#[test]
fn the_page_of_hooks_says_what_the_table_says() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/hooks.md");
    if std::env::var_os("BLESS").is_some() {
        std::fs::write(path, page()).expect("docs/hooks.md can be written");
    }
    let written = std::fs::read_to_string(path).expect("docs/hooks.md can be read");
    assert!(
        written == page(),
        "docs/hooks.md is stale: BLESS=1 cargo test -p flextensor-interposer rewrites it"
    );
}
