//! Makes weights move while others use them: another choice of what is streamed, a cache that grows until weights have to leave, and shrinks until they are back, an allocation
//! that nothing can make room for. Before some of these the driver is told to refuse one call. Waits are counted in forwards, never in time: short forwards of its own, and some of
//! those of the crew between any two moves.

use super::dice::Dice;
use super::forwards::Crew;
use super::model::Place;
use super::{Stage, say};
use harness::driver::Failure;
use harness::gpu::Argument::Word;
use harness::gpu::PAGE;

/// Forwards in which something that was asked for happens, if it does.
const PATIENCE: u64 = 3000;

/// The same of a choice: one that changes nothing, or is thought of later, is not waited for.
const CHOSEN: u64 = 24;

/// Forwards of anybody after which leaving again is not soon: before, weights come back later each time.
const CALM: u64 = 70;

/// Forwards of the crew between two moves.
const MEANWHILE: u64 = 8;

/// Short forwards between two looks at what has happened.
const LOOK: u64 = 4;

/// Bytes that weights have to make free: for less they do not come back.
const WORTH: u64 = 8 << 20;

/// Most blocks of the cache.
const BLOCKS: usize = 64;

/// Calls that moving weights makes, with what the driver may answer. Not among them are copies: after one that was refused nobody knows what memory holds, and the ring ends.
const REFUSALS: [(&str, u64); 9] = [
    ("cuMemCreate", 2),
    ("cuMemMap", 999),
    ("cuMemSetAccess", 999),
    ("cuMemUnmap", 999),
    ("cuMemHostRegister_v2", 2),
    ("cuMemAddressReserve", 2),
    ("cuStreamCreateWithPriority", 2),
    ("cuMemGetInfo_v2", 999),
    ("cuCtxSynchronize", 999),
];

/// What has happened so far.
#[derive(Default)]
pub(crate) struct Done {
    pub(crate) rounds: u64,
    switches: u64,
    demotions: u64,
    promotions: u64,
    refusals: u64,
    without_memory: u64,
}

impl Done {
    pub(crate) fn are_enough(&self, steps: u64) -> bool {
        [self.switches, self.demotions, self.promotions, self.refusals, self.without_memory]
            .into_iter()
            .all(|count| count >= steps)
    }

    pub(crate) fn say(&self) {
        say("rounds", self.rounds);
        say("switches", self.switches);
        say("demotions", self.demotions);
        say("promotions", self.promotions);
        say("refusals", self.refusals);
        say("without memory", self.without_memory);
    }
}

/// One thread that moves weights, and the memory that it holds for that.
pub(crate) struct Moves<'a> {
    stage: &'a Stage,
    crew: &'a Crew,
    dice: &'a mut Dice,
    pub(crate) done: &'a mut Done,
    cache: Vec<(u64, u64, u64)>,
    place: Place,
    /// Short forwards that have ended.
    glances: u64,
}

impl<'a> Moves<'a> {
    pub(crate) fn new(
        stage: &'a Stage,
        crew: &'a Crew,
        dice: &'a mut Dice,
        done: &'a mut Done,
    ) -> Result<Self, Failure> {
        Ok(Self { stage, crew, dice, done, cache: Vec::new(), place: Place::make(stage)?, glances: 0 })
    }

    /// Each kind of move once, as far as it comes about.
    pub(crate) fn round(&mut self) -> Result<(), Failure> {
        self.done.rounds += 1;
        let before = self.counts();
        self.choose()?;
        let placed = self.stage.gpu_bytes_of_weights();
        self.run_short()?;
        self.ask_for_too_much()?;
        if self.dice.chance(25) {
            self.choose()?;
        }
        self.check_cache()?;
        self.shrink(placed)?;
        let passes = self.passes();
        self.wait(CALM, |moves| moves.passes() >= passes + CALM)?;
        let after = self.counts();
        let kinds = [
            &mut self.done.switches,
            &mut self.done.demotions,
            &mut self.done.promotions,
            &mut self.done.refusals,
        ];
        for ((kind, before), after) in kinds.into_iter().zip(before).zip(after) {
            *kind += after - before;
        }
        Ok(())
    }

    /// Forwards of anybody.
    fn passes(&self) -> u64 {
        self.crew.passes() + self.glances
    }

    fn counts(&self) -> [u64; 4] {
        let of = |key| self.stage.counted(key);
        [of("replans"), of("demotions"), of("promotions"), self.stage.sim.stat("faults_delivered")]
    }

    /// Short forwards until `happened`, or so many.
    fn wait(&mut self, forwards: u64, happened: impl Fn(&Self) -> bool) -> Result<(), Failure> {
        for done in 0..forwards {
            if self.crew.has_failed() || (done.is_multiple_of(LOOK) && happened(self)) {
                break;
            }
            self.crew.run(1);
            self.crew.shared.glance(self.stage, &mut self.place, self.dice)?;
            self.glances += 1;
        }
        Ok(())
    }

    /// The crew runs some forwards with things as they are.
    fn let_crew_run(&self) {
        self.crew.run(MEANWHILE);
        self.crew.wait_for_turns();
    }

    /// The crew is busy when things begin to move.
    fn keep_crew_busy(&self) {
        self.crew.run(MEANWHILE);
    }

