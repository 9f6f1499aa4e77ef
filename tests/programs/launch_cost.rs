//! Times launches that show no weight, or only weights with memory of their own, with 1,720 bytes of parameters. Run it where the driver refuses every launch at once (`SIMCUDA_FAULTS=cuLaunchKernel@*=1`):
//! what is left is the way to the driver. Prints `nanoseconds N` for each kind: the least of many batches' means. With the argument `answer` it times on
//! demand instead: for each line `packed N`, `each N`, `resident N` or `quiet N` on stdin it launches so often and answers with the nanoseconds that it took in all. `quiet` launches show the
//! same as `resident` ones, when all of it is a model that is learnt and nothing needs to be looked at any more; from the first of them on all launches are such.

#[path = "launch_cost/streamed.rs"]
mod streamed;

use harness::driver::{Failure, check};
use harness::ft::Ft;
use harness::gpu::{Gpu, Handle};
use std::cell::RefCell;
use std::ffi::c_void;
use std::io::BufRead;
use std::time::Instant;

const BATCHES: usize = 40;
const LAUNCHES: u32 = 5000;
/// As many as Hopper's kernels of cuBLAS take.
const BYTES: usize = 1720;
const REGIONS: usize = 16;
/// More than the caches of one core, less than those of all.
const COLD_BYTES: usize = 4 << 20;
const COLD_LAUNCHES: usize = 2000;

/// Least mean time of a launch, in nanoseconds.
fn least(mut launch: impl FnMut()) -> f64 {
    let batch = |_| {
        let begun = Instant::now();
        (0..LAUNCHES).for_each(|_| launch());
        begun.elapsed().as_secs_f64() * 1e9 / f64::from(LAUNCHES)
    };
    (0..BATCHES).map(batch).fold(f64::INFINITY, f64::min)
}

/// Median time of a launch that finds caches full of other things, as between the operators of a program, in nanoseconds.
fn cold(mut launch: impl FnMut()) -> f64 {
    let mut other = vec![1_u64; COLD_BYTES / 8];
    let mut times: Vec<f64> = (0..COLD_LAUNCHES)
        .map(|at| {
            // One word of each line, written so that it counts.
            other.iter_mut().step_by(8).for_each(|word| *word = word.wrapping_mul(at as u64 | 1));
            let begun = Instant::now();
            launch();
            begun.elapsed().as_secs_f64() * 1e9
        })
        .collect();
    std::hint::black_box(&other);
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// Times as many launches of a kind as each line of stdin asks for.
#[expect(clippy::print_stdout, reason = "a program speaks by its output")]
fn answer(packed: impl Fn(), each: impl Fn(), resident: impl Fn(), mut rest: impl FnMut()) {
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        let Some((kind, count)) = line.split_once(' ') else { return };
        let count: u64 = count.parse().unwrap_or(0);
        if kind == "quiet" {
            rest();
        }
        let begun = Instant::now();
        match kind {
            "packed" => (0..count).for_each(|_| packed()),
            "resident" | "quiet" => (0..count).for_each(|_| resident()),
            _ => (0..count).for_each(|_| each()),
        }
        println!("{}", begun.elapsed().as_nanos());
    }
}

/// The regions are the weights of a model that is learnt from now on, if the library is there. Ends where nothing needs to be looked at any more, or after as many passes as that
/// ever takes.
fn come_to_rest(regions: &[u64]) {
    let Some(ft) = Ft::find() else { return };
    let is_quiet = || ft.report().is_some_and(|report| report["quiet"] == true);
    if is_quiet() {
        return;
    }
    let model = ft.model_begin("launch_cost");
    for (owner, &region) in (0..).zip(regions) {
        ft.model_owner(model, owner, &format!("layers.{owner}"), "Linear", -1);
        ft.model_weight(model, &format!("layers.{owner}.weight"), region, 16 << 20, owner, 1);
    }
    ft.model_end(model);
    for _ in 0..40 {
        ft.pass_begin(model, 1);
        ft.pass_end(model);
        if is_quiet() {
            return;
        }
    }
}

