//! Profiles between runs: the first one saves, the next ones start where it ended, with the same bytes; what does not fit is said in one line; what is broken
//! stops nothing.

use super::told::{forwards, said, story, streamed, told_well};
use harness::{Outcome, Run};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// A folder for profiles, and the file in it.
struct Folder {
    folder: TempDir,
    file: PathBuf,
}

impl Folder {
    fn fresh() -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let file = folder.path().join("profile.json");
        Self { folder, file }
    }

    /// With the profile of a first run of the story.
    fn of(name: &str) -> Self {
        let folder = Self::fresh();
        told_well(folder.under(streamed(name)));
        folder
    }

    fn under(&self, run: Run) -> Run {
        run.option("FT_PROFILE_STORAGE_DIR", self.folder.path())
    }

    fn text(&self) -> String {
        std::fs::read_to_string(&self.file).expect("a profile was saved")
    }

    fn json(&self) -> Value {
        serde_json::from_str(&self.text()).expect("a profile is JSON")
    }

    /// Changes what stands there.
    fn change(&self, change: impl FnOnce(&mut Value)) {
        let mut value = self.json();
        change(&mut value);
        std::fs::write(&self.file, value.to_string()).expect("the file can be written");
    }
}

const STORY: &str = "reads in order";

/// Lines about the profile.
fn lines(outcome: &Outcome) -> Vec<&str> {
    outcome.stderr.lines().filter(|line| line.contains("profile")).collect()
}

/// The story is told again: without learning, and with exactly one line about the profile, which says this.
fn starts_at_once(run: Run, line: &str) -> Outcome {
    let outcome = told_well(run);
    assert_eq!(said(&outcome, "passes"), 1, "{}", outcome.describe());
    one_line(&outcome, line);
    outcome
}

/// The story is told again and learnt again, with exactly one line about the profile, which says this.
fn learns_again(run: Run, line: &str) -> Outcome {
    let outcome = told_well(run);
    assert_eq!(said(&outcome, "passes"), 2, "{}", outcome.describe());
    one_line(&outcome, line);
    outcome
}

fn one_line(outcome: &Outcome, line: &str) {
    let lines = lines(outcome);
    assert!(lines.len() == 1 && lines[0].contains(line), "{line:?} in {lines:?}: {}", outcome.describe());
}

#[test]
fn the_second_run_starts_where_the_first_one_ended() {
    let folder = Folder::of(STORY);
    let first = folder.text();
    let again = starts_at_once(folder.under(streamed(STORY)), "its plan is used, without learning passes");
    assert_eq!(folder.text(), first, "nothing is new, so nothing is written");
    let plan = &folder.json()["flextensor"]["models"][0]["plan"];
    assert_eq!(
        again.report.as_ref().map(|r| r["plan"]["ring_bytes"].clone()),
        Some(json!(plan["ring_pages"].as_u64().map(|p| p << 21)))
    );
    assert!(plan["runs"].as_array().is_some_and(|runs| !runs.is_empty()), "{plan}");
}

#[test]
fn a_first_run_says_nothing_and_leaves_one_file() {
    let folder = Folder::fresh();
    let outcome = told_well(folder.under(streamed(STORY)));
    assert_eq!(lines(&outcome), Vec::<&str>::new());
    assert_eq!(std::fs::read_dir(folder.folder.path()).expect("the folder").count(), 1);
    let profile = folder.json();
    assert_eq!((&profile["version"], &profile["flextensor"]["format"]), (&json!(3), &json!(1)));
    let gpu = &profile["flextensor"]["gpus"][0];
    assert!(gpu["uuid"].as_str().is_some_and(|uuid| uuid.starts_with("GPU-")), "{gpu}");
    assert!(gpu["idle"].as_array().is_some_and(|points| points.len() > 4), "{gpu}");
    assert_eq!(profile["stats"].as_array().map(Vec::len), Some(6), "a label for each layer");
}

#[test]
fn the_link_is_measured_beside_the_program_s_kernels_too() {
    let folder = Folder::fresh();
    told_well(folder.under(streamed(STORY)).option("FT_PROFILING_ITERS", "10").sim("KERNEL_US", "200"));
    let profile = folder.json();
    let busy = profile["flextensor"]["gpus"][0]["busy"].as_array().cloned().unwrap_or_default();
    let sizes: Vec<u64> = busy.iter().filter_map(|point| point["copy_bytes"].as_u64()).collect();
    assert!(sizes.len() == 7 && sizes.contains(&(64 << 10)) && sizes.contains(&(32 << 20)), "{busy:?}");
    assert!(busy.iter().all(|point| point["gb_per_s"].as_f64() > Some(0.0)), "{busy:?}");
}

