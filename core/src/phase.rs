//! The phases of one model as a pure state machine: `step(state, event)` gives the next state and what is to
//! be done. It counts passes and suspensions; measuring, planning and switching over belong to whoever
//! performs the commands.

use serde::{Deserialize, Serialize};

/// Where a model stands. Within a run it only moves forward; only [`PhaseEvent::Release`] starts over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "SCREAMING_SNAKE_CASE")]
pub enum Phase {
    /// No model is known yet.
    #[default]
    NotInitialized,
    /// Passes show which weights belong to what, and in which order they are used.
    Discovery,
    /// Passes are timed with their weights already in place.
    Profiling,
    /// The plan is in force.
    Inference,
}

impl Phase {
    /// The number that `ft_phase` returns.
    #[must_use]
    pub fn code(self) -> i32 {
        match self {
            Phase::NotInitialized => 0,
            Phase::Discovery => 1,
            Phase::Profiling => 2,
            Phase::Inference => 3,
        }
    }

    /// The name users see.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Phase::NotInitialized => "NOT_INITIALIZED",
            Phase::Discovery => "DISCOVERY",
            Phase::Profiling => "PROFILING",
            Phase::Inference => "INFERENCE",
        }
    }
}

/// The counts that move a model from phase to phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PhaseSettings {
    /// Passes of DISCOVERY; 0 counts as 1.
    pub discovery_iters: u32,
    /// Timed passes of PROFILING; 0 counts as 1.
    pub profiling_iters: u32,
    /// Leave DISCOVERY at once, without a pass, where owners are known without running.
    pub skip_discovery: bool,
    /// Passes at the start of PROFILING in which compilers warm up; they are neither timed nor counted.
    pub compile_warmups: u32,
    /// With false the phases still advance, but suspending, resuming and clearing do nothing: nothing is
    /// recorded.
    pub enabled: bool,
}

impl Default for PhaseSettings {
    fn default() -> Self {
        PhaseSettings {
            discovery_iters: 1,
            profiling_iters: 10,
            skip_discovery: false,
            compile_warmups: 0,
            enabled: true,
        }
    }
}

/// Passes that are timed as a whole, at most.
const MOST_WHOLE: u32 = 2;

/// What happened to the model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PhaseEvent {
    /// Its weights and owners have been named.
    ModelReady {
        /// Owners are known without running it, so `skip_discovery` can be honoured.
        owners_known: bool,
    },
    /// A pass has ended.
    PassEnd {
        /// It was recorded into a graph, so its times say nothing.
        captured: bool,
    },
    /// Stop recording times until the matching [`PhaseEvent::Resume`].
    Suspend,
    /// Undo one [`PhaseEvent::Suspend`].
    Resume,
    /// Forget all times recorded so far.
    ClearDurations,
    /// A saved profile took the place of DISCOVERY and PROFILING.
    ProfileLoaded,
    /// The model is let go.
    Release,
}

/// What is to be done now, in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PhaseCommand {
    /// Observe passes.
    StartDiscovery,
    /// Time passes.
    StartProfiling,
    /// Make the plan and switch over.
    StartInference,
    /// Recording of times (in INFERENCE: watching for drift) stops.
    PauseRecording,
    /// Recording of times goes on.
    ResumeRecording,
    /// Drop the times recorded so far; what belongs to what stays known.
    ClearDurations,
    /// Make every range private and forget the model.
    Forget,
    /// The event is not allowed now; nothing changed.
    Refuse(PhaseRefusal),
}

/// Why an event was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, thiserror::Error)]
pub enum PhaseRefusal {
    /// Suspend, resume or clear before a model is known.
    #[error("no model is being offloaded yet: offload() comes first")]
    NoModel,
    /// More resumes than suspends.
    #[error("profiling is not suspended: every resume needs its own suspend before it")]
    NotSuspended,
    /// A model is already there.
    #[error("a model is already being offloaded: release() it first")]
    AlreadyReady,
    /// A profile is loaded when the plan is already in force.
    #[error("the model is already in INFERENCE: phases do not go back within a run")]
    AlreadyInference,
}

/// The state of one model.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct PhaseState {
    phase: Phase,
    settings: PhaseSettings,
    /// None until the model is ready.
    skip_honored: Option<bool>,
    iterations: u32,
    warmups_left: u32,
    suspensions: u32,
}

impl PhaseState {
    /// The state before any model is known.
    #[must_use]
    pub fn new(settings: PhaseSettings) -> Self {
        PhaseState {
            phase: Phase::NotInitialized,
            settings,
            skip_honored: None,
            iterations: 0,
            warmups_left: 0,
            suspensions: 0,
        }
    }

    /// The phase.
    #[must_use]
    pub fn phase(&self) -> Phase {
        self.phase
    }

    /// Counted passes of this phase so far.
    #[must_use]
    pub fn iterations(&self) -> u32 {
        self.iterations
    }

    /// Whether `skip_discovery` was honoured; none before the model was ready.
    #[must_use]
    pub fn skip_honored(&self) -> Option<bool> {
        self.skip_honored
    }

    /// Whether recording is suspended. Always false when switched off.
    #[must_use]
    pub fn is_suspended(&self) -> bool {
        self.suspensions > 0
    }

