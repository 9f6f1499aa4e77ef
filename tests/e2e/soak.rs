//! A long life in short: plans change, memory runs short and comes back, calls are refused, under four threads that read and write weights. No byte is wrong, and nothing is left
//! behind. What happens is in `programs/soak.rs`. `FT_STEPS` says how often each of these has to happen (docs/testing.md).

use super::told::said;
use harness::{Outcome, Run};
use std::time::Duration;

/// Each kind of event so often.
fn steps() -> u64 {
    std::env::var("FT_STEPS").map_or(2, |text| text.parse().expect("FT_STEPS is a number"))
}

fn soak(steps: u64) -> Run {
    Run::program("soak")
        .args([steps.to_string(), "1".to_owned()])
        .preload()
        .option("FT_MANAGED_MIN_BYTES", "1MiB")
        .option("FT_PROFILING_ITERS", "1")
        .option("FT_MAX_GPU_MEM", "28MiB")
        .sim("MEM", "96MiB")
        .sim("STRICT", "1")
        .sim("LATE_US", "100")
        .limit(Duration::from_secs(120 + 10 * steps))
}

/// Nothing of this is kept: all of it is zero when the last model has gone.
const GONE: [&str; 8] = [
    "handles",
    "mappings",
    "host_located_bytes",
    "weights_gpu_bytes",
    "ring_bytes",
    "regions_bytes",
    "host_regions_bytes",
    "host_bytes",
];

/// Some of this is kept for the next model, and no more of it than after the first one.
const KEPT: [&str; 4] = ["allocations", "reservations", "streams", "descriptors"];

/// The buffer that the link is measured with, and a piece through which weights may just be compared.
const PINNED: u64 = 40 << 20;

/// Most events that are kept for passes that will be timed, after however many lives: as many as five models need at once.
const EVENTS: u64 = 150 + 2 * CHECKS;

/// Most checks of what was written back that wait for their turn; each has two events.
const CHECKS: u64 = 256;

/// What was lost, each with its amount; nothing if all is well.
fn lost(outcome: &Outcome) -> Vec<String> {
    let at_end = |name: &str| said(outcome, &format!("at the end: {name}"));
    let first = |name: &str| said(outcome, &format!("after the first life: {name}"));
    let mut lost = Vec::new();
    let mut hold = |name: &str, most: u64| {
        if at_end(name) > most {
            lost.push(format!("{name}: {} instead of {most}", at_end(name)));
        }
    };
    GONE.into_iter().for_each(|name| hold(name, 0));
    KEPT.into_iter().for_each(|name| hold(name, first(name)));
    hold("events", EVENTS);
    hold("pinned_bytes", PINNED);
    // What the library says that it has pinned is all that is.
    hold("registered_bytes", at_end("pinned_bytes"));
    hold("panics", 0);
    lost
}

#[test]
fn plans_that_change_and_memory_that_comes_and_goes_cost_no_byte_and_leave_nothing_behind() {
    let steps = steps();
    let outcome = soak(steps).start();
    println!("{}", outcome.stdout);
    outcome.assert_success().assert_nothing_detected();
    assert_eq!(said(&outcome, "mismatches"), 0, "{}", outcome.describe());
    for kind in ["switches", "demotions", "promotions", "refusals", "without memory"] {
        assert!(said(&outcome, kind) >= steps, "{kind}: {}", outcome.describe());
    }
    assert!(lost(&outcome).is_empty(), "{:?}: {}", lost(&outcome), outcome.describe());
}

#[test]
fn a_write_that_is_lost_is_found() {
    let outcome = soak(1).preload_with_fault("lost write").start();
    assert_eq!(outcome.status.code(), Some(1), "{}", outcome.describe());
    assert!(said(&outcome, "mismatches") > 0, "{}", outcome.describe());
}

/// The driver does not take something back, once or from then on, or the program itself keeps something.
#[test]
fn what_is_lost_is_found() {
    let refused = |call: &str| soak(1).sim("FAULTS", format!("{call}=999"));
    let keeps = soak(1).args(["--keep-descriptor"]);
    for (run, what) in [
        (refused("cuMemRelease@20"), "handles"),
        (refused("cuMemHostUnregister@20+"), "pinned_bytes"),
        (keeps, "descriptors"),
    ] {
        let outcome = run.start();
        let lost = lost(&outcome);
        assert!(lost.iter().any(|lost| lost.starts_with(what)), "{lost:?}: {}", outcome.describe());
    }
}
