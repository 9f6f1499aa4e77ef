//! Rules 3 (write-back), 4 and 8: what is written goes to the shadow, and is there before it is copied in again.

use flextensor_core::pager::{Command, CopyStream, Verdict};

use super::pager_model::world::{S1, S2, World, reads, writes};
use super::{SAME, SPLIT, in_every_order, set_order};

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