    /// One call of this kind will be refused, in every second case.
    fn arm(&mut self) -> Option<&'static str> {
        if !self.dice.chance(60) {
            return None;
        }
        let (call, code) = REFUSALS[self.dice.index(REFUSALS.len())];
        self.stage.sim.set(&format!("fault:{call}"), code);
        Some(call)
    }

    fn disarm(&self, call: Option<&'static str>) {
        if let Some(call) = call {
            self.stage.sim.set(&format!("fault:{call}"), 0);
        }
    }

    /// Other weights are to be streamed: about half of each model's.
    fn choose(&mut self) -> Result<(), Failure> {
        let Some(ft) = &self.stage.ft else { return Ok(()) };
        self.keep_crew_busy();
        let armed = self.arm();
        let moved = |moves: &Self| moves.stage.counted("replans") + moves.stage.counted("replans_given_up");
        let before = moved(self);
        for model in &self.crew.known {
            let mut names: Vec<String> =
                model.weights.iter().map(|weight| format!("{:?}", weight.name)).collect();
            self.dice.shuffle(&mut names);
            names.truncate(names.len() / 2 + self.dice.index(2));
            let json = format!(r#"{{"name": "soak", "weights": [{}]}}"#, names.join(", "));
            assert_eq!(ft.model_strategy(model.id, Some(&json)), 0, "{json}");
        }
        self.wait(CHOSEN, |moves| moved(moves) > before)?;
        self.disarm(armed);
        self.let_crew_run();
        Ok(())
    }

    /// The cache grows until weights had to leave.
    fn run_short(&mut self) -> Result<(), Failure> {
        let before = self.stage.counted("demoted_bytes");
        self.keep_crew_busy();
        let armed = self.arm();
        while self.stage.counted("demoted_bytes") < before + WORTH && self.cache.len() < BLOCKS {
            if !self.grow()? {
                break;
            }
        }
        self.disarm(armed);
        self.let_crew_run();
        Ok(())
    }

    /// One block more. False if there is none.
    fn grow(&mut self) -> Result<bool, Failure> {
        let bytes = self.dice.between(1, 4) * 2 * PAGE as u64;
        match self.ask(bytes) {
            Ok(address) => {
                let seed = self.stage.fresh_seed();
                let arguments = [address, bytes, seed].map(Word);
                self.stage.gpu.launch("fill", self.place.stream, &arguments)?;
                self.cache.push((address, bytes, seed));
                Ok(true)
            }
            Err(_) => Ok(false),
        }
    }

    /// Asks for memory inside a forward, as activations are: no host memory stands in then. Twice, as an allocator does that first lets go of what it keeps.
    fn ask(&self, bytes: u64) -> Result<u64, Failure> {
        let (gpu, id) = (&self.stage.gpu, self.crew.shared.id);
        if let Some(ft) = &self.stage.ft {
            ft.pass_begin(id, 3);
        }
        let got = gpu.alloc(bytes as usize).or_else(|_| gpu.alloc(bytes as usize));
        if let Some(ft) = &self.stage.ft {
            ft.pass_end(id);
        }
        got
    }

    /// More than the GPU has, or more than weights could make free.
    fn ask_for_too_much(&mut self) -> Result<(), Failure> {
        let bytes = [1 << 40, 130 << 20][self.dice.index(2)];
        match self.ask(bytes) {
            Ok(_) => panic!("{bytes} bytes are more than there can be"),
            Err(Failure { code: 2, .. }) => {
                self.done.without_memory += 1;
                Ok(())
            }
            Err(failure) => Err(failure),
        }
    }

    fn check_cache(&mut self) -> Result<(), Failure> {
        for &(address, bytes, seed) in &self.cache {
            let arguments = [address, bytes, seed, self.stage.counter].map(Word);
            self.stage.gpu.launch("check", self.place.stream, &arguments)?;
        }
        self.place.synchronize(self.stage)
    }

    /// The cache goes, and weights come back to `placed` bytes.
    fn shrink(&mut self, placed: u64) -> Result<(), Failure> {
        let promotions = |moves: &Self| moves.stage.counted("promotions");
        let before = promotions(self);
        self.keep_crew_busy();
        let armed = self.arm();
        self.free_cache()?;
        // Another new plan may have brought them back.
        let back = |moves: &Self| moves.stage.gpu_bytes_of_weights() >= placed;
        self.wait(PATIENCE, |moves| promotions(moves) > before || back(moves))?;
        self.disarm(armed);
        self.let_crew_run();
        Ok(())
    }

    fn free_cache(&mut self) -> Result<(), Failure> {
        // A free that was refused has freed nothing.
        let free = |&mut (address, ..): &mut (u64, u64, u64)| {
            self.stage.gpu.free(address).or_else(|_| self.stage.gpu.free(address)).is_err()
        };
        let left: Vec<_> = self.cache.extract_if(.., |block| !free(block)).collect();
        drop(left);
        if self.cache.is_empty() { Ok(()) } else { Err(Failure { function: "cuMemFree", code: 1 }) }
    }

    /// Nothing of the moves is left.
    pub(crate) fn give_everything_back(mut self) -> Result<(), Failure> {
        self.free_cache()?;
        for model in &self.crew.known {
            if let Some(ft) = &self.stage.ft {
                ft.model_strategy(model.id, None);
            }
        }
        self.place.end(self.stage)
    }
}
