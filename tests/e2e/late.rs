//! A process that runs already, and that we come into late (`ft_attach`): whose functions its addresses are afterwards.

use super::loader::{Stage, assert_answers, preload, source, table};
use super::told::forwards;
use harness::Run;
use std::process::Output;

/// Stage 2 (active), self-test done, all three routes, loaded late.
const ACTIVE_LATE: u32 = 2 | 1 << 8 | 7 << 9 | 1 << 12;

/// Runs the program that finds the driver before it loads us, with the linker's option for a library that is linked to the driver.
fn late(stage: &Stage, linking: &str, variables: &[(&str, &str)]) -> Output {
    let driver = stage.path("libcuda.so.1");
    let driver = driver.to_str().expect("a text path");
    let before = stage.library("linked", "libbefore.so", &[driver, linking]);
    let later = stage.library("linked", "liblater.so", &[driver, linking]);
    let program = stage.compile("late", "late", &[]);
    let mut command = stage.command(&program);
    command.env_remove("LD_PRELOAD").arg(source("fixtures/driver_addresses_13.tsv"));
    command.env("LATE_LIBRARY", preload()).env("LINKED_LIBRARY", before).env("LINKED_LATER", later);
    let output = command.envs(variables.iter().copied()).output().expect("it runs");
    assert!(output.status.success(), "{:?} {}", output.status, String::from_utf8_lossy(&output.stderr));
    output
}

/// Lines of the output that begin with one of these words.
fn of(output: &Output, words: &[&str]) -> Vec<String> {
    let text = String::from_utf8_lossy(&output.stdout);
    let begins = |line: &&str| words.iter().any(|word| line.split(['\t', ' ']).next() == Some(word));
    text.lines().filter(begins).map(str::to_owned).collect()
}

#[test]
fn what_a_program_looked_up_before_we_came_and_what_it_looks_up_later_is_ours_for_the_hooked_names() {
    let stage = Stage::with_driver();
    for linking in ["-Wl,-z,relro,-z,now", "-Wl,-z,norelro,-z,lazy"] {
        let output = late(&stage, linking, &[]);
        assert_eq!(
            of(&output, &["before"]),
            ["before\t-\t-\t-\tcuLaunchKernel\tlibcuda.so.1\tcuLaunchKernel"]
        );
        assert_eq!(of(&output, &["attach"]), [format!("attach 0 status {ACTIVE_LATE} again 0")]);
        let routes = ["table_dlsym", "table_proc", "later_dlsym", "later_proc"];
        assert_answers(&of(&output, &routes).join("\n"), &routes, table().len());
        // Two libraries, one bound before and one after; names that only `linked` asks for count too.
        assert_answers(&of(&output, &["elf"]).join("\n"), &["elf"], 2 * 100);
    }
}

#[test]
fn memory_of_the_programs_own_is_not_searched() {
    let output = late(&Stage::with_driver(), "-Wl,-z,now", &[]);
    // The driver's list has another address under the name by now, so nobody finds a name for this one.
    assert_eq!(of(&output, &["heap"]), ["heap\t-\t-\t-\tcuLaunchKernel\tlibcuda.so.1\t-"]);
}

#[test]
fn switched_off_nothing_is_rewritten() {
    let output = late(&Stage::with_driver(), "-Wl,-z,now", &[("FT_ENABLED", "0")]);
    let stage_off = 3 | 1 << 12;
    assert_eq!(of(&output, &["attach"]), [format!("attach -1 status {stage_off} again -1")]);
    let lines = of(&output, &["table_dlsym", "table_proc", "later_dlsym", "later_proc"]);
    assert_eq!(lines.len(), 4 * table().len());
    for line in lines {
        assert!(line.contains("\tlibcuda.so.1\t"), "{line}");
    }
}

#[test]
fn a_start_that_failed_is_an_error_with_its_reason_each_time_that_it_is_asked_for() {
    let output = late(&Stage::with_driver(), "-Wl,-z,now", &[("NO_DESCRIPTORS", "1")]);
    let stage_failed = 4 | 1 << 12;
    assert_eq!(of(&output, &["attach"]), [format!("attach -3 status {stage_failed} again -3")]);
    let said = String::from_utf8_lossy(&output.stderr);
    let reason = "/proc/self/maps cannot be read: Too many open files";
    assert_eq!(said.lines().filter(|line| line.contains(reason)).count(), 2, "{said}");
    assert_eq!(said.lines().count(), 2, "{said}");
}

#[test]
fn threads_that_ask_for_the_start_at_once_all_find_it_done() {
    for _ in 0..5 {
        let output = late(&Stage::with_driver(), "-Wl,-z,now", &[("THREADS", "16")]);
        assert_eq!(of(&output, &["attach"]), [format!("attach 0 status {ACTIVE_LATE} again 0")]);
    }
}

#[test]
fn what_is_done_is_said_on_request_only() {
    let stage = Stage::with_driver();
    assert_eq!(String::from_utf8_lossy(&late(&stage, "-Wl,-z,now", &[]).stderr), "");
    let said = late(&stage, "-Wl,-z,now", &[("FT_LOG", "info")]);
    let said = String::from_utf8_lossy(&said.stderr);
    assert!(
        said.contains("loaded late: ") && said.contains(" addresses in 2 libraries mean us now"),
        "{said}"
    );
}

#[test]
fn a_model_that_was_built_and_run_before_we_came_is_taken_over_and_answers_the_same() {
    let arguments = ["--layers", "2", "--forwards", "8"];
    let without = Run::program("late_model").args(arguments).start();
    without.assert_success();
    let under = Run::program("late_model")
        .args(arguments)
        .load_late()
        .option("FT_MAX_GPU_MEM", "64MiB")
        .option("FT_PROFILING_ITERS", "2")
        .sim("STRICT", "1")
        .start();
    under.assert_success().assert_nothing_detected();
    assert_eq!(forwards(&without), forwards(&under));
    assert!(under.stderr.contains("INFERENCE on GPU 0: budget 64 MiB"), "{}", under.describe());
    let report = under.report.as_ref().unwrap_or_else(|| panic!("no report: {}", under.describe()));
    assert!(report["counters"]["bytes_in"].as_u64() > Some(100 << 20), "{report:#}");
}
