//! How hooks get in front of the driver's functions. `Preload` is what ships: it changes no code and nobody's tables, it only answers lookups
//! (`resolve`). `Frida` (feature `frida`, off by default) patches the first instructions of the driver's functions instead, for programs with modules that
//! escape every lookup: opened with RTLD_DEEPBIND, or with addresses on the heap. Handlers and shells are the same for both. (What was looked up before we came
//! is `late`'s.)

use crate::hooks::Row;

/// A way to put our shells in front of the driver's functions.
pub(crate) trait HookBackend {
    /// The name that the report shows.
    fn name(&self) -> &'static str;

    /// Puts the shells of all rows with a known original in front of the driver. Called once, while we start, before the first handler runs.
    ///
    /// # Errors
    /// The function that could not be hooked, and why; those before it stay hooked.
    fn install(&self, rows: &mut dyn Iterator<Item = &'static Row>) -> Result<(), String>;
}

/// The back end of this build.
#[cfg(not(feature = "frida"))]
pub(crate) static SELECTED: Preload = Preload;
/// The back end of this build.
#[cfg(feature = "frida")]
pub(crate) static SELECTED: Frida = Frida;

/// Lookups: exports, `dlsym`, `cuGetProcAddress`. They work from the moment the library is loaded; there is nothing left to install.
pub(crate) struct Preload;

impl HookBackend for Preload {
    fn name(&self) -> &'static str {
        "preload"
    }

    fn install(&self, _rows: &mut dyn Iterator<Item = &'static Row>) -> Result<(), String> {
        Ok(())
    }
}

/// Inline patches by Frida's Gum. They come on top of the lookups: a program that looks a function up still gets our shell or the patched original.
#[cfg(feature = "frida")]
pub(crate) struct Frida;

#[cfg(feature = "frida")]
impl HookBackend for Frida {
    fn name(&self) -> &'static str {
        "frida"
    }

    fn install(&self, rows: &mut dyn Iterator<Item = &'static Row>) -> Result<(), String> {
        use frida_gum::{Gum, NativePointer, interceptor::Interceptor};
        let gum = Gum::obtain();
        let mut interceptor = Interceptor::obtain(&gum);
        // Dropping the last Gum undoes every patch.
        std::mem::forget(gum);
        interceptor.begin_transaction();
        let mut outcome = Ok(());
        for row in rows.filter(|row| !row.original().is_null()) {
            match interceptor.replace_fast(NativePointer(row.original()), NativePointer(row.shell())) {
                // The trampoline: the driver's function with its first instructions moved out of the way.
                Ok(trampoline) => row.set_original(trampoline.0),
                Err(error) => {
                    outcome = Err(format!("{} cannot be patched: {error}", row.name));
                    break;
                }
            }
        }
        interceptor.end_transaction();
        outcome
    }
}
