//! Rules 10 to 12: streams that end, and units that get pages of their own.

use flextensor_core::pager::{CopyStream, Verdict};
use flextensor_core::units::UnitId;

use super::pager_model::world::{S1, S2, World, pages_in, reads, writes};
use super::{SAME, in_every_order, set_order};

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
