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