#[expect(clippy::print_stdout, reason = "a program speaks by its output")]
fn run() -> Result<(), Failure> {
    let mut gpu = Gpu::open()?;
    gpu.load_kernels()?;
    // A managed region: from now on launches are looked at.
    let region = gpu.alloc(16 << 20)?;
    let function = gpu.kernel("check", Handle::Function)?;
    let stream = gpu.stream()?;
    // Addresses and numbers as programs pass them, none of them a weight's.
    let other = gpu.alloc(4096)?;
    let words: Vec<u64> = (0..BYTES as u64 / 8).map(|at| if at % 3 == 0 { other + at } else { at }).collect();
    let length = BYTES;
    let extra: [*const c_void; 5] = [
        std::ptr::without_provenance(1),
        words.as_ptr().cast(),
        std::ptr::without_provenance(2),
        (&raw const length).cast(),
        std::ptr::null(),
    ];
    let pointers: Vec<*const c_void> = words.iter().map(|word| std::ptr::from_ref(word).cast()).collect();
    let none = std::ptr::null();
    let packed = || {
        gpu.driver.launch(function, 1, 1, 1, 32, 1, 1, 0, stream, none, extra.as_ptr());
    };
    let each = || {
        gpu.driver.launch(function, 1, 1, 1, 32, 1, 1, 0, stream, pointers.as_ptr(), none);
    };
    // Three addresses of managed memory, other ones in each launch, as forwards of a model without streamed weights have them.
    let regions: Vec<u64> = (0..REGIONS).map(|_| gpu.alloc(16 << 20)).collect::<Result<_, _>>()?;
    let shown = RefCell::new((words.clone(), 0));
    let resident = || {
        let (words, at) = &mut *shown.borrow_mut();
        *at = (*at + 7) % REGIONS;
        for (word, step) in [(2, 0), (31, 1), (50, 2)] {
            words[word] = regions[(*at + step) % REGIONS] + (*at as u64 * 4096);
        }
        let list = [
            std::ptr::without_provenance(1),
            words.as_ptr().cast(),
            std::ptr::without_provenance(2),
            (&raw const length).cast(),
            std::ptr::null(),
        ];
        gpu.driver.launch(function, 1, 1, 1, 32, 1, 1, 0, stream, none, list.as_ptr());
    };
    if std::env::args().nth(1).as_deref() == Some("answer") {
        answer(packed, each, resident, || come_to_rest(&regions));
    } else {
        println!("packed nanoseconds {:.1}", least(packed));
        println!("each nanoseconds {:.1}", least(each));
        println!("resident nanoseconds {:.1}", least(resident));
        println!("cold nanoseconds {:.1}", cold(resident));
        come_to_rest(&regions);
        let quiet = Ft::find().and_then(|ft| ft.report()).is_some_and(|report| report["quiet"] == true);
        println!("quiet {}", u8::from(quiet));
        println!("quiet nanoseconds {:.1}", least(resident));
        println!("quiet cold nanoseconds {:.1}", cold(resident));
    }
    regions.into_iter().chain([region]).try_for_each(|region| check("cuMemFree", gpu.driver.mem_free(region)))
}

#[expect(clippy::print_stderr, clippy::print_stdout, reason = "a program speaks by its output")]
fn main() {
    let asked = std::env::args().nth(1);
    let timed = match asked.as_deref() {
        Some("streamed") => streamed::shown_again(|launch| {
            println!("streamed nanoseconds {:.1}", least(&mut *launch));
            println!("streamed cold nanoseconds {:.1}", cold(launch));
        }),
        _ => run(),
    };
    if let Err(failure) = timed {
        eprintln!("{failure}");
        std::process::exit(2);
    }
}
