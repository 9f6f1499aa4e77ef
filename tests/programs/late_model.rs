//! The transformer of `transformer` in a program that was not started with the library: it builds the model and runs two forwards, then loads the
//! library that `LATE_LIBRARY` names, gives its weights new memory, names them, and goes on. Its driver functions lie in static data, as a runtime's do;
//! the last forwards go through functions that were looked up after the library came. Prints one `forward N HASH` line for each forward, the same
//! without the library.
//!
//! `late_model [--layers N] [--dim N] [--forwards N] [--tokens N]`; status 0 when every call succeeded.
#![expect(unsafe_code, reason = "loads a library and calls a function of it")]

#[path = "model/asked.rs"]
mod asked;
#[path = "model/naming.rs"]
mod naming;
#[path = "model/network.rs"]
mod network;

use asked::Asked;
use harness::driver::{Failure, Route};
use harness::ft::Ft;
use harness::gpu::Gpu;
use naming::Naming;
use network::Network;
use std::ffi::{CString, OsString, c_int, c_void};
use std::os::unix::ffi::OsStringExt as _;
use std::sync::OnceLock;

/// Forwards before the library comes, and through functions looked up afterwards.
const BEFORE: u32 = 2;
const THROUGH_NEW_FUNCTIONS: u32 = 2;

static GPU: OnceLock<Gpu> = OnceLock::new();

fn open(route: Route) -> Result<Gpu, Failure> {
    let mut gpu = Gpu::open_by(route)?;
    gpu.load_kernels()?;
    Ok(gpu)
}

/// Loads the library as `offload()` of the Python package does.
fn load(path: OsString) -> Result<Ft, Failure> {
    let failed = |function, code| Failure { function, code };
    let path = CString::new(path.into_vec()).map_err(|_| failed("dlopen", 1))?;
    // SAFETY: the path is NUL-terminated; the library may be loaded at any time.
    let handle = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | libc::RTLD_GLOBAL) };
    if handle.is_null() {
        return Err(failed("dlopen", 2));
    }
    // SAFETY: the handle is open, and the name NUL-terminated.
    let attach = unsafe { libc::dlsym(handle, c"ft_attach".as_ptr()) };
    if attach.is_null() {
        return Err(failed("dlsym", 3));
    }
    // SAFETY: the library documents this signature for this name.
    let attach = unsafe { std::mem::transmute::<*mut c_void, extern "C" fn() -> c_int>(attach) };
    match attach() {
        0 => Ft::find().ok_or(failed("dlsym", 4)),
        code => Err(failed("ft_attach", code.unsigned_abs())),
    }
}

/// Gives every weight other memory, one at a time, with the same bytes in it.
fn allocate_anew(network: &mut Network, gpu: &Gpu) -> Result<(), Failure> {
    for weight in &mut network.weights {
        let bytes = gpu.download(weight.address, weight.bytes() as usize)?;
        gpu.free(weight.address)?;
        weight.address = gpu.alloc(bytes.len())?;
        gpu.upload(weight.address, &bytes)?;
    }
    Ok(())
}

#[expect(clippy::print_stdout, reason = "a program speaks by its output")]
fn run(asked: &Asked) -> Result<(), Failure> {
    let opened = open(Route::ProcAddress)?;
    let gpu = GPU.get_or_init(|| opened);
    let mut network = Network::build(gpu, asked.shape)?;
    println!("weights {} MiB in {} matrices", network.weight_bytes() >> 20, network.matrices());
    let mut ids = asked.ids();
    let mut forwards = 0..asked.forwards;
    let mut forward = |network: &Network, gpu: &Gpu, naming: Option<&Naming>| -> Result<(), Failure> {
        let logits = network.forward(gpu, &ids, naming)?;
        println!("forward {} {:016x}", forwards.next().unwrap_or_default(), asked::fnv(&logits));
        asked.next(&mut ids, network::best(&logits, asked.shape.vocabulary));
        Ok(())
    };
    for _ in 0..BEFORE {
        forward(&network, gpu, None)?;
    }
    let ft = std::env::var_os("LATE_LIBRARY").map(load).transpose()?;
    allocate_anew(&mut network, gpu)?;
    let naming = ft.as_ref().map(|ft| Naming::name(ft, &network));
    for _ in BEFORE..asked.forwards - THROUGH_NEW_FUNCTIONS {
        forward(&network, gpu, naming.as_ref())?;
    }
    for route in [Route::Dlsym, Route::ProcAddress] {
        forward(&network, &open(route)?, naming.as_ref())?;
    }
    network.free(gpu)
}

#[expect(clippy::print_stderr, reason = "a program speaks by its output")]
fn main() {
    if let Err(failure) = run(&Asked::from_arguments()) {
        eprintln!("{failure}");
        std::process::exit(2);
    }
}