#[test]
fn what_the_host_takes_for_a_forward_is_saved_and_known_to_the_next_run() {
    let folder = Folder::fresh();
    let pass = || {
        told_well(folder.under(streamed(STORY)).option("FT_PROFILING_ITERS", "10").sim("KERNEL_US", "200"));
        folder.json()["flextensor"]["models"][0]["passes"][0].clone()
    };
    let (first, second) = (pass(), pass());
    let (host_ms, resident_ms) = (first["host_ms"].as_f64(), first["resident_ms"].as_f64());
    assert!(host_ms > Some(0.0) && host_ms <= resident_ms, "{host_ms:?} of {resident_ms:?}");
    assert_eq!(second["host_ms"], first["host_ms"]);
}

#[test]
fn without_a_folder_nothing_is_measured_or_saved() {
    let outcome = told_well(streamed(STORY));
    assert_eq!(lines(&outcome), Vec::<&str>::new());
}

#[test]
fn a_transformer_answers_as_without_us_from_its_first_forward_on() {
    let folder = Folder::fresh();
    let arguments = ["--layers", "2", "--forwards", "4"];
    let without = Run::program("transformer").args(arguments).start();
    let under = || {
        let run = Run::program("transformer").args(arguments).preload().sim("STRICT", "1");
        folder.under(run.option("FT_MAX_GPU_MEM", "64MiB").option("FT_PROFILING_ITERS", "1")).start()
    };
    let (first, second) = (under(), under());
    for outcome in [&first, &second] {
        outcome.assert_success().assert_nothing_detected();
        assert_eq!(forwards(outcome), forwards(&without));
    }
    assert!(first.stdout.contains("phase INFERENCE after forward 1"), "{}", first.describe());
    assert!(second.stdout.contains("phase INFERENCE after forward 0"), "{}", second.describe());
    let report = second.report.as_ref().expect("a report");
    assert_eq!(report["models"][0]["passes"], json!(4));
    assert!(
        report["models"][0]["measured"][0]["passes"].as_u64() > Some(1),
        "its stream is found: {report:#}"
    );
    assert!(report["counters"]["bytes_in"].as_u64() > Some(50 << 20), "{report:#}");
    let labels: Vec<Value> =
        folder.json()["stats"].as_array().into_iter().flatten().map(|stat| stat["label"].clone()).collect();
    // The last norm is too small to be streamed, and watched by nobody.
    assert_eq!(labels, ["embed", "layers.0", "layers.1", "head", "norm"]);
}

/// Everything that can happen to bytes, with a plan that was not learnt in this run.
#[test]
fn every_story_ends_well_when_it_starts_from_its_profile() {
    for name in [
        "reads in any order",
        "slow readers elsewhere",
        "writes by a kernel",
        "writes by a copy to the device",
        "a fill",
        "a kernel that adds",
        "two weights in one launch",
        "a stale word",
        "pointers in an owner",
        "an address in a copy",
        "a graph captured after the switch",
        "freed and allocated",
        "streams come and go",
    ] {
        let folder = Folder::fresh();
        folder.under(streamed(name)).start().assert_success();
        let outcome = folder.under(streamed(name)).start();
        outcome.assert_success().assert_nothing_detected();
        assert_eq!(said(&outcome, "mismatches"), 0, "{name}: {}", outcome.describe());
        assert!(outcome.stderr.contains("profile"), "{name}: {}", outcome.describe());
        assert!(!outcome.stderr.contains("as usual"), "{name}: {}", outcome.describe());
    }
}

#[test]
fn random_models_read_right_bytes_from_their_first_forward_on() {
    for seed in [3, 8, 14, 21] {
        let folder = Folder::fresh();
        let run = || {
            let run = Run::program("random_model").args([seed.to_string()]).preload().sim("STRICT", "1");
            let run = run.option("FT_MANAGED_MIN_BYTES", "1MiB").option("FT_PROFILING_ITERS", "1");
            folder.under(run.option("FT_MAX_GPU_MEM", "10MiB").sim("LATE_US", "300"))
        };
        for _ in 0..2 {
            let outcome = run().start();
            assert!(outcome.status.success(), "seed {seed}: {}", outcome.describe());
            outcome.assert_nothing_detected();
        }
    }
}

