//! One small program for each guard of the page protocol, run in many orders of the GPU's queues: it fails when that guard is
//! taken out (the table is in `docs/page-protocol.md`). Programs that mix everything are `pager_properties`' matter.

mod pager_model;

use flextensor_core::pager::{Command, CopyStream, Verdict};
use flextensor_core::units::{ModelId, UnitId};
use pager_model::world::{S1, S2, World, pages_in, reads, writes};

const MODEL: ModelId = ModelId(0);
const SHAPE: u64 = 1;

/// Two units on the same pages of a ring of four.
const SAME: &[(u32, u32)] = &[(0, 2), (0, 2)];
/// One unit on two pages, and two on one page of it each.
const SPLIT: &[(u32, u32)] = &[(0, 2), (0, 1), (1, 1)];

/// Runs the program in many orders; steps happen between its calls as well.
fn in_every_order(units: &[(u32, u32)], program: impl Fn(&mut World)) {
    for seed in 0..200 {
        let mut world = World::new(4, 2, units, seed);
        program(&mut world);
        world.finish().unwrap_or_else(|fault| panic!("seed {seed}: {fault}"));
    }
}

fn set_order(world: &mut World, units: &[u32]) {
    let uses: Vec<_> = units.iter().map(|&unit| (UnitId(unit), unit)).collect();
    world.pager.set_order(MODEL, &uses);
}

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

// Holds.

#[test]
fn a_held_unit_stays_until_its_owner_returned() {
    in_every_order(SAME, |world| {
        world.launch(S1, &[reads(0).held()]);
        assert_eq!(world.launch(S1, &[reads(1)]), [Verdict::Conflict]);
        assert!(world.launch_hidden(S1, 0));
        world.end_use(0);
        assert_eq!(world.launch(S1, &[reads(1)]), [Verdict::Ready]);
    });
}

#[test]
fn prefetch_leaves_a_held_unit() {
    in_every_order(SAME, |world| {
        set_order(world, &[1]);
        world.launch(S1, &[reads(0).held()]);
        world.prefetch(S1);
        world.launch_hidden(S1, 0);
    });
}

#[test]
fn a_copy_waits_for_launches_that_did_not_show_a_held_unit() {
    in_every_order(SAME, |world| {
        world.launch(S1, &[reads(0).held()]);
        world.gpu.drain();
        world.launch_hidden(S1, 0);
        world.end_use(0);
        world.launch(S2, &[reads(1)]);
    });
}

#[test]
fn a_held_unit_becomes_private_behind_launches_that_did_not_show_it() {
    in_every_order(SAME, |world| {
        world.launch(S1, &[reads(0).held()]);
        world.launch_hidden(S1, 0);
        assert!(world.make_private(UnitId(0)));
    });
}

#[test]
fn the_last_launches_of_an_ended_stream_keep_a_held_unit() {
    in_every_order(SAME, |world| {
        world.launch(S1, &[reads(0).held()]);
        world.gpu.drain();
        world.launch_hidden(S1, 0);
        world.destroy_stream(S1);
        world.end_use(0);
        world.launch(S2, &[reads(1)]);
    });
}

#[test]
fn a_doubtful_write_into_a_held_unit_is_served_in_place() {
    in_every_order(SAME, |world| {
        world.launch(S1, &[reads(0).held()]);
        assert_eq!(world.launch(S1, &[writes(0).doubtful()]), [Verdict::Ready]);
        world.launch_hidden(S1, 0);
        world.end_use(0);
    });
}

// Rules 3 (write-back), 4 and 8.

#[test]
fn a_write_survives_eviction() {
    in_every_order(SAME, |world| {
        world.launch(S1, &[writes(0)]);
        world.launch(S1, &[reads(1)]);
        world.launch(S2, &[reads(0)]);
    });
}

#[test]
fn a_write_survives_when_both_copy_streams_take_its_pages() {
    in_every_order(SPLIT, |world| {
        world.launch(S1, &[writes(0)]);
        world.launch(S1, &[reads(1)]);
        set_order(world, &[2]);
        world.launch(S1, &[reads(2)]);
    });
}

#[test]
fn a_load_waits_for_a_write_back_of_the_other_stream() {
    in_every_order(SAME, |world| {
        world.launch(S1, &[writes(0)]);
        world.launch(S1, &[reads(1)]);
        set_order(world, &[0]);
        world.launch(S1, &[reads(0)]);
    });
}

/// The waits of other rules lead behind the same write-back; this one is asked for by name.
#[test]
fn a_load_names_the_write_back_of_the_other_stream() {
    let mut world = World::new(4, 2, SAME, 0);
    world.launch(S1, &[writes(0)]);
    world.launch(S1, &[reads(1)]);
    let written_back = world.take_journal();
    let at = written_back.iter().position(|command| matches!(command, Command::WriteBack { .. }));
    let recorded =
        written_back[at.expect("the write goes back")..].iter().find_map(|command| match *command {
            Command::RecordCopy { copy: CopyStream::Demand, event } => Some(event),
            _ => None,
        });
    set_order(&mut world, &[0]);
    world.launch(S1, &[reads(0)]);
    let event = recorded.expect("an event behind the write-back");
    assert!(world.take_journal().contains(&Command::WaitOnCopy { copy: CopyStream::Prefetch, event }));
}

