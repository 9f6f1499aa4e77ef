//! Rule 6 for units of one launch that cannot be in the ring together: one that can be pointed at its shadow gives way to one that cannot, in whatever turn
//! the launch shows them, and neither becomes private. Uses whose pages other launches keep are `doubtful`'s matter.

use flextensor_core::pager::{CopyStream, Verdict};
use flextensor_core::units::UnitId;

use super::pager_model::world::{S1, S2, Shown, World, pages_in, reads, writes};
use super::{SAME, SPLIT, in_every_order, set_order};

/// By two words that look like an address, and may be one: it can only be served in place.
fn by_a_number(unit: u32) -> Shown {
    reads(unit).doubtful().fixed()
}

/// Launches the two in the one turn or the other. The verdicts are those of the first and of the second all the same.
fn launch(world: &mut World, turned: bool, [first, second]: [Shown; 2]) -> [Verdict; 2] {
    let shown = if turned { [second, first] } else { [first, second] };
    let mut verdicts = world.launch(S1, &shown);
    if turned {
        verdicts.reverse();
    }
    let streams = |shown: Shown| world.pager.streams(shown.hit.unit);
    assert!(streams(first) && streams(second), "a unit became private");
    [verdicts[0], verdicts[1]]
}

/// Unit 0 is a weight in use, of which the ring has the bytes; unit 1 is shown by a number.
fn a_number_beside_a_weight_in_place(turned: bool) {
    in_every_order(SAME, |world| {
        world.launch(S2, &[reads(0)]);
        let verdicts = launch(world, turned, [reads(0).live(), by_a_number(1)]);
        assert_eq!(verdicts, [Verdict::Redirect, Verdict::Ready]);
        world.launch(S1, &[reads(0)]);
        // A number that is no address at all.
        let verdicts = launch(world, turned, [reads(0).live(), by_a_number(1).stale()]);
        assert_eq!(verdicts, [Verdict::Redirect, Verdict::Ready]);
    });
}

#[test]
fn a_weight_shown_by_a_number_became_private_behind_the_one_in_place() {
    a_number_beside_a_weight_in_place(false);
}

#[test]
fn a_weight_shown_by_a_number_became_private_in_front_of_the_one_in_place() {
    a_number_beside_a_weight_in_place(true);
}

/// The launch begins the use: the weight was prefetched for it.
fn a_number_beside_a_use_that_begins(turned: bool) {
    in_every_order(SAME, |world| {
        set_order(world, &[0]);
        world.prefetch(S1);
        let verdicts = launch(world, turned, [reads(0).live(), by_a_number(1)]);
        assert_eq!(verdicts, [Verdict::Redirect, Verdict::Ready]);
        assert_eq!(world.pager.counters().uses, 1, "the use began all the same");
        assert_eq!(world.launch(S1, &[reads(0).live()]), [Verdict::Ready], "it goes on in place");
    });
}

#[test]
fn a_weight_shown_by_a_number_became_private_behind_a_use_that_began() {
    a_number_beside_a_use_that_begins(false);
}

#[test]
fn a_weight_shown_by_a_number_became_private_in_front_of_a_use_that_began() {
    a_number_beside_a_use_that_begins(true);
}

/// What cannot be pointed away has the pages, or nobody has them.
fn a_weight_that_is_not_in_place_beside_a_number(turned: bool) {
    in_every_order(SAME, |world| {
        let verdicts = launch(world, turned, [reads(0), by_a_number(1)]);
        assert_eq!(verdicts, [Verdict::Redirect, Verdict::Ready]);
        world.take_journal();
        let verdicts = launch(world, turned, [reads(0), by_a_number(1)]);
        assert_eq!(verdicts, [Verdict::Redirect, Verdict::Ready]);
        assert_eq!(pages_in(&world.take_journal(), CopyStream::Demand), 0, "all is where it can be");
    });
}

#[test]
fn pages_went_back_and_forth_behind_a_weight_that_is_not_in_place() {
    a_weight_that_is_not_in_place_beside_a_number(false);
}

#[test]
fn pages_went_back_and_forth_in_front_of_a_weight_that_is_not_in_place() {
    a_weight_that_is_not_in_place_beside_a_number(true);
}

/// The launch that reads the shadow comes behind the write-back that its own check began.
#[test]
fn a_changed_weight_that_gave_way_was_read_as_it_was_before() {
    for turned in [false, true] {
        in_every_order(SAME, |world| {
            world.launch(S2, &[writes(0)]);
            let verdicts = launch(world, turned, [reads(0), by_a_number(1)]);
            assert_eq!(verdicts, [Verdict::Redirect, Verdict::Ready]);
            world.launch(S2, &[writes(0)]);
            world.launch(S1, &[reads(1)]);
        });
    }
}

