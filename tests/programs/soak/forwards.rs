//! The threads that run forwards: each of its own model, which it also writes, and of one that all of them read. How many they run is said by who moves weights, so that these get their turn
//! on a small machine too.

use super::dice::Dice;
use super::model::{Model, Place};
use super::{Stage, THREADS};
use harness::driver::Failure;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Barrier, Condvar, Mutex};

/// Forwards in which a model is learnt, at most.
const LEARNING: usize = 200;

/// The models of one life and what their threads have done.
pub(crate) struct Crew {
    own: Vec<Mutex<(Model, Dice)>>,
    pub(crate) shared: Model,
    /// Every model as it was named: ids and names of weights, for choices.
    pub(crate) known: Vec<Model>,
    passes: AtomicU64,
    refused: AtomicU64,
    failed: AtomicBool,
    turns: Turns,
}

/// Forwards that may be run.
#[derive(Default)]
struct Turns {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    left: u64,
    over: bool,
}

impl Turns {
    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock().expect("nobody panics with the lock"));
        self.changed.notify_all();
    }

    /// Waits for a turn; false when all is over.
    fn take(&self) -> bool {
        let mut state = self.state.lock().expect("nobody panics with the lock");
        while state.left == 0 && !state.over {
            state = self.changed.wait(state).expect("nobody panics with the lock");
        }
        state.left = state.left.saturating_sub(1);
        self.changed.notify_all();
        !state.over
    }

    /// Waits until somebody has taken every turn.
    fn wait_for_all(&self) {
        let mut state = self.state.lock().expect("nobody panics with the lock");
        while state.left > 0 && !state.over {
            state = self.changed.wait(state).expect("nobody panics with the lock");
        }
    }
}

impl Crew {
    pub(crate) fn new(models: Vec<Model>, shared: Model, dice: &mut Dice) -> Self {
        let known = models.iter().chain([&shared]).cloned().collect();
        Self {
            own: models.into_iter().map(|model| Mutex::new((model, dice.split()))).collect(),
            shared,
            known,
            passes: AtomicU64::new(0),
            refused: AtomicU64::new(0),
            failed: AtomicBool::new(false),
            turns: Turns::default(),
        }
    }

    /// Forwards that have ended.
    pub(crate) fn passes(&self) -> u64 {
        self.passes.load(Ordering::Acquire)
    }

    /// Calls of these threads that were refused.
    pub(crate) fn refused(&self) -> u64 {
        self.refused.load(Ordering::Relaxed)
    }

    /// So many forwards more may be run.
    pub(crate) fn run(&self, forwards: u64) {
        self.turns.change(|state| state.left += forwards);
    }

    /// Waits until the last of them have begun.
    pub(crate) fn wait_for_turns(&self) {
        self.turns.wait_for_all();
    }

    fn fail(&self) {
        self.failed.store(true, Ordering::Release);
        self.turns.change(|state| state.over = true);
    }

    /// Whether a thread has ended by a failure: nobody need wait for its forwards.
    pub(crate) fn has_failed(&self) -> bool {
        self.failed.load(Ordering::Acquire)
    }

    /// Learns all models, then runs forwards until `moves` is done.
    pub(crate) fn work(
        &mut self,
        stage: &Stage,
        moves: impl FnOnce(&Crew) -> Result<(), Failure>,
    ) -> Result<(), Failure> {
        let crew = &*self;
        let learnt = Barrier::new(THREADS + 1);
        std::thread::scope(|scope| {
            let learnt = &learnt;
            let threads = crew.own.iter().map(|own| scope.spawn(move || crew.thread(stage, own, learnt)));
            let running: Vec<_> = threads.collect();
            learnt.wait();
            let moved = moves(crew);
            crew.turns.change(|state| state.over = true);
            let ended = running.into_iter().map(|thread| thread.join().expect("a thread does not panic"));
            let ended: Vec<_> = ended.collect();
            // A thread that failed is why its forwards were waited for in vain.
            ended.into_iter().collect::<Result<(), Failure>>().and(moved)
        })
    }

    fn thread(&self, stage: &Stage, own: &Mutex<(Model, Dice)>, learnt: &Barrier) -> Result<(), Failure> {
        let mut own = own.lock().expect("only this thread takes it");
        let (model, dice) = &mut *own;
        let place = stage.gpu.enter().and_then(|()| Place::make(stage));
        let mut place = match place {
            Ok(place) => place,
            Err(failure) => {
                self.fail();
                learnt.wait();
                return Err(failure);
            }
        };
        let mut done = self.learn(stage, model, &mut place, dice);
        learnt.wait();
        while done.is_ok() && self.turns.take() {
            done = self.once(stage, model, &mut place, dice);
        }
        if done.is_err() {
            self.fail();
        }
        self.refused.fetch_add(place.refused, Ordering::Relaxed);
        done.and_then(|()| place.end(stage))
    }

    fn learn(&self, stage: &Stage, own: &Model, place: &mut Place, dice: &mut Dice) -> Result<(), Failure> {
        let in_inference = |model: &Model| stage.ft.as_ref().is_none_or(|ft| ft.model_phase(model.id) == 3);
        for _ in 0..LEARNING {
            if in_inference(own) && in_inference(&self.shared) {
                return Ok(());
            }
            self.forward(stage, own, place, dice)?;
            self.forward(stage, &self.shared, place, dice)?;
        }
        panic!("{LEARNING} forwards did not teach the library");
    }

    fn once(
        &self,
        stage: &Stage,
        own: &mut Model,
        place: &mut Place,
        dice: &mut Dice,
    ) -> Result<(), Failure> {
        self.forward(stage, own, place, dice)?;
        if dice.chance(30) {
            self.forward(stage, &self.shared, place, dice)?;
        }
        if dice.chance(15) {
            own.write(stage, place, dice)?;
        }
        Ok(())
    }

    fn forward(
        &self,
        stage: &Stage,
        model: &Model,
        place: &mut Place,
        dice: &mut Dice,
    ) -> Result<(), Failure> {
        model.forward(stage, place, dice)?;
        self.passes.fetch_add(1, Ordering::AcqRel);
        Ok(())
    }

    /// Verifies every byte, and lets all models go. Returns the wrong words.
    pub(crate) fn end(self, stage: &Stage) -> Result<u64, Failure> {
        stage.gpu.synchronize()?;
        let own = self.own.into_iter().map(|own| own.into_inner().expect("its thread has ended").0);
        let mut wrong = 0;
        for model in own.chain([self.shared]) {
            wrong += model.wrong_words(stage)?;
            model.end(stage)?;
        }
        Ok(wrong)
    }
}
