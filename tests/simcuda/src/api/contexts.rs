//! Contexts, the primary ones among them.
#![expect(unsafe_code, reason = "exports under fixed names")]

use crate::call::exports;
use crate::exec::capture;
use crate::exec::context::{self, CONTEXTS, Context, device};
use crate::pointer::{In, Out};
use crate::status::{Done, Status};
use std::sync::atomic::Ordering::Relaxed;

exports! {
    Init cuDevicePrimaryCtxRetain(context: Out<u64>, number: i32) => retain;
    Init cuDevicePrimaryCtxRelease(number: i32) => release;
    Init cuDevicePrimaryCtxRelease_v2(number: i32) => release;
    Init cuDevicePrimaryCtxReset(number: i32) => reset;
    Init cuDevicePrimaryCtxReset_v2(number: i32) => reset;
    Init cuDevicePrimaryCtxSetFlags(number: i32, flags: u32) => set_primary_flags;
    Init cuDevicePrimaryCtxSetFlags_v2(number: i32, flags: u32) => set_primary_flags;
    Init cuDevicePrimaryCtxGetState(number: i32, flags: Out<u32>, active: Out<i32>) => primary_state;
    Init cuCtxCreate_v2(handle: Out<u64>, flags: u32, number: i32) => create;
    Init cuCtxCreate_v3(handle: Out<u64>, affinity: In<u8>, count: i32, flags: u32, number: i32) => create_v3;
    Init cuCtxCreate_v4(handle: Out<u64>, parameters: In<u8>, flags: u32, number: i32) => create_v4;
    Init cuCtxDestroy_v2(handle: u64) => destroy;
    Init cuCtxGetCurrent(handle: Out<u64>) => get_current;
    Init cuCtxSetCurrent(handle: u64) => set_current;
    Init cuCtxPushCurrent_v2(handle: u64) => push;
    Init cuCtxPopCurrent_v2(handle: Out<u64>) => pop;
    Init cuCtxGetDevice(number: Out<i32>) => get_device;
    Init cuCtxGetDevice_v2(number: Out<i32>, handle: u64) => get_device_of;
    Init cuCtxGetFlags(flags: Out<u32>) => get_flags;
    Init cuCtxSetFlags(flags: u32) => set_flags;
    Init cuCtxGetId(handle: u64, id: Out<u64>) => get_id;
    Init cuCtxGetApiVersion(handle: u64, version: Out<u32>) => api_version;
    Init cuCtxSynchronize() => synchronize;
    Init cuCtxSynchronize_v2(handle: u64) => synchronize_of;
    Init cuCtxGetStreamPriorityRange(least: Out<i32>, greatest: Out<i32>) => priority_range;
    Init cuCtxGetLimit(value: Out<usize>, limit: u32) => get_limit;
    Init cuCtxSetLimit(limit: u32, value: usize) => set_limit;
    Init cuCtxGetCacheConfig(config: Out<u32>) => get_cache_config;
    Init cuCtxSetCacheConfig(config: u32) => set_cache_config;
    Init cuCtxResetPersistingL2Cache() => reset_cache;
    Init cuCtxEnablePeerAccess(peer: u64, flags: u32) => peer_access;
    Init cuCtxDisablePeerAccess(peer: u64) => no_peer_access;
}

fn retain(handle: Out<u64>, number: i32) -> Done {
    handle.set(context::retain_primary(device(number)?).handle)
}

fn release(number: i32) -> Done {
    context::release_primary(device(number)?)
}

fn reset(number: i32) -> Done {
    context::reset_primary(device(number)?);
    Ok(())
}

fn set_primary_flags(number: i32, flags: u32) -> Done {
    context::set_primary_flags(device(number)?, flags);
    Ok(())
}

fn primary_state(number: i32, flags: Out<u32>, active: Out<i32>) -> Done {
    let (set, alive) = context::primary_state(device(number)?);
    flags.set(set)?;
    active.set(i32::from(alive))
}

fn create(handle: Out<u64>, flags: u32, number: i32) -> Done {
    let context = Context::create(device(number)?, flags);
    context::push(context.clone());
    handle.set(context.handle)
}

