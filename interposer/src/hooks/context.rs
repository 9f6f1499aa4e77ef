//! Handlers of contexts and streams that end.

use super::Call;
use crate::ffi::types::*;
use crate::outcome::{Outcome, Reason};

pub(super) fn destroy(_call: &Call<unsafe extern "C" fn(CUcontext) -> CUresult>, _ctx: CUcontext) -> Outcome {
    Outcome::Bypass(Reason::NotManaged)
}

pub(super) fn reset_primary(
    _call: &Call<unsafe extern "C" fn(CUdevice) -> CUresult>,
    _device: CUdevice,
) -> Outcome {
    Outcome::Bypass(Reason::NotManaged)
}

pub(super) fn release_primary(
    _call: &Call<unsafe extern "C" fn(CUdevice) -> CUresult>,
    _device: CUdevice,
) -> Outcome {
    Outcome::Bypass(Reason::NotManaged)
}

pub(super) fn destroy_stream(
    _call: &Call<unsafe extern "C" fn(CUstream) -> CUresult>,
    _stream: CUstream,
) -> Outcome {
    Outcome::Bypass(Reason::NotManaged)
}
