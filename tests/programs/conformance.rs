//! States how the driver behind `libcuda.so.1` behaves, one line per fact, and whether that is what simcuda imitates.
//!
//! Runs on simcuda and, unchanged, on a GPU: the bodies are the same, so a fact that differs shows which of the two is
//! wrong. Ends with status 1 when any fact differs. An argument selects the facts that contain it.

#[path = "../conformance/capture.rs"]
mod capture;
#[path = "../conformance/facts.rs"]
mod facts;
#[path = "../conformance/host_memory.rs"]
mod host_memory;
#[path = "../conformance/launching.rs"]
mod launching;
#[path = "../conformance/ordering.rs"]
mod ordering;
#[path = "../conformance/virtual_memory.rs"]
mod virtual_memory;

use facts::Facts;
use harness::driver::Failure;
use harness::gpu::Gpu;

fn observe(facts: &mut Facts) -> Result<(), Failure> {
    let gpu = Gpu::open()?;
    virtual_memory::observe(&gpu, facts)?;
    host_memory::observe(&gpu, facts)?;
    ordering::observe(&gpu, facts)?;
    capture::observe(&gpu, facts)?;
    // Last, since it loses the context.
    launching::observe(&gpu, facts)
}

#[expect(clippy::print_stderr, reason = "a program speaks by its output")]
fn main() {
    let mut facts = Facts::selected_by(std::env::args().nth(1));
    if let Err(failure) = observe(&mut facts) {
        eprintln!("stopped: {failure}");
        std::process::exit(2);
    }
    std::process::exit(i32::from(facts.differ()));
}
