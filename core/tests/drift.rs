//! When passes are observed again and when a new plan is asked for: soon after something changed, seldom where nothing can be learnt, and never without
//! a cause.

use flextensor_core::drift::{Expected, REPAID_WITHIN, TIMES, Watch, repays};
use flextensor_core::pager::{KEPT_SHAPES, PassTally};

const SHAPE: u64 = 7;
const GOOD: PassTally = PassTally { followed: true, demand_loads: 0, redirects: 40 };
const OFF: PassTally = PassTally { followed: false, demand_loads: 3, redirects: 40 };

/// Runs passes of one shape; a pass that is observed teaches its order. Returns the numbers of those.
fn observed(watch: &mut Watch, shape: u64, passes: impl IntoIterator<Item = PassTally>) -> Vec<usize> {
    let mut list = Vec::new();
    for (number, tally) in passes.into_iter().enumerate() {
        if watch.begins(shape) {
            watch.observed(shape);
            list.push(number);
        } else {
            watch.ended(shape, tally);
        }
    }
    list
}

fn learnt() -> Watch {
    let mut watch = Watch::default();
    watch.know(SHAPE);
    watch
}

#[test]
fn passes_that_follow_their_order_are_never_observed() {
    assert!(observed(&mut learnt(), SHAPE, [GOOD; 1000]).is_empty());
}

#[test]
fn the_pass_after_the_first_one_that_does_not_follow_is_observed() {
    assert_eq!(observed(&mut learnt(), SHAPE, [GOOD, GOOD, OFF, GOOD, GOOD, GOOD]), [3]);
    assert_eq!(observed(&mut learnt(), SHAPE, [PassTally { demand_loads: 1, ..GOOD }, GOOD]), [1]);
}

#[test]
fn a_shape_that_is_new_and_does_as_usual_is_not_observed() {
    let mut watch = learnt();
    for shape in 100..200 {
        assert!(observed(&mut watch, shape, [GOOD; 2]).is_empty(), "shape {shape}");
    }
}

/// Decoding with a mask that grows is a new shape at each step.
#[test]
fn shapes_that_never_come_again_are_observed_once_when_they_change() {
    let mut watch = learnt();
    let mut count = 0;
    for shape in 100..400 {
        // From shape 200 on they are used in another order, until one has been observed: then that is the usual one.
        let tally = if shape >= 200 && count == 0 { OFF } else { GOOD };
        count += observed(&mut watch, shape, [tally]).len();
    }
    assert_eq!(count, 1);
}

#[test]
fn an_order_that_cannot_be_learnt_is_observed_less_and_less() {
    let list = observed(&mut learnt(), SHAPE, [OFF; 2000]);
    assert!(list.len() <= 12, "{list:?}");
    let gaps: Vec<usize> = list.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(gaps.windows(2).all(|pair| pair[1] >= pair[0]), "{gaps:?}");
}

#[test]
fn a_program_that_became_steady_is_observed_at_once_when_it_changes_again() {
    let mut watch = learnt();
    observed(&mut watch, SHAPE, [OFF; 300]);
    observed(&mut watch, SHAPE, [GOOD; 300]);
    assert_eq!(observed(&mut watch, SHAPE, [OFF, OFF]), [1]);
}

#[test]
fn doubtful_hits_that_a_pass_always_has_are_no_news_and_many_more_are() {
    let with = |redirects| PassTally { redirects, ..GOOD };
    assert!(observed(&mut learnt(), SHAPE, (0..100).map(|pass| with(38 + pass % 5))).is_empty());
    assert_eq!(observed(&mut learnt(), SHAPE, [with(40), with(40), with(80), with(80)]), [3]);
}

#[test]
fn one_shape_s_trouble_is_not_another_s() {
    let mut watch = learnt();
    watch.know(8);
    observed(&mut watch, SHAPE, [OFF; 50]);
    assert!(observed(&mut watch, 8, [GOOD; 50]).is_empty());
    assert_eq!(observed(&mut watch, 8, [OFF, OFF]), [1]);
}

#[test]
fn only_a_few_shapes_are_remembered() {
    let mut watch = learnt();
    for shape in 0..1000 {
        watch.begins(shape);
        watch.observed(shape);
    }
    assert_eq!(watch.known().count(), KEPT_SHAPES);
    assert!(watch.known().all(|shape| shape >= 1000 - KEPT_SHAPES as u64));
}

