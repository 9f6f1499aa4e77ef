//! Runs a story of `programs/scenario` and reads what it said. Which stories there are, is said there.

use harness::{Outcome, Run};
use std::time::Duration;

/// The budget of stories: six weights of two pages each do not fit.
pub(crate) const BUDGET: u64 = 6 << 20;

/// A story on simcuda with late copies, where the first detection ends the process.
pub(crate) fn story(name: &str) -> Run {
    Run::program("scenario")
        .args([name])
        .sim("STRICT", "1")
        .sim("LATE_US", "500")
        .limit(Duration::from_secs(120))
}

/// The same under the library, which learns in one pass.
pub(crate) fn preloaded(name: &str) -> Run {
    story(name).preload().option("FT_MANAGED_MIN_BYTES", "1MiB").option("FT_PROFILING_ITERS", "1")
}

/// A story under the library, with weights that stream.
pub(crate) fn streamed(name: &str) -> Run {
    preloaded(name).option("FT_MAX_GPU_MEM", BUDGET.to_string())
}

/// A story under the library and no budget, on a GPU with this much memory.
pub(crate) fn on_a_gpu_of(bytes: u64, name: &str) -> Run {
    preloaded(name).sim("MEM", bytes.to_string())
}

/// Runs a story to a good end: it learnt, every byte was right, nothing was detected, and something was streamed.
pub(crate) fn told_well(run: Run) -> Outcome {
    let outcome = run.start();
    outcome.assert_success().assert_nothing_detected();
    assert_eq!(said(&outcome, "phase"), 3, "{}", outcome.describe());
    assert_eq!(said(&outcome, "mismatches"), 0, "{}", outcome.describe());
    assert!(said(&outcome, "pages_in") > 0, "nothing was streamed: {}", outcome.describe());
    outcome
}

/// Under a fault of the driver: right bytes, or an error that the program saw.
pub(crate) fn survives(outcome: &Outcome, fault: &str) {
    assert!(!outcome.timed_out, "{fault} hangs: {}", outcome.describe());
    match outcome.status.code() {
        Some(0) => {
            assert_eq!(said(outcome, "mismatches"), 0, "{fault}: {}", outcome.describe());
            outcome.assert_nothing_detected();
        }
        Some(2) => {
            assert!(outcome.stderr.contains(" returned "), "{fault}: {}", outcome.describe());
            // An error is answered before the GPU is asked for what would be wrong.
            outcome.assert_nothing_detected();
        }
        _ => panic!("{fault} is no error that a program can see: {}", outcome.describe()),
    }
}

/// The last number that the story said of this.
pub(crate) fn said(outcome: &Outcome, what: &str) -> u64 {
    let lines = outcome.stdout.lines().rev();
    let number = lines.filter_map(|line| line.strip_prefix(what)?.trim().parse().ok()).next();
    number.unwrap_or_else(|| panic!("nothing said of {what}: {}", outcome.describe()))
}

/// What a transformer answered, forward by forward.
pub(crate) fn forwards(outcome: &Outcome) -> Vec<&str> {
    outcome.stdout.lines().filter(|line| line.starts_with("forward ")).collect()
}
