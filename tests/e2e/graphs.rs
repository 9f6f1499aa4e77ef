//! Weights that a graph uses, captured or built by hand: right whenever the graph runs.

use super::told::{said, streamed, told_well};

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

/// Waiting for the weight's users would end the capture.
#[test]
fn a_weight_that_is_freed_beside_a_capture_goes_when_it_has_ended() {
    let outcome = told_well(streamed("a weight freed beside a capture"));
    let codes = ["freed", "freed twice", "freed again"].map(|what| said(&outcome, what));
    assert_eq!(codes, [0, 1, 1], "{}", outcome.describe());
    // The other one that goes is the graph's.
    let streamed = ["before", "in it", "after it"].map(|when| said(&outcome, &format!("streamed {when}")));
    assert_eq!(streamed, [6, 5, 4], "{}", outcome.describe());
}

/// By every call that can bring the weight into a graph.
fn nodes_by_hand(kind: &str) {
    let ways =
        ["add", "add any", "add any with edges", "set", "set any", "set executable", "set executable any"];
    for way in ways {
        let outcome = told_well(streamed(&format!("a node: {kind} by {way}")));
        assert!(outcome.stderr.contains("a CUDA graph reads it"), "{way}: {}", outcome.describe());
    }
}

#[test]
fn a_kernel_node_made_by_hand_reads_right_bytes() {
    nodes_by_hand("kernel");
}

#[test]
fn a_copy_node_made_by_hand_reads_right_bytes() {
    nodes_by_hand("copy");
}

#[test]
fn a_fill_node_made_by_hand_writes_where_the_weight_is() {
    nodes_by_hand("fill");
}

/// A mark that is made when the stream has joined belongs to the capture, and whoever waits for it there breaks it.
#[test]
fn a_stream_that_joins_a_capture_amid_a_use_is_marked_before() {
    told_well(streamed("a stream joins a capture amid a use"));
    told_well(streamed("a stream joins the capture in which it read"));
}

/// The driver refuses batches while a stream captures; the program hears that, and goes on.
#[test]
fn a_batch_of_copies_reads_right_bytes_and_is_refused_in_a_capture_as_by_the_driver() {
    let outcome = told_well(streamed("a batch of copies"));
    assert_eq!((said(&outcome, "in a capture"), said(&outcome, "the capture")), (900, 901));
}