#[test]
fn a_load_waits_for_a_write_to_the_shadow() {
    in_every_order(SAME, |world| {
        assert_eq!(world.launch(S1, &[writes(0).doubtful()]), [Verdict::Redirect]);
        world.launch(S2, &[reads(0)]);
    });
}

#[test]
fn a_load_waits_for_every_later_write_to_the_shadow() {
    in_every_order(SAME, |world| {
        world.launch(S1, &[writes(0).doubtful()]);
        world.launch(S1, &[reads(0)]);
        world.launch(S1, &[reads(1)]);
        assert_eq!(world.launch(S1, &[writes(0).doubtful()]), [Verdict::Redirect]);
        world.launch(S2, &[reads(0)]);
    });
}

// Rule 6.

#[test]
fn units_of_one_launch_do_not_displace_each_other() {
    in_every_order(SAME, |world| {
        assert_eq!(world.launch(S1, &[reads(0), reads(1)]), [Verdict::Ready, Verdict::Conflict]);
        world.launch(S1, &[reads(1)]);
        // The one that is shown first may not take what the second one has.
        assert_eq!(world.launch(S1, &[reads(0), reads(1)]), [Verdict::Conflict, Verdict::Ready]);
    });
}

#[test]
fn a_use_without_pages_and_without_a_view_gets_private_pages() {
    in_every_order(SAME, |world| {
        let verdicts = world.launch(S1, &[reads(0).fixed(), writes(1).fixed()]);
        assert!(verdicts.iter().all(|verdict| verdict.in_place()));
        assert!(!world.pager.streams(UnitId(1)), "the second found no pages");
        world.launch(S1, &[reads(0), reads(1)]);
    });
}

#[test]
fn demand_takes_all_pages_or_none() {
    let mut world = World::new(4, 2, SPLIT, 0);
    let open = world.acquire(S1, &[reads(2)]);
    world.take_journal();
    assert_eq!(world.launch(S2, &[reads(0)]), [Verdict::Conflict]);
    assert_eq!(pages_in(&world.take_journal(), CopyStream::Demand), 0);
    world.enqueue(open);
}

// Rule 7.

#[test]
fn a_doubtful_hit_never_sees_other_bytes() {
    in_every_order(SAME, |world| {
        world.launch(S1, &[writes(0)]);
        world.launch(S1, &[reads(1)]);
        world.take_journal();
        assert_eq!(world.launch(S2, &[reads(0).doubtful()]), [Verdict::Redirect]);
        assert_eq!(pages_in(&world.take_journal(), CopyStream::Demand), 0, "a doubtful hit moves nothing");
    });
}

#[test]
fn a_doubtful_hit_of_a_changed_unit_is_served_in_place() {
    in_every_order(SAME, |world| {
        world.launch(S1, &[writes(0)]);
        assert_eq!(world.launch(S2, &[reads(0).doubtful()]), [Verdict::Ready]);
    });
}

#[test]
fn a_write_to_the_shadow_makes_the_ring_stale() {
    in_every_order(SAME, |world| {
        world.launch(S1, &[reads(0)]);
        assert_eq!(world.launch(S1, &[writes(0).doubtful()]), [Verdict::Redirect]);
        world.launch(S1, &[reads(0)]);
    });
}

#[test]
fn a_write_to_the_shadow_follows_a_launch_in_place_that_may_write() {
    in_every_order(SAME, |world| {
        let unproven = world.acquire(S1, &[writes(0).stale()]);
        let writer = world.acquire(S2, &[writes(0).doubtful()]);
        assert_eq!(writer.verdicts, [Verdict::Ready], "both may write: both at the same place");
        world.enqueue(writer);
        world.enqueue(unproven);
        world.launch(S1, &[reads(0)]);
    });
}

#[test]
fn a_launch_that_may_write_follows_an_open_write_to_the_shadow() {
    in_every_order(SAME, |world| {
        let writer = world.acquire(S2, &[writes(0).doubtful()]);
        let unproven = world.acquire(S1, &[writes(0).stale()]);
        assert_eq!(unproven.verdicts, [Verdict::Redirect], "both may write: both at the same place");
        world.enqueue(writer);
        world.enqueue(unproven);
        world.launch(S1, &[reads(0)]);
    });
}

#[test]
fn pages_stay_while_a_launch_that_reads_the_shadow_is_not_enqueued() {
    in_every_order(SAME, |world| {
        let unproven = world.acquire(S1, &[writes(0).stale()]);
        let reader = world.acquire(S2, &[reads(0).doubtful()]);
        assert_eq!(reader.verdicts, [Verdict::Redirect]);
        world.enqueue(unproven);
        // Unit 0 would be written back to where the other launch is about to read.
        assert_eq!(world.launch(S1, &[reads(1)]), [Verdict::Conflict]);
        world.enqueue(reader);
        assert_ne!(world.launch(S1, &[reads(1)]), [Verdict::Conflict]);
    });
}