fn timed(watch: &mut Watch, ms: f64, passes: usize) -> bool {
    (0..passes).for_each(|_| watch.measured(SHAPE, ms));
    watch.drifted().eq([SHAPE])
}

#[test]
fn a_plan_is_wanted_when_passes_take_longer_than_expected_and_not_for_a_few() {
    let mut watch = learnt();
    watch.expect(SHAPE, Expected { pass_ms: 100.0, bound_ms: 90.0 });
    assert!(!timed(&mut watch, 108.0, 50));
    assert!(!timed(&mut watch, 150.0, TIMES / 2 - 1), "a few slow passes");
    assert!(timed(&mut watch, 150.0, TIMES));
}

#[test]
fn passes_of_models_that_take_turns_are_judged_by_nothing() {
    let mut watch = learnt();
    watch.expect(SHAPE, Expected { pass_ms: f64::INFINITY, bound_ms: 90.0 });
    for ms in [1.0, 1000.0] {
        assert!(!timed(&mut watch, ms, TIMES), "{ms}");
    }
}

/// Then the times that it was made from are not the program's.
#[test]
fn a_plan_is_wanted_when_passes_take_much_shorter_than_expected() {
    let mut watch = learnt();
    watch.expect(SHAPE, Expected { pass_ms: 100.0, bound_ms: 90.0 });
    assert!(!timed(&mut watch, 92.0, TIMES), "a little shorter");
    assert!(timed(&mut watch, 70.0, TIMES));
    watch.settled();
    assert!(!timed(&mut watch, 71.0, TIMES), "that has been thought of");
}

#[test]
fn what_no_plan_could_do_better_is_not_tried() {
    let mut watch = learnt();
    watch.expect(SHAPE, Expected { pass_ms: 0.0, bound_ms: 100.0 });
    assert!(!timed(&mut watch, 109.0, 50));
    assert!(timed(&mut watch, 120.0, 50));
}

#[test]
fn a_plan_that_was_thought_of_is_not_asked_for_again_until_times_change() {
    let mut watch = learnt();
    watch.expect(SHAPE, Expected { pass_ms: 100.0, bound_ms: 90.0 });
    assert!(timed(&mut watch, 150.0, TIMES));
    watch.settled();
    assert!(!timed(&mut watch, 155.0, 100));
    assert!(timed(&mut watch, 180.0, TIMES));
}

/// Also one that does as usual: what is asked for are its times.
/// How many plans a program is worth whose passes become slower and faster by half every 40 passes, each plan being made for what it does at that moment.
fn plans_of_a_program_that_comes_and_goes(passes: usize) -> Vec<usize> {
    let mut watch = learnt();
    let mut planned = Vec::new();
    let mut expected = 100.0;
    watch.expect(SHAPE, Expected { pass_ms: expected, bound_ms: 50.0 });
    for pass in 0..passes {
        let ms = if pass / 40 % 2 == 0 { 150.0 } else { 100.0 };
        if timed(&mut watch, ms, 1) {
            watch.settled();
            expected = ms;
            watch.expect(SHAPE, Expected { pass_ms: expected, bound_ms: 50.0 });
            planned.push(pass);
        }
    }
    planned
}

#[test]
fn a_shape_whose_times_come_and_go_is_planned_for_less_and_less() {
    let planned = plans_of_a_program_that_comes_and_goes(2000);
    assert!(planned.first() < Some(&10), "the first plan comes at once: {planned:?}");
    assert!((2..=8).contains(&planned.len()), "{planned:?}");
}

#[test]
fn a_shape_that_was_calm_for_long_is_planned_for_at_once() {
    let mut watch = learnt();
    watch.expect(SHAPE, Expected { pass_ms: 100.0, bound_ms: 50.0 });
    assert!(timed(&mut watch, 150.0, 8));
    watch.settled();
    watch.expect(SHAPE, Expected { pass_ms: 150.0, bound_ms: 50.0 });
    assert!(!timed(&mut watch, 100.0, 12), "planned for again within its patience");
    assert!(!timed(&mut watch, 150.0, 300));
    assert!(timed(&mut watch, 100.0, 8), "calm for long, and still patient");
}

