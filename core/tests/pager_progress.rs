//! In the case that it was made for, the pager is as good as it can be, and stays so for ever: what a pass copies, how far
//! ahead, and that nothing grows. That it is right is `pager_rules`' and `pager_properties`' matter.

mod pager_model;

use std::time::Instant;

use flextensor_core::pager::{
    Access, Certainty, Command, CopyStream, EventId, Hit, Pager, Progress, StreamId, Verdict,
};
use flextensor_core::units::{ModelId, UnitId};
use pager_model::world::{S1, S2, World, pages_in, reads, shared_events, writes};

const MODEL: ModelId = ModelId(0);
const SHAPE: u64 = 1;
const PAGES: u32 = 4;

/// `count` units of [`PAGES`] pages, each laid behind the one before it in a ring that holds `held` of them.
fn laid_around(count: u32, held: u32, seed: u64) -> World {
    let ring = held * PAGES;
    let units: Vec<_> = (0..count).map(|unit| (unit * PAGES % ring, PAGES)).collect();
    let mut world = World::new(ring, 2, &units, seed);
    let uses: Vec<_> = (0..count).map(|unit| (UnitId(unit), unit)).collect();
    world.pager.set_order(MODEL, &uses);
    world
}

/// One pass on one stream. Returns the units that were not in place when they were shown.
fn pass(world: &mut World, count: u32) -> Vec<u32> {
    let mut late = Vec::new();
    for unit in 0..count {
        let open = world.acquire(S1, &[reads(unit)]);
        assert_eq!(open.verdicts, [Verdict::Began]);
        let copied =
            |command: &Command| matches!(command, Command::CopyIn { unit: UnitId(of), .. } if *of == unit);
        let before = world.take_journal();
        // Everything before the launch that copies this unit, and was not there after the last launch, came too late.
        if before.iter().any(copied) {
            late.push(unit);
        }
        world.enqueue(open);
        world.take_journal();
        world.gpu.run(25);
    }
    late
}

#[test]
fn from_the_second_use_on_every_unit_is_on_its_way_before_it_is_shown() {
    for (count, held) in [(20, 4), (18, 4), (19, 4), (9, 2), (7, 3)] {
        let mut world = laid_around(count, held, 7);
        assert_eq!(
            pass(&mut world, count),
            [0],
            "{count} units, {held} in the ring: only the first use is early"
        );
        for _ in 0..3 {
            let late = pass(&mut world, count);
            // Where the first run of the ring is still the last unit's, the wrap comes late: the plan's layout decides.
            let wraps_onto_itself = (count - 1) % held == 0;
            assert!(
                late.is_empty() || (wraps_onto_itself && late == [0]),
                "{count} units, {held} in the ring: {late:?}"
            );
        }
        let counters = world.pager.counters();
        assert_eq!((counters.demand_loads, counters.mispredictions, counters.conflicts), (0, 0, 0));
        world.finish().expect("right bytes");
    }
}

#[test]
fn a_pass_copies_every_streamed_page_once() {
    let (count, held) = (20, 4);
    let mut world = laid_around(count, held, 3);
    pass(&mut world, count);
    let before = world.pager.counters().pages_in;
    for _ in 0..10 {
        pass(&mut world, count);
    }
    assert_eq!(world.pager.counters().pages_in - before, u64::from(10 * count * PAGES));
}

#[test]
fn a_ring_that_holds_everything_copies_everything_once() {
    let mut world = laid_around(6, 6, 3);
    for _ in 0..10 {
        pass(&mut world, 6);
    }
    assert_eq!(world.pager.counters().pages_in, u64::from(6 * PAGES));
}

