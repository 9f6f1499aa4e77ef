//! Models that are larger than their budget, or than the GPU: they are built, cast and run with right bytes, and GPU memory is kept to at every moment.

use super::told::{self, BUDGET, on_a_gpu_of, said, survives, told_well};
use harness::Run;
use std::time::Duration;

/// Six weights of two pages.
const MODEL: u64 = 24 << 20;

/// The program's own few words, and what a probe of ours takes.
const OWN: u64 = 64 << 10;

/// The driver refuses the memory that the link is measured with, so that all that was ever taken is weights and these words. The stage's own allocations
/// come first.
fn without_measuring(run: Run) -> Run {
    run.sim("FAULTS", "cuMemAlloc_v2@3+=2")
}

/// A story under a budget that holds from the first allocation on.
fn streamed(name: &str) -> Run {
    told::streamed(name).option("FT_BUDGET_WHILE_LOADING", "1")
}

#[test]
fn a_model_of_four_times_the_budget_never_takes_more_than_the_budget() {
    let run = without_measuring(streamed("built beyond the budget")).option("FT_LOG", "info");
    let outcome = told_well(run);
    assert!(said(&outcome, "built peak") <= BUDGET + OWN, "{}", outcome.describe());
    assert!(said(&outcome, "ran peak") <= BUDGET + OWN, "{}", outcome.describe());
    assert!(said(&outcome, "built on the GPU") >= 4 << 20, "the GPU is not used: {}", outcome.describe());
    assert!(outcome.stderr.contains("loaded into host memory"), "{}", outcome.describe());
}

/// The pages that a weight was loaded into are its shadow; nothing is pinned besides but what the link is measured with.
#[test]
fn host_memory_holds_each_weight_once() {
    const LINK: u64 = 32 << 20;
    let outcome = told_well(streamed("built beyond the budget"));
    let (built, ran) = (said(&outcome, "built in the host"), said(&outcome, "ran in the host"));
    assert_eq!(built + said(&outcome, "built on the GPU") / (2 << 20) * (2 << 20), MODEL);
    assert!(ran <= MODEL, "{}", outcome.describe());
    let registered = outcome.journal_number("/alive/registered_bytes");
    assert!(ran + registered <= MODEL + LINK + (4 << 20), "{registered}: {}", outcome.describe());
}

#[test]
fn models_larger_than_the_gpu_are_built_and_run() {
    for memory in [MODEL * 10 / 13, MODEL / 3] {
        let memory = memory / (2 << 20) * (2 << 20) + (1 << 20);
        let outcome = told_well(on_a_gpu_of(memory, "built beyond the budget"));
        assert!(said(&outcome, "ran on the GPU") < memory, "no room is left: {}", outcome.describe());
    }
}

#[test]
fn weights_are_cast_wherever_they_and_their_sources_lie() {
    let outcome = told_well(streamed("cast beyond the budget"));
    assert!(said(&outcome, "built on the GPU") <= BUDGET + OWN, "{}", outcome.describe());
    told_well(on_a_gpu_of(20 << 20, "cast beyond the budget"));
}

#[test]
fn all_memory_goes_back_when_a_model_is_freed_and_built_again() {
    let outcome = told_well(streamed("freed and built again"));
    assert!(said(&outcome, "built on the GPU") <= BUDGET + 2 * OWN, "{}", outcome.describe());
    assert_eq!(said(&outcome, "freed in the host"), 0, "{}", outcome.describe());
    assert!(said(&outcome, "freed on the GPU") < OWN, "{}", outcome.describe());
    assert_eq!(outcome.journal_number("/alive/handles"), 0, "{}", outcome.describe());
}

#[test]
fn threads_that_allocate_at_once_keep_to_the_budget_together() {
    for _ in 0..3 {
        let outcome = told_well(without_measuring(streamed("built by threads")));
        assert!(said(&outcome, "built peak") <= BUDGET + OWN, "{}", outcome.describe());
    }
}

#[test]
fn a_second_model_that_the_gpu_has_no_memory_for_gets_host_memory_at_the_second_try() {
    let outcome = told_well(on_a_gpu_of(22 << 20, "a second model beyond the GPU"));
    assert!(said(&outcome, "refused") > 0, "{}", outcome.describe());
    assert!(said(&outcome, "built in the host") > 0, "{}", outcome.describe());
}

#[test]
fn what_is_allocated_in_a_forward_never_lies_in_host_memory() {
    let outcome = told_well(streamed("memory for a forward"));
    assert_eq!(said(&outcome, "more in the host"), 0, "{}", outcome.describe());
}

#[test]
fn a_weight_that_the_first_pass_did_not_show_is_right_when_it_is_shown() {
    told_well(streamed("a weight that no launch of the first pass shows"));
}

/// All weights are streamed from host pages, and one page that nobody uses is left there.
#[test]
fn memory_that_forwards_use_leaves_the_host_and_other_memory_stays_within_the_budget() {
    let outcome = told_well(streamed("memory that an allocator kept"));
    assert_eq!(
        said(&outcome, "ran in the host"),
        said(&outcome, "host_bytes") + (2 << 20),
        "{}",
        outcome.describe()
    );
}

/// Who moves pages waits for the GPU, which no capture survives.
#[test]
fn captures_outlive_forwards_before_which_memory_should_move() {
    let outcome = told_well(streamed("memory that an allocator kept, and a capture"));
    assert_eq!(
        said(&outcome, "ran in the host"),
        said(&outcome, "host_bytes") + (2 << 20),
        "it did not leave the host later: {}",
        outcome.describe()
    );
    let outcome = told_well(on_a_gpu_of(21 << 20, "first forwards in a capture"));
    let there = said(&outcome, "in the host");
    assert_eq!(said(&outcome, "in the host after the capture"), there, "{}", outcome.describe());
    assert!(
        said(&outcome, "in the host in the next forward") > there,
        "nothing had to move: {}",
        outcome.describe()
    );
}

