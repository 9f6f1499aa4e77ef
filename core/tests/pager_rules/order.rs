//! Rules 5 and 9: what is copied ahead, in which order, and what that leaves alone.

use flextensor_core::pager::{Command, CopyStream, Verdict};
use flextensor_core::units::{ModelId, UnitId};

use super::pager_model::world::{S1, S2, World, pages_in, reads};
use super::{MODEL, SAME, SHAPE, SPLIT, set_order};

// Rule 5.

/// Units have an event each in worlds of the first seed, and share one behind sixteen pages in those of the second.
const ALONE: u64 = 3;
const SHARED: u64 = 0;

/// A world in which unit 0 was read on `S1` and unit 1 is next.
fn next_is_unit_1(seed: u64) -> World {
    let mut world = World::new(4, 2, SAME, seed);
    set_order(&mut world, &[0, 1]);
    world.launch(S1, &[reads(0)]);
    world.gpu.run_copies_only();
    world.take_journal();
    world
}

#[test]
fn prefetch_leaves_a_unit_in_use() {
    let mut world = World::new(4, 2, SAME, 0);
    set_order(&mut world, &[0, 1]);
    world.launch(S1, &[reads(0)]);
    world.gpu.drain();
    world.prefetch(S1);
    assert_eq!(pages_in(&world.take_journal(), CopyStream::Prefetch), 2, "unit 0, and nothing over it");
}

#[test]
fn prefetch_stands_behind_readers_of_the_stream_that_asks_only() {
    let mut world = next_is_unit_1(ALONE);
    world.end_use(0);
    world.prefetch(S2);
    assert_eq!(pages_in(&world.take_journal(), CopyStream::Prefetch), 0, "S1 is not done, S2 asks");
    world.prefetch(S1);
    assert_eq!(pages_in(&world.take_journal(), CopyStream::Prefetch), 2, "S1 is not done, S1 asks");
    world.finish().expect("right bytes");
}

#[test]
fn prefetch_takes_pages_whose_readers_are_done() {
    let mut world = next_is_unit_1(ALONE);
    world.end_use(0);
    world.gpu.drain();
    world.prefetch(S2);
    assert_eq!(pages_in(&world.take_journal(), CopyStream::Prefetch), 2);
}

/// Its owner returned before it had as many launches as last time.
#[test]
fn prefetch_takes_pages_of_a_use_that_ended_early() {
    let mut world = next_is_unit_1(ALONE);
    for (unit, launches) in [(0, 2), (1, 1), (0, 1)] {
        (0..launches).for_each(|_| drop(world.launch(S1, &[reads(unit)])));
    }
    world.end_use(0);
    world.gpu.drain();
    world.take_journal();
    world.prefetch(S2);
    assert_eq!(pages_in(&world.take_journal(), CopyStream::Prefetch), 2);
    world.finish().expect("right bytes");
}

/// The event that the end of the pass has recorded was one of an earlier use, and what the driver says of it before that is of no worth.
#[test]
fn prefetch_does_not_ask_of_events_that_are_only_about_to_be_recorded() {
    let mut world = next_is_unit_1(ALONE);
    for (unit, launches) in [(1, 2), (0, 1), (1, 1)] {
        (0..launches).for_each(|_| drop(world.launch(S1, &[reads(unit)])));
        world.gpu.drain();
    }
    world.take_journal();
    world.pager.pass_end(MODEL);
    world.prefetch(S2);
    assert_eq!(pages_in(&world.take_journal(), CopyStream::Prefetch), 0, "it is recorded now");
    world.gpu.drain();
    world.prefetch(S2);
    assert_eq!(pages_in(&world.take_journal(), CopyStream::Prefetch), 2);
    world.finish().expect("right bytes");
}

/// Nothing is ahead: the stream that reads may have the event recorded for that. Another one may not, whatever its last record says.
#[test]
fn prefetch_leaves_pages_whose_readers_are_not_recorded_to_their_stream() {
    let mut world = next_is_unit_1(SHARED);
    world.end_use(0);
    world.gpu.drain();
    world.prefetch(S2);
    assert_eq!(pages_in(&world.take_journal(), CopyStream::Prefetch), 0, "S2 asks");
    world.prefetch(S1);
    assert_eq!(pages_in(&world.take_journal(), CopyStream::Prefetch), 2, "S1 asks");
    world.finish().expect("right bytes");
}

#[test]
fn prefetch_takes_a_part_and_goes_on_later() {
    let mut world = World::new(4, 1, SPLIT, 0);
    set_order(&mut world, &[2, 0]);
    world.launch(S1, &[reads(2)]);
    assert_eq!(
        pages_in(&world.take_journal(), CopyStream::Prefetch),
        2,
        "unit 2, then the first page of unit 0"
    );
    world.end_use(2);
    world.prefetch(S1);
    assert_eq!(pages_in(&world.take_journal(), CopyStream::Prefetch), 1);
    world.finish().expect("right bytes");
}

#[test]
fn prefetch_leaves_what_awaits_its_use() {
    let mut world = World::new(4, 2, &[(0, 2), (2, 2), (2, 2)], 0);
    set_order(&mut world, &[0, 1, 2]);
    world.launch(S1, &[reads(0)]);
    world.prefetch(S1);
    assert_eq!(world.launch(S1, &[reads(1)]), [Verdict::Began]);
    let journal = world.take_journal();
    assert_eq!(pages_in(&journal, CopyStream::Prefetch), 4, "units 0 and 1, not 2 over 1");
    assert_eq!(world.pager.counters().demand_loads, 0);
}

// Rule 9.

