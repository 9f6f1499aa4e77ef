//! Handlers of contexts and streams that end.

use super::{Call, module};
use crate::ffi::context::{self, Context};
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
    if let Some(primary) = context::primary(device) {
        contexts::gone(primary);
    }
    module::forget();
    Outcome::Bypass(Reason::Observed)
}

/// Whether it was the last release is known only behind it.
pub(super) fn release_primary(
    call: &Call<unsafe extern "C" fn(CUdevice) -> CUresult>,
    device: CUdevice,
) -> Outcome {
    module::forget();
    let primary = context::primary(device);
    if let Some(primary) = primary {
        contexts::prepare(primary);
    }
    let code = call.invoke(device);
    if let Some(primary) = primary.filter(|_| code.is_success() && !context::primary_is_alive(device)) {
        contexts::ended(primary);
    }
    Outcome::Done(code)
}

pub(super) fn destroy_stream(
    _call: &Call<unsafe extern "C" fn(CUstream) -> CUresult>,
    stream: CUstream,
) -> Outcome {
    streaming::forget_stream(Stream::from(stream));
    passes::forget_stream(Stream::from(stream));
    Outcome::Bypass(Reason::Observed)
}
