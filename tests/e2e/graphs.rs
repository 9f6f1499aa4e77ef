//! Weights that a captured graph reads: right whenever the graph runs.

use super::told::{streamed, told_well};

#[test]
fn a_graph_that_is_captured_after_the_switch_over_reads_right_bytes() {
    let outcome = told_well(streamed("a graph captured after the switch"));
    assert!(outcome.stderr.contains("a CUDA graph reads it"), "{}", outcome.describe());
}

#[test]
fn a_graph_that_is_captured_while_its_weight_is_held_reads_right_bytes() {
    told_well(streamed("a graph captured while pointers are held"));
}

#[test]
fn a_graph_that_is_captured_before_the_switch_over_reads_right_bytes() {
    told_well(streamed("a graph captured while learning"));
}

#[test]
fn a_graph_that_is_captured_before_the_weights_are_named_reads_right_bytes() {
    told_well(streamed("a graph captured before naming"));
}