#[test]
fn another_budget_keeps_the_times_and_makes_a_new_plan() {
    let folder = Folder::of(STORY);
    let run = || folder.under(streamed(STORY)).option("FT_MAX_GPU_MEM", "8MiB");
    let line = "its times are used, but a new plan is made: the budget is 8 MiB, not 6 MiB";
    let outcome = starts_at_once(run(), line);
    assert!(outcome.stderr.contains("budget 8 MiB"), "{}", outcome.describe());
    let models = &folder.json()["flextensor"]["models"];
    assert_eq!(models[0]["plan"]["budget_bytes"], json!(8 << 20), "the new plan is saved");
    starts_at_once(run(), "its plan is used");
}

#[test]
fn a_plan_that_was_made_while_running_is_the_next_run_s() {
    let folder = Folder::fresh();
    let run = || folder.under(streamed("half of the weights from now on")).option("FT_MAX_GPU_MEM", "10MiB");
    let outcome = told_well(run());
    assert_eq!(said(&outcome, "replans"), 1, "{}", outcome.describe());
    let report = outcome.report.as_ref().expect("a report");
    let saved = folder.json();
    let plan = &saved["flextensor"]["models"][0]["plan"];
    assert_eq!(plan["streamed_bytes"], report["plan"]["streamed_bytes"], "{}", outcome.describe());
    assert_eq!(plan["ring_pages"].as_u64().map(|pages| pages << 21), report["plan"]["ring_bytes"].as_u64());
    one_line(&told_well(run()), "its plan is used");
}

#[test]
fn weights_that_had_to_stay_stay() {
    let folder = Folder::of(STORY);
    folder.change(|profile| {
        let model = &mut profile["flextensor"]["models"][0];
        model["plan"] = json!(null);
        model["units"][1]["stay"] = json!("Escaped");
    });
    let run = folder.under(streamed(STORY)).option("FT_MAX_GPU_MEM", "10MiB");
    let outcome = starts_at_once(run, "it holds no plan");
    let report = outcome.report.as_ref().expect("a report");
    let unit = &report["placements"][1];
    assert_eq!(
        (&unit["stay"], &unit["streamed_bytes"]),
        (&json!("Escaped"), &json!(0)),
        "{}",
        outcome.describe()
    );
    assert_eq!(folder.json()["flextensor"]["models"][0]["units"][1]["stay"], json!("Escaped"));
}

#[test]
fn another_gpu_or_link_is_named_and_the_link_measured_anew() {
    let folder = Folder::of(STORY);
    folder.change(|profile| {
        let gpu = &mut profile["flextensor"]["gpus"][0];
        gpu["uuid"] = json!("GPU-elsewhere");
        gpu["idle"] = json!([{ "copy_bytes": 1, "gb_per_s": 0.001 }]);
    });
    let line = "a new plan is made, and the link is measured anew: the GPU is GPU-73696d63";
    let outcome = starts_at_once(folder.under(streamed(STORY)), line);
    assert!(outcome.stderr.contains("not GPU-elsewhere"), "{}", outcome.describe());
    assert_ne!(folder.json()["flextensor"]["gpus"][0]["idle"][0]["gb_per_s"], json!(0.001));
    folder
        .change(|profile| profile["flextensor"]["gpus"][0]["link"] = json!({ "generation": 9, "width": 3 }));
    starts_at_once(folder.under(streamed(STORY)), "not PCIe 9.0 x3");
}

#[test]
fn another_pattern_is_named() {
    let folder = Folder::of(STORY);
    let run = folder.under(streamed(STORY)).option("FT_EXCLUDE_PATTERNS", "nothing.*");
    starts_at_once(run, "the patterns are others");
}

#[test]
fn another_model_learns_as_usual_and_takes_the_file_s_place() {
    let folder = Folder::of(STORY);
    folder.change(|profile| {
        profile["flextensor"]["models"][0]["weights"][2]["bytes"] = json!(5 << 20);
    });
    let line = "weight `layers.2.weight` has 4194304 bytes, in the file 5242880";
    learns_again(folder.under(streamed(STORY)), line);
    starts_at_once(folder.under(streamed(STORY)), "its plan is used");
}

