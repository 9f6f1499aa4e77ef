//! When the process is quiet (`crate::quiet`): everything stays where it is, and nothing is being learnt, so that launches have nothing to wait for and passes nothing to tell.
//! All of what decides it is read here, and nowhere else; nobody keeps a flag of his own.
//!
//! It is looked at when a pass that was told has ended. Who is about to change something leaves the quiet state at once: whoever closes the gate, lets a stream capture, gives
//! a page of the arena a meaning, or calls the C interface for more than a mark or a question. The state is then not quiet until the next pass has ended.

use flextensor_core::phase::Phase;

use super::arena::arena;
use super::devices::MAX_DEVICES;
use super::models::Model;
use super::regions::Region;
use super::streaming::ring_of;
use super::world::{World, world};
use super::{check, graphs, learn, memory, pressure, replan};
use crate::quiet;

/// Why calls have to be looked at.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Because {
    /// Check mode looks at everything.
    Checked,
    /// A stream captures: what is launched there becomes part of a graph.
    Captured,
    /// What was freed during a capture has not gone yet.
    PutOff,
    /// A device has a ring, also one of nothing.
    Streamed,
    /// A plan is thought of, or waits for its moment.
    Planned,
    /// A budget is exceeded that is to be held between forwards.
    Owed,
    /// A pass is being observed.
    Observed,
    /// No model is known: nobody says what the program does.
    Unknown,
    /// A model is named, or learnt.
    Learnt,
    /// Forwards read weights through pointers: their owners have to be told.
    Pointers,
    /// Owners of a model that an earlier run learnt still report.
    Guided,
    /// A page of a region means something to launches: it is being learnt, streamed, in host memory, or lost.
    Shown,
}

/// What is known of a model.
#[derive(Clone, Copy, Debug)]
struct Known {
    phase: Phase,
    pointers: bool,
    guided: bool,
    observed: bool,
}

impl Known {
    fn of(model: &Model) -> Self {
        Known {
            phase: model.phase.phase(),
            pointers: !model.held.is_empty() || !model.lent.is_empty(),
            guided: model.guided > 0,
            observed: model.observation.is_some(),
        }
    }
}

/// What is known of the process.
#[derive(Clone, Debug)]
struct Facts {
    checked: bool,
    captures: bool,
    put_off: bool,
    rings: bool,
    planned: bool,
    owed: bool,
    observed: bool,
    models: Vec<Known>,
    /// No page of a region means anything.
    nothing_shown: bool,
}

impl Facts {
    fn look() -> Self {
        let world = world();
        let models: Vec<Known> = world.models.values().map(Known::of).collect();
        let nothing_shown = means_nothing(&world);
        drop(world);
        Facts {
            checked: check::is_on(),
            captures: graphs::any_capture(),
            put_off: memory::any_put_off(),
            rings: (0..MAX_DEVICES as i32).any(|device| ring_of(device).is_some()),
            planned: replan::is_under_way(),
            owed: pressure::is_any_owed(),
            observed: learn::observes(),
            models,
            nothing_shown,
        }
    }

    fn against_quiet(&self) -> Option<Because> {
        let any = |is: fn(&Known) -> bool| self.models.iter().any(is);
        let all = [
            (self.checked, Because::Checked),
            (self.captures, Because::Captured),
            (self.put_off, Because::PutOff),
            (self.rings, Because::Streamed),
            (self.planned, Because::Planned),
            (self.owed, Because::Owed),
            (self.observed || any(|model| model.observed), Because::Observed),
            (self.models.is_empty(), Because::Unknown),
            (any(|model| model.phase != Phase::Inference), Because::Learnt),
            (any(|model| model.pointers), Because::Pointers),
            (any(|model| model.guided), Because::Guided),
            (!self.nothing_shown, Because::Shown),
        ];
        all.into_iter().find_map(|(stands, because)| stands.then_some(because))
    }
}

/// The truth that launches are told, page by page: a word each, in a row.
fn means_nothing(world: &World) -> bool {
    let Some(arena) = arena() else { return true };
    world.regions.values().all(|region: &Region| arena.means_nothing(region.base, region.pages()))
}

/// A pass that was told has ended, and the calling thread holds nothing: the process is quiet from now on, if nothing stands against it.
pub(super) fn settle() {
    let Some(moment) = quiet::moment() else { return };
    if Facts::look().against_quiet().is_none() && quiet::begin(moment) {
        crate::log::debug!("nothing is streamed, and all is learnt: launches go straight to the driver");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A model that fits, and is learnt.
    const STILL: Known = Known { phase: Phase::Inference, pointers: false, guided: false, observed: false };

    fn still() -> Facts {
        Facts {
            checked: false,
            captures: false,
            put_off: false,
            rings: false,
            planned: false,
            owed: false,
            observed: false,
            models: vec![STILL, STILL],
            nothing_shown: true,
        }
    }

    #[test]
    fn a_process_whose_models_fit_and_are_learnt_is_quiet() {
        assert_eq!(still().against_quiet(), None);
    }

    #[test]
    fn each_of_these_alone_forbids_it() {
        let second = |facts: &mut Facts, known: Known| facts.models[1] = known;
        type Change<'a> = &'a dyn Fn(&mut Facts);
        let table: [(Because, Change); 15] = [
            (Because::Checked, &|facts| facts.checked = true),
            (Because::Captured, &|facts| facts.captures = true),
            (Because::PutOff, &|facts| facts.put_off = true),
            (Because::Streamed, &|facts| facts.rings = true),
            (Because::Planned, &|facts| facts.planned = true),
            (Because::Owed, &|facts| facts.owed = true),
            (Because::Observed, &|facts| facts.observed = true),
            (Because::Observed, &|facts| second(facts, Known { observed: true, ..STILL })),
            (Because::Unknown, &|facts| facts.models.clear()),
            (Because::Learnt, &|facts| second(facts, Known { phase: Phase::NotInitialized, ..STILL })),
            (Because::Learnt, &|facts| second(facts, Known { phase: Phase::Discovery, ..STILL })),
            (Because::Learnt, &|facts| second(facts, Known { phase: Phase::Profiling, ..STILL })),
            (Because::Pointers, &|facts| second(facts, Known { pointers: true, ..STILL })),
            (Because::Guided, &|facts| second(facts, Known { guided: true, ..STILL })),
            (Because::Shown, &|facts| facts.nothing_shown = false),
        ];
        for (because, change) in table {
            let mut facts = still();
            change(&mut facts);
            assert_eq!(facts.against_quiet(), Some(because), "{facts:?}");
        }
    }
}
