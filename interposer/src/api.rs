//! The C interface (docs/c-api.md): shells that convert, call the runtime, and never unwind. What the calls mean is the runtime's.

#![expect(unsafe_code, reason = "exported C functions that read C strings")]

use std::ffi::{CStr, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};

use flextensor_core::phase::PhaseSettings;
use flextensor_core::units::ModelId;

use crate::runtime::models::{self, Named, Owner, ProfileSource};
use crate::runtime::world::world;
use crate::runtime::{self, Profiling, chosen, passes, replan, saved};
use crate::{guard, init, late, log, quiet};

/// A caller that knows another version stays away.
const API_VERSION: u32 = 1;

const DONE: i32 = 0;
const NOT_NOW: i32 = -1;
const BAD_ARGUMENT: i32 = -2;
const FAILED: i32 = -3;

/// Runs `work` unless we are not active; a panic becomes `otherwise` and one line. Driver calls inside go straight through.
fn call<T>(otherwise: T, work: impl FnOnce() -> T) -> T {
    if !init::active() {
        return otherwise;
    }
    let _inside = guard::enter();
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
        log::error!("internal error in a call of the C interface; it did nothing");
        otherwise
    })
}

/// The same for what changes something: calls of the program are looked at from now on, until a pass has ended.
fn change<T>(otherwise: T, work: impl FnOnce() -> T) -> T {
    call(otherwise, || {
        let _loud = quiet::loud();
        work()
    })
}

/// # Safety
/// `text` is null or a C string.
unsafe fn text(text: *const c_char) -> Option<String> {
    if text.is_null() {
        return None;
    }
    // SAFETY: the caller's promise.
    Some(unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
}

/// Copies `value` as a C string into `buffer`; returns its length without the NUL.
///
/// # Safety
/// `buffer` is null or valid for writes of `capacity` bytes.
unsafe fn give(value: &str, buffer: *mut c_char, capacity: usize) -> i64 {
    if !buffer.is_null() && capacity > 0 {
        let bytes = value.len().min(capacity - 1);
        // SAFETY: at most `capacity - 1` bytes are written, and the text has at least as many.
        unsafe { std::ptr::copy_nonoverlapping(value.as_ptr(), buffer.cast(), bytes) };
        // SAFETY: the index is below `capacity`.
        let end = unsafe { buffer.add(bytes) };
        // SAFETY: as above.
        unsafe { end.write(0) };
    }
    value.len() as i64
}

/// Version of this interface.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) extern "C" fn ft_api_version() -> u32 {
    API_VERSION
}

/// The phase of the model that has come furthest; -1 when we are off.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) extern "C" fn ft_phase() -> i32 {
    match init::stage() {
        init::Stage::Active => call(0, || runtime::phase().code()),
        init::Stage::Inert | init::Stage::Starting => 0,
        _ => -1,
    }
}

/// Starts us in a process that runs already.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) extern "C" fn ft_attach() -> i32 {
    match catch_unwind(late::attach) {
        Ok(Ok(true)) => DONE,
        Ok(Ok(false)) => NOT_NOW,
        Ok(Err(reason)) => {
            log::error!("{reason}: nothing can be offloaded");
            FAILED
        }
        Err(_) => FAILED,
    }
}

/// A new model.
///
/// # Safety
/// `name` is null or a C string.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn ft_model_begin(name: *const c_char) -> u64 {
    // SAFETY: the caller's promise.
    let name = unsafe { text(name) }.unwrap_or_default();
    change(0, || models::begin(&name, runtime::phase_settings()).0)
}

/// An innermost module that holds weights.
///
/// # Safety
/// The texts are null or C strings.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn ft_model_owner(
    model: u64,
    owner: u32,
    path: *const c_char,
    class: *const c_char,
    trap: i32,
) -> i32 {
    // SAFETY: the caller's promise.
    let path = unsafe { text(path) }.unwrap_or_default();
    // SAFETY: the caller's promise.
    let class = unsafe { text(class) }.unwrap_or_default();
    call(NOT_NOW, || match world().models.get_mut(&ModelId(model)) {
        Some(model) if model.is_ended() => NOT_NOW,
        Some(model) => {
            model.owners.insert(owner, Owner { path, class, trap });
            DONE
        }
        None => BAD_ARGUMENT,
    })
}

