//! Brings the hook into a Python process that was started without knowing us: a pending call that runs the hook's arrival script. It is a hint: it may come late or
//! never, and all is right by launches alone.

#![expect(unsafe_code, reason = "calls the interpreter that the process has loaded, if any")]

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

use crate::{late, resolve};

/// Requests that may wait in the interpreter at a time: its queue is short, and others use it too.
const WAITING: u32 = 1;

static QUEUED: AtomicU32 = AtomicU32::new(0);

type AddPendingCall = unsafe extern "C" fn(extern "C" fn(*mut c_void) -> c_int, *mut c_void) -> c_int;
type IsInitialized = unsafe extern "C" fn() -> c_int;
type RunSimpleString = unsafe extern "C" fn(*const c_char, *mut c_void) -> c_int;

/// Asks the interpreter, if there is one, to let the hook look for models when it next can.
pub(crate) fn look_around() {
    // A program that was not started with us names its models itself; its other models are none of our business.
    if late::came_late() || QUEUED.load(Ordering::Relaxed) >= WAITING {
        return;
    }
    let Some(initialized) = function::<IsInitialized>(c"Py_IsInitialized") else { return };
    let Some(add) = function::<AddPendingCall>(c"Py_AddPendingCall") else { return };
    // SAFETY: may be called at any time, from any thread.
    if unsafe { initialized() } == 0 {
        return;
    }
    if script().is_none() {
        say_alone();
        return;
    }
    QUEUED.fetch_add(1, Ordering::Relaxed);
    // SAFETY: may be called from any thread without the interpreter's lock; a full queue is answered by -1.
    if unsafe { add(arrive, std::ptr::null_mut()) } != 0 {
        QUEUED.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Whether this is a Python program whose models nobody will name to us.
pub(super) fn cannot_hear() -> bool {
    let Some(initialized) = function::<IsInitialized>(c"Py_IsInitialized") else { return false };
    // SAFETY: may be called at any time, from any thread.
    (unsafe { initialized() }) != 0 && script().is_none()
}

/// One line, and only where a budget was asked for: a copy of the library without the hook beside it cannot hold one in a Python program.
fn say_alone() {
    static SAID: AtomicBool = AtomicBool::new(false);
    let config = super::config();
    let budget = config.max_gpu_mem.is_some() || config.max_gpu_mem_fraction.is_some();
    if budget && !SAID.swap(true, Ordering::Relaxed) {
        crate::log::warning!(
            "no weight of this Python program is streamed: the library was loaded from a folder without _arrive.py; preload the one in the flextensor package"
        );
    }
}

/// Runs in the interpreter's main thread, between two bytecodes. Must not fail: a pending call's error is raised in the program.
extern "C" fn arrive(_: *mut c_void) -> c_int {
    QUEUED.fetch_sub(1, Ordering::Relaxed);
    if let (Some(script), Some(run)) = (script(), function::<RunSimpleString>(c"PyRun_SimpleStringFlags")) {
        // SAFETY: the interpreter's lock is held; the text is a C string, and null flags are allowed.
        unsafe { run(script.as_ptr(), std::ptr::null_mut()) };
    }
    0
}

/// Python that runs the arrival script beside this library in a namespace of its own; it never raises. None if there is no such file.
fn script() -> Option<&'static CString> {
    static SCRIPT: OnceLock<Option<CString>> = OnceLock::new();
    SCRIPT
        .get_or_init(|| {
            let file = own_folder()?.join("_arrive.py");
            if !file.is_file() {
                return None;
            }
            let path = file.to_str()?.replace('\\', "\\\\").replace('\'', "\\'");
            let text = format!(
                "def _flextensor_arrive():\n try:\n  with open('{path}', encoding='utf-8') as f: text = f.read()\n  exec(compile(text, '{path}', 'exec'), {{'__name__': 'flextensor._arrive', '__file__': '{path}'}})\n except Exception:\n  pass\n_flextensor_arrive()\ndel _flextensor_arrive\n"
            );
            CString::new(text).ok()
        })
        .as_ref()
}

/// The folder that this library was loaded from.
fn own_folder() -> Option<PathBuf> {
    // SAFETY: all-zero is a valid value of this plain C struct.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: the address is one of ours, and the struct a local.
    let found = unsafe { libc::dladdr(own_folder as *const c_void, &mut info) };
    if found == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the loader's name of a loaded library, which stays loaded.
    let name = unsafe { CStr::from_ptr(info.dli_fname) };
    let path = PathBuf::from(name.to_str().ok()?);
    std::fs::canonicalize(path).ok()?.parent().map(PathBuf::from)
}

/// A function of the interpreter, if the process has one.
fn function<F: Copy>(name: &CStr) -> Option<F> {
    let address = resolve::real_dlsym(libc::RTLD_DEFAULT, name);
    if address.is_null() {
        return None;
    }
    // SAFETY: the interpreter's function of this name has the signature that the caller names; a function pointer is as large as a pointer.
    Some(unsafe { std::mem::transmute_copy::<*mut c_void, F>(&address) })
}
