//! Rules 6 and 7: uses whose pages cannot be had, and hits that may be none; launches that read or write the shadow instead.

use flextensor_core::pager::{CopyStream, Verdict};
use flextensor_core::units::UnitId;

use super::pager_model::world::{S1, S2, World, pages_in, reads, writes};
use super::{SAME, SPLIT, in_every_order, set_order};

// Rule 6.

#[test]
fn units_of_one_launch_do_not_displace_each_other() {
    in_every_order(SAME, |world| {
        // What may be written gives way to nothing.
        assert_eq!(world.launch(S1, &[writes(0), writes(1)]), [Verdict::Ready, Verdict::Conflict]);
        world.launch(S1, &[reads(1)]);
        // The one that is shown first may not take what the second one has.
        assert_eq!(world.launch(S1, &[writes(0), writes(1)]), [Verdict::Conflict, Verdict::Ready]);
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

/// What is said to be in use is served in place, so that nothing but its access counts.
#[test]
fn a_unit_is_in_use_while_it_is_in_place_and_nobody_is_about_to_write_its_shadow() {
    let mut world = World::new(4, 2, &[(0, 2), (2, 2), (2, 2)], 0);
    set_order(&mut world, &[0, 1, 2]);
    let in_use = |world: &World| [0, 1].map(|unit| world.pager.is_in_use(UnitId(unit)));
    assert_eq!(in_use(&world), [false, false], "not copied in");
    world.launch(S1, &[reads(0)]);
    assert_eq!(in_use(&world), [true, false]);
    world.launch(S1, &[reads(1)]);
    assert_eq!(in_use(&world), [false, true], "the first use has ended");
    let writer = world.acquire(S2, &[writes(0).stale().doubtful()]);
    assert_eq!(writer.verdicts, [Verdict::Redirect]);
    let reader = world.acquire(S1, &[reads(0)]);
    assert_eq!(reader.verdicts, [Verdict::Began]);
    assert!(!in_use(&world)[0], "its shadow is about to be written");
    world.enqueue(reader);
    world.enqueue(writer);
    assert!(!in_use(&world)[0], "its pages are not the truth any more");
    world.launch(S1, &[reads(0)]);
    assert!(in_use(&world)[0]);
    world.finish().expect("right bytes");
}
