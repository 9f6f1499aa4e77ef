//! The phase table as a snapshot, and the rules of counting that it cannot show.

use super::*;

fn settings(discovery_iters: u32, profiling_iters: u32) -> PhaseSettings {
    PhaseSettings { discovery_iters, profiling_iters, ..PhaseSettings::default() }
}

fn ready(settings: PhaseSettings) -> PhaseState {
    step(PhaseState::new(settings), PhaseEvent::ModelReady { owners_known: true }).0
}

fn after(state: PhaseState, events: &[PhaseEvent]) -> (PhaseState, Vec<PhaseCommand>) {
    events.iter().fold((state, vec![]), |(state, _), event| step(state, *event))
}

const PASS: PhaseEvent = PhaseEvent::PassEnd { captured: false };

/// Passes that are driven until INFERENCE begins.
fn driven(settings: PhaseSettings) -> u32 {
    let mut state = ready(settings);
    for passes in 1..1000 {
        state = step(state, PASS).0;
        if state.phase() == Phase::Inference {
            return passes;
        }
    }
    panic!("INFERENCE never began");
}

#[test]
fn the_transition_table_is_this() {
    let events = [
        PhaseEvent::ModelReady { owners_known: true },
        PASS,
        PhaseEvent::PassEnd { captured: true },
        PhaseEvent::Suspend,
        PhaseEvent::Resume,
        PhaseEvent::ClearDurations,
        PhaseEvent::ProfileLoaded,
        PhaseEvent::Release,
    ];
    let new = PhaseState::new(settings(1, 1));
    let discovery = ready(settings(1, 1));
    let profiling = step(discovery, PASS).0;
    let inference = step(profiling, PASS).0;
    let mut table = String::new();
    for state in [new, discovery, profiling, inference] {
        for suspended in [false, true] {
            let state = if suspended { step(state, PhaseEvent::Suspend).0 } else { state };
            if suspended && !state.is_suspended() {
                continue;
            }
            for event in events {
                let (next, commands) = step(state, event);
                let mark = |state: &PhaseState| if state.is_suspended() { " (suspended)" } else { "" };
                table += &format!(
                    "{}{} + {event:?} = {}{} #{} {commands:?}\n",
                    state.phase().name(),
                    mark(&state),
                    next.phase().name(),
                    mark(&next),
                    next.iterations(),
                );
            }
        }
    }
    let snapshot = include_str!("phase_table.txt");
    assert_eq!(
        table, snapshot,
        "the table has changed; if it was meant to, put this into phase_table.txt:\n{table}"
    );
}

#[test]
fn counts_have_a_floor_of_one_and_the_announced_number_of_passes_is_driven() {
    for (discovery, profiling, passes) in [(0, 0, 2), (1, 10, 11), (2, 3, 5)] {
        let settings = settings(discovery, profiling);
        assert_eq!(ready(settings).iters_before_inference(), passes);
        assert_eq!(driven(settings), passes);
    }
}

#[test]
fn honoured_skipping_leaves_discovery_without_a_pass() {
    let settings = PhaseSettings { skip_discovery: true, ..settings(4, 3) };
    let (state, commands) = step(PhaseState::new(settings), PhaseEvent::ModelReady { owners_known: true });
    assert_eq!(commands, [PhaseCommand::StartDiscovery, PhaseCommand::StartProfiling]);
    assert_eq!(state.skip_honored(), Some(true));
    assert_eq!((state.iters_before_inference(), driven(settings)), (3, 3));
}

#[test]
fn skipping_is_not_honoured_where_owners_are_unknown() {
    let settings = PhaseSettings { skip_discovery: true, ..settings(4, 3) };
    let (state, _) = step(PhaseState::new(settings), PhaseEvent::ModelReady { owners_known: false });
    assert_eq!((state.phase(), state.skip_honored()), (Phase::Discovery, Some(false)));
    assert_eq!(state.iters_before_inference(), 7);
}