/// A weight of an owner.
///
/// # Safety
/// `name` is null or a C string.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn ft_model_weight(
    model: u64,
    name: *const c_char,
    address: u64,
    bytes: u64,
    owner: u32,
    flags: u32,
) -> i32 {
    // SAFETY: the caller's promise.
    let name = unsafe { text(name) }.unwrap_or_default();
    call(NOT_NOW, || match world().models.get_mut(&ModelId(model)) {
        Some(model) if model.is_ended() => NOT_NOW,
        Some(model) if address != 0 && bytes != 0 && address.checked_add(bytes).is_some() => {
            model.named.push(Named { name, address, bytes, owner, flags });
            DONE
        }
        _ => BAD_ARGUMENT,
    })
}

/// Skip DISCOVERY where that can be done.
const SKIP_DISCOVERY: u32 = 1;

/// The model's own counts and profile, instead of the configured ones.
///
/// # Safety
/// `profile` is null or a C string.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn ft_model_course(
    model: u64,
    discovery: u32,
    profiling: u32,
    warmups: u32,
    flags: u32,
    profile: *const c_char,
) -> i32 {
    // SAFETY: the caller's promise.
    let profile = match unsafe { text(profile) } {
        None => ProfileSource::Configured,
        Some(folder) if folder.is_empty() => ProfileSource::Nowhere,
        Some(folder) => ProfileSource::Folder(folder.into()),
    };
    let settings = PhaseSettings {
        discovery_iters: discovery,
        profiling_iters: profiling,
        skip_discovery: flags & SKIP_DISCOVERY != 0,
        compile_warmups: warmups,
        ..PhaseSettings::default()
    };
    change(
        NOT_NOW,
        || if models::set_course(ModelId(model), settings, profile) { DONE } else { BAD_ARGUMENT },
    )
}

/// All is named. A model with a profile of its own starts from it at once.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) extern "C" fn ft_model_end(model: u64) -> i32 {
    change(NOT_NOW, || {
        let id = ModelId(model);
        late::close_gaps();
        if !models::end(id) {
            return BAD_ARGUMENT;
        }
        let own = |model: &models::Model| matches!(model.profile, ProfileSource::Folder(_));
        let starts = world().models.get(&id).is_some_and(own);
        if starts {
            passes::start_from_profile(id);
        }
        DONE
    })
}

/// The phase of one model.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) extern "C" fn ft_model_phase(model: u64) -> i32 {
    call(NOT_NOW, || world().models.get(&ModelId(model)).map_or(NOT_NOW, |model| model.phase.phase().code()))
}

/// Suspends, resumes or clears the times that are recorded of a model.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) extern "C" fn ft_model_profiling(model: u64, what: u32) -> i32 {
    let what = match what {
        0 => Profiling::Suspend,
        1 => Profiling::Resume,
        2 => Profiling::Clear,
        _ => return BAD_ARGUMENT,
    };
    change(NOT_NOW, || if runtime::profiling(ModelId(model), what) { DONE } else { BAD_ARGUMENT })
}

/// Options that the program changes while it runs.
///
/// # Safety
/// `json` is null or a C string.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn ft_configure(json: *const c_char) -> i32 {
    // SAFETY: the caller's promise.
    let json = unsafe { text(json) }.unwrap_or_default();
    change(NOT_NOW, || match runtime::configure(&json) {
        Ok(()) => DONE,
        Err(why) => {
            log::warning!("options were not changed: {why}");
            BAD_ARGUMENT
        }
    })
}

/// Who chooses what is streamed of the model, or what was chosen; null takes it back.
///
/// # Safety
/// `json` is null or a C string.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn ft_model_strategy(model: u64, json: *const c_char) -> i32 {
    // SAFETY: the caller's promise.
    let json = unsafe { text(json) };
    change(NOT_NOW, || match chosen::choose(ModelId(model), json.as_deref()) {
        Ok(true) => DONE,
        Ok(false) => BAD_ARGUMENT,
        Err(why) => {
            log::warning!("no strategy for model {model}: {why}");
            BAD_ARGUMENT
        }
    })
}

/// A new plan for what the model's passes do now.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) extern "C" fn ft_model_replan(model: u64) -> i32 {
    change(NOT_NOW, || match replan::ask(ModelId(model)) {
        Some(true) => DONE,
        Some(false) => NOT_NOW,
        None => BAD_ARGUMENT,
    })
}

/// The program let the model go.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) extern "C" fn ft_model_drop(model: u64) {
    call((), || runtime::drop_model(ModelId(model)));
}

