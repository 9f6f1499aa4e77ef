//! The stages of a process under us, and the only place that may refuse to start. Inert until the first successful `cuInit`: no thread,
//! lock, line or change of the environment before. Then: driver table, configuration, self-test, runtime; and off for good, with at most one line,
//! if any of them says no. What runs once we are active is `runtime`'s.

#![expect(unsafe_code, reason = "fork handler")]

use crate::backend::{HookBackend, SELECTED};
use crate::ffi::real;
use crate::{guard, hooks, late, log, resolve, runtime, selftest};
use flextensor_config::choices::LogLevel;
use std::panic::catch_unwind;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicU8, Ordering};
use std::time::{Duration, Instant};

/// Where a process stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Stage {
    /// No successful `cuInit` yet.
    Inert = 0,
    /// One thread is starting us.
    Starting = 1,
    /// Handlers decide.
    Active = 2,
    /// Switched off by the configuration: every call is the driver's.
    Off = 3,
    /// We could not start, and said so: every call is the driver's.
    Failed = 4,
    /// A child of an active process, by fork: its GPU state is gone, every call is the driver's.
    Forked = 5,
}

static STAGE: AtomicU8 = AtomicU8::new(Stage::Inert as u8);
/// The one word that every hook reads.
static ACTIVE: AtomicBool = AtomicBool::new(false);
/// The process that we started in.
static PID: AtomicI32 = AtomicI32::new(0);
/// The thread that starts us, or did.
static STARTER: AtomicI32 = AtomicI32::new(0);
/// Why we could not start.
static FAILURE: OnceLock<String> = OnceLock::new();

/// True while handlers decide.
#[inline]
pub(crate) fn active() -> bool {
    ACTIVE.load(Ordering::Relaxed)
}

/// The stage of this process.
pub(crate) fn stage() -> Stage {
    match STAGE.load(Ordering::Acquire) {
        0 => Stage::Inert,
        1 => Stage::Starting,
        2 => Stage::Active,
        3 => Stage::Off,
        4 => Stage::Failed,
        _ => Stage::Forked,
    }
}

/// True once we are off by configuration: lookups then return the driver's own addresses. (Those that we gave before pass every call on.)
pub(crate) fn stock_addresses() -> bool {
    STAGE.load(Ordering::Relaxed) == Stage::Off as u8
}

/// Why we could not start, where we could not.
pub(crate) fn failure() -> Option<&'static str> {
    FAILURE.get().map(String::as_str)
}

/// We cannot start. One line says so; where somebody asked for the start (`late`), the answer to that is the line.
fn failed(reason: String) -> Stage {
    if !late::came_late() {
        log::error!("{reason}: the program runs without us");
    }
    let _ = FAILURE.set(reason);
    Stage::Failed
}

fn set_stage(stage: Stage) {
    STAGE.store(stage as u8, Ordering::Release);
    ACTIVE.store(stage == Stage::Active, Ordering::Release);
}

/// How long a thread waits for the one that starts us. Not longer: it may hold the loader's lock, which that one may need.
const PATIENCE: Duration = Duration::from_millis(250);

/// Waits, but not for ever, while another thread starts us: what the calling thread allocates meanwhile would be unmanaged for good.
fn wait_for_the_start() {
    let since = Instant::now();
    wait_while_starting(|| since.elapsed() < PATIENCE);
}

/// Waits until another thread that starts us has done so: for callers that hold no lock of the loader's.
pub(crate) fn wait_for_the_end_of_the_start() {
    wait_while_starting(|| true);
}

fn wait_while_starting(is_patient: impl Fn() -> bool) {
    // The starting thread itself comes here again where the driver calls itself.
    let is_other = || STARTER.load(Ordering::Relaxed) != current_thread();
    // In a child that was forked meanwhile nobody goes on with the start.
    let is_alive = || [0, current_process()].contains(&PID.load(Ordering::Relaxed));
    while stage() == Stage::Starting && is_other() && is_alive() && is_patient() {
        std::thread::sleep(Duration::from_micros(200));
    }
}

