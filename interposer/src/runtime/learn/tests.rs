//! Bounds of what is kept of passes. Marks stand for none of a driver here: they are counted, never recorded or read.

use super::pass::{MOST_USES, MOST_WAITS};
use super::*;
use crate::ffi::types::CUevent;

const MODEL: ModelId = ModelId(1);

fn marks(count: usize) -> Vec<Event> {
    let handle = |number: usize| -> CUevent { std::ptr::without_provenance_mut(number) };
    (1..=count).map(|number| Event::from(handle(number))).collect()
}

/// A pass with so many uses, each with a mark.
fn marked(number: u64, uses: usize) -> Pass {
    let mut pass = Pass::new(number, MODEL, 0, true);
    for (unit, mark) in (0..).zip(marks(uses)) {
        let at = pass.begins(UnitId(unit), 0, true).expect("there is room");
        pass.ends(at, Some(mark));
    }
    pass
}

#[test]
fn a_pass_tells_so_many_uses_apart_and_goes_on() {
    let mut pass = Pass::new(1, MODEL, 0, true);
    let told = (0..MOST_USES + 5).filter(|&at| pass.begins(UnitId(0), at as u32, true).is_some());
    assert_eq!(told.count(), MOST_USES);
    assert_eq!(pass.order().len(), MOST_USES);
}

#[test]
fn launches_are_not_marked_where_so_many_wait_already() {
    let mut pass = marked(1, 1);
    pass.start = marks(1).pop();
    for wait in marks(2 * MOST_WAITS).chunks(2) {
        assert!(pass.may_wait(true));
        pass.waited(0, Some((wait[0], wait[1])));
    }
    assert!(!pass.may_wait(true));
    // One whose beginning is marked gets its end.
    pass.mark_waiting(marks(1).pop(), true);
    assert!(pass.may_wait(false));
}

#[test]
fn passes_that_are_never_said_to_end_give_way_to_later_ones() {
    let mut recorder = Recorder::default();
    recorder.begin_learning(MODEL);
    (0..3 * MOST_OPEN).for_each(|_| recorder.pass_begin(MODEL, 0, false));
    assert_eq!(recorder.active.len(), MOST_OPEN);
    assert_eq!(recorder.active.last().map(|pass| pass.number), Some(3 * MOST_OPEN as u64));
}

#[test]
fn passes_of_a_model_are_observed_as_long_as_it_is_learnt() {
    let mut recorder = Recorder::default();
    recorder.pass_begin(MODEL, 0, false);
    assert!(recorder.active.is_empty());
    recorder.begin_learning(MODEL);
    recorder.pass_begin(MODEL, 0, false);
    recorder.pass_begin_anew(MODEL, 0, false);
    recorder.end_learning(MODEL);
    assert!(recorder.active.iter().all(|pass| pass.anew) && recorder.active.len() == 1);
    recorder.pass_begin(MODEL, 0, false);
    assert_eq!(recorder.active.len(), 1);
}

#[test]
fn a_pass_that_is_observed_anew_is_ended_by_its_number() {
    let mut recorder = Recorder::default();
    let first = recorder.pass_begin_anew(MODEL, 0, false);
    let second = recorder.pass_begin_anew(MODEL, 0, false);
    assert_eq!(recorder.pass_end_anew(first, false), None);
    assert_eq!(recorder.active.iter().map(|pass| pass.number).collect::<Vec<_>>(), [second]);
    // Nor does the end of one that is learnt end it.
    recorder.pass_end(MODEL, false);
    assert_eq!(recorder.active.len(), 1);
}

#[test]
fn the_oldest_ended_passes_give_up_their_times_first_and_keep_their_order() {
    let mut recorder = Recorder::default();
    recorder.finished.extend((1..=3).map(|number| marked(number, 6)));
    recorder.give_up_times(MODEL, 13);
    let timed: Vec<(bool, usize)> =
        recorder.finished.iter().map(|pass| (pass.timed, pass.order().len())).collect();
    assert_eq!(timed, [(false, 6), (true, 6), (true, 6)]);
    // Nothing is waited for, and what is known of it is its order.
    recorder.finished.truncate(1);
    recorder.collect();
    assert!(recorder.finished.is_empty());
    assert_eq!(recorder.collector.passes(MODEL, 0), 1);
    assert_eq!(recorder.collector.timed_passes(MODEL, 0), 0);
}

#[test]
fn what_ended_of_a_model_that_is_gone_is_gone() {
    let mut recorder = Recorder::default();
    recorder.finished.push(marked(1, 6));
    recorder.forget(MODEL);
    recorder.collect();
    assert!(recorder.finished.is_empty());
    assert_eq!(recorder.collector.passes(MODEL, 0), 0);
}