/// Learning goes on while weights are streamed: without that no plan would ever be final.
#[test]
fn weights_in_host_memory_are_streamed_from_the_second_pass_on() {
    let outcome = told_well(streamed("built beyond the budget").option("FT_PROFILING_ITERS", "8"));
    // Nine learning passes and three more, of which all but the first copy what is streamed.
    assert!(said(&outcome, "pages_in") >= 10 * 6, "{}", outcome.describe());
    let report = outcome.report.as_ref().expect("a report");
    assert!(report["plan"]["resident_ms"].as_f64().is_some_and(|ms| ms > 0.0), "{}", outcome.describe());
}

/// One line, and all as before: everything in GPU memory until the switch-over.
#[test]
fn where_the_driver_makes_no_such_host_memory_the_model_is_loaded_as_before() {
    let run = streamed("built beyond the budget").sim("NO_HOST_LOCATION", "1");
    let outcome = told_well(run);
    assert!(outcome.stderr.contains("must fit the GPU"), "{}", outcome.describe());
    assert_eq!(said(&outcome, "ran in the host"), 0, "{}", outcome.describe());
    let lines = outcome.stderr.lines().filter(|line| line.contains("must fit the GPU")).count();
    assert_eq!(lines, 1, "{}", outcome.describe());
    let too_small = on_a_gpu_of(16 << 20, "built beyond the budget").sim("NO_HOST_LOCATION", "1").start();
    assert_eq!(too_small.status.code(), Some(2), "{}", too_small.describe());
    assert!(too_small.stderr.contains("cuMemAlloc returned 2"), "{}", too_small.describe());
}

#[test]
fn a_limit_of_host_memory_is_kept_while_a_model_is_loaded() {
    let run = streamed("built beyond the budget").option("FT_HOST_MEM_LIMIT", "4MiB");
    let outcome = run.start();
    outcome.assert_success().assert_nothing_detected();
    assert_eq!(said(&outcome, "mismatches"), 0, "{}", outcome.describe());
    assert!(said(&outcome, "built in the host") <= 4 << 20, "{}", outcome.describe());
    assert!(outcome.stderr.contains("host_mem_limit allows 4 MiB"), "{}", outcome.describe());
}

/// Each call that loading and the first placement make fails once, at each moment: right bytes, or an error that the program sees.
#[test]
fn no_refused_call_while_loading_is_a_wrong_byte_a_crash_or_a_hang() {
    let whole = told_well(streamed("built beyond the budget"));
    for call in
        ["cuMemCreate", "cuMemMap", "cuMemSetAccess", "cuMemUnmap", "cuMemAddressReserve", "cuMemGetInfo_v2"]
    {
        let count = whole.journal_number(&format!("/calls/{call}"));
        let step = (count / 6).max(1) as usize;
        for moment in (1..=count).step_by(step) {
            for code in ["2", "999"] {
                let fault = format!("{call}@{moment}={code}");
                let run = streamed("built beyond the budget").sim("FAULTS", &fault).sim("STRICT", "0");
                survives(&run.sim("LATE_US", "0").limit(Duration::from_secs(60)).start(), &fault);
            }
        }
    }
}

/// Driver calls of a transformer of so many layers that is loaded, and never run.
fn calls_of_loading(layers: &str, preload: bool) -> serde_json::Map<String, serde_json::Value> {
    let run = Run::program("transformer").args(["--layers", layers, "--forwards", "0"]);
    let outcome = if preload { run.preload() } else { run }.start();
    outcome.assert_success();
    let journal = outcome.journal.as_ref().unwrap_or_else(|| panic!("no journal: {}", outcome.describe()));
    journal["calls"].as_object().cloned().unwrap_or_default()
}

/// What four layers more cost, by call.
fn calls_of_four_layers(preload: bool) -> std::collections::BTreeMap<String, u64> {
    let (few, many) = (calls_of_loading("2", preload), calls_of_loading("6", preload));
    let count = |calls: &serde_json::Map<String, serde_json::Value>, name: &str| {
        calls.get(name).and_then(serde_json::Value::as_u64).unwrap_or(0)
    };
    let more = many.keys().map(|name| (name.clone(), count(&many, name).saturating_sub(count(&few, name))));
    more.filter(|&(_, more)| more > 0).collect()
}

/// The public fault is called "loading takes many times as long": bytes are moved once, and each page costs a dozen calls.
#[test]
fn loading_moves_no_byte_twice_and_costs_a_dozen_calls_for_each_page() {
    let (without, with) = (calls_of_four_layers(false), calls_of_four_layers(true));
    let of =
        |calls: &std::collections::BTreeMap<String, u64>, name: &str| calls.get(name).copied().unwrap_or(0);
    let pages = of(&with, "cuMemCreate");
    assert!(pages > 0, "nothing was managed: {with:?}");
    for (name, count) in &with {
        if name.contains("Memcpy") || name.contains("Launch") {
            assert_eq!(*count, of(&without, name), "{name}: {with:?}");
        }
    }
    let (all, before): (u64, u64) = (with.values().sum(), without.values().sum());
    assert!(all <= before + 12 * pages, "{all} calls instead of {before} for {pages} pages: {with:?}");
}
