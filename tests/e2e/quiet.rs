//! A process whose weights all fit is not looked at any more, and notices all the same when that ends. Stories are in `programs/scenario/quiet.rs`.

use super::told::{on_a_gpu_of, said};
use harness::{Outcome, Run};

/// Six weights of two pages, 24 MiB, and room for two blocks of the cache of five that grows.
const GPU: u64 = 34 << 20;

/// Every byte right, within the GPU's memory, and weights made room; nothing was looked at before.
fn told_right(run: Run) -> Outcome {
    let outcome = run.start();
    outcome.assert_success().assert_nothing_detected();
    assert_eq!(said(&outcome, "mismatches"), 0, "{}", outcome.describe());
    assert_eq!(said(&outcome, "quiet"), 1, "it never was quiet: {}", outcome.describe());
    assert_eq!(said(&outcome, "failed"), 0, "{}", outcome.describe());
    assert!(said(&outcome, "demotions") > 0, "{}", outcome.describe());
    assert!(said(&outcome, "device peak") <= GPU, "{}", outcome.describe());
    outcome
}

#[test]
fn weights_make_room_amid_launches_that_nobody_looks_at() {
    // Most launches wait inside the driver for room in a queue.
    let run = on_a_gpu_of(GPU, "weights make room in the midst of quiet launches").sim("QUEUE", "2");
    let outcome = told_right(run);
    assert_eq!(said(&outcome, "quiet while some are streamed"), 0, "{}", outcome.describe());
    assert_eq!(said(&outcome, "quiet again"), 2, "{}", outcome.describe());
}

#[test]
fn weights_make_room_behind_launches_that_nobody_looked_at() {
    told_right(on_a_gpu_of(GPU, "weights make room behind quiet launches that take their time"));
}

#[test]
fn what_a_graph_captures_stays_though_nothing_was_looked_at_before() {
    let outcome = told_right(on_a_gpu_of(GPU, "a capture begins while nothing is looked at"));
    assert_eq!(said(&outcome, "quiet in the capture"), 0, "{}", outcome.describe());
    assert_eq!(said(&outcome, "quiet after the capture"), 1, "{}", outcome.describe());
}

#[test]
fn a_second_model_is_learnt_and_both_make_room() {
    let outcome = told_right(on_a_gpu_of(GPU, "a second model comes while nothing is looked at"));
    assert_eq!(said(&outcome, "quiet while one is learnt"), 0, "{}", outcome.describe());
    assert_eq!(said(&outcome, "phase of the second"), 3, "{}", outcome.describe());
    assert_eq!(said(&outcome, "quiet with both"), 1, "{}", outcome.describe());
}

/// Check mode looks at every launch, and weights that are streamed have every launch wait for them.
#[test]
fn a_process_that_is_checked_is_never_quiet() {
    let run = on_a_gpu_of(GPU, "a capture begins while nothing is looked at").option("FT_CHECK", "1");
    let outcome = run.start();
    outcome.assert_success().assert_nothing_detected();
    assert_eq!(said(&outcome, "quiet"), 0, "{}", outcome.describe());
    assert_eq!(said(&outcome, "mismatches"), 0, "{}", outcome.describe());
}
