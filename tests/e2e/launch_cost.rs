//! What the library costs a launch that shows no weight, resident ones only, or such while nothing is looked at, with 512 bytes of parameters. The target, 150 ns, is for a release build on a quiet machine (docs/testing.md has
//! the figure); here a generous limit catches what would be a fault: a lock, an allocation, a question to the driver.

use super::told::said;
use harness::Run;

/// Nanoseconds that an unoptimised build on a busy machine may add.
const LIMIT: f64 = 1500.0;

fn nanoseconds(run: Run) -> [f64; 4] {
    let outcome = run.sim("FAULTS", "cuLaunchKernel@*=1").start();
    outcome.assert_success();
    ["packed nanoseconds ", "each nanoseconds ", "resident nanoseconds ", "quiet nanoseconds "].map(|kind| {
        let line = outcome.stdout.lines().find_map(|line| line.strip_prefix(kind)?.parse().ok());
        line.unwrap_or_else(|| panic!("no {kind}: {}", outcome.describe()))
    })
}

#[test]
fn a_process_in_which_everything_is_resident_comes_to_rest() {
    let outcome = Run::program("launch_cost").preload().sim("FAULTS", "cuLaunchKernel@*=1").start();
    assert_eq!(said(&outcome, "quiet"), 1, "{}", outcome.describe());
}

/// Each launch of a use had recorded an event, and been looked up in tables that all threads share.
#[test]
fn a_further_launch_of_a_use_calls_no_driver_and_pays_little() {
    let streamed = |run: Run| {
        let faults = "cuLaunchKernel@timed.*=1";
        let outcome = run.args(["streamed"]).sim("FAULTS", faults).start();
        outcome.assert_success();
        let number = |kind: &str| {
            let line = outcome.stdout.lines().find_map(|line| line.strip_prefix(kind)?.parse::<f64>().ok());
            line.unwrap_or_else(|| panic!("no {kind}: {}", outcome.describe()))
        };
        (number("streamed nanoseconds "), number("events recorded meanwhile "))
    };
    let without = streamed(Run::program("launch_cost"));
    let under = Run::program("launch_cost").preload().option("FT_MAX_GPU_MEM", "130MiB");
    let under = streamed(under.option("FT_PROFILING_ITERS", "2"));
    assert_eq!(under.1, 0.0);
    assert!(under.0 - without.0 <= LIMIT, "{under:?} {without:?} ns");
}

#[test]
fn a_launch_that_shows_no_weight_pays_little() {
    let mut added = [f64::INFINITY; 4];
    for _ in 0..3 {
        let without = nanoseconds(Run::program("launch_cost"));
        let under = nanoseconds(Run::program("launch_cost").preload());
        for ((least, without), under) in added.iter_mut().zip(without).zip(under) {
            *least = least.min(under - without);
        }
    }
    println!(
        "a launch pays {:.0} ns (one buffer of 512 bytes), {:.0} ns (an array of parameters), {:.0} ns (resident weights), {:.0} ns (such when nothing needs to be looked at)",
        added[0], added[1], added[2], added[3]
    );
    assert!(added.iter().all(|added| *added <= LIMIT), "{added:?} ns");
}
