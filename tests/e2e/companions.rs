//! Other libraries beside us: preloads before and after ours, and libraries that programs open late.

use super::told::{said, streamed, told_well};
use harness::run::preload_library;
use harness::{Outcome, Run};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A library of `programs/loader`, compiled into the folder.
pub(crate) fn compiled(folder: &Path, name: &str, with: &[&str]) -> PathBuf {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("programs/loader/{name}.c"));
    let library = folder.join(format!("lib{name}.so"));
    let mut cc = Command::new("cc");
    cc.args(["-shared", "-fPIC", "-O1", "-fno-builtin", "-o"])
        .arg(&library)
        .arg(source)
        .args(with)
        .arg("-ldl");
    let output = cc.output().expect("cc runs");
    assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    library
}

/// A story that streams, with these libraries preloaded in this order.
fn preloading(libraries: &[&Path], log: &Path) -> Run {
    let list: Vec<_> = libraries.iter().map(|library| library.to_str().expect("a text path")).collect();
    streamed("reads in any order").option("LD_PRELOAD", list.join(":")).option("COMPANION_LOG", log)
}

/// It stands before us, and behind us.
fn works_beside_us(library: &Path) -> Vec<String> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let ours = preload_library();
    let orders = [[library, ours.as_path()], [ours.as_path(), library]];
    orders
        .iter()
        .enumerate()
        .map(|(at, order)| {
            let log = folder.path().join(at.to_string());
            let outcome = told_well(preloading(order, &log));
            let said = &outcome.report.as_ref().expect("a report")["hooks"];
            assert!(!outcome.stderr.contains("pass us by"), "{said}: {}", outcome.describe());
            std::fs::read_to_string(log).unwrap_or_default()
        })
        .collect()
}

/// The number behind the word in what a stand-in wrote.
fn told(text: &str, word: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(word)?.trim().parse().ok());
    line.unwrap_or_else(|| panic!("the stand-in says nothing of {word}: {text:?}"))
}

#[test]
fn an_allocator_that_takes_malloc_over_works_before_us_and_behind_us() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    for text in works_beside_us(&compiled(folder.path(), "allocator", &[])) {
        assert!(told(&text, "allocator") > 1000, "{text}");
    }
}

/// Each asks glibc, past whatever stands between. So before us the program finds the driver by itself, and runs as without us: `flextensor run` puts us first.
#[test]
fn a_tool_that_takes_dlsym_over_works_behind_us_and_before_us_the_program_runs_without_us() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let (ours, tracer) = (preload_library(), compiled(folder.path(), "tracer", &[]));
    let before = folder.path().join("log of the first");
    told_well(preloading(&[&ours, &tracer], &before));
    let log = folder.path().join("log of the second");
    let outcome = preloading(&[&tracer, &ours], &log).start();
    assert!(told(&std::fs::read_to_string(&log).unwrap_or_default(), "tracer") > 0, "it was not there");
    outcome.assert_success().assert_nothing_detected();
    // Nothing was ever learnt.
    assert_eq!((said(&outcome, "mismatches"), said(&outcome, "phase")), (0, 0), "{}", outcome.describe());
}

#[test]
fn the_allocators_of_this_machine_work_before_us_and_behind_us() {
    let folders = ["/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib"];
    let names = ["libjemalloc.so.2", "libtcmalloc_minimal.so.4", "libtcmalloc.so.4", "libmimalloc.so.2"];
    let candidates =
        folders.iter().flat_map(|folder| names.iter().map(move |name| Path::new(folder).join(name)));
    for library in candidates.filter(|library| library.is_file()) {
        works_beside_us(&library);
    }
}

/// A story with a plugin that is linked to the driver, and the folder that it lies in.
fn with_plugin(name: &str) -> (tempfile::TempDir, Run) {
    let folder = harness::run::driver_folder();
    let driver = folder.path().join("libcuda.so.1");
    let plugin =
        compiled(folder.path(), "plugin", &["-Wl,--no-as-needed", driver.to_str().expect("a text path")]);
    (folder, streamed(name).option("PLUGIN", plugin))
}

fn served(name: &str) -> Outcome {
    let (_folder, run) = with_plugin(name);
    told_well(run)
}

#[test]
fn what_a_library_launches_that_was_opened_in_a_scope_of_its_own_is_served() {
    served("a plugin in a scope of its own");
    served("a plugin in a scope of its own that comes late");
}

/// Such a library finds the driver before us, by the linker and by dlsym.
#[test]
fn what_a_library_launches_that_looks_at_itself_first_is_served() {
    let outcome = served("a plugin that looks at itself first");
    assert_eq!(outcome.stderr.matches("had passed us by").count(), 1, "{}", outcome.describe());
    let outcome = served("a plugin that looks at itself first and comes late");
    assert!(!outcome.stderr.contains("passed us by"), "{}", outcome.describe());
}
