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
