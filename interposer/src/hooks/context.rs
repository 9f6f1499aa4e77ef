//! Handlers of contexts: which reach each other, and contexts that end.

use super::{Call, module};
use crate::ffi::context::{self, Context};
use crate::ffi::peer;
use crate::ffi::types::*;
use crate::outcome::Outcome;
use crate::runtime::{contexts, peers, streams};

pub(super) fn destroy(call: &Call<unsafe extern "C" fn(CUcontext) -> CUresult>, ctx: CUcontext) -> Outcome {
    contexts::gone(Context::from(ctx));
    // Its modules go with it.
    module::forget();
    gone(call.invoke(ctx))
}

pub(super) fn reset_primary(
    call: &Call<unsafe extern "C" fn(CUdevice) -> CUresult>,
    device: CUdevice,
) -> Outcome {
    if let Some(primary) = context::primary(device) {
        contexts::gone(primary);
    }
    module::forget();
    gone(call.invoke(device))
}

/// What the driver says of a context that is forgotten already: where it lives on, so do streams that nobody knows any more.
fn gone(code: CUresult) -> Outcome {
    if !code.is_success() {
        streams::cannot_be_named();
    }
    Outcome::Done(code)
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

/// Also where it was enabled before, by somebody who was earlier than we.
pub(super) fn enable_peer(
    call: &Call<unsafe extern "C" fn(CUcontext, c_uint) -> CUresult>,
    ctx: CUcontext,
    flags: c_uint,
) -> Outcome {
    let code = call.invoke(ctx, flags);
    if code.is_success() || code == CUresult::CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED {
        let to = Context::from(ctx);
        if let Err(error) = peers::opened(to) {
            if code.is_success() {
                // Refused as a whole: a kernel that found half of the memory shut would lose its context.
                let _ = peer::disable(to);
            }
            return Outcome::Fail(error.into());
        }
    }
    Outcome::Done(code)
}

pub(super) fn disable_peer(
    call: &Call<unsafe extern "C" fn(CUcontext) -> CUresult>,
    ctx: CUcontext,
) -> Outcome {
    let code = call.invoke(ctx);
    if code.is_success() {
        peers::shut(Context::from(ctx));
    }
    Outcome::Done(code)
}