#[test]
fn compile_warm_ups_are_driven_but_neither_timed_nor_counted() {
    let settings = PhaseSettings { compile_warmups: 3, ..settings(1, 2) };
    assert_eq!((ready(settings).iters_before_inference(), driven(settings)), (6, 6));
    let (state, _) = after(ready(settings), &[PASS, PASS]);
    assert_eq!((state.phase(), state.iterations(), state.records_times()), (Phase::Profiling, 0, false));
    let (state, _) = after(state, &[PASS, PASS]);
    assert!(state.records_times());
}

/// Passes of PROFILING that are timed as a whole, by their numbers.
fn whole(profiling_iters: u32) -> Vec<u32> {
    let mut state = step(ready(settings(1, profiling_iters)), PASS).0;
    let mut whole = Vec::new();
    for number in 1..=profiling_iters {
        if state.times_whole() {
            whole.push(number);
        }
        state = step(state, PASS).0;
    }
    assert_eq!(state.phase(), Phase::Inference);
    assert!(!state.times_whole(), "INFERENCE");
    whole
}

#[test]
fn the_last_passes_of_profiling_are_timed_as_a_whole_where_enough_go_before() {
    assert_eq!(whole(10), [9, 10]);
    assert_eq!(whole(8), [7, 8]);
    assert_eq!(whole(4), [4]);
    for few in 1..4 {
        assert!(whole(few).is_empty(), "{few}");
    }
}

#[test]
fn suspension_freezes_profiling_but_not_discovery() {
    let (state, _) = after(ready(settings(2, 2)), &[PhaseEvent::Suspend, PASS, PASS, PASS, PASS]);
    assert_eq!((state.phase(), state.iterations()), (Phase::Profiling, 0));
    assert!(!state.records_times());
    let (state, _) = after(state, &[PhaseEvent::Resume, PASS, PASS]);
    assert_eq!(state.phase(), Phase::Inference);
}

#[test]
fn suspensions_are_counted_and_only_the_last_resume_lets_recording_go_on() {
    let (state, commands) = after(ready(settings(1, 1)), &[PhaseEvent::Suspend, PhaseEvent::Suspend]);
    assert!(commands.is_empty());
    let (state, commands) = step(state, PhaseEvent::Resume);
    assert!(state.is_suspended() && commands.is_empty());
    let (state, commands) = step(state, PhaseEvent::Resume);
    assert_eq!(commands, [PhaseCommand::ResumeRecording]);
    let (state, commands) = step(state, PhaseEvent::Resume);
    assert_eq!(commands, [PhaseCommand::Refuse(PhaseRefusal::NotSuspended)]);
    assert!(!state.is_suspended());
}

#[test]
fn clearing_keeps_the_count_of_passes() {
    let (state, commands) = after(ready(settings(1, 3)), &[PASS, PASS, PhaseEvent::ClearDurations]);
    assert_eq!(commands, [PhaseCommand::ClearDurations]);
    assert_eq!(state.iterations(), 1);
}

#[test]
fn captured_passes_never_count_as_samples() {
    let captured = PhaseEvent::PassEnd { captured: true };
    let (state, _) = after(ready(settings(1, 1)), &[captured, captured, captured]);
    assert_eq!((state.phase(), state.iterations()), (Phase::Profiling, 0));
}

#[test]
fn switched_off_phases_advance_and_control_does_nothing() {
    let settings = PhaseSettings { enabled: false, ..settings(1, 1) };
    let (state, commands) = after(ready(settings), &[PASS, PhaseEvent::Suspend]);
    assert!(commands.is_empty() && !state.is_suspended() && !state.records_times());
    let (state, commands) = step(state, PhaseEvent::Resume);
    assert!(commands.is_empty());
    assert_eq!(step(state, PASS).0.phase(), Phase::Inference);
}

#[test]
fn inference_is_never_left_but_by_release() {
    let inference = step(ready(settings(1, 1)), PhaseEvent::ProfileLoaded).0;
    let (state, _) = after(
        inference,
        &[
            PASS,
            PhaseEvent::Suspend,
            PhaseEvent::ClearDurations,
            PhaseEvent::ModelReady { owners_known: true },
            PASS,
        ],
    );
    assert_eq!(state.phase(), Phase::Inference);
    let (state, commands) = step(state, PhaseEvent::Release);
    assert_eq!((state, commands), (PhaseState::new(settings(1, 1)), vec![PhaseCommand::Forget]));
}