    /// Whether the times of a pass that runs now are to be kept.
    #[must_use]
    pub fn records_times(&self) -> bool {
        self.phase == Phase::Profiling
            && self.suspensions == 0
            && self.warmups_left == 0
            && self.settings.enabled
    }

    /// Whether a pass that runs now is to be timed as a whole, with nothing else observed: the last ones of PROFILING, where enough of those before them were timed
    /// use by use. Observing takes host time, and a program that launches hardly faster than it computes would seem slower than it is.
    #[must_use]
    pub fn times_whole(&self) -> bool {
        let iters = self.settings.profiling_iters;
        self.records_times() && self.iterations.saturating_add(MOST_WHOLE.min(iters / 4)) >= iters.max(1)
    }

    /// Passes from the first one to INFERENCE on the path that this model takes (before it is ready: with
    /// DISCOVERY).
    #[must_use]
    pub fn iters_before_inference(&self) -> u32 {
        let discovery =
            if self.skip_honored == Some(true) { 0 } else { self.settings.discovery_iters.max(1) };
        discovery
            .saturating_add(self.settings.profiling_iters.max(1))
            .saturating_add(self.settings.compile_warmups)
    }

    fn enter(&mut self, phase: Phase) {
        self.phase = phase;
        self.iterations = 0;
        self.warmups_left = if phase == Phase::Profiling { self.settings.compile_warmups } else { 0 };
    }
}

/// The next state, and what is to be done.
#[must_use]
pub fn step(mut state: PhaseState, event: PhaseEvent) -> (PhaseState, Vec<PhaseCommand>) {
    let commands = match event {
        PhaseEvent::ModelReady { owners_known } => model_ready(&mut state, owners_known),
        PhaseEvent::PassEnd { captured } => pass_end(&mut state, captured),
        PhaseEvent::Suspend | PhaseEvent::Resume | PhaseEvent::ClearDurations => control(&mut state, event),
        PhaseEvent::ProfileLoaded if state.phase == Phase::Inference => {
            vec![PhaseCommand::Refuse(PhaseRefusal::AlreadyInference)]
        }
        PhaseEvent::ProfileLoaded => {
            state.enter(Phase::Inference);
            vec![PhaseCommand::StartInference]
        }
        PhaseEvent::Release if state.phase == Phase::NotInitialized => vec![],
        PhaseEvent::Release => {
            state = PhaseState::new(state.settings);
            vec![PhaseCommand::Forget]
        }
    };
    (state, commands)
}

fn model_ready(state: &mut PhaseState, owners_known: bool) -> Vec<PhaseCommand> {
    if state.phase != Phase::NotInitialized {
        return vec![PhaseCommand::Refuse(PhaseRefusal::AlreadyReady)];
    }
    let skip = state.settings.skip_discovery && owners_known;
    state.skip_honored = Some(skip);
    state.enter(Phase::Discovery);
    let mut commands = vec![PhaseCommand::StartDiscovery];
    if skip {
        state.enter(Phase::Profiling);
        commands.push(PhaseCommand::StartProfiling);
    }
    commands
}

fn pass_end(state: &mut PhaseState, captured: bool) -> Vec<PhaseCommand> {
    match state.phase {
        Phase::NotInitialized | Phase::Inference => vec![],
        // Who uses what is needed by every later phase, so DISCOVERY counts suspended and captured passes as
        // well.
        Phase::Discovery => {
            state.iterations += 1;
            if state.iterations < state.settings.discovery_iters.max(1) {
                return vec![];
            }
            state.enter(Phase::Profiling);
            vec![PhaseCommand::StartProfiling]
        }
        Phase::Profiling if state.suspensions > 0 || captured => vec![],
        Phase::Profiling if state.warmups_left > 0 => {
            state.warmups_left -= 1;
            vec![]
        }
        Phase::Profiling => {
            state.iterations += 1;
            if state.iterations < state.settings.profiling_iters.max(1) {
                return vec![];
            }
            state.enter(Phase::Inference);
            vec![PhaseCommand::StartInference]
        }
    }
}

fn control(state: &mut PhaseState, event: PhaseEvent) -> Vec<PhaseCommand> {
    if state.phase == Phase::NotInitialized {
        return vec![PhaseCommand::Refuse(PhaseRefusal::NoModel)];
    }
    if !state.settings.enabled {
        return vec![];
    }
    match event {
        PhaseEvent::Suspend => {
            state.suspensions = state.suspensions.saturating_add(1);
            if state.suspensions == 1 { vec![PhaseCommand::PauseRecording] } else { vec![] }
        }
        PhaseEvent::Resume if state.suspensions == 0 => {
            vec![PhaseCommand::Refuse(PhaseRefusal::NotSuspended)]
        }
        PhaseEvent::Resume => {
            state.suspensions -= 1;
            if state.suspensions == 0 { vec![PhaseCommand::ResumeRecording] } else { vec![] }
        }
        // Only times go; the count of passes stays, as users of the interface expect.
        _ => vec![PhaseCommand::ClearDurations],
    }
}

#[cfg(test)]
#[path = "phase_tests.rs"]
mod tests;
