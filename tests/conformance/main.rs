//! simcuda behaves as the facts say that a GPU does: the same bodies run here on simcuda, and on the machine's own driver
//! when `FT_REAL_GPU=1` is set.
//!
//! The bodies are modules of the program `conformance`, so that it can be carried to a machine with a GPU.

mod misuse;
mod requests;

use harness::Run;

#[test]
fn every_fact_is_as_a_gpu_has_it() {
    let outcome = Run::program("conformance").start();
    outcome.assert_success();
    let lines: Vec<&str> = outcome.stdout.lines().collect();
    assert!(lines.len() > 150, "only {} facts were stated: {}", lines.len(), outcome.describe());
    assert!(lines.iter().all(|line| line.starts_with("same ")), "{}", outcome.describe());
}

#[test]
fn every_route_leads_to_the_same_driver() {
    for route in ["dlsym", "proc", "proc1", "global"] {
        let outcome =
            Run::program("conformance").option("HARNESS_ROUTE", route).args(["granularity"]).start();
        outcome.assert_success();
        assert_eq!(outcome.stdout.lines().count(), 4, "{route}: {}", outcome.describe());
    }
}