/// `cuInit` succeeded. The first thread to come here starts us; others wait a little for it. What they do before we are active is unmanaged, but right.
pub(crate) fn first_success() {
    wait_for_the_start();
    if stage() != Stage::Inert {
        // A child whose fork no handler saw (a raw clone) still has our pages, but not our driver state.
        if active() && PID.load(Ordering::Relaxed) != current_process() {
            set_stage(Stage::Forked);
        }
        return;
    }
    let (inert, starting) = (Stage::Inert as u8, Stage::Starting as u8);
    if STAGE.compare_exchange(inert, starting, Ordering::AcqRel, Ordering::Acquire).is_err() {
        return wait_for_the_start();
    }
    STARTER.store(current_thread(), Ordering::Relaxed);
    // Driver calls made while starting go straight through.
    let _inside = guard::enter();
    let reached = catch_unwind(start).unwrap_or_else(|_| failed("internal error while starting".to_owned()));
    set_stage(reached);
}

/// All steps of the start; returns the stage that they lead to.
fn start() -> Stage {
    PID.store(current_process(), Ordering::Relaxed);
    let Some(handle) = resolve::pin() else {
        return failed("the loaded driver library cannot be found again".to_owned());
    };
    let config = match flextensor_config::load_preload() {
        Ok(config) if !config.enabled => return Stage::Off,
        Ok(config) => config,
        Err(error) => {
            log::error!("{error}: the program runs without us");
            return Stage::Off;
        }
    };
    set_level(config.log);
    for warning in &config.warnings {
        log::warning!("{warning}");
    }
    if late::came_late()
        && let Err(reason) = come_late()
    {
        return failed(reason);
    }
    selftest::run(handle);
    if let Err(reason) = SELECTED.install(&mut hooks::rows()) {
        log::warning!("hook back end {}: {reason}", SELECTED.name());
    }
    // After the back end: where it moved a function, our own calls need the place that it moved to, like the shells.
    real::resolve(|name| match hooks::row_of_name(name.to_bytes()) {
        Some(row) => row.original(),
        None => resolve::real_dlsym(handle, name),
    });
    // SAFETY: the handler touches two atomics only.
    unsafe { libc::pthread_atfork(None, None, Some(in_forked_child)) };
    match runtime::start(config) {
        Ok(()) => {
            log::info!("active in process {}, hooks by {}", current_process(), SELECTED.name());
            Stage::Active
        }
        Err(reason) => failed(reason),
    }
}

/// Puts us in front of the driver in a process that did not preload us.
fn come_late() -> Result<(), String> {
    let done = late::put_in_front()?;
    log::info!(
        "loaded late: {} names of the driver and {} addresses in {} libraries mean us now",
        done.names,
        done.words,
        done.libraries
    );
    Ok(())
}

/// Lines below this level are not shown from now on.
pub(crate) fn set_level(configured: LogLevel) {
    log::set_level(level(configured));
}

fn level(configured: LogLevel) -> log::Level {
    match configured {
        LogLevel::Error => log::Level::Error,
        LogLevel::Warn => log::Level::Warn,
        LogLevel::Notice => log::Level::Notice,
        LogLevel::Info => log::Level::Info,
        LogLevel::Debug => log::Level::Debug,
    }
}

fn current_process() -> i32 {
    // SAFETY: takes nothing and cannot fail.
    unsafe { libc::getpid() }
}

fn current_thread() -> i32 {
    // By number: glibc has the function only since 2.30.
    // SAFETY: takes nothing and cannot fail.
    unsafe { libc::syscall(libc::SYS_gettid) as i32 }
}

/// A forked child has none of our threads, and none of the parent's GPU state.
extern "C" fn in_forked_child() {
    if matches!(stage(), Stage::Active | Stage::Starting) {
        set_stage(Stage::Forked);
    }
}
