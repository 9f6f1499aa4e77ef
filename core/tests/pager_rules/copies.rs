//! Rules 1 to 3: launches wait for copies in, and copies in for readers and for each other.

use flextensor_core::pager::{CopyStream, Verdict};

use super::pager_model::world::{S1, S2, World, pages_in, reads};
use super::{MODEL, SAME, SHAPE, SPLIT, in_every_order, set_order};

// Rule 1.

#[test]
fn a_launch_waits_for_its_copy() {
    in_every_order(SAME, |world| {
        world.launch(S1, &[reads(0)]);
    });
}

#[test]
fn every_stream_waits_for_the_copy() {
    in_every_order(SAME, |world| {
        world.launch(S1, &[reads(0)]);
        world.launch(S2, &[reads(0)]);
    });
}

#[test]
fn a_stream_waits_again_for_a_second_load_of_a_part() {
    in_every_order(SPLIT, |world| {
        world.launch(S1, &[reads(0)]);
        world.launch(S1, &[reads(1)]);
        world.launch(S1, &[reads(0)]);
    });
}

#[test]
fn a_launch_waits_for_the_copies_of_both_streams() {
    in_every_order(SPLIT, |world| {
        let open = world.acquire(S2, &[reads(2)]);
        set_order(world, &[0]);
        world.prefetch(S1);
        set_order(world, &[]);
        world.enqueue(open);
        assert_eq!(pages_in(&world.take_journal(), CopyStream::Prefetch), 1, "page 1 was pinned");
        world.launch(S1, &[reads(0)]);
        assert_eq!(pages_in(&world.take_journal(), CopyStream::Demand), 1);
    });
}

#[test]
fn a_unit_that_the_program_shows_first_is_copied_once() {
    let mut world = World::new(4, 2, SAME, 0);
    assert_eq!(world.launch(S1, &[reads(0)]), [Verdict::Ready], "no order is known: nothing begins");
    world.launch(S1, &[reads(0)]);
    assert_eq!(pages_in(&world.take_journal(), CopyStream::Demand), 2);
}

// Rules 2 and 3.

#[test]
fn a_copy_waits_for_every_reader() {
    in_every_order(SAME, |world| {
        world.launch(S1, &[reads(0)]);
        world.launch(S2, &[reads(0)]);
        world.launch(S1, &[reads(1)]);
    });
}

#[test]
fn a_copy_waits_for_readers_that_came_after_an_earlier_wait() {
    in_every_order(SPLIT, |world| {
        world.launch(S1, &[reads(0)]);
        world.launch(S1, &[reads(1)]);
        world.launch(S1, &[reads(0)]);
        world.launch(S2, &[reads(1)]);
    });
}

#[test]
fn a_copy_waits_for_the_copy_of_the_other_stream() {
    in_every_order(SAME, |world| {
        set_order(world, &[0]);
        world.prefetch(S1);
        world.launch(S1, &[reads(1)]);
    });
}

#[test]
fn a_copy_waits_for_a_later_copy_of_the_other_stream() {
    in_every_order(&[(0, 2), (0, 1), (1, 1), (0, 2)], |world| {
        set_order(world, &[0, 0, 3]);
        world.launch(S1, &[reads(0)]);
        world.launch(S1, &[reads(1)]);
        world.launch(S1, &[reads(0).stale()]);
        world.launch(S1, &[reads(3)]);
    });
}

#[test]
fn events_are_given_back_only_with_the_last_page() {
    in_every_order(SPLIT, |world| {
        world.launch(S2, &[reads(0)]);
        world.launch(S1, &[reads(1)]);
        set_order(world, &[2]);
        world.launch(S1, &[reads(2)]);
    });
}

#[test]
fn a_pinned_unit_is_not_overwritten() {
    in_every_order(SAME, |world| {
        let open = world.acquire(S1, &[reads(0)]);
        assert_eq!(world.launch(S2, &[reads(1)]), [Verdict::Conflict]);
        world.gpu.run(20);
        world.enqueue(open);
    });
}

#[test]
fn prefetch_leaves_a_pinned_unit() {
    in_every_order(SAME, |world| {
        set_order(world, &[1]);
        let open = world.acquire(S1, &[reads(0)]);
        world.pager.pass_begin(MODEL, SHAPE);
        world.prefetch(S2);
        world.gpu.run(20);
        world.enqueue(open);
    });
}
