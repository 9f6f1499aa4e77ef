//! A long life in short: four threads run forwards and write weights, while plans change, memory runs short and comes back, allocations cannot be had at all, and the driver
//! refuses calls in the middle of it. Prints what happened and what is left; status 0 when every byte was right, 1 when one was not, 2 when the program could not go on.
//!
//! `soak STEPS SEED [--keep-descriptor]`: until there were so many plan switches, demotions, promotions, refused calls and allocations without memory, each; at most
//! four rounds for each step. It needs simcuda and, to do more than read its own weights, the library. The lives follow each other: in each one models are built, learnt, used and let go.
//! `soak/model.rs` knows what every byte must be, `soak/forwards.rs` is what each thread does, `soak/moves.rs` makes weights move, `soak/left.rs` counts what is there.
//! What must be left at the end is said by the test (`e2e/soak.rs`).

#[path = "random/dice.rs"]
mod dice;
#[path = "soak/forwards.rs"]
mod forwards;
#[path = "soak/left.rs"]
mod left;
#[path = "soak/model.rs"]
mod model;
#[path = "soak/moves.rs"]
mod moves;

use dice::Dice;
use forwards::Crew;
use harness::driver::Failure;
use harness::ft::Ft;
use harness::gpu::Gpu;
use harness::sim::Sim;
use model::Model;
use moves::{Done, Moves};
use std::sync::atomic::{AtomicU64, Ordering};

/// Threads that run forwards.
const THREADS: usize = 4;

/// Rounds of moves in one life; then models are let go and built again.
const ROUNDS: u64 = 8;

/// What all threads share.
pub(crate) struct Stage {
    pub(crate) gpu: Gpu,
    pub(crate) ft: Option<Ft>,
    pub(crate) sim: Sim,
    /// Device word that kernels add wrong words to.
    pub(crate) counter: u64,
    next_seed: AtomicU64,
}

impl Stage {
    /// A seed that was never used: what is written differs from what was there.
    pub(crate) fn fresh_seed(&self) -> u64 {
        self.next_seed.fetch_add(1, Ordering::Relaxed)
    }

    /// One of the library's counters.
    pub(crate) fn counted(&self, key: &str) -> u64 {
        self.reported("counters", key)
    }

    /// What weights take of the GPU.
    pub(crate) fn gpu_bytes_of_weights(&self) -> u64 {
        self.reported("memory", "weights_gpu_bytes")
    }

    /// A number of the library's report.
    pub(crate) fn reported(&self, part: &str, key: &str) -> u64 {
        let report = self.ft.as_ref().and_then(Ft::report).unwrap_or_default();
        report[part][key].as_u64().unwrap_or(0)
    }
}

#[expect(clippy::print_stdout, reason = "a program speaks by its output")]
pub(crate) fn say(what: &str, value: u64) {
    println!("{what} {value}");
}

fn number(word: Option<String>, default: u64) -> u64 {
    word.map_or(default, |word| word.parse().unwrap_or_else(|_| panic!("{word} is no number")))
}

/// Models are built, learnt, used, verified and let go. Returns the wrong words that the host found.
fn live(stage: &Stage, dice: &mut Dice, done: &mut Done, steps: u64, life: u64) -> Result<u64, Failure> {
    let models = (0..THREADS).map(|_| Model::make(stage, dice)).collect::<Result<Vec<_>, _>>()?;
    let shared = Model::make(stage, dice)?;
    if let Some(ft) = &stage.ft {
        // In every second life also times and orders lead to new plans.
        let replan = if life.is_multiple_of(2) { "off" } else { "auto" };
        assert_eq!(ft.configure(&format!(r#"{{"replan": "{replan}"}}"#)), 0);
    }
    let mut crew = Crew::new(models, shared, dice);
    let moved = crew.work(stage, |crew| {
        let mut moves = Moves::new(stage, crew, dice, done)?;
        let rounds = if life == 0 { steps.min(3) } else { ROUNDS };
        for _ in 0..rounds {
            if moves.done.are_enough(steps) {
                break;
            }
            moves.round()?;
        }
        moves.give_everything_back()
    });
    say("passes", crew.passes());
    say("refused launches", crew.refused());
    moved?;
    let wrong = crew.end(stage)?;
    Ok(wrong)
}

fn run() -> Result<u64, Failure> {
    let mut words = std::env::args().skip(1);
    let steps = number(words.next(), 4);
    let mut dice = Dice::new(number(words.next(), 1));
    let mut gpu = Gpu::open()?;
    gpu.load_kernels()?;
    let counter = gpu.alloc(8)?;
    gpu.upload(counter, &[0; 8])?;
    let sim = Sim::find().expect("a soak runs on simcuda");
    let stage = Stage { gpu, ft: Ft::find(), sim, counter, next_seed: AtomicU64::new(1) };
    let mut done = Done::default();
    let mut wrong = 0;
    // The first life is short: what it leaves is what the library keeps for good, and no later one may leave more.
    for life in 0.. {
        wrong += live(&stage, &mut dice, &mut done, steps, life)?;
        if life == 0 {
            left::say(&stage, "after the first life");
            if words.next().as_deref() == Some("--keep-descriptor") {
                std::mem::forget(std::fs::File::open("/dev/null"));
            }
        }
        if life > 0 && (done.are_enough(steps) || done.rounds > 4 * steps + 20) {
            say("lives", life + 1);
            break;
        }
    }
    done.say();
    left::say(&stage, "at the end");
    Ok(wrong + stage.gpu.word(counter)?)
}

/// Copies of simcuda are late in many short sleeps: these are to last as long as they should. A system that is left to itself adds 50 microseconds to each.
#[expect(unsafe_code, reason = "a property of this thread, and of all that it starts")]
fn sleep_exactly() {
    const NANOSECONDS: libc::c_ulong = 1000;
    // SAFETY: takes a number, and touches no memory of ours.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, NANOSECONDS) };
}

#[expect(clippy::print_stderr, reason = "a program speaks by its output")]
fn main() {
    sleep_exactly();
    match run() {
        Ok(wrong) => {
            say("mismatches", wrong);
            std::process::exit(i32::from(wrong != 0));
        }
        Err(failure) => {
            eprintln!("{failure}");
            std::process::exit(2);
        }
    }
}
