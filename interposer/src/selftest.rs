//! At the first `cuInit`: is our function what a program gets, by each of the three routes? The answer is a status that the report and
//! `ft_status` show; a route that does not work is one warning line.

#![expect(unsafe_code, reason = "looks functions up the way a program does")]

use crate::ffi::types::{CUresult, c_char, c_int, c_uint, c_void};
use crate::{hooks, init, late, log, resolve};
use std::ffi::CStr;
use std::sync::atomic::{AtomicU32, Ordering};

/// A way to a driver function.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Route {
    /// The dynamic linker finds our exports first.
    Elf,
    /// `dlsym` is ours, and answers with our functions.
    Dlsym,
    /// `cuGetProcAddress` is ours, and answers with our functions.
    ProcAddress,
}

impl Route {
    /// Every route, in the order of the status bits.
    pub(crate) const ALL: [Route; 3] = [Route::Elf, Route::Dlsym, Route::ProcAddress];

    /// The route's key in the report.
    pub(crate) fn key(self) -> &'static str {
        match self {
            Route::Elf => "elf",
            Route::Dlsym => "dlsym",
            Route::ProcAddress => "cuGetProcAddress",
        }
    }

    fn bit(self) -> u32 {
        1 << (self as u32)
    }
}

/// Bits of the routes that work; `TESTED` once the test has run.
static WORKING: AtomicU32 = AtomicU32::new(0);
const TESTED: u32 = 0x80;

/// What the test looks for: the driver's symbol, and name, version and flags by which a runtime asks for it.
const SAMPLES: [(&CStr, &CStr, c_int, u64); 3] = [
    (c"cuMemAlloc_v2", c"cuMemAlloc", 3020, 0),
    (c"cuLaunchKernel", c"cuLaunchKernel", 4000, 0),
    (c"cuLaunchKernel_ptsz", c"cuLaunchKernel", 7000, 2),
];

/// `None` before the first `cuInit`; then whether a program gets our functions by this route.
pub(crate) fn works(route: Route) -> Option<bool> {
    let bits = WORKING.load(Ordering::Relaxed);
    (bits & TESTED != 0).then_some(bits & route.bit() != 0)
}

/// The result for the report: `null` for a route that was not tested.
pub(crate) fn report() -> serde_json::Value {
    Route::ALL.iter().map(|&route| (route.key().to_owned(), serde_json::json!(works(route)))).collect()
}

/// Tests all routes with the driver behind `handle`, and says which do not work.
pub(crate) fn run(handle: *mut c_void) {
    let mut bits = TESTED;
    for route in Route::ALL {
        let good = match route {
            Route::Elf => elf_route(),
            Route::Dlsym => dlsym_route(handle),
            Route::ProcAddress => proc_address_route(handle),
        };
        if good {
            bits |= route.bit();
        } else {
            log::warning!(
                "driver calls by way of {} pass us by: weights used through them are not served",
                route.key()
            );
        }
    }
    WORKING.store(bits, Ordering::Relaxed);
}

fn shell_of(symbol: &CStr) -> *mut c_void {
    hooks::row_of_name(symbol.to_bytes()).map_or(std::ptr::null_mut(), hooks::Row::shell)
}

/// A row whose function the driver does not have is nothing to be hooked.
fn in_driver(symbol: &CStr) -> bool {
    hooks::row_of_name(symbol.to_bytes()).is_some_and(|row| !row.original().is_null())
}

/// The global scope's first definition of the name is ours.
fn elf_route() -> bool {
    SAMPLES.iter().all(|(symbol, ..)| resolve::first_in_the_process(symbol) == shell_of(symbol))
}

/// The dlsym that other objects call: the global scope's first definition.
fn dlsym_of_the_process() -> Option<unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void> {
    let address = resolve::first_in_the_process(c"dlsym");
    // SAFETY: a function called dlsym in the global scope has dlsym's signature; null is None.
    unsafe { std::mem::transmute(address) }
}

fn dlsym_route(handle: *mut c_void) -> bool {
    let Some(dlsym) = dlsym_of_the_process() else { return false };
    SAMPLES.iter().filter(|(symbol, ..)| in_driver(symbol)).all(|(symbol, ..)| {
        // SAFETY: a handle of the driver that stays open, and a NUL-terminated name.
        let found = unsafe { dlsym(handle, symbol.as_ptr()) };
        found == shell_of(symbol)
    })
}

type ProcAddress = unsafe extern "C" fn(*const c_char, *mut *mut c_void, c_int, u64, *mut c_uint) -> CUresult;

fn proc_address_route(handle: *mut c_void) -> bool {
    let symbol = c"cuGetProcAddress_v2";
    if !in_driver(symbol) {
        // A driver before CUDA 12: runtimes then use dlsym for everything.
        return dlsym_route(handle);
    }
    let Some(dlsym) = dlsym_of_the_process() else { return false };
    // SAFETY: a handle of the driver that stays open, and a NUL-terminated name.
    let address = unsafe { dlsym(handle, symbol.as_ptr()) };
    if address != shell_of(symbol) {
        return false;
    }
    // SAFETY: our own export of this name.
    let ask = unsafe { std::mem::transmute::<*mut c_void, ProcAddress>(address) };
    SAMPLES.iter().filter(|(symbol, ..)| in_driver(symbol)).all(|&(symbol, name, version, flags)| {
        let mut found = std::ptr::null_mut();
        let mut status = 0;
        // SAFETY: the pointers are to locals that live through the call; the name is NUL-terminated.
        let code = unsafe { ask(name.as_ptr(), &mut found, version, flags, &mut status) };
        code.is_success() && found == shell_of(symbol)
    })
}

/// How this process stands, for launchers and tests: bits 0-7 the stage (0 inert, 1 starting, 2 active, 3 off by configuration, 4 could not start,
/// 5 forked child), bit 8 self-test done, bits 9-11 the routes that work (exports, dlsym, cuGetProcAddress), bit 12 loaded late by `ft_attach`.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) extern "C" fn ft_status() -> u32 {
    let routes = WORKING.load(Ordering::Relaxed);
    let tested = u32::from(routes & TESTED != 0);
    (init::stage() as u32) | tested << 8 | (routes & 7) << 9 | u32::from(late::came_late()) << 12
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_without_cuinit_is_inert_and_untested() {
        assert_eq!(ft_status(), 0);
        assert_eq!(works(Route::Dlsym), None);
        assert_eq!(report()["cuGetProcAddress"], serde_json::Value::Null);
    }

    #[test]
    fn every_sample_is_a_hooked_function() {
        assert!(SAMPLES.iter().all(|(symbol, ..)| !shell_of(symbol).is_null()));
    }
}
