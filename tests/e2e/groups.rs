//! Programs in a memory control group: what the group leaves bounds what weights take of host memory, and the line names the group. The group's files are the test's, shown
//! to the process by a preload beside ours (`programs/loader/group.c`); how they are read, unit tests of `host_memory` say.

use super::companions::compiled;
use super::told::{said, story, streamed, told_well};
use harness::Run;
use harness::run::preload_library;
use std::path::Path;

const MIB: u64 = 1 << 20;

/// Files of a group `/job` of either version.
fn group(root: &Path, version: u32, limit: u64, used: u64, in_files: u64) {
    let write = |name: &str, text: String| {
        let path = root.join(name);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("a fresh folder");
        std::fs::write(path, text).expect("a fresh file");
    };
    let (line, folder, names) = match version {
        1 => {
            ("4:memory:/job", "sys/fs/cgroup/memory/job", ["memory.limit_in_bytes", "memory.usage_in_bytes"])
        }
        _ => ("0::/job", "sys/fs/cgroup/job", ["memory.max", "memory.current"]),
    };
    let key = if version == 1 { "total_inactive_file" } else { "inactive_file" };
    write("proc/self/cgroup", format!("{line}\n"));
    write(&format!("{folder}/{}", names[0]), format!("{limit}\n"));
    write(&format!("{folder}/{}", names[1]), format!("{used}\n"));
    write(&format!("{folder}/memory.stat"), format!("{key} {in_files}\n"));
}

/// The run, in a group of this version that has used so much of its limit.
fn within(root: &Path, run: Run) -> Run {
    let show = compiled(root, "group", &[]);
    let list = [preload_library(), show].map(|library| library.to_str().expect("a text path").to_owned());
    run.option("LD_PRELOAD", list.join(":")).option("GROUP_ROOT", root)
}

/// imp#2070: `/proc/meminfo` alone was believed, and the program was killed.
#[test]
fn shadows_that_a_control_group_has_no_room_for_are_not_made_and_the_line_names_the_group() {
    for version in [1, 2] {
        let folder = tempfile::tempdir().expect("a temporary folder");
        group(folder.path(), version, 24 * MIB, 8 * MIB, 0);
        let run = streamed("reads in order").sim("NO_HOST_LOCATION", "1");
        let outcome = within(folder.path(), run).start();
        outcome.assert_success().assert_nothing_detected();
        for what in ["mismatches", "pages_in", "host_bytes"] {
            assert_eq!(said(&outcome, what), 0, "{what}: {}", outcome.describe());
        }
        let line = "so the budget of 6 MiB is not held: shadows need";
        assert_eq!(outcome.stderr.matches(line).count(), 1, "{}", outcome.describe());
        let limit = "there are 15.20 MiB within the memory limit of control group /job";
        assert_eq!(outcome.stderr.matches(limit).count(), 1, "{}", outcome.describe());
    }
}

/// What files have in memory goes when memory is wanted.
#[test]
fn a_control_group_with_room_changes_nothing_and_files_in_memory_are_room() {
    for (version, used, in_files) in
        [(1, 8 * MIB, 0), (2, 8 * MIB, 0), (1, 250 * MIB, 240 * MIB), (2, 250 * MIB, 240 * MIB)]
    {
        let folder = tempfile::tempdir().expect("a temporary folder");
        group(folder.path(), version, 256 * MIB, used, in_files);
        let run = streamed("reads in order").sim("NO_HOST_LOCATION", "1");
        let outcome = told_well(within(folder.path(), run));
        assert!(!outcome.stderr.contains("control group"), "{}", outcome.describe());
    }
}

#[test]
fn a_model_beyond_the_gpu_is_refused_what_a_control_group_has_no_room_for() {
    let on_a_small_gpu = || {
        let run = story("built beyond the budget").option("FT_MANAGED_MIN_BYTES", "1MiB");
        run.option("FT_PROFILING_ITERS", "1").sim("MEM", (9 * MIB).to_string())
    };
    let folder = tempfile::tempdir().expect("a temporary folder");
    group(folder.path(), 2, 256 * MIB, 8 * MIB, 0);
    told_well(within(folder.path(), on_a_small_gpu()));
    group(folder.path(), 2, 24 * MIB, 23 * MIB, 0);
    let outcome = within(folder.path(), on_a_small_gpu()).start();
    assert_eq!(outcome.status.code(), Some(2), "{}", outcome.describe());
    assert!(outcome.stderr.contains("cuMemAlloc returned 2"), "{}", outcome.describe());
    let line = "gets no host memory in place of GPU memory: host memory has";
    assert_eq!(outcome.stderr.matches(line).count(), 1, "{}", outcome.describe());
    assert!(
        outcome.stderr.contains("within the memory limit of control group /job"),
        "{}",
        outcome.describe()
    );
}

/// A share of host memory is of what the group has, not of the machine's.
#[test]
fn a_percentage_of_host_memory_is_of_what_the_control_group_has() {
    let folder = tempfile::tempdir().expect("a temporary folder");
    group(folder.path(), 2, 256 * MIB, 8 * MIB, 0);
    let limited = |percent: &str| {
        let run = streamed("reads in order").sim("NO_HOST_LOCATION", "1");
        within(folder.path(), run.option("FT_HOST_MEM_LIMIT", percent))
    };
    told_well(limited("50%"));
    let outcome = limited("4%").start();
    outcome.assert_success().assert_nothing_detected();
    assert!(outcome.stderr.contains("host_mem_limit allows 10.24 MiB"), "{}", outcome.describe());
}
