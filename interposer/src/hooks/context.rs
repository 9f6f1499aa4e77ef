//! Handlers of contexts and streams that end.

use super::{Call, module};
use crate::ffi::context::Context;
use crate::ffi::stream::Stream;
use crate::ffi::types::*;
use crate::outcome::{Outcome, Reason};
use crate::runtime::{contexts, passes, streaming};

pub(super) fn destroy(_call: &Call<unsafe extern "C" fn(CUcontext) -> CUresult>, ctx: CUcontext) -> Outcome {
    contexts::gone(Context::from(ctx));
    // Its modules go with it.
    module::forget();
    Outcome::Bypass(Reason::Observed)
}

pub(super) fn reset_primary(
    _call: &Call<unsafe extern "C" fn(CUdevice) -> CUresult>,
    device: CUdevice,
) -> Outcome {
    contexts::device_reset(device);
    module::forget();
    Outcome::Bypass(Reason::Observed)
}

pub(super) fn release_primary(
    _call: &Call<unsafe extern "C" fn(CUdevice) -> CUresult>,
    _device: CUdevice,
) -> Outcome {
    module::forget();
    Outcome::Bypass(Reason::Observed)
}

pub(super) fn destroy_stream(
    _call: &Call<unsafe extern "C" fn(CUstream) -> CUresult>,
    stream: CUstream,
) -> Outcome {
    streaming::forget_stream(Stream::from(stream));
    passes::forget_stream(Stream::from(stream));
    Outcome::Bypass(Reason::Observed)
}