#[test]
fn marks_of_passes_change_nothing_in_a_regular_program() {
    let (count, held) = (20, 4);
    let mut world = laid_around(count, held, 3);
    for _ in 0..5 {
        world.pager.pass_begin(MODEL, SHAPE);
        world.prefetch(S1);
        pass(&mut world, count);
        world.pager.pass_end(MODEL);
        world.prefetch(S1);
    }
    let counters = world.pager.counters();
    // Between passes the last use has ended: the ring's worth ahead is the next pass's.
    let ahead = u64::from((held - 1) * PAGES)..=u64::from(held * PAGES);
    assert!(ahead.contains(&(counters.pages_in - u64::from(5 * count * PAGES))), "{counters:?}");
    assert_eq!((counters.demand_loads, counters.mispredictions), (0, 0));
    world.finish().expect("right bytes");
}

#[test]
fn prefetch_fills_the_ring_but_for_the_unit_in_use() {
    let mut world = laid_around(20, 4, 3);
    world.launch(S1, &[reads(0)]);
    let journal = world.take_journal();
    assert_eq!(pages_in(&journal, CopyStream::Prefetch), 4 * PAGES, "the first use, and three ahead of it");
    world.launch(S1, &[reads(1)]);
    assert_eq!(pages_in(&world.take_journal(), CopyStream::Prefetch), PAGES);
}

#[test]
fn a_second_launch_of_a_use_copies_nothing() {
    let mut world = laid_around(20, 4, 3);
    world.launch(S1, &[reads(0)]);
    world.take_journal();
    world.launch(S1, &[reads(0)]);
    let copies = world.take_journal().into_iter().filter(|command| matches!(command, Command::CopyIn { .. }));
    assert_eq!(copies.count(), 0);
}

#[test]
fn after_an_early_exit_the_next_pass_is_regular() {
    let (count, held) = (20, 4);
    let mut world = laid_around(count, held, 3);
    pass(&mut world, count);
    for unit in 0..7 {
        world.launch(S1, &[reads(unit)]);
    }
    world.pager.pass_end(MODEL);
    world.prefetch(S1);
    world.take_journal();
    world.pager.pass_begin(MODEL, SHAPE);
    assert_eq!(pass(&mut world, count), [0; 0]);
    let counters = world.pager.counters();
    assert_eq!((counters.demand_loads, counters.mispredictions), (0, 0));
    world.finish().expect("right bytes");
}

/// How many of them the pager's whole state holds.
fn held_by(pager: &Pager, what: &str) -> usize {
    format!("{pager:?}").matches(what).count()
}

/// Small units around a ring that holds many, with events behind every `shared_events(seed)` pages.
fn small_units(count: u32, held: u32, seed: u64) -> World {
    let units: Vec<_> = (0..count).map(|unit| (unit % held, 1)).collect();
    let mut world = World::new(held, 2, &units, seed);
    let uses: Vec<_> = (0..count).map(|unit| (UnitId(unit), unit)).collect();
    world.pager.set_order(MODEL, &uses);
    world
}

/// Driver calls of one steady pass, for each of its uses.
fn calls_a_use(seed: u64) -> f64 {
    let (count, held) = (192, 64);
    let mut world = small_units(count, held, seed);
    let pass = |world: &mut World| {
        for unit in 0..count {
            world.launch(S1, &[reads(unit)]);
            world.gpu.run(25);
        }
        world.take_journal().len()
    };
    pass(&mut world);
    let calls = pass(&mut world);
    assert_eq!(world.pager.counters().demand_loads, 0);
    world.finish().expect("right bytes");
    calls as f64 / f64::from(count)
}

#[test]
fn small_units_that_follow_each_other_share_their_waits_and_records() {
    let (alone, shared) = (calls_a_use(3), calls_a_use(1));
    assert!((4.9..5.1).contains(&alone), "a copy, two waits and two records are five, not {alone}");
    assert!(shared < 2.1, "with an event behind four units these are a copy and one call more, not {shared}");
}

