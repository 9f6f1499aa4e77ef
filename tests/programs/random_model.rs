//! Random models, used in random ways, by the program's own book of what every byte must be. Prints `mismatches N`; status 0 when there are none.
//!
//! `random_model SEED [--large] [--forwards N]`. The same seed makes the same calls on each thread. `--large`: weights of 10 MiB and more, as managed
//! by default; otherwise of 1 to 7 MiB, for `FT_MANAGED_MIN_BYTES=1MiB`. What happens is in `random/`: `book` keeps the truth, `model` makes
//! models, `forward` uses them, `between` changes them.

#[path = "random/between.rs"]
mod between;
#[path = "random/book.rs"]
mod book;
#[path = "random/dice.rs"]
mod dice;
#[path = "random/forward.rs"]
mod forward;
#[path = "random/graph.rs"]
mod graph;
#[path = "random/model.rs"]
mod model;
#[path = "random/writes.rs"]
mod writes;

use dice::Dice;
use harness::driver::Failure;
use harness::ft::Ft;
use harness::gpu::Gpu;
use model::{Model, Plan};
use std::sync::atomic::{AtomicU64, Ordering};

/// What all threads share.
pub(crate) struct Stage {
    pub(crate) gpu: Gpu,
    pub(crate) ft: Option<Ft>,
    /// Device word that kernels add wrong words to.
    pub(crate) counter: u64,
    /// Wrong words that the host found.
    pub(crate) wrong: AtomicU64,
    next_seed: AtomicU64,
    /// Several threads run: no capture may forbid what others do.
    pub(crate) crowded: bool,
    pub(crate) large: bool,
}

impl Stage {
    /// A seed that was never used: what is written must differ from what was there.
    pub(crate) fn fresh_seed(&self) -> u64 {
        self.next_seed.fetch_add(1, Ordering::Relaxed)
    }
}

struct Asked {
    seed: u64,
    large: bool,
    forwards: u64,
}

fn asked() -> Asked {
    let mut asked = Asked { seed: 1, large: false, forwards: 0 };
    let mut words = std::env::args().skip(1);
    let number = |word: Option<String>| {
        word.and_then(|word| word.parse().ok()).unwrap_or_else(|| panic!("a number is missing"))
    };
    while let Some(word) = words.next() {
        match word.as_str() {
            "--large" => asked.large = true,
            "--forwards" => asked.forwards = number(words.next()),
            seed => asked.seed = number(Some(seed.to_owned())),
        }
    }
    asked
}

/// One thread's life: its own models, and forwards of the shared one.
fn work(stage: &Stage, mut dice: Dice, shared: Option<&Model>, forwards: u64) -> Result<(), Failure> {
    stage.gpu.enter()?;
    let count = dice.between(1, 2);
    let mut models = Vec::new();
    for _ in 0..count {
        models.push(Model::make(stage, &mut dice, Plan::default())?);
    }
    let mut visitor = shared.map(|model| model.visit(stage)).transpose()?;
    for _ in 0..forwards {
        let at = dice.below(models.len() as u64) as usize;
        models[at].forward(stage, &mut dice)?;
        while dice.chance(30) {
            models[at].between(stage, &mut dice)?;
        }
        if let Some(visitor) = visitor.as_mut().filter(|_| dice.chance(50)) {
            visitor.forward(stage, &mut dice)?;
        }
    }
    for model in models.iter_mut().chain(visitor.as_mut()) {
        model.verify_all(stage)?;
    }
    if dice.chance(50) {
        models.into_iter().try_for_each(|model| model.end(stage))?;
    }
    Ok(())
}

#[expect(clippy::print_stdout, reason = "a program speaks by its output")]
fn run(asked: &Asked) -> Result<u64, Failure> {
    let mut dice = Dice::new(asked.seed);
    let mut gpu = Gpu::open()?;
    gpu.load_kernels()?;
    let counter = gpu.alloc(8)?;
    gpu.upload(counter, &[0; 8])?;
    let threads = if dice.chance(60) { 1 } else { dice.between(2, 4) };
    let stage = Stage {
        gpu,
        ft: Ft::find(),
        counter,
        wrong: AtomicU64::new(0),
        next_seed: AtomicU64::new(asked.seed.wrapping_mul(1 << 32) | 1),
        crowded: threads > 1,
        large: asked.large,
    };
    let shared = if threads > 1 && dice.chance(60) {
        Some(Model::make(&stage, &mut dice, Plan { read_only: true })?)
    } else {
        None
    };
    let forwards = if asked.forwards > 0 { asked.forwards } else { 6 + 18 / threads };
    let dices: Vec<Dice> = (0..threads).map(|_| dice.split()).collect();
    let results: Vec<Result<(), Failure>> = std::thread::scope(|scope| {
        let (stage, shared) = (&stage, shared.as_ref());
        let running: Vec<_> =
            dices.into_iter().map(|dice| scope.spawn(move || work(stage, dice, shared, forwards))).collect();
        running.into_iter().map(|thread| thread.join().expect("a worker does not panic")).collect()
    });
    results.into_iter().collect::<Result<(), Failure>>()?;
    stage.gpu.synchronize()?;
    let phase = stage.ft.as_ref().map_or(-2, Ft::phase);
    println!("threads {threads}, forwards {forwards}, phase {phase}");
    Ok(stage.gpu.word(counter)? + stage.wrong.load(Ordering::Relaxed))
}

#[expect(clippy::print_stdout, clippy::print_stderr, reason = "a program speaks by its output")]
fn main() {
    match run(&asked()) {
        Ok(wrong) => {
            println!("mismatches {wrong}");
            std::process::exit(i32::from(wrong != 0));
        }
        Err(failure) => {
            eprintln!("{failure}");
            std::process::exit(2);
        }
    }
}