fn create_v3(handle: Out<u64>, _: In<u8>, count: i32, flags: u32, number: i32) -> Done {
    if count != 0 {
        return Err(Status::NOT_SUPPORTED);
    }
    create(handle, flags, number)
}

fn create_v4(handle: Out<u64>, parameters: In<u8>, flags: u32, number: i32) -> Done {
    if !parameters.is_null() {
        return Err(Status::NOT_SUPPORTED);
    }
    create(handle, flags, number)
}

fn find(handle: u64) -> Result<std::sync::Arc<Context>, Status> {
    CONTEXTS.find(handle).ok_or(Status::INVALID_CONTEXT)
}

/// The context of a handle, or the current one for 0.
fn given_or_current(handle: u64) -> Result<std::sync::Arc<Context>, Status> {
    if handle == 0 { context::current() } else { find(handle) }
}

fn destroy(handle: u64) -> Done {
    let context = find(handle)?;
    if context::peek().is_some_and(|current| current.handle == handle) {
        context::pop()?;
    }
    context.destroy();
    Ok(())
}

fn get_current(handle: Out<u64>) -> Done {
    handle.set(context::peek().map_or(0, |context| context.handle))
}

fn set_current(handle: u64) -> Done {
    context::set_current(if handle == 0 { None } else { Some(find(handle)?) });
    Ok(())
}

fn push(handle: u64) -> Done {
    context::push(find(handle)?);
    Ok(())
}

fn pop(handle: Out<u64>) -> Done {
    handle.set_if_wanted(context::pop()?.handle);
    Ok(())
}

fn get_device(number: Out<i32>) -> Done {
    get_device_of(number, 0)
}

fn get_device_of(number: Out<i32>, handle: u64) -> Done {
    let context = if handle == 0 { context::peek().ok_or(Status::INVALID_CONTEXT)? } else { find(handle)? };
    number.set(context.device as i32)
}

fn get_flags(flags: Out<u32>) -> Done {
    flags.set(context::current()?.flags.load(Relaxed))
}

fn set_flags(flags: u32) -> Done {
    context::current()?.flags.store(flags, Relaxed);
    Ok(())
}

fn get_id(handle: u64, id: Out<u64>) -> Done {
    id.set(given_or_current(handle)?.handle >> 4)
}

fn api_version(handle: u64, version: Out<u32>) -> Done {
    given_or_current(handle)?;
    version.set(3020)
}

fn synchronize() -> Done {
    synchronize_of(0)
}

fn synchronize_of(handle: u64) -> Done {
    let context = given_or_current(handle)?;
    capture::unsafe_call()?;
    capture::forbid_in(&context)?;
    context.synchronize()
}

fn priority_range(least: Out<i32>, greatest: Out<i32>) -> Done {
    least.set_if_wanted(0);
    greatest.set_if_wanted(-5);
    Ok(())
}

fn get_limit(value: Out<usize>, limit: u32) -> Done {
    context::current()?;
    // CU_LIMIT_STACK_SIZE, PRINTF_FIFO_SIZE, MALLOC_HEAP_SIZE; the others do not exist here.
    value.set(match limit {
        0 => 1024,
        1 => 1 << 20,
        2 => 8 << 20,
        _ => 0,
    })
}

fn set_limit(_: u32, _: usize) -> Done {
    context::current().map(|_| ())
}

fn get_cache_config(config: Out<u32>) -> Done {
    config.set(0)
}

fn set_cache_config(_: u32) -> Done {
    context::current().map(|_| ())
}

fn reset_cache() -> Done {
    context::current().map(|_| ())
}

fn peer_access(peer: u64, flags: u32) -> Done {
    if flags != 0 {
        return Err(Status::INVALID_VALUE);
    }
    let (mine, theirs) = (context::current()?, find(peer)?);
    if mine.device == theirs.device {
        return Err(Status::INVALID_DEVICE);
    }
    crate::memory::space::change(|space| space.enable_peer(mine.device, theirs.device, true));
    Ok(())
}

fn no_peer_access(peer: u64) -> Done {
    let (mine, theirs) = (context::current()?, find(peer)?);
    crate::memory::space::change(|space| space.enable_peer(mine.device, theirs.device, false));
    Ok(())
}
