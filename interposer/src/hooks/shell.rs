//! What makes a row of the table work: the exported shell, the call as a handler sees it, and the decision between handler and driver.
//! Which functions are hooked is said in `hooks`; what a call means, in the handlers.

#![expect(unsafe_code, reason = "exported C functions that call the driver's")]

use crate::ffi::types::*;
use crate::outcome::{self, Outcome};
use crate::runtime::streams;
use crate::{guard, init, log, resolve};
use std::ffi::CStr;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicPtr, Ordering};

/// What a handler gets to know about the call besides its arguments.
pub(crate) struct Call<F> {
    /// The driver's function that the program meant to call.
    pub(crate) real: F,
    /// What a null stream means in this variant: null itself (the legacy default stream), or 2 (the thread's own) for `_ptsz` and `_ptds`.
    pub(crate) null_stream: CUstream,
    /// The driver's name of the function.
    pub(crate) name: &'static str,
}

impl<F> Call<F> {
    /// The call as a handler sees it. A form for per-thread default streams may submit work to one, which nobody else can name.
    #[inline]
    pub(super) fn new(real: F, null_stream: CUstream, name: &'static str) -> Self {
        if null_stream == STREAM_PER_THREAD {
            streams::cannot_be_named();
        }
        Call { real, null_stream, name }
    }

    /// The stream that the program's handle names in this variant of the function.
    pub(crate) fn stream(&self, stream: CUstream) -> CUstream {
        if stream == STREAM_PER_THREAD {
            streams::cannot_be_named();
        }
        if stream.is_null() { self.null_stream } else { stream }
    }
}

macro_rules! invoke_by_arity {
    ($(($($arg:ident: $ty:ident),*);)*) => {$(
        impl<$($ty),*> Call<unsafe extern "C" fn($($ty),*) -> CUresult> {
            /// Calls the driver's function. The arguments are the program's, or as good: what they point to is as the driver documents it.
            #[allow(dead_code, clippy::too_many_arguments, reason = "one for each number of arguments that a row may have")]
            #[inline]
            pub(crate) fn invoke(&self, $($arg: $ty),*) -> CUresult {
                // SAFETY: `real` is the driver's function of this row, whose signature the row states; a handler passes on what the program
                // passed, and the program promised the driver that it is valid.
                unsafe { (self.real)($($arg),*) }
            }
        }
    )*};
}

invoke_by_arity! {
    ();
    (a: A);
    (a: A, b: B);
    (a: A, b: B, c: C);
    (a: A, b: B, c: C, d: D);
    (a: A, b: B, c: C, d: D, e: E);
    (a: A, b: B, c: C, d: D, e: E, f: F);
    (a: A, b: B, c: C, d: D, e: E, f: F, g: G);
    (a: A, b: B, c: C, d: D, e: E, f: F, g: G, h: H);
    (a: A, b: B, c: C, d: D, e: E, f: F, g: G, h: H, i: I);
    (a: A, b: B, c: C, d: D, e: E, f: F, g: G, h: H, i: I, j: J);
    (a: A, b: B, c: C, d: D, e: E, f: F, g: G, h: H, i: I, j: J, k: K);
}

/// One hooked function.
pub(crate) struct Row {
    /// The driver's exported name.
    pub(crate) name: &'static str,
    /// The same, for lookups.
    pub(crate) c_name: &'static CStr,
    /// Our function of this name.
    pub(super) shell: Shell,
    /// The driver's function of this name; null until `resolve` has seen the driver.
    pub(super) original: &'static AtomicPtr<c_void>,
    /// Why we look at the function.
    #[cfg_attr(not(test), expect(dead_code, reason = "read by the test that writes docs/hooks.md"))]
    pub(super) doc: &'static str,
    /// Path of the handler below `hooks`.
    #[cfg_attr(not(test), expect(dead_code, reason = "read by the test that writes docs/hooks.md"))]
    pub(super) handler: &'static str,
}

/// Address of one of our exported functions.
pub(super) struct Shell(pub(super) *const c_void);

// SAFETY: the address of a function is the same for every thread, and nothing is ever written through it.
unsafe impl Sync for Shell {}

impl Row {
    /// The address that programs get instead of the driver's.
    pub(crate) fn shell(&self) -> *mut c_void {
        self.shell.0.cast_mut()
    }

