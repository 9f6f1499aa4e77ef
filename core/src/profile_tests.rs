//! What profiles make of good and of bad passes.

use super::*;

const MODEL: ModelId = ModelId(7);

fn pass(shape: u64, times_ms: &[f64]) -> PassRecord {
    let mut pass = PassRecord::timed(MODEL, shape);
    for (at, ms) in (0..).zip(times_ms) {
        pass.record(UnitId(at), at * 10, *ms);
    }
    pass.finish(0.5)
}

fn times(profile: &PassProfile) -> Vec<f64> {
    profile.uses.iter().map(|used| used.compute_ms).collect()
}

#[test]
fn times_are_medians_over_passes() {
    let mut collector = ProfileCollector::new();
    for ms in [1.0, 1.02, 0.98] {
        collector.add(pass(0, &[ms, 2.0 * ms]));
    }
    let profile = collector.profile(MODEL).unwrap();
    assert_eq!(times(&profile), [1.0, 2.0]);
    assert_eq!((profile.tail_ms, profile.resident_ms), (0.5, 3.5));
    assert_eq!(profile.uses[1], UseInfo { unit: UnitId(1), compute_ms: 2.0, owner: 10 });
}

#[test]
fn slow_passes_are_dropped_as_a_whole() {
    let mut collector = ProfileCollector::new();
    for (first, second) in [(1.0, 2.0), (1.1, 1.9), (1.2, 1.8), (5.0, 90.0), (5.0, 95.0)] {
        collector.add(pass(0, &[first, second]));
    }
    // With the slow passes the median of the first use would be 1.2.
    assert_eq!(times(&collector.profile(MODEL).unwrap()), [1.1, 1.9]);
}

/// Three launches of the first use and one of the second, 1 ms more each while they are observed.
#[test]
fn what_observing_added_is_taken_off_the_uses_by_their_launches() {
    let mut observed = PassRecord::timed(MODEL, 0);
    observed.record(UnitId(0), 0, 5.0);
    observed.record_launches(3);
    observed.record(UnitId(1), 10, 7.0);
    let mut collector = ProfileCollector::new();
    collector.add(observed.finish(0.0));
    // Of two the shorter one: in the first one hooks were taken away.
    collector.add_whole(MODEL, 0, 9.0, 0.0);
    collector.add_whole(MODEL, 0, 8.0, 0.0);
    let profile = collector.profile(MODEL).unwrap();
    assert_eq!(times(&profile), [2.0, 6.0]);
    assert_eq!(profile.resident_ms, 8.0);
}

#[test]
fn a_whole_pass_that_took_longer_or_whose_shape_is_not_known_changes_nothing() {
    let mut collector = ProfileCollector::new();
    collector.add_whole(MODEL, 0, 1.0, 0.0);
    collector.add(pass(0, &[1.0, 2.0]));
    for ms in [4.0, f64::NAN, 0.0, -1.0] {
        collector.add_whole(MODEL, 0, ms, 0.0);
    }
    let profile = collector.profile(MODEL).unwrap();
    assert_eq!((times(&profile), profile.resident_ms), (vec![1.0, 2.0], 3.5));
}

/// A forward that was left early among usual ones, and one that is far shorter than all uses together.
#[test]
fn no_use_becomes_nothing_or_less_and_one_odd_pass_does_not_count() {
    let mut collector = ProfileCollector::new();
    collector.add(pass(0, &[0.001, 9.0]));
    for ms in [3.0, 0.1, 3.1] {
        collector.add_whole(MODEL, 0, ms, 0.0);
    }
    let profile = collector.profile(MODEL).unwrap();
    let sum: f64 = times(&profile).iter().sum::<f64>() + profile.tail_ms;
    assert!(times(&profile).iter().all(|&ms| ms > 0.0), "{profile:?}");
    assert!((sum - 3.0).abs() < 1e-9 && profile.resident_ms == 3.0, "{profile:?}");
}

/// Longer than the pass itself nobody launched it.
#[test]
fn what_the_host_takes_is_the_middle_of_what_was_seen_and_no_more_than_the_pass() {
    let host_ms = |seen: &[f64]| {
        let mut collector = ProfileCollector::new();
        collector.add(pass(0, &[1.0, 2.0]));
        seen.iter().for_each(|&host_ms| collector.add_whole(MODEL, 0, 3.0, host_ms));
        collector.profile(MODEL).unwrap().host_ms
    };
    assert_eq!(host_ms(&[2.5, 0.0, 2.0, 2.9]), 2.5);
    assert_eq!(host_ms(&[8.0]), 3.0);
    assert_eq!((host_ms(&[]), host_ms(&[0.0, f64::NAN])), (0.0, 0.0));
}

/// Nobody times the host while weights are streamed, and a plan that is made then reckons with it all the same.
#[test]
fn what_the_host_takes_is_known_however_many_passes_are_timed_without_it() {
    let mut collector = ProfileCollector::new();
    collector.add(pass(0, &[1.0, 2.0]));
    collector.add_whole(MODEL, 0, 3.0, 2.5);
    (0..100).for_each(|_| collector.add_whole(MODEL, 0, 3.2, 0.0));
    assert_eq!(collector.profile(MODEL).unwrap().host_ms, 2.5);
    collector.replace(pass(0, &[4.0, 2.0]));
    assert_eq!(collector.profile(MODEL).unwrap().host_ms, 2.5, "the same in other times");
    collector.replace(pass(0, &[1.0, 2.0, 3.0]));
    assert_eq!(collector.profile(MODEL).unwrap().host_ms, 0.0, "something else");
}