#[test]
fn a_shape_is_looked_at_for_its_times_once() {
    let mut watch = learnt();
    assert!(watch.look_at(9));
    assert_eq!(observed(&mut watch, 9, [GOOD; 50]), [0]);
    assert!(!watch.look_at(9));
    assert!(observed(&mut watch, 9, [GOOD; 50]).is_empty());
}

#[test]
fn times_that_are_no_times_say_nothing() {
    let mut watch = learnt();
    watch.expect(SHAPE, Expected { pass_ms: 10.0, bound_ms: 10.0 });
    for nonsense in [f64::NAN, f64::INFINITY, 0.0, -5.0] {
        assert!(!timed(&mut watch, nonsense, 20), "{nonsense}");
    }
}

#[test]
fn a_new_shape_that_is_slow_is_awaited_until_a_pass_of_it_was_observed() {
    let mut watch = Watch::default();
    let slow = |watch: &mut Watch| {
        assert!(!watch.begins(SHAPE));
        watch.ended(SHAPE, GOOD);
        watch.measured(SHAPE, 50.0);
    };
    (0..TIMES).for_each(|_| slow(&mut watch));
    assert!(watch.drifted().eq([SHAPE]) && !watch.awaits(SHAPE));
    assert!(watch.look_at(SHAPE) && watch.awaits(SHAPE));
    assert!(!watch.look_at(SHAPE) && watch.awaits(SHAPE), "nothing was observed yet");
    assert!(watch.begins(SHAPE) && watch.awaits(SHAPE), "that pass goes on");
    watch.observed(SHAPE);
    assert!(!watch.awaits(SHAPE) && watch.drifted().eq([SHAPE]));
}

#[test]
fn a_shape_that_is_awaited_is_drifted_still_after_a_plan_for_others() {
    let mut watch = Watch::default();
    for shape in [1, 2] {
        for _ in 0..TIMES {
            assert!(!watch.begins(shape));
            watch.ended(shape, GOOD);
            watch.measured(shape, 50.0);
        }
    }
    assert!(watch.look_at(2));
    watch.settled();
    assert!(watch.drifted().eq([2]));
}

#[test]
fn a_change_is_worth_it_when_its_gain_repays_its_cost_in_time() {
    let passes = f64::from(REPAID_WITHIN);
    assert!(repays(&[(100.0, 90.0)], 10.0 * passes));
    assert!(!repays(&[(100.0, 90.0)], 10.0 * passes + 1.0));
    assert!(!repays(&[(100.0, 99.0)], 0.0), "a trifle");
    assert!(!repays(&[(90.0, 100.0)], 0.0));
    assert!(!repays(&[(f64::NAN, 1.0)], 0.0));
    assert!(!repays(&[], 0.0));
    // What takes no time as far as is known stands against nothing, and a little that is lost against no large gain.
    assert!(repays(&[(100.0, 90.0), (0.0, 0.0)], 0.0));
    assert!(repays(&[(100.0, 50.0), (1.0, 1.5)], 0.0));
}

#[test]
fn what_a_short_shape_gains_is_no_trifle_beside_a_long_one_that_gains_nothing() {
    let passes = f64::from(REPAID_WITHIN);
    let times = [(1000.0, 1000.0), (100.0, 90.0)];
    assert!(repays(&times, 5.0 * passes) && !repays(&times, 5.0 * passes + 1.0));
    assert!(!repays(&[(1000.0, 1020.0), (100.0, 90.0)], 0.0), "more is lost than gained");
}

#[test]
fn a_plan_that_is_asked_for_is_made_after_one_observed_pass_however_well_passes_go() {
    let mut watch = Watch::default();
    watch.know(1);
    watch.know(2);
    let follows = PassTally { followed: true, ..PassTally::default() };
    for shape in [1, 2, 1, 2] {
        assert!(!watch.begins(shape) && !watch.take_asked());
        watch.ended(shape, follows);
    }
    watch.ask();
    assert!(!watch.take_asked(), "nothing was observed yet");
    assert!(watch.begins(1));
    watch.observed(1);
    assert!(watch.take_asked() && !watch.take_asked());
    watch.keep_asked();
    assert!(watch.take_asked(), "it could not be made, and is still wanted");
    assert!(watch.begins(2), "every shape is looked at once");
    watch.observed(2);
    assert!(!watch.take_asked());
    watch.ended(1, follows);
    assert!(!watch.begins(1));
}