    /// The driver's function, or null while it is not known.
    pub(crate) fn original(&self) -> *mut c_void {
        self.original.load(Ordering::Acquire)
    }

    /// Notes the driver's function; only `resolve` knows what may be stored here.
    pub(crate) fn set_original(&self, address: *mut c_void) {
        self.original.store(address, Ordering::Release);
    }
}

/// A row's name as a C string, at compile time.
pub(super) const fn c_name(name: &'static str) -> &'static CStr {
    match CStr::from_bytes_with_nul(name.as_bytes()) {
        Ok(name) => name,
        Err(_) => panic!("a row's name ends with the only NUL"),
    }
}

/// The driver's function behind `slot`, or the code to return when there is none.
#[inline]
pub(super) fn original(slot: &AtomicPtr<c_void>, name: &str) -> Result<*mut c_void, CUresult> {
    let known = slot.load(Ordering::Acquire);
    if known.is_null() { resolve::find_original(slot, name) } else { Ok(known) }
}

/// What a shell does once the original is known: nothing of ours while we are not active; otherwise the handler decides.
#[inline]
pub(super) fn dispatch(
    name: &str,
    handler: impl FnOnce() -> Outcome,
    original: impl FnOnce() -> CUresult,
) -> CUresult {
    if init::active() { decide(name, handler, original) } else { original() }
}

/// Inside a hook already, the call is the driver's. Otherwise the handler's answer holds, and a panic of ours becomes the call's error code.
#[inline]
fn decide(name: &str, handler: impl FnOnce() -> Outcome, original: impl FnOnce() -> CUresult) -> CUresult {
    let Some(_inside) = guard::enter() else { return original() };
    match catch_unwind(AssertUnwindSafe(handler)) {
        Ok(Outcome::Done(code)) => code,
        Ok(Outcome::Bypass(reason)) => {
            outcome::count_bypass(reason);
            original()
        }
        Ok(Outcome::Fail(code)) => {
            outcome::count_failure();
            code
        }
        Err(_) => {
            if outcome::count_panic() {
                log::error!(
                    "internal error in {name}: the call failed; later ones are counted in the report"
                );
            }
            CUresult::CUDA_ERROR_UNKNOWN
        }
    }
}

/// Type of a driver function, by the types of its arguments.
macro_rules! signature {
    ($($arg:ident: $ty:ty),* $(,)?) => { unsafe extern "C" fn($($ty),*) -> CUresult };
}

/// One exported function.
macro_rules! shell {
    ($kind:ident, $null:expr, $name:ident, ($($arg:ident: $ty:ty),* $(,)?), $handler:path) => {
        /// The driver's function of this name, through our handler (docs/hooks.md).
        ///
        /// # Safety
        /// As the driver's documentation of the function says.
        #[cfg_attr(not(test), unsafe(no_mangle))]
        #[allow(non_snake_case, clippy::too_many_arguments, reason = "the driver's names and signatures")]
        pub(crate) unsafe extern "C" fn $name($($arg: $ty),*) -> CUresult {
            let real = match shell::original(&originals::$name, stringify!($name)) {
                Ok(address) => address,
                Err(code) => return code,
            };
            // SAFETY: the slot holds the driver's function of exactly this name, whose C signature the row states.
            let real = unsafe { std::mem::transmute::<*mut c_void, signature!($($arg: $ty),*)>(real) };
            let call = Call::new(real, $null, stringify!($name));
            shell!(@run $kind, call, $handler, ($($arg),*))
        }
    };
    (@run hook, $call:ident, $handler:path, ($($arg:ident),*)) => {
        shell::dispatch($call.name, || $handler(&$call, $($arg),*), || $call.invoke($($arg),*))
    };
    // Rows that have nothing to look at while the process is quiet, and leave nothing behind that counts later.
    (@run quiet, $call:ident, $handler:path, ($($arg:ident),*)) => {
        match crate::quiet::straight(|| $call.invoke($($arg),*)) {
            Some(code) => code,
            None => shell::dispatch($call.name, || $handler(&$call, $($arg),*), || $call.invoke($($arg),*)),
        }
    };
    // Rows that must work before we are active: the handler sees every call, and guards itself.
    (@run always, $call:ident, $handler:path, ($($arg:ident),*)) => {
        $handler(&$call, $($arg),*)
    };
}

/// One entry of `ROWS`.
macro_rules! row {
    ($name:ident, $args:tt, $doc:literal, $group:ident::$handler:ident) => {
        Row {
            name: stringify!($name),
            c_name: shell::c_name(concat!(stringify!($name), "\0")),
            shell: shell::Shell($name as signature_of!($args) as *const c_void),
            original: &originals::$name,
            doc: $doc,
            handler: concat!(stringify!($group), "::", stringify!($handler)),
        }
    };
}

macro_rules! signature_of {
    (($($args:tt)*)) => { signature!($($args)*) };
}

/// The table: a row is `/// why` and `hook fn NAME(arguments) / PER_THREAD_NAME => group::handler;`. `always` instead of `hook` marks
/// rows whose handler sees every call, also while we are not active; `quiet` such whose calls go straight to the driver while nothing has to be looked at (`quiet.rs`).
macro_rules! hooks {
    ($(
        #[doc = $doc:literal]
        $kind:ident fn $name:ident $args:tt $(/ $per_thread:ident)? => $group:ident::$handler:ident;
    )*) => {
        /// Slots of the driver's functions.
        #[allow(non_upper_case_globals, reason = "the driver's names")]
        mod originals {
            use super::{AtomicPtr, c_void};
            $(
                pub(super) static $name: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
                $(pub(super) static $per_thread: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());)?
            )*
        }

        $(
            shell!($kind, std::ptr::null_mut(), $name, $args, $group::$handler);
            $(shell!($kind, STREAM_PER_THREAD, $per_thread, $args, $group::$handler);)?
        )*

        /// Every hooked function: each row's legacy form, and its form for per-thread default streams where the driver has one.
        static TABLE: &[&[Row]] = &[
            $(&[
                row!($name, $args, $doc, $group::$handler),
                $(row!($per_thread, $args, $doc, $group::$handler),)?
            ],)*
        ];
    };
}