#[test]
fn a_broken_file_is_named_once_and_replaced() {
    let folder = Folder::of(STORY);
    let good = folder.text();
    let cut = good.get(..good.len() / 2).unwrap_or_default();
    for broken in ["", "nonsense", cut, "[1, 2]"] {
        std::fs::write(&folder.file, broken).expect("the file can be written");
        let outcome = learns_again(folder.under(streamed(STORY)), "is no JSON object");
        let file = folder.file.display().to_string();
        assert!(lines(&outcome)[0].contains(&file), "{}", outcome.describe());
        starts_at_once(folder.under(streamed(STORY)), "its plan is used");
    }
    folder.change(|profile| profile["flextensor"]["models"][0]["plan"]["ring_pages"] = json!(99_999));
    learns_again(folder.under(streamed(STORY)), "plan.ring_pages` is 99999; allowed: at most");
}

#[test]
fn a_file_of_another_version_is_named_and_left_as_it_is() {
    let folder = Folder::of(STORY);
    for (key, line) in
        [("/version", "version 4; only version 3"), ("/flextensor/format", "format 4; only format 1")]
    {
        let before = folder.json();
        folder.change(|profile| {
            if let Some(value) = profile.pointer_mut(key) {
                *value = json!(4);
            }
        });
        let text = folder.text();
        let outcome = learns_again(folder.under(streamed(STORY)), line);
        assert!(lines(&outcome)[0].contains("left as it is"), "{}", outcome.describe());
        assert_eq!(folder.text(), text);
        std::fs::write(&folder.file, before.to_string()).expect("the file can be written");
    }
}

#[test]
fn a_profile_of_another_writer_is_named_and_learnt_over() {
    let folder = Folder::of(STORY);
    folder.change(|profile| {
        profile.as_object_mut().expect("an object").remove("flextensor");
    });
    learns_again(folder.under(streamed(STORY)), "of another writer");
}

#[test]
fn read_only_means_that_nothing_is_written() {
    let folder = Folder::fresh();
    let run = || folder.under(streamed(STORY)).option("FT_PROFILE_READ_ONLY", "1");
    let outcome = told_well(run());
    assert_eq!((lines(&outcome), folder.file.exists()), (Vec::new(), false));
    told_well(folder.under(streamed(STORY)));
    let text = folder.text();
    starts_at_once(run(), "its plan is used");
    starts_at_once(run().option("FT_MAX_GPU_MEM", "8MiB"), "a new plan is made");
    assert_eq!(folder.text(), text);
}

#[test]
fn a_folder_that_is_none_is_named_and_the_run_goes_on() {
    let folder = Folder::of(STORY);
    let run = streamed(STORY).option("FT_PROFILE_STORAGE_DIR", &folder.file);
    let outcome = told_well(run);
    let lines = lines(&outcome);
    assert!(lines.len() == 2, "{}", outcome.describe());
    assert!(lines[0].contains("cannot be read") && lines[1].contains("could not be saved"), "{lines:?}");
}

#[test]
fn a_folder_that_is_not_there_is_made() {
    let folder = Folder::fresh();
    let deep = folder.folder.path().join("a/b");
    told_well(streamed(STORY).option("FT_PROFILE_STORAGE_DIR", &deep));
    assert!(deep.join("profile.json").is_file());
}

#[test]
fn two_models_start_from_one_file() {
    let folder = Folder::fresh();
    let run = || folder.under(streamed("two models learnt at once"));
    let outcome = run().start();
    outcome.assert_success().assert_nothing_detected();
    let models = folder.json()["flextensor"]["models"].as_array().map(Vec::len);
    let outcome = run().start();
    outcome.assert_success().assert_nothing_detected();
    assert_eq!(said(&outcome, "mismatches"), 0, "{}", outcome.describe());
    assert_eq!(models, Some(2), "{}", outcome.describe());
    assert_eq!(lines(&outcome).len(), 2, "{}", outcome.describe());
    assert!(!outcome.stderr.contains("as usual"), "{}", outcome.describe());
}

