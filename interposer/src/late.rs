//! Coming into a process that runs already, without having been preloaded (`ft_attach`). The driver's addresses are in other libraries' hands by then, so
//! answering lookups, `resolve`'s job, is not enough. Two things are rewritten, both only ever from the driver's address of a function to our own
//! function of the same name:
//! 1. the driver's own list of exported names (`symbols`): whatever is looked up from now on, by whomever, is ours;
//! 2. every copy of such an address in the writable data of the loaded libraries (`words`): what was looked up before becomes ours.
//!
//! Where we were preloaded the same is done when a model has been named, for libraries that no lookup of ours reaches.
//!
//! No instruction is changed. Copies that a program keeps in memory of its own (the heap) are left alone: nobody could tell whether they are pointers
//! to functions. Starting, and the self-test that follows, are left to `init`.

#![expect(unsafe_code, reason = "opens the driver and starts it")]

use crate::ffi::types::*;
use crate::runtime::streams;
use crate::{hooks, init, log, resolve};
use mappings::Mappings;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

mod mappings;
mod objects;
mod symbols;
mod words;

static LATE: AtomicBool = AtomicBool::new(false);
/// The process of which a thread is in [`begin`], or 0. Not a lock: a child that was forked meanwhile would find it held for ever.
static BEGINNING: AtomicU32 = AtomicU32::new(0);

/// What was rewritten.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Rewritten {
    /// Exported names of the driver that mean our functions.
    pub(crate) names: usize,
    /// Addresses in the data of libraries.
    pub(crate) words: usize,
    /// Libraries that these were in.
    pub(crate) libraries: usize,
}

/// Whether we came into this process after its start.
pub(crate) fn came_late() -> bool {
    LATE.load(Ordering::Relaxed)
}

/// Whether lookups of the process reach us, as they do where we were preloaded.
fn is_preloaded() -> bool {
    resolve::first_in_the_process(c"dlsym").addr() == resolve::own_dlsym()
}

/// Loads the driver if nobody has, and starts us by its `cuInit`, which does nothing where the program called it before.
///
/// # Errors
/// There is no driver, or its `cuInit` fails; the text says which.
pub(crate) fn begin() -> Result<(), String> {
    // SAFETY: the name is NUL-terminated; a program that offloads to a GPU loads the driver sooner or later.
    let handle = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) };
    if handle.is_null() {
        return Err("there is no CUDA driver (libcuda.so.1)".to_owned());
    }
    if !resolve::meet(handle) {
        return Err("libcuda.so.1 is no driver".to_owned());
    }
    LATE.store(!is_preloaded(), Ordering::Relaxed);
    match hooks::init_driver() {
        CUresult::CUDA_SUCCESS => Ok(()),
        code => Err(format!("cuInit returned {}", code.0)),
    }
}

/// Puts our functions in front of the driver's, while we start.
///
/// # Errors
/// What could not be read or rewritten. Names come before words, so that nothing slips through between both: where this fails half-way, calls that come to
/// us go on to the driver.
pub(crate) fn put_in_front() -> Result<Rewritten, String> {
    let mappings = Mappings::read().map_err(|error| format!("/proc/self/maps cannot be read: {error}"))?;
    let driver = resolve::driver_range().ok_or("the loaded driver cannot be found again")?;
    let names = symbols::rewrite(&driver)?;
    let (words, libraries) = words::rewrite(&mappings, &driver)?;
    Ok(Rewritten { names, words, libraries })
}

/// [`begin`] on one thread; others come out when it has: half-way, lookups of the driver answer neither its addresses nor ours for certain.
fn begin_once() -> Result<(), String> {
    struct Done;
    impl Drop for Done {
        fn drop(&mut self) {
            BEGINNING.store(0, Ordering::Release);
        }
    }
    let process = std::process::id();
    while init::stage() == init::Stage::Inert {
        let holder = BEGINNING.load(Ordering::Acquire);
        let (taken, keeps) = (Ordering::AcqRel, Ordering::Acquire);
        if holder != process && BEGINNING.compare_exchange(holder, process, taken, keeps).is_ok() {
            let _done = Done;
            return if init::stage() == init::Stage::Inert { begin() } else { Ok(()) };
        }
        std::thread::sleep(Duration::from_micros(200));
    }
    Ok(())
}

/// The first model has been named in a process that preloaded us: libraries that look at themselves before all others (`RTLD_DEEPBIND`) have found the driver past us,
/// or will. A launch of theirs that nobody sees would read whatever lies in the ring.
pub(crate) fn close_gaps() {
    static DONE: AtomicBool = AtomicBool::new(false);
    if came_late() || DONE.swap(true, Ordering::Relaxed) {
        return;
    }
    match put_in_front() {
        Ok(Rewritten { words: 0, .. }) => {}
        Ok(done) => {
            // They may have made streams.
            streams::cannot_be_named();
            log::notice!(
                "{} addresses of driver functions in {} libraries had passed us by, as in libraries that are opened with RTLD_DEEPBIND; they mean us now",
                done.words,
                done.libraries
            );
        }
        Err(reason) => {
            streams::cannot_be_named();
            log::info!("what libraries launch that are opened with RTLD_DEEPBIND is not seen: {reason}");
        }
    }
}

/// Starts us in a process that runs already; what `ft_attach` does. True once we are active, false where we are switched off. Where another thread
/// starts us already, its start is waited for.
///
/// # Errors
/// As [`begin`]; and why the start failed, now or before.
pub(crate) fn attach() -> Result<bool, String> {
    begin_once()?;
    init::wait_for_the_end_of_the_start();
    match init::failure() {
        Some(reason) => Err(reason.to_owned()),
        None => Ok(init::active()),
    }
}
