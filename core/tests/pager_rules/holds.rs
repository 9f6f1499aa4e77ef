//! Rules 2 and 3 for units that are held for their owner's whole forward: launches that do not show them may read them.

use flextensor_core::pager::Verdict;
use flextensor_core::units::UnitId;

use super::pager_model::world::{S1, S2, reads, writes};
use super::{SAME, in_every_order, set_order};

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
