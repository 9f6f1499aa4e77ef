//! Further launches of a use of a streamed weight: learnt, streamed and in place, shown again and again, as by linears that share a segment. What else is timed, and how, is the parent's matter.

use harness::driver::Failure;
use harness::ft::Ft;
use harness::gpu::{Argument::Word, Gpu, Handle};
use harness::sim::Sim;
use std::ffi::c_void;

const WEIGHTS: u32 = 12;
const BYTES: u64 = 16 << 20;
/// What a launch reads of it.
const READ: u64 = 4096;
const INFERENCE: i32 = 3;

/// Comes to stream the weights, then hands a launch over that shows the first one; the driver refuses it, so that nothing but the way there is timed (`SIMCUDA_FAULTS=cuLaunchKernel@timed.*=1`). Runs without the library as well.
#[expect(clippy::print_stdout, reason = "a program speaks by its output")]
pub(crate) fn shown_again(mut time: impl FnMut(&mut dyn FnMut())) -> Result<(), Failure> {
    let mut gpu = Gpu::open()?;
    gpu.load_kernels()?;
    let (stream, counter) = (gpu.stream()?, gpu.alloc(4096)?);
    let weights: Vec<u64> = (0..WEIGHTS).map(|_| gpu.alloc(BYTES as usize)).collect::<Result<_, _>>()?;
    let ft = Ft::find();
    let model = ft.as_ref().map_or(0, |ft| named(ft, &weights));
    for _ in 0..40 {
        if let Some(ft) = &ft {
            ft.pass_begin(model, 1);
        }
        for (owner, &weight) in (0..).zip(&weights) {
            let told = ft.as_ref().filter(|ft| ft.wants(model) != 0);
            told.iter().for_each(|ft| ft.owner_enter(model, owner));
            gpu.launch("check", stream, &[weight, READ, 1, counter].map(Word))?;
            told.iter().for_each(|ft| ft.owner_exit(model, owner));
        }
        if let Some(ft) = &ft {
            ft.pass_end(model);
        }
        gpu.synchronize()?;
    }
    let learnt = ft.as_ref().is_none_or(|ft| ft.model_phase(model) == INFERENCE);
    assert!(learnt, "40 passes are enough to learn");
    let function = gpu.kernel("check", Handle::Function)?;
    if let Some(ft) = &ft {
        ft.pass_begin(model, 1);
    }
    // The use begins by a launch that runs.
    gpu.launch("check", stream, &[weights[0], READ, 1, counter].map(Word))?;
    let sim = Sim::find().expect("this is timed on simcuda");
    sim.set("mark:timed", 1);
    let before = sim.stat("calls:cuEventRecord");
    let words = [weights[0], READ, 1, counter];
    let pointers: Vec<*const c_void> = words.iter().map(|word| std::ptr::from_ref(word).cast()).collect();
    time(&mut || {
        gpu.driver.launch(function, 1, 1, 1, 32, 1, 1, 0, stream, pointers.as_ptr(), std::ptr::null());
    });
    println!("events recorded meanwhile {}", sim.stat("calls:cuEventRecord") - before);
    Ok(())
}

fn named(ft: &Ft, weights: &[u64]) -> u64 {
    let model = ft.model_begin("launch_cost");
    for (owner, &weight) in (0..).zip(weights) {
        ft.model_owner(model, owner, &format!("layers.{owner}"), "Linear", -1);
        ft.model_weight(model, &format!("layers.{owner}.weight"), weight, BYTES, owner, 1);
    }
    ft.model_end(model);
    model
}
