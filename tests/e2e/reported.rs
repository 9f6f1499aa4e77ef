//! Faults that users reported of other libraries of this kind, as far as no other file has them: docs/reliability.md lists all, each with its test.

use super::told::{said, streamed, told_well};

/// Unmapping does not wait for kernels; freeing must.
#[test]
fn memory_that_is_freed_behind_a_launch_that_reads_it_is_there_until_it_ends() {
    told_well(streamed("freed while it is read"));
    let all_resident = streamed("freed while it is read").option("FT_MAX_GPU_MEM", "1GiB").start();
    all_resident.assert_success().assert_nothing_detected();
    assert_eq!(said(&all_resident, "mismatches"), 0, "{}", all_resident.describe());
}

#[test]
fn frees_that_make_no_sense_are_answered_as_the_driver_does() {
    let outcome = told_well(streamed("frees that make no sense"));
    let inner = outcome.stdout.lines().filter(|line| *line == "inner 1").count();
    assert_eq!(inner, 3, "{}", outcome.describe());
    let codes = ["nothing", "unknown", "once", "twice"].map(|what| said(&outcome, what));
    assert_eq!(codes, [0, 1, 0, 1], "{}", outcome.describe());
}

#[test]
fn a_legacy_handle_of_managed_memory_is_refused_with_one_line_and_the_program_goes_on() {
    let outcome = told_well(streamed("a handle for another process"));
    assert_eq!(said(&outcome, "handle"), 1, "{}", outcome.describe());
    let lines = outcome.stderr.matches("cannot be shared with other processes by a legacy handle").count();
    assert_eq!(lines, 1, "{}", outcome.describe());
}

/// HAMi-core#169: the number of a NUMA node was taken for a GPU's.
#[test]
fn host_memory_that_the_program_makes_itself_counts_for_no_gpu() {
    // Six weights of 4 MiB, what a context counts as, and a little.
    let limit = (24 + 4 + 2) << 20;
    let run = streamed("host memory of the program's own").sim("MEM", "256MiB");
    let outcome = told_well(run.option("FT_GPU_LIMIT", limit.to_string()));
    assert_eq!(said(&outcome, "taken of the GPU"), 0, "{}", outcome.describe());
}

/// vLLM#16993 and others: destructors met a driver that had shut down.
#[test]
fn memory_that_is_freed_when_the_driver_has_gone_is_an_error_and_no_crash() {
    // All that our own waiting, unmapping and giving back is made of.
    let calls = [
        "cuCtxGetCurrent",
        "cuCtxGetDevice",
        "cuCtxPushCurrent",
        "cuCtxPopCurrent",
        "cuCtxSynchronize",
        "cuEventDestroy",
        "cuEventQuery",
        "cuEventRecord",
        "cuEventSynchronize",
        "cuLaunchKernel",
        "cuMemAddressFree",
        "cuMemFree",
        "cuMemGetInfo",
        "cuMemHostUnregister",
        "cuMemRelease",
        "cuMemUnmap",
        "cuMemcpyDtoHAsync",
        "cuMemcpyHtoDAsync",
        "cuStreamDestroy",
        "cuStreamIsCapturing",
        "cuStreamSynchronize",
        "cuStreamWaitEvent",
        "cuThreadExchangeStreamCaptureMode",
    ];
    let faults: Vec<_> = calls.iter().map(|call| format!("{call}@gone.1+=4")).collect();
    for budget in ["6MiB", "none"] {
        let run = streamed("freed when the driver has gone").sim("FAULTS", faults.join(","));
        let outcome = run.option("FT_MAX_GPU_MEM", budget).start();
        outcome.assert_success();
        let codes: Vec<_> = outcome.stdout.lines().filter_map(|line| line.strip_prefix("freed ")).collect();
        assert_eq!(codes, ["4"; 6], "{}", outcome.describe());
        assert_eq!(said(&outcome, "launched"), 4, "{}", outcome.describe());
        assert!(!outcome.stderr.contains("internal error"), "{}", outcome.describe());
    }
}

/// diffusers#2907: what two pipelines share was loaded twice, or moved away under the other one.
#[test]
fn weights_that_two_models_share_count_once_and_are_right_in_both() {
    let outcome = told_well(streamed("two models share weights").option("FT_MAX_GPU_MEM", "12MiB"));
    assert!(said(&outcome, "weights_gpu_bytes") <= 12 << 20, "{}", outcome.describe());
    // Eight weights of 4 MiB, each with a page of its neighbours' at most.
    assert!(said(&outcome, "host_bytes") <= 8 * (4 << 20), "{}", outcome.describe());
}

/// cupy#4775: what the driver pins is not governed by this limit.
#[test]
fn a_limit_of_locked_memory_changes_nothing() {
    let free = told_well(streamed("reads in order").sim("NO_HOST_LOCATION", "1"));
    let limited = told_well(streamed("reads in order").sim("NO_HOST_LOCATION", "1").behind("ulimit -l 0"));
    for what in ["host_bytes", "pinned_bytes", "weights_gpu_bytes"] {
        assert_eq!(said(&limited, what), said(&free, what), "{what}: {}", limited.describe());
    }
    assert_eq!(limited.stderr.matches("pageable").count(), 0, "{}", limited.describe());
}

/// What the report says of the passes that were seen whole: one shape, once a pass or never.
fn seen_whole(every: &str) -> (serde_json::Value, harness::Outcome) {
    // A link on which everything waits: four milliseconds a weight, in no time of computing.
    let run = streamed("reads in order").sim("H2D_GBPS", "1").option("FT_REPLAN", "off");
    let outcome = told_well(run.option("FT_TRACE_EVERY", every));
    let report = outcome.report.as_ref().unwrap_or_else(|| panic!("no report: {}", outcome.describe()));
    (report["models"][0]["observed"].clone(), outcome)
}

#[test]
fn the_report_says_what_a_pass_waited_for_where_passes_are_traced() {
    let (observed, outcome) = seen_whole("1");
    let seen = &observed[0];
    let number = |what: &str| seen[what].as_f64().unwrap_or_else(|| panic!("no {what}: {observed:#}"));
    assert!(number("passes") >= 1.0 && number("uses") == 6.0, "{observed:#}");
    let copied_ms = said(&outcome, "host_bytes") as f64 / 1e6;
    let waited = number("waited_ms");
    assert!(waited > copied_ms / 2.0, "{waited} of {copied_ms} ms: {observed:#}");
    assert!(number("computed_ms") < waited, "what was waited for counts as computing: {observed:#}");
    let waits = seen["waits"].as_array().unwrap_or_else(|| panic!("no waits: {observed:#}"));
    let longest = waits.iter().map(|wait| wait["waited_ms"].as_f64().unwrap_or(0.0));
    assert!(longest.is_sorted_by(|one, other| one >= other), "{observed:#}");
    assert!(
        waits.iter().all(|wait| wait["name"].as_str().is_some_and(|name| !name.is_empty())),
        "{observed:#}"
    );
}

#[test]
fn no_pass_is_traced_where_nobody_asked_for_it() {
    let (observed, outcome) = seen_whole("0");
    assert_eq!(observed.as_array().map(Vec::len), Some(0), "{}", outcome.describe());
}