#[test]
fn a_skipped_use_frees_its_pages_at_once() {
    let mut world = World::new(4, 2, &[(0, 1), (1, 3), (0, 1), (1, 3)], 0);
    set_order(&mut world, &[0, 1, 2, 3]);
    world.launch(S1, &[reads(0)]);
    world.take_journal();
    assert_eq!(world.launch(S1, &[reads(2).live()]), [Verdict::Began]);
    let copied: Vec<_> = world
        .take_journal()
        .into_iter()
        .filter(|c| matches!(c, Command::CopyIn { unit: UnitId(3), .. }))
        .collect();
    assert!(!copied.is_empty(), "unit 1 was skipped: its pages go to unit 3");
    assert_eq!(world.pager.counters().mispredictions, 1);
}

#[test]
fn a_far_live_word_moves_nothing_but_three_in_a_row_do() {
    let units: Vec<_> = (0..20).map(|unit| (unit % 4, 1)).collect();
    let mut world = World::new(4, 2, &units, 0);
    set_order(&mut world, &(0..20).collect::<Vec<_>>());
    world.launch(S1, &[reads(0)]);
    for unit in [12, 13, 14] {
        assert_eq!(world.launch(S1, &[reads(unit).live()]), [Verdict::Redirect]);
    }
    assert_eq!(world.launch(S1, &[reads(15).live()]), [Verdict::Began]);
    assert_eq!(world.launch(S1, &[reads(16).live()]), [Verdict::Began]);
    assert_eq!(
        world.launch(S1, &[reads(5)]),
        [Verdict::Began],
        "the owner's forward is certain, however far"
    );
    world.finish().expect("right bytes");
}

#[test]
fn a_live_word_with_stale_addresses_between_expected_uses_copies_nothing() {
    let units: Vec<_> = (0..20).map(|unit| (unit % 4, 1)).collect();
    let mut world = World::new(4, 2, &units, 0);
    set_order(&mut world, &(0..20).collect::<Vec<_>>());
    for unit in 0..18 {
        world.launch(S1, &[reads(unit)]);
        if unit >= 5 {
            assert_eq!(world.launch(S1, &[reads(unit - 5).live()]), [Verdict::Redirect]);
        }
    }
    let counters = world.pager.counters();
    assert_eq!((counters.demand_loads, counters.mispredictions), (0, 0));
    world.finish().expect("right bytes");
}

#[test]
fn what_lies_behind_in_a_short_order_is_not_near() {
    let units: Vec<_> = (0..6).map(|unit| (unit % 3, 1)).collect();
    let mut world = World::new(3, 2, &units, 0);
    set_order(&mut world, &(0..6).collect::<Vec<_>>());
    for unit in 0..4 {
        world.launch(S1, &[reads(unit)]);
    }
    // Two behind is four ahead, going round.
    assert_eq!(world.launch(S1, &[reads(1).live()]), [Verdict::Redirect]);
    assert_eq!(world.launch(S1, &[reads(4)]), [Verdict::Began]);
    assert_eq!(world.pager.counters().mispredictions, 0);
    world.finish().expect("right bytes");
}

#[test]
fn a_pass_that_begins_expects_its_first_use() {
    let mut world = World::new(4, 2, &[(0, 2), (2, 2)], 0);
    set_order(&mut world, &[0, 1]);
    world.launch(S1, &[reads(0)]);
    world.pager.pass_begin(MODEL, SHAPE);
    assert_eq!(world.launch(S1, &[reads(0)]), [Verdict::Began]);
    assert_eq!(world.pager.counters().mispredictions, 0);
}

#[test]
fn the_pass_that_followed_last_time_is_prefetched() {
    let mut world = World::new(4, 2, SAME, 0);
    world.pager.set_order(ModelId(0), &[(UnitId(0), 0)]);
    world.pager.set_order(ModelId(1), &[(UnitId(1), 1)]);
    for (model, unit) in [(0, 0), (1, 1), (0, 0)] {
        world.pager.pass_begin(ModelId(model), SHAPE);
        world.launch(S1, &[reads(unit)]);
        world.pager.pass_end(ModelId(model));
    }
    world.take_journal();
    world.prefetch(S1);
    assert_eq!(pages_in(&world.take_journal(), CopyStream::Prefetch), 2, "model 1 comes after model 0");
}

#[test]
fn a_new_order_frees_what_was_prefetched_for_the_old_one() {
    let mut world = World::new(4, 2, &[(0, 2), (2, 2), (0, 4)], 0);
    set_order(&mut world, &[0, 1]);
    world.prefetch(S1);
    set_order(&mut world, &[2]);
    world.take_journal();
    world.prefetch(S1);
    assert_eq!(pages_in(&world.take_journal(), CopyStream::Prefetch), 4);
    world.finish().expect("right bytes");
}

#[test]
fn prefetch_goes_on_when_a_unit_has_left() {
    let mut world = World::new(4, 2, &[(0, 1), (1, 1), (1, 1), (2, 1)], 0);
    set_order(&mut world, &[0, 1, 2, 3]);
    world.prefetch(S1);
    assert!(world.make_private(UnitId(2)));
    world.take_journal();
    world.prefetch(S1);
    assert_eq!(pages_in(&world.take_journal(), CopyStream::Prefetch), 1, "unit 3 is next");
    world.finish().expect("right bytes");
}

#[test]
fn a_unit_that_is_used_twice_in_a_row_does_not_stop_the_order() {
    let mut world = World::new(4, 2, &[(0, 2), (2, 2)], 0);
    world.pager.set_order(MODEL, &[(UnitId(0), 0), (UnitId(0), 1), (UnitId(1), 2)]);
    for _ in 0..3 {
        for unit in [0, 0, 1] {
            world.launch(S1, &[reads(unit)]);
        }
    }
    assert_eq!(world.pager.counters().mispredictions, 0);
}