#[test]
fn what_the_host_took_is_forgotten_with_the_other_times() {
    let mut collector = ProfileCollector::new();
    collector.add(pass(0, &[1.0, 2.0]));
    collector.add_whole(MODEL, 0, 3.0, 2.5);
    collector.clear_durations(MODEL);
    assert_eq!(collector.profile(MODEL).unwrap().host_ms, 0.0);
}

#[test]
fn what_the_host_took_in_an_earlier_run_is_known_in_this_one() {
    let mut collector = ProfileCollector::new();
    collector.restore(pass(0, &[1.0, 2.0]), 9, 2.5);
    let profile = collector.profile(MODEL).unwrap();
    assert_eq!((profile.host_ms, profile.resident_ms, times(&profile)), (2.5, 3.5, vec![1.0, 2.0]));
}

#[test]
fn a_pass_that_replaces_what_was_known_does_away_with_whole_times_too() {
    let mut collector = ProfileCollector::new();
    collector.add(pass(0, &[1.0]));
    collector.add_whole(MODEL, 0, 0.5, 0.0);
    collector.replace(pass(0, &[4.0]));
    assert_eq!(collector.profile(MODEL).unwrap().resident_ms, 4.5);
}

#[test]
fn times_that_are_no_numbers_never_reach_the_profile() {
    let mut collector = ProfileCollector::new();
    collector.add(pass(0, &[f64::NAN, 2.0]));
    collector.add(pass(0, &[1.0, 2.0]));
    assert_eq!(times(&collector.profile(MODEL).unwrap()), [1.0, 2.0]);
}

#[test]
fn the_most_frequent_shape_is_the_plan_s_and_others_do_not_mix_in() {
    let mut collector = ProfileCollector::new();
    collector.add(pass(1, &[50.0]));
    collector.add(pass(2, &[1.0]));
    collector.add(pass(2, &[1.0]));
    let profile = collector.profile(MODEL).unwrap();
    assert_eq!((profile.shape, times(&profile)), (2, vec![1.0]));
    assert_eq!(collector.profiles(MODEL).len(), 2);
}

#[test]
fn passes_without_times_give_the_order_and_zero_times() {
    let mut collector = ProfileCollector::new();
    let mut seen = PassRecord::order_only(MODEL, 3);
    seen.record(UnitId(4), 1, 77.0);
    collector.add(seen.finish(9.0));
    let profile = collector.profile(MODEL).unwrap();
    assert_eq!(
        (profile.uses[0].unit, profile.uses[0].compute_ms, profile.resident_ms),
        (UnitId(4), 0.0, 0.0)
    );
}

#[test]
fn the_usual_order_wins_over_an_odd_pass() {
    let mut collector = ProfileCollector::new();
    collector.add(pass(0, &[1.0, 2.0]));
    collector.add(pass(0, &[1.0, 2.0]));
    collector.add(pass(0, &[9.0, 9.0, 9.0]));
    assert_eq!(collector.profile(MODEL).unwrap().uses.len(), 2);
}

#[test]
fn clearing_drops_a_models_times_and_keeps_the_order() {
    let mut collector = ProfileCollector::new();
    collector.add(pass(0, &[1.0, 2.0]));
    collector.clear_durations(ModelId(MODEL.0 + 1));
    assert_eq!(times(&collector.profile(MODEL).unwrap()), [1.0, 2.0]);
    collector.clear_durations(MODEL);
    assert_eq!(times(&collector.profile(MODEL).unwrap()), [0.0, 0.0]);
    collector.add(pass(0, &[5.0, 6.0]));
    assert_eq!(times(&collector.profile(MODEL).unwrap()), [5.0, 6.0]);
    assert_eq!(collector.timed_passes(MODEL, 0), 1);
}

#[test]
fn only_the_last_passes_are_kept() {
    let mut collector = ProfileCollector::new();
    collector.add(pass(0, &[9.0]));
    for _ in 0..KEPT_PASSES {
        collector.add(pass(0, &[1.0]));
    }
    assert_eq!(collector.timed_passes(MODEL, 0), KEPT_PASSES);
    collector.forget(MODEL);
    assert_eq!(collector.profile(MODEL), None);
}

#[test]
fn a_pass_that_replaces_what_was_known_is_the_profile_and_other_shapes_stay() {
    let mut collector = ProfileCollector::new();
    for shape in [0, 0, 0, 1] {
        collector.add(pass(shape, &[1.0, 2.0]));
    }
    collector.replace(pass(0, &[3.0]));
    let profiles = collector.profiles(MODEL);
    assert_eq!(profiles.iter().map(times).collect::<Vec<_>>(), [vec![3.0], vec![1.0, 2.0]]);
    assert_eq!(collector.profile(MODEL).unwrap().shape, 0, "it has been seen most");
    collector.keep_shapes(MODEL, &[1]);
    assert_eq!(collector.profiles(MODEL).len(), 1);
}

#[test]
fn of_shapes_without_end_only_the_usual_ones_are_known() {
    let mut collector = ProfileCollector::new();
    (0..3).for_each(|_| collector.add(pass(5, &[1.0])));
    (100..1000).for_each(|shape| collector.add(pass(shape, &[1.0])));
    let shapes: Vec<u64> = collector.profiles(MODEL).iter().map(|profile| profile.shape).collect();
    assert_eq!(shapes.len(), LEARNT_SHAPES);
    assert!(shapes.contains(&5) && shapes.contains(&999), "{shapes:?}");
    assert_eq!(collector.profile(MODEL).unwrap().shape, 5);
}