/// Private pages for the weight at this address, for good.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) extern "C" fn ft_weight_private(address: u64) -> i32 {
    change(NOT_NOW, || match runtime::make_private(address) {
        Ok(true) => DONE,
        Ok(false) => BAD_ARGUMENT,
        Err(error) => {
            log::warning!("no private memory for the weight at {address:#x}: {error}");
            FAILED
        }
    })
}

/// The forward that is going on wrote the weight at this address.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) extern "C" fn ft_weight_written(address: u64) -> i32 {
    change(NOT_NOW, || match runtime::weight_written(address) {
        Ok(true) => DONE,
        Ok(false) => BAD_ARGUMENT,
        Err(error) => {
            log::warning!("no private memory for the weight at {address:#x}, which forwards write: {error}");
            FAILED
        }
    })
}

/// A pass begins.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) extern "C" fn ft_pass_begin(model: u64, shape: u64) {
    call((), || passes::begin(ModelId(model), shape));
}

/// A pass has ended.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) extern "C" fn ft_pass_end(model: u64) {
    call((), || passes::end(ModelId(model)));
}

/// Passes of which nothing was told, because nothing had to be.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) extern "C" fn ft_passes_untold(model: u64, count: u64) {
    call((), || passes::untold(ModelId(model), count));
}

/// The word that says whether anything has to be told.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) extern "C" fn ft_quiet() -> *const u32 {
    quiet::word()
}

/// The count of passes that go on untold.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) extern "C" fn ft_untold() -> *mut u32 {
    quiet::untold()
}

/// An owner's forward begins.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) extern "C" fn ft_owner_enter(model: u64, owner: u32) {
    call((), || passes::owner_enter(ModelId(model), owner));
}

/// An owner's forward has returned.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) extern "C" fn ft_owner_exit(model: u64, owner: u32) {
    call((), || passes::owner_exit(ModelId(model), owner));
}

/// A trap's forward begins.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) extern "C" fn ft_trap_enter(model: u64, trap: u32) {
    call((), || passes::trap_enter(ModelId(model), trap));
}

/// A trap's forward has returned.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) extern "C" fn ft_trap_exit(model: u64, trap: u32) {
    call((), || passes::trap_exit(ModelId(model), trap));
}

/// The events that are wanted now.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) extern "C" fn ft_wants(model: u64) -> u32 {
    call(0, || passes::wanted(ModelId(model)))
}

/// The effective configuration as JSON.
///
/// # Safety
/// `buffer` is null or valid for writes of `capacity` bytes.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn ft_config_json(buffer: *mut c_char, capacity: usize) -> i64 {
    let json = call(String::new(), || runtime::config().to_json());
    // SAFETY: the caller's promise.
    unsafe { give(&json, buffer, capacity) }
}

/// The run report as JSON.
///
/// # Safety
/// `buffer` is null or valid for writes of `capacity` bytes.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn ft_report_json(buffer: *mut c_char, capacity: usize) -> i64 {
    let json = call(String::new(), || runtime::snapshot::report().to_string());
    // SAFETY: the caller's promise.
    unsafe { give(&json, buffer, capacity) }
}

/// Writes the run report to the configured path now; nothing writes it again at exit. For callers whose models are let go before the process exits.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) extern "C" fn ft_report_write() {
    call((), runtime::snapshot::write);
}

/// Writes what this run knows to `profile.json` in a folder; null = the configured one.
///
/// # Safety
/// `folder` is null or a C string.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn ft_profile_save(folder: *const c_char) -> i32 {
    // SAFETY: the caller's promise.
    let folder = unsafe { text(folder) }.map(std::path::PathBuf::from);
    call(NOT_NOW, || match saved::save(folder.as_deref()) {
        Ok(()) => DONE,
        Err(saved::Refused::TooEarly) => NOT_NOW,
        Err(saved::Refused::Argument(why)) => {
            log::warning!("no profile was saved: {why}");
            BAD_ARGUMENT
        }
        Err(saved::Refused::Failed) => FAILED,
    })
}

/// The range of addresses that holds every managed region; 0 while there is none.
///
/// # Safety
/// `bytes` is null or valid for a write.
#[cfg_attr(not(test), unsafe(no_mangle))]
pub(crate) unsafe extern "C" fn ft_arena(bytes: *mut u64) -> u64 {
    let (base, length) =
        call((0, 0), || runtime::arena::arena().map_or((0, 0), |arena| (arena.base(), arena.bytes())));
    if !bytes.is_null() {
        // SAFETY: the caller's promise.
        unsafe { bytes.write(length) };
    }
    base
}
