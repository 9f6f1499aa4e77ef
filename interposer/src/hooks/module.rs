//! Handlers of module and library unloads.

use super::Call;
use crate::ffi::types::*;
use crate::outcome::{Outcome, Reason};

pub(super) fn unload(_call: &Call<unsafe extern "C" fn(CUmodule) -> CUresult>, _module: CUmodule) -> Outcome {
    Outcome::Bypass(Reason::NotManaged)
}

pub(super) fn unload_library(
    _call: &Call<unsafe extern "C" fn(CUlibrary) -> CUresult>,
    _library: CUlibrary,
) -> Outcome {
    Outcome::Bypass(Reason::NotManaged)
}
