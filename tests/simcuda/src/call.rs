//! What every exported function does around its body: count, faults on demand, "initialised?", and no panic across C.

use crate::faults;
use crate::journal::journal;
use crate::status::{Done, Status};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

/// One exported function: its name and how often it was called.
pub(crate) struct Site {
    pub(crate) name: &'static str,
    pub(crate) calls: AtomicU64,
}

/// One row of the table that `cuGetProcAddress` and the journal read.
pub(crate) struct Export {
    pub(crate) site: &'static Site,
    pub(crate) address: fn() -> usize,
}

/// When a function may be called.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Gate {
    /// At any time.
    Any,
    /// After a successful `cuInit`.
    Init,
}

static INITIALIZED: AtomicBool = AtomicBool::new(false);

/// From now on functions behind `Gate::Init` work.
pub(crate) fn initialized() {
    INITIALIZED.store(true, Relaxed);
}

impl Site {
    pub(crate) const fn new(name: &'static str) -> Self {
        Self { name, calls: AtomicU64::new(0) }
    }
}

/// Runs the body of an export and turns its result into a driver code.
pub(crate) fn enter(site: &Site, gate: Gate, body: impl FnOnce() -> Done) -> u32 {
    let nth = site.calls.fetch_add(1, Relaxed) + 1;
    if let Some(code) = faults::fault(site.name, nth) {
        journal().faults_delivered.fetch_add(1, Relaxed);
        return code;
    }
    if gate == Gate::Init && !INITIALIZED.load(Relaxed) {
        return Status::NOT_INITIALIZED.0;
    }
    match catch_unwind(AssertUnwindSafe(body)) {
        Ok(Ok(())) => 0,
        Ok(Err(Status(code))) => code,
        Err(_) => Status::UNKNOWN.0,
    }
}

/// Declares exports. A row is `Gate name(arguments) => body;`, and the body gets the arguments.
macro_rules! exports {
    ($($gate:ident $name:ident($($arg:ident: $ty:ty),* $(,)?) => $body:ident;)*) => {
        mod sites {
            #![expect(non_upper_case_globals, reason = "named as the function they count")]
            $(pub(super) static $name: $crate::call::Site = $crate::call::Site::new(stringify!($name));)*
        }
        $(
            #[cfg_attr(not(test), unsafe(no_mangle))]
            #[cfg_attr(test, expect(non_snake_case, reason = "the names of the driver interface"))]
            pub(crate) unsafe extern "C" fn $name($($arg: $ty),*) -> u32 {
                $crate::call::enter(&sites::$name, $crate::call::Gate::$gate, || self::$body($($arg),*))
            }
        )*
        pub(crate) static TABLE: &[$crate::call::Export] = &[
            $($crate::call::Export { site: &sites::$name, address: || $name as *const () as usize },)*
        ];
    };
}

/// Declares pairs of exports that differ in what the null stream means. A row is
/// `name, per_thread_name(arguments) => body;`, and the body gets the meaning first, then the arguments.
macro_rules! stream_exports {
    ($($name:ident, $own:ident($($arg:ident: $ty:ty),* $(,)?) => $body:ident;)*) => {
        mod stream_sites {
            #![expect(non_upper_case_globals, reason = "named as the function they count")]
            $(
                pub(super) static $name: $crate::call::Site = $crate::call::Site::new(stringify!($name));
                pub(super) static $own: $crate::call::Site = $crate::call::Site::new(stringify!($own));
            )*
        }
        $(
            #[cfg_attr(not(test), unsafe(no_mangle))]
            #[cfg_attr(test, expect(non_snake_case, reason = "the names of the driver interface"))]
            pub(crate) unsafe extern "C" fn $name($($arg: $ty),*) -> u32 {
                let null = $crate::exec::NullStream::Legacy;
                $crate::call::enter(&stream_sites::$name, $crate::call::Gate::Init, || self::$body(null, $($arg),*))
            }
            #[cfg_attr(not(test), unsafe(no_mangle))]
            #[cfg_attr(test, expect(non_snake_case, reason = "the names of the driver interface"))]
            pub(crate) unsafe extern "C" fn $own($($arg: $ty),*) -> u32 {
                let null = $crate::exec::NullStream::PerThread;
                $crate::call::enter(&stream_sites::$own, $crate::call::Gate::Init, || self::$body(null, $($arg),*))
            }
        )*
        pub(crate) static STREAM_TABLE: &[$crate::call::Export] = &[
            $(
                $crate::call::Export { site: &stream_sites::$name, address: || $name as *const () as usize },
                $crate::call::Export { site: &stream_sites::$own, address: || $own as *const () as usize },
            )*
        ];
    };
}

/// Declares exports that only answer "not supported".
macro_rules! not_supported {
    ($($name:ident)*) => {
        mod sites {
            #![expect(non_upper_case_globals, reason = "named as the function they count")]
            $(pub(super) static $name: $crate::call::Site = $crate::call::Site::new(stringify!($name));)*
        }
        $(
            #[cfg_attr(not(test), unsafe(no_mangle))]
            #[cfg_attr(test, expect(non_snake_case, reason = "the names of the driver interface"))]
            pub(crate) unsafe extern "C" fn $name() -> u32 {
                $crate::call::enter(&sites::$name, $crate::call::Gate::Any, || Err($crate::status::Status::NOT_SUPPORTED))
            }
        )*
        pub(crate) static TABLE: &[$crate::call::Export] = &[
            $($crate::call::Export { site: &sites::$name, address: || $name as *const () as usize },)*
        ];
    };
}

pub(crate) use {exports, not_supported, stream_exports};