/// Each of them would only move the event that the first one had recorded.
#[test]
fn further_launches_of_a_use_cost_no_driver_call() {
    let (count, held) = (24, 8);
    for seed in [3, 1] {
        let calls = |launches: u32| {
            let mut world = small_units(count, held, seed);
            let pass = |world: &mut World| {
                for unit in 0..count {
                    (0..launches).for_each(|_| drop(world.launch(S1, &[reads(unit)])));
                    world.gpu.run(25);
                }
                world.take_journal().len()
            };
            // What the first pass shows is expected of the second one, whose marks are those of all later ones.
            for _ in 0..2 {
                pass(&mut world);
            }
            let calls = pass(&mut world);
            world.finish().expect("right bytes");
            calls
        };
        assert_eq!(calls(6), calls(1), "events behind {} pages", shared_events(seed));
    }
}

/// What the stream carries between two uses must not keep the pages of the first one: its event stands in front of that, where the use takes as many launches as last time.
#[test]
fn a_use_is_marked_behind_its_last_launch_not_in_front_of_the_next_use() {
    let (count, held) = (24, 8);
    let mut world = small_units(count, held, 3);
    let records_after = |world: &mut World, unit, launches: u32| -> Vec<usize> {
        world.take_journal();
        let after_each = (0..launches).map(|_| {
            world.launch(S1, &[reads(unit)]);
            let record = |command: &Command| matches!(command, Command::RecordReader { .. });
            world.take_journal().into_iter().filter(record).count()
        });
        after_each.collect()
    };
    let mut pass = |launches| -> Vec<Vec<usize>> {
        (0..count).map(|unit| records_after(&mut world, unit, launches)).collect()
    };
    (0..2).for_each(|_| drop(pass(3)));
    let as_many = pass(3);
    assert!(as_many.iter().all(|records| *records == [0, 0, 1]), "as many as last time: {as_many:?}");
    let more = pass(5);
    assert!(more[1..].iter().all(|records| *records == [1, 0, 1, 0, 0]), "the next use begins: {more:?}");
    let fewer = pass(2);
    assert!(fewer[1..].iter().all(|records| *records == [1, 0]), "the next use begins: {fewer:?}");
    assert!(pass(2)[1..].iter().all(|records| *records == [0, 1]));
    world.finish().expect("right bytes");
}

/// The event of a use is recorded behind its last launch, when its pages are not free yet; the next use frees them by its first launch, however many follow.
#[test]
fn pages_of_a_use_are_copied_over_as_soon_as_the_next_use_begins() {
    let (count, held) = (24, 8);
    let mut world = small_units(count, held, 3);
    let mut pass = || -> Vec<Vec<u64>> {
        let after_each = |world: &mut World, unit| {
            let copied = |_| {
                let before = world.pager.counters().pages_in;
                world.launch(S1, &[reads(unit)]);
                world.pager.counters().pages_in - before
            };
            (0..3).map(copied).collect()
        };
        (0..count).map(|unit| after_each(&mut world, unit)).collect()
    };
    (0..2).for_each(|_| drop(pass()));
    let copied = pass();
    assert!(copied.iter().all(|copied| *copied == [1, 0, 0]), "{copied:?}");
    world.finish().expect("right bytes");
}

/// No launch follows the last use of a pass: what it leaves is copied over all the same.
#[test]
fn pages_of_the_last_use_are_free_when_the_pass_has_ended() {
    let (count, held) = (24, 8);
    let mut world = small_units(count, held, 3);
    // Nor is it the launch that was expected to be the last one.
    for launches in [2, 1] {
        (0..count).for_each(|unit| (0..launches).for_each(|_| drop(world.launch(S1, &[reads(unit)]))));
        world.gpu.drain();
        world.take_journal();
        world.pager.pass_end(MODEL);
        world.prefetch(S1);
        assert_eq!(pages_in(&world.take_journal(), CopyStream::Prefetch), 1);
    }
    assert_eq!(world.pager.counters().pages_in, u64::from(2 * count + held), "the whole ring is ahead");
    world.finish().expect("right bytes");
}

