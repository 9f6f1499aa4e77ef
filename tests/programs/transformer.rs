//! A small transformer in floats over the driver interface: allocates its weights as a program without us would, names them through the C interface
//! where that is there, and runs forwards. Prints one `forward N HASH` line for each forward, the same with and without us; and where we are
//! preloaded, phases as they change and what is in GPU memory.
//!
//! `transformer [--layers N] [--dim N] [--forwards N] [--tokens N]`; status 0 when every driver call succeeded. The model is in `model/network.rs`.

#[path = "model/asked.rs"]
mod asked;
#[path = "model/naming.rs"]
mod naming;
#[path = "model/network.rs"]
mod network;

use asked::{Asked, fnv};
use harness::driver::Failure;
use harness::ft::Ft;
use harness::gpu::Gpu;
use naming::Naming;
use network::Network;
use std::time::Instant;

/// Phases by the number that the C interface gives them.
const PHASES: [&str; 4] = ["NOT_INITIALIZED", "DISCOVERY", "PROFILING", "INFERENCE"];

#[expect(clippy::print_stdout, reason = "a program speaks by its output")]
fn run(asked: &Asked) -> Result<(), Failure> {
    let mut gpu = Gpu::open()?;
    gpu.load_kernels()?;
    let ft = Ft::find();
    let network = Network::build(&gpu, asked.shape)?;
    println!("weights {} MiB in {} matrices", network.weight_bytes() >> 20, network.matrices());
    let naming = ft.as_ref().map(|ft| Naming::name(ft, &network));
    let mut phase = None;
    let mut ids = asked.ids();
    for forward in 0..asked.forwards {
        let begun = Instant::now();
        let logits = network.forward(&gpu, &ids, naming.as_ref())?;
        let took = begun.elapsed();
        println!("forward {forward} {:016x}", fnv(&logits));
        if let Some(ft) = &ft
            && phase.replace(ft.phase()) != Some(ft.phase())
        {
            let name = usize::try_from(ft.phase()).ok().and_then(|index| PHASES.get(index));
            println!("phase {} after forward {forward}", name.unwrap_or(&"off"));
        }
        if forward + 1 == asked.forwards {
            println!("time {:.1} ms the last forward", took.as_secs_f64() * 1e3);
        }
        asked.next(&mut ids, network::best(&logits, asked.shape.vocabulary));
    }
    if let Some(memory) = ft.as_ref().and_then(Ft::report).and_then(|report| report.get("memory").cloned()) {
        let mib = |key: &str| memory[key].as_u64().unwrap_or(0) >> 20;
        println!(
            "memory {} MiB of weights on the GPU ({} private, {} in the ring), {} MiB in the host",
            mib("weights_gpu_bytes"),
            mib("private_weight_bytes"),
            mib("ring_bytes"),
            mib("host_bytes")
        );
    }
    network.free(&gpu)
}

#[expect(clippy::print_stderr, reason = "a program speaks by its output")]
fn main() {
    if let Err(failure) = run(&Asked::from_arguments()) {
        eprintln!("{failure}");
        std::process::exit(2);
    }
}
