//! Replays the fuzzer's corpus of lookups under the preloaded library: `router FOLDER`. Prints `asked N` and `replaced N`; a lookup that is answered wrongly is a panic.
#![expect(unsafe_code, reason = "lookups are found and called by their addresses")]

#[path = "../../fuzz/checks/router.rs"]
mod checks;

use checks::{Forms, Opened, Sides, Tally};
use harness::driver::{Driver, Route};
use harness::sim::Sim;
use std::ffi::c_void;

fn sides() -> Sides {
    let driver = Driver::open(Route::Dlsym).expect("a driver");
    assert_eq!(driver.init(0), 0);
    // SAFETY: the name is NUL-terminated; the driver is open already.
    let handle = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW) };
    // SAFETY: an open handle and NUL-terminated names.
    let found = [c"cuGetProcAddress", c"cuGetProcAddress_v2"]
        .map(|name| unsafe { libc::dlsym(handle, name.as_ptr()) });
    let sim = Sim::find().expect("the driver is simcuda");
    let own = ["cuGetProcAddress", "cuGetProcAddress_v2"].map(|name| {
        std::ptr::with_exposed_provenance_mut::<c_void>(sim.stat(&format!("address:{name}")) as usize)
    });
    // SAFETY: a program's own lookups, found by these names.
    let ours = unsafe { Forms::at(found[0], found[1]) };
    // SAFETY: simcuda told the addresses of its exports of these names.
    let drivers = unsafe { Forms::at(own[0], own[1]) };
    Sides { ours, drivers, driver: Opened(handle) }
}

#[expect(clippy::print_stdout, reason = "a program speaks by its output")]
fn main() {
    let folder = std::env::args().nth(1).expect("the corpus' folder");
    let (sides, mut tally) = (sides(), Tally::default());
    for entry in std::fs::read_dir(folder).expect("the corpus is there") {
        let data = std::fs::read(entry.expect("an entry").path()).expect("a file");
        checks::check(&sides, &data, &mut tally);
    }
    println!("asked {}", tally.asked);
    println!("replaced {}", tally.replaced);
}