#[test]
fn a_write_to_the_shadow_waits_for_copies_that_read_it() {
    in_every_order(SAME, |world| {
        world.launch(S1, &[reads(0).stale()]);
        assert_eq!(world.launch(S2, &[writes(0).doubtful()]), [Verdict::Redirect]);
    });
}

#[test]
fn nothing_is_copied_in_while_a_write_to_the_shadow_is_open() {
    in_every_order(SAME, |world| {
        let writer = world.acquire(S1, &[writes(0).doubtful()]);
        set_order(world, &[0]);
        world.prefetch(S2);
        assert_eq!(world.launch(S2, &[reads(0).stale()]), [Verdict::Redirect]);
        assert_eq!(pages_in(&world.take_journal(), CopyStream::Prefetch), 0);
        world.enqueue(writer);
        world.launch(S2, &[reads(0)]);
    });
}

// Rules 10 to 12.

#[test]
fn a_new_stream_of_an_old_handle_waits_for_the_copy() {
    in_every_order(SAME, |world| {
        world.launch(S1, &[reads(0)]);
        world.destroy_stream(S1);
        world.launch(S1, &[reads(0)]);
    });
}

#[test]
fn a_copy_waits_for_the_readers_of_ended_streams() {
    in_every_order(SAME, |world| {
        for _ in 0..5 {
            world.launch(S1, &[reads(0)]);
            world.destroy_stream(S1);
        }
        world.launch(S1, &[reads(0)]);
        world.gpu.run_stream_only(S1);
        world.launch(S2, &[reads(1)]);
    });
}

#[test]
fn a_unit_becomes_private_behind_its_users() {
    in_every_order(SAME, |world| {
        world.launch(S1, &[reads(0)]);
        assert!(world.make_private(UnitId(0)));
        world.launch(S1, &[writes(1)]);
        assert!(world.make_private(UnitId(1)));
        world.launch(S1, &[reads(0), reads(1)]);
    });
}

#[test]
fn a_unit_becomes_private_behind_writes_to_its_shadow() {
    in_every_order(SAME, |world| {
        assert_eq!(world.launch(S1, &[writes(0).doubtful()]), [Verdict::Redirect]);
        assert!(world.make_private(UnitId(0)));
    });
}

#[test]
fn a_unit_stays_streamed_while_a_launch_that_shows_it_is_open() {
    in_every_order(SAME, |world| {
        for shown in [reads(0), reads(1).doubtful()] {
            let open = world.acquire(S1, &[shown]);
            assert!(!world.make_private(shown.hit.unit), "open as {:?}", open.verdicts);
            world.enqueue(open);
            assert!(world.make_private(shown.hit.unit));
        }
    });
}

#[test]
fn a_private_unit_leaves_its_pages_to_others() {
    in_every_order(SAME, |world| {
        world.launch(S1, &[reads(0).held()]);
        assert!(world.make_private(UnitId(0)));
        assert_eq!(world.launch(S1, &[reads(1)]), [Verdict::Ready]);
    });
    let mut world = World::new(4, 2, SAME, 0);
    set_order(&mut world, &[0, 1]);
    world.launch(S1, &[reads(0)]);
    assert!(world.make_private(UnitId(0)));
    world.take_journal();
    world.prefetch(S1);
    assert_eq!(pages_in(&world.take_journal(), CopyStream::Prefetch), 2, "its use has ended with it");
}

#[test]
fn a_unit_that_could_not_become_private_is_streamed_on() {
    in_every_order(SAME, |world| {
        world.launch(S1, &[writes(0)]);
        assert!(world.evict(UnitId(0)));
        world.launch(S2, &[reads(0)]);
    });
}

#[test]
fn a_private_unit_is_streamed_again() {
    in_every_order(SAME, |world| {
        world.launch(S1, &[reads(0)]);
        assert!(world.make_private(UnitId(0)));
        world.launch(S1, &[writes(0)]);
        world.stream_again(UnitId(0), 1);
        world.launch(S1, &[reads(1)]);
        world.launch(S2, &[reads(0)]);
    });
}

// Rule 5.

/// A world in which unit 0 was read on `S1` and unit 1 is next.
fn next_is_unit_1() -> World {
    let mut world = World::new(4, 2, SAME, 0);
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
    let mut world = next_is_unit_1();
    world.end_use(0);
    world.prefetch(S2);
    assert_eq!(pages_in(&world.take_journal(), CopyStream::Prefetch), 0, "S1 is not done, S2 asks");
    world.prefetch(S1);
    assert_eq!(pages_in(&world.take_journal(), CopyStream::Prefetch), 2, "S1 is not done, S1 asks");
    world.finish().expect("right bytes");
}

#[test]
fn prefetch_takes_pages_whose_readers_are_done() {
    let mut world = next_is_unit_1();
    world.end_use(0);
    world.gpu.drain();
    world.prefetch(S2);
    assert_eq!(pages_in(&world.take_journal(), CopyStream::Prefetch), 2);
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