#[test]
fn the_more_certain_of_two_weights_gave_way() {
    for turned in [false, true] {
        in_every_order(SAME, |world| {
            world.launch(S1, &[reads(1)]);
            let verdicts = launch(world, turned, [reads(0), reads(1).live()]);
            assert_eq!(verdicts, [Verdict::Ready, Verdict::Redirect]);
        });
    }
}

#[test]
fn a_weight_in_place_gave_way_to_one_that_had_to_be_copied() {
    for turned in [false, true] {
        in_every_order(SAME, |world| {
            world.launch(S1, &[reads(0)]);
            world.take_journal();
            let verdicts = launch(world, turned, [reads(0), reads(1)]);
            assert_eq!(verdicts, [Verdict::Ready, Verdict::Redirect]);
            assert_eq!(pages_in(&world.take_journal(), CopyStream::Demand), 0);
        });
    }
}

/// Where each of two small units shares pages with a long one that cannot go, both give way to it; where the long one can go, it alone does.
#[test]
fn a_weight_gave_way_to_one_that_gave_way_itself() {
    for turned in [false, true] {
        in_every_order(SPLIT, |world| {
            world.launch(S1, &[reads(1), reads(2)]);
            let mut shown = [reads(1), by_a_number(0), reads(2)];
            let redirected = [Verdict::Redirect, Verdict::Ready, Verdict::Redirect];
            if turned {
                shown.reverse();
            }
            assert_eq!(world.launch(S1, &shown), redirected);
            // Unit 0 gives way to unit 2, so that unit 1 keeps what it could not have beside unit 0.
            let shown = [reads(1).doubtful(), reads(0).live(), by_a_number(2)];
            let verdicts = world.launch(S1, &shown);
            assert_eq!(verdicts[1..], [Verdict::Redirect, Verdict::Ready]);
            assert!((0..3).all(|unit| world.pager.streams(UnitId(unit))));
        });
    }
}

/// What is left: no way to have both right but private pages for one of them.
#[test]
fn units_that_must_both_be_in_place_had_no_conflict() {
    // Neither can be pointed away: a word that may be a number, a word that may write, memory that others may read through pointers.
    for stays in [reads(0).fixed(), writes(0), reads(0).held()] {
        for turned in [false, true] {
            in_every_order(SAME, |world| {
                world.launch(S1, &[reads(0)]);
                let number = by_a_number(1);
                let shown = if turned { [number, stays] } else { [stays, number] };
                let open = world.acquire(S1, &shown);
                assert_eq!(open.verdicts[usize::from(!turned)], Verdict::Conflict);
                assert!(open.verdicts[usize::from(turned)].in_place(), "what is in place stays");
                world.refuse(open);
            });
        }
    }
}

/// Other launches keep the pages: the unit that would give way stays, since nobody could use its pages.
#[test]
fn a_weight_gave_way_for_nothing() {
    for turned in [false, true] {
        // Its own pages are about to be read, or what they would be written back to; or it is held.
        in_every_order(SAME, |world| {
            for keeps in [reads(0), reads(0).held()] {
                let keeper = world.acquire(S2, &[keeps]);
                assert_conflict(world, turned, [reads(0), by_a_number(1)]);
                world.enqueue(keeper);
            }
            assert_conflict(world, turned, [reads(0), by_a_number(1)]);
            world.end_use(0);
            assert_eq!(launch(world, turned, [reads(0), by_a_number(1)])[1], Verdict::Ready);
        });
        in_every_order(SAME, |world| {
            let writer = world.acquire(S1, &[writes(0).stale()]);
            let keeper = world.acquire(S2, &[reads(0).doubtful()]);
            assert_eq!(keeper.verdicts, [Verdict::Redirect]);
            world.enqueue(writer);
            assert_conflict(world, turned, [reads(0), by_a_number(1)]);
            world.enqueue(keeper);
        });
        // Half of the pages that the long unit needs.
        in_every_order(SPLIT, |world| {
            world.launch(S1, &[reads(1)]);
            let keeper = world.acquire(S2, &[reads(2)]);
            assert_conflict(world, turned, [reads(1), by_a_number(0)]);
            world.enqueue(keeper);
        });
    }
}

/// The first is served in place, the second cannot be.
fn assert_conflict(world: &mut World, turned: bool, [first, second]: [Shown; 2]) {
    let open = world.acquire(S1, &if turned { [second, first] } else { [first, second] });
    assert!(open.verdicts[usize::from(turned)].in_place(), "{:?}", open.verdicts);
    assert_eq!(open.verdicts[usize::from(!turned)], Verdict::Conflict);
    world.refuse(open);
}