#[test]
fn a_model_that_comes_again_is_saved_once() {
    let folder = Folder::fresh();
    let run = || folder.under(streamed("dropped and named again"));
    let outcome = run().start();
    outcome.assert_success().assert_nothing_detected();
    assert_eq!(folder.json()["flextensor"]["models"].as_array().map(Vec::len), Some(1));
    let outcome = run().start();
    outcome.assert_success().assert_nothing_detected();
    assert_eq!(said(&outcome, "mismatches"), 0, "{}", outcome.describe());
}

#[test]
fn a_switch_over_that_fails_leaves_a_loaded_model_whole() {
    let folder = Folder::of(STORY);
    let text = folder.text();
    for fault in ["cuMemcpyDtoHAsync_v2@*=999", "cuMemSetAccess@8=999"] {
        let outcome = folder.under(streamed(STORY)).sim("FAULTS", fault).start();
        assert!(
            outcome.stderr.contains("all weights stay") || outcome.status.success(),
            "{fault}: {}",
            outcome.describe()
        );
        assert_eq!(said(&outcome, "mismatches"), 0, "{fault}: {}", outcome.describe());
        assert_eq!(folder.text(), text, "{fault}: a plan that was refused takes no place");
    }
}

/// Calls that only profiles make, or that they make besides.
#[test]
fn calls_of_ours_that_are_refused_cost_a_measurement_and_no_byte() {
    for fault in [
        "cuDeviceGetUuid_v2@*=999",
        "cuDeviceGetPCIBusId@*=999",
        "cuMemGetInfo_v2@*=999",
        "cuDriverGetVersion@*=999",
        "cuStreamCreateWithPriority@1=2",
        "cuStreamCreateWithPriority@2+=2",
        "cuEventElapsedTime_v2@*=999",
        "cuMemHostRegister_v2@1=2",
    ] {
        let folder = Folder::fresh();
        let run = || folder.under(streamed(STORY)).option("FT_PROFILING_ITERS", "3");
        for run in [run().sim("FAULTS", fault), run(), run().sim("FAULTS", fault)] {
            let outcome = run.start();
            outcome.assert_success().assert_nothing_detected();
            assert_eq!(said(&outcome, "mismatches"), 0, "{fault}: {}", outcome.describe());
            assert_eq!(said(&outcome, "phase"), 3, "{fault}: {}", outcome.describe());
        }
    }
}

#[test]
fn a_profile_is_saved_on_request() {
    let folder = Folder::fresh();
    let told = |run: Run| {
        let outcome = run.start();
        outcome.assert_success().assert_nothing_detected();
        outcome
    };
    let codes = |outcome: &Outcome| -> Vec<String> {
        let lines = outcome.stdout.lines().filter_map(|line| line.strip_prefix("refused "));
        lines.map(str::to_owned).collect()
    };
    let asked = |folder: &Path| streamed("saves on request").args([folder]);
    // Too early first, then done; with no folder, and in read-only mode, a bad argument.
    assert_eq!(codes(&told(asked(folder.folder.path()))), ["1", "0"]);
    starts_at_once(folder.under(streamed(STORY)), "its plan is used");
    assert_eq!(codes(&told(streamed("saves on request"))), ["2", "2"]);
    assert_eq!(codes(&told(asked(folder.folder.path()).option("FT_PROFILE_READ_ONLY", "1"))), ["2", "2"]);
    assert_eq!(codes(&told(asked(&folder.file))), ["1", "3"]);
    let without = story("saves on request").args([folder.folder.path()]).start();
    assert_eq!(codes(&without), ["9", "9"], "{}", without.describe());
}

#[test]
fn owners_report_in_the_first_two_passes_of_a_model_that_was_not_learnt() {
    let folder = Folder::of(STORY);
    let wanted = |run: Run| -> Vec<String> {
        let outcome = run.start();
        outcome.assert_success().assert_nothing_detected();
        let lines = outcome.stdout.lines().filter_map(|line| line.strip_prefix("wanted "));
        // What is written is wanted as long as anything is to be proven.
        lines.map(|line| (line.parse::<u32>().unwrap_or(99) & !8).to_string()).collect()
    };
    let story = "whose forwards are wanted";
    assert_eq!(wanted(streamed(story)), ["3", "3", "0", "0"]);
    assert_eq!(wanted(folder.under(streamed(story))), ["1", "1", "0", "0"]);
}
