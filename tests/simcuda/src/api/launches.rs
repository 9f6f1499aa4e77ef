//! Kernel launches.
#![expect(unsafe_code, reason = "exports under fixed names")]

use crate::abi::{LaunchConfig, PROGRAMMATIC_SERIALIZATION};
use crate::call::stream_exports;
use crate::exec::work::Work;
use crate::exec::{NullStream, enqueue, stream_of};
use crate::kernels::call::KernelCall;
use crate::kernels::layout::{Arguments, Kernel, layout};
use crate::kernels::module::launchable;
use crate::pointer::In;
use crate::status::{Done, Status};
use std::sync::Arc;

stream_exports! {
    cuLaunchKernel, cuLaunchKernel_ptsz(function: u64, gx: u32, gy: u32, gz: u32, bx: u32, by: u32, bz: u32, shared: u32, stream: u64, parameters: In<u64>, extra: In<u64>) => launch;
    cuLaunchKernelEx, cuLaunchKernelEx_ptsz(config: In<LaunchConfig>, function: u64, parameters: In<u64>, extra: In<u64>) => launch_ex;
    cuLaunchCooperativeKernel, cuLaunchCooperativeKernel_ptsz(function: u64, gx: u32, gy: u32, gz: u32, bx: u32, by: u32, bz: u32, shared: u32, stream: u64, parameters: In<u64>) => launch_cooperative;
}

/// The packed buffer that `extra` names: a list of pairs that ends with `CU_LAUNCH_PARAM_END` (0).
fn packed(extra: In<u64>) -> Result<Vec<u8>, Status> {
    let (mut buffer, mut bytes) = (0, 0);
    for pair in 0.. {
        let entries = extra.list(2 * pair + 1)?;
        match entries[2 * pair] {
            0 => break,
            // CU_LAUNCH_PARAM_BUFFER_POINTER and CU_LAUNCH_PARAM_BUFFER_SIZE.
            1 => buffer = extra.list(2 * pair + 2)?[2 * pair + 1],
            2 => bytes = In::<usize>::at(extra.list(2 * pair + 2)?[2 * pair + 1]).get()?,
            _ => return Err(Status::INVALID_VALUE),
        }
    }
    In::<u8>::at(buffer).list(bytes)
}

/// The arguments as they stand now; the caller may change them after the launch returns.
pub(crate) fn capture_arguments(
    kernel: &'static Kernel,
    parameters: In<u64>,
    extra: In<u64>,
) -> Result<Arguments, Status> {
    if kernel.parameters.is_empty() {
        return Ok(Arguments::new(kernel, Vec::new()));
    }
    if !parameters.is_null() {
        if !extra.is_null() {
            return Err(Status::INVALID_VALUE);
        }
        let mut bytes = vec![0; kernel.parameter_bytes()];
        let addresses = parameters.list(kernel.parameters.len())?;
        for ((offset, size), address) in layout(kernel.parameters).into_iter().zip(addresses) {
            bytes[offset..offset + size].copy_from_slice(&In::<u8>::at(address).list(size)?);
        }
        return Ok(Arguments::new(kernel, bytes));
    }
    let bytes = packed(extra)?;
    if bytes.len() < kernel.parameter_bytes() {
        return Err(Status::INVALID_VALUE);
    }
    Ok(Arguments::new(kernel, bytes))
}

/// Shape of a launch.
struct Shape {
    grid: [u32; 3],
    block: [u32; 3],
    shared: u32,
    programmatic: bool,
}

fn start(
    null: NullStream,
    stream: u64,
    function: u64,
    shape: &Shape,
    parameters: In<u64>,
    extra: In<u64>,
) -> Done {
    let stream = stream_of(null, stream)?;
    let kernel = launchable(function)?;
    if shape.grid.contains(&0) || shape.block.contains(&0) {
        return Err(Status::INVALID_VALUE);
    }
    if shape.block.iter().map(|size| u64::from(*size)).product::<u64>() > 1024 {
        return Err(Status::INVALID_VALUE);
    }
    let call = KernelCall {
        kernel,
        arguments: capture_arguments(kernel, parameters, extra)?,
        programmatic: shape.programmatic,
        grid: shape.grid,
        block: shape.block,
        shared: shape.shared,
        function,
    };
    enqueue(&stream, Work::Kernel(Arc::new(call))).map(|_| ())
}

#[expect(clippy::too_many_arguments, reason = "the driver's signature")]
fn launch(
    null: NullStream,
    function: u64,
    gx: u32,
    gy: u32,
    gz: u32,
    bx: u32,
    by: u32,
    bz: u32,
    shared: u32,
    stream: u64,
    parameters: In<u64>,
    extra: In<u64>,
) -> Done {
    let shape = Shape { grid: [gx, gy, gz], block: [bx, by, bz], shared, programmatic: false };
    start(null, stream, function, &shape, parameters, extra)
}

fn launch_ex(
    null: NullStream,
    config: In<LaunchConfig>,
    function: u64,
    parameters: In<u64>,
    extra: In<u64>,
) -> Done {
    let config = config.get()?;
    let attributes = In::at(config.attributes as u64).list(config.attribute_count as usize)?;
    let programmatic = attributes.iter().any(|attribute: &crate::abi::LaunchAttribute| {
        attribute.id == PROGRAMMATIC_SERIALIZATION && attribute.value[0] as u32 != 0
    });
    let shape = Shape { grid: config.grid, block: config.block, shared: config.shared, programmatic };
    start(null, config.stream, function, &shape, parameters, extra)
}

#[expect(clippy::too_many_arguments, reason = "the driver's signature")]
fn launch_cooperative(
    null: NullStream,
    function: u64,
    gx: u32,
    gy: u32,
    gz: u32,
    bx: u32,
    by: u32,
    bz: u32,
    shared: u32,
    stream: u64,
    parameters: In<u64>,
) -> Done {
    let shape = Shape { grid: [gx, gy, gz], block: [bx, by, bz], shared, programmatic: false };
    start(null, stream, function, &shape, parameters, In::at(0))
}