#[test]
fn units_that_share_events_are_on_their_way_as_early_but_for_those_behind_one_event() {
    for seed in [1, 2] {
        let (count, held) = (192, 64);
        let mut world = small_units(count, held, seed);
        let ahead = |world: &World| world.pager.counters().pages_in as u32;
        for _ in 0..3 {
            for unit in 0..count {
                let before = ahead(&world);
                world.launch(S1, &[reads(unit)]);
                world.gpu.run(25);
                assert!(ahead(&world) - before <= held, "unit {unit}");
            }
        }
        let missing = 3 * count + held - ahead(&world);
        assert!(missing <= shared_events(seed) + 1, "{missing} pages fewer are ahead than the ring holds");
        world.finish().expect("right bytes");
    }
}

#[test]
fn nothing_grows_over_ten_thousand_passes() {
    grows_nothing(11, 10_000);
}

#[test]
fn nothing_grows_where_events_are_shared() {
    grows_nothing(9, 2000);
}

fn grows_nothing(seed: u64, rounds: u32) {
    let (count, held) = (8, 3);
    let mut world = laid_around(count, held, seed);
    let mut after_warm_up = None;
    for round in 0..rounds {
        for unit in 0..count {
            let shown = if unit == 3 { writes(unit) } else { reads(unit) };
            world.launch(if (round + unit) % 5 == 0 { S2 } else { S1 }, &[shown]);
            world.gpu.run(40);
        }
        world.launch(S2, &[writes(round % count).doubtful()]);
        // A stream that lives for one pass.
        let short = StreamId(3);
        world.launch(short, &[reads(round % count)]);
        world.launch(short, &[reads((round + 4) % count).doubtful()]);
        world.destroy_stream(short);
        world.take_journal();
        if round == 200 {
            after_warm_up = Some(world.pager.events());
        }
    }
    assert_eq!(Some(world.pager.events()), after_warm_up, "events");
    let most = (count * (2 * (2 + 2) + 4)) as usize;
    assert!(world.pager.events() as usize <= most, "{} events", world.pager.events());
    // A pool gives out what it has: every event that nobody shares is in one place.
    if shared_events(seed) == 1 {
        let named_twice = ["launches: Some(", "closed: Some("].map(|what| held_by(&world.pager, what));
        let held = held_by(&world.pager, "EventId(") - named_twice.iter().sum::<usize>();
        assert_eq!(held, world.pager.events() as usize);
    }
    assert!(held_by(&world.pager, "StreamId(") <= (count as usize) * 12);
    world.finish().expect("right bytes");
}

struct AllDone;

impl Progress for AllDone {
    fn completed(&self, _: EventId) -> bool {
        true
    }
}

#[test]
fn a_launch_with_one_hit_costs_little() {
    let (count, held) = (700, 12);
    let mut pager = Pager::new(held * PAGES, 8);
    for unit in 0..count {
        pager.add_unit(UnitId(unit), unit * PAGES, PAGES);
    }
    let uses: Vec<_> = (0..count).map(|unit| (UnitId(unit), unit)).collect();
    pager.set_order(MODEL, &uses);
    let mut out = Vec::with_capacity(1024);
    let passes = 20;
    let begin = Instant::now();
    for _ in 0..passes {
        for unit in 0..count {
            let hit = Hit {
                unit: UnitId(unit),
                access: Access::Read,
                certainty: Certainty::Live,
                hold: false,
                can_redirect: true,
            };
            let mut verdicts = [Verdict::Ready];
            pager.acquire(S1, &[hit], &mut verdicts, &mut out);
            pager.launched(S1, &[hit], &verdicts, &mut out);
            pager.prefetch(S1, &AllDone, &mut out);
            out.clear();
        }
    }
    let nanoseconds = begin.elapsed().as_nanos() / u128::from(passes * count);
    println!("{nanoseconds} ns a launch with one hit, check, record and prefetch together");
    assert!(nanoseconds < 20_000, "{nanoseconds} ns");
    assert_eq!(pager.counters().mispredictions, 0);
}
