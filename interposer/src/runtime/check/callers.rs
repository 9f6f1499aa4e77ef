//! Names of what the program enqueues, for findings: kernels by the name that the driver knows, copies and fills as such.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard};

use flextensor_core::audit::Caller;

use crate::ffi::kernel;
use crate::ffi::types::CUfunction;

/// What shows a weight.
#[derive(Clone, Copy, Debug)]
pub(crate) enum By {
    /// A launch of this function.
    Kernel(CUfunction),
    /// A copy or fill by address.
    Copy,
}

#[derive(Debug, Default)]
struct Names {
    known: Option<HashMap<usize, u32>>,
    texts: Vec<String>,
}

/// Taken after any other lock but that of findings.
fn names() -> MutexGuard<'static, Names> {
    static NAMES: Mutex<Names> = Mutex::new(Names { known: None, texts: Vec::new() });
    NAMES.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// The number under which its name is kept.
pub(super) fn caller_of(by: By) -> Caller {
    let (handle, name): (usize, &dyn Fn() -> String) = match by {
        By::Kernel(function) => (function.addr(), &move || {
            kernel::name(function)
                .map_or_else(|| format!("kernel {:#x}", function.addr()), |name| format!("kernel {name}"))
        }),
        By::Copy => (0, &|| "a copy or fill".to_owned()),
    };
    let mut names = names();
    if let Some(&number) = names.known.get_or_insert_default().get(&handle) {
        return Caller(number);
    }
    let number = names.texts.len() as u32;
    names.texts.push(name());
    names.known.get_or_insert_default().insert(handle, number);
    Caller(number)
}

/// What a finding calls it.
pub(super) fn name_of(caller: Caller) -> String {
    names().texts.get(caller.0 as usize).cloned().unwrap_or_else(|| "something unknown".to_owned())
}

/// A module is unloaded: its kernels' handles may come back for others. Names that were given stay.
pub(crate) fn forget_kernels() {
    if super::is_on() {
        names().known = None;
    }
}