pub(super) use {hooks, row, shell, signature, signature_of};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::outcome::Reason;

    const HANDLER: CUresult = CUresult(1001);
    const DRIVER: CUresult = CUresult(1002);

    #[test]
    fn while_we_are_not_active_every_call_is_the_drivers() {
        assert_eq!(dispatch("cuTest", || Outcome::Done(HANDLER), || DRIVER), DRIVER);
    }

    #[test]
    fn the_handlers_answer_holds() {
        assert_eq!(decide("cuTest", || Outcome::Done(HANDLER), || DRIVER), HANDLER);
        assert_eq!(decide("cuTest", || Outcome::Fail(HANDLER), || DRIVER), HANDLER);
        assert_eq!(decide("cuTest", || Outcome::Bypass(Reason::NotManaged), || DRIVER), DRIVER);
    }

    #[test]
    fn a_call_inside_a_hook_is_the_drivers_and_the_next_one_after_it_is_not() {
        let inner = || Outcome::Done(decide("cuInner", || Outcome::Done(HANDLER), || DRIVER));
        assert_eq!(decide("cuOuter", inner, || CUresult(0)), DRIVER);
        // Also while the original of a bypassed call runs: the driver may call its own exported functions.
        let bypassed = || decide("cuInner", || Outcome::Done(HANDLER), || DRIVER);
        assert_eq!(decide("cuOuter", || Outcome::Bypass(Reason::NotManaged), bypassed), DRIVER);
        assert_eq!(decide("cuNext", || Outcome::Done(HANDLER), || DRIVER), HANDLER);
    }

    #[test]
    fn a_panic_in_a_handler_is_an_error_code_and_leaves_the_thread_outside() {
        let panicked = decide("cuTest", || panic!("provoked"), || DRIVER);
        assert_eq!(panicked, CUresult::CUDA_ERROR_UNKNOWN);
        assert_eq!(decide("cuTest", || Outcome::Done(HANDLER), || DRIVER), HANDLER);
    }

    #[test]
    fn a_null_stream_means_what_the_variant_says() {
        let call = Call { real: (), null_stream: STREAM_PER_THREAD, name: "cuTest_ptsz" };
        assert_eq!(call.stream(std::ptr::null_mut()), STREAM_PER_THREAD);
        assert_eq!(call.stream(STREAM_LEGACY), STREAM_LEGACY);
    }
}
