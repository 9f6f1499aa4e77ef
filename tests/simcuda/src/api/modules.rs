//! Modules, libraries, functions, kernels.
#![expect(unsafe_code, reason = "exports under fixed names")]

use crate::call::exports;
use crate::exec::context;
use crate::kernels::layout::layout;
use crate::kernels::module::{self, FUNCTIONS, Function, KERNELS, LIBRARIES, MODULES};
use crate::pointer::{In, Out, Text};
use crate::registry::Registry;
use crate::status::{Done, Status};
use std::collections::HashMap;
use std::ffi::{CString, c_char};
use std::sync::{Arc, Mutex};

exports! {
    Init cuModuleLoadData(handle: Out<u64>, image: Text) => load;
    Init cuModuleLoadDataEx(handle: Out<u64>, image: Text, count: u32, options: In<u32>, values: In<u64>) => load_with_options;
    Init cuModuleLoadFatBinary(handle: Out<u64>, image: Text) => load;
    Init cuModuleUnload(handle: u64) => unload;
    Init cuModuleGetFunction(function: Out<u64>, handle: u64, name: Text) => get_function;
    Init cuModuleGetFunctionCount(count: Out<u32>, handle: u64) => function_count;
    Init cuModuleGetLoadingMode(mode: Out<u32>) => loading_mode;
    Init cuModuleGetGlobal_v2(address: Out<u64>, bytes: Out<usize>, handle: u64, name: Text) => get_global;
    Init cuLibraryLoadData(handle: Out<u64>, image: Text, options: In<u32>, values: In<u64>, count: u32, library_options: In<u32>, library_values: In<u64>, library_count: u32) => load_library;
    Init cuLibraryUnload(handle: u64) => unload_library;
    Init cuLibraryGetKernel(kernel: Out<u64>, handle: u64, name: Text) => get_kernel;
    Init cuLibraryGetKernelCount(count: Out<u32>, handle: u64) => kernel_count;
    Init cuLibraryGetModule(module: Out<u64>, handle: u64) => library_module;
    Init cuKernelGetFunction(function: Out<u64>, kernel: u64) => kernel_function;
    Init cuKernelGetLibrary(handle: Out<u64>, kernel: u64) => kernel_library;
    Init cuKernelGetName(name: Out<*const c_char>, kernel: u64) => kernel_name;
    Init cuKernelGetParamInfo(kernel: u64, index: usize, offset: Out<usize>, bytes: Out<usize>) => kernel_parameter;
    Init cuKernelGetAttribute(value: Out<i32>, attribute: u32, kernel: u64, number: i32) => kernel_attribute;
    Init cuKernelSetAttribute(attribute: u32, value: i32, kernel: u64, number: i32) => set_kernel_attribute;
    Init cuKernelSetCacheConfig(kernel: u64, config: u32, number: i32) => set_kernel_cache;
    Init cuFuncGetModule(module: Out<u64>, function: u64) => function_module;
    Init cuFuncGetName(name: Out<*const c_char>, function: u64) => function_name;
    Init cuFuncGetParamInfo(function: u64, index: usize, offset: Out<usize>, bytes: Out<usize>) => function_parameter;
    Init cuFuncGetAttribute(value: Out<i32>, attribute: u32, function: u64) => function_attribute;
    Init cuFuncSetAttribute(function: u64, attribute: u32, value: i32) => set_function_attribute;
    Init cuFuncSetCacheConfig(function: u64, config: u32) => set_function_cache;
    Init cuFuncIsLoaded(state: Out<u32>, function: u64) => is_loaded;
    Init cuFuncLoad(function: u64) => load_function;
    Init cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks: Out<i32>, function: u64, block: i32, shared: usize) => occupancy;
    Init cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks: Out<i32>, function: u64, block: i32, shared: usize, flags: u32) => occupancy_with_flags;
}

fn load(handle: Out<u64>, image: Text) -> Done {
    context::current()?;
    handle.set(module::load(&MODULES, &image.get()?)?)
}

fn load_with_options(handle: Out<u64>, image: Text, _: u32, _: In<u32>, _: In<u64>) -> Done {
    load(handle, image)
}

fn unload(handle: u64) -> Done {
    MODULES.remove(handle)?.unload(&FUNCTIONS);
    Ok(())
}

fn get_function(function: Out<u64>, handle: u64, name: Text) -> Done {
    function.set(MODULES.get(handle)?.function(&FUNCTIONS, &name.get()?)?)
}

fn function_count(count: Out<u32>, handle: u64) -> Done {
    count.set(MODULES.get(handle)?.kernels.len() as u32)
}

fn loading_mode(mode: Out<u32>) -> Done {
    // CU_MODULE_LAZY_LOADING.
    mode.set(2)
}

fn get_global(_: Out<u64>, _: Out<usize>, handle: u64, _: Text) -> Done {
    MODULES.get(handle)?;
    Err(Status::NOT_FOUND)
}

#[expect(clippy::too_many_arguments, reason = "the driver's signature")]
fn load_library(
    handle: Out<u64>,
    image: Text,
    _: In<u32>,
    _: In<u64>,
    _: u32,
    _: In<u32>,
    _: In<u64>,
    _: u32,
) -> Done {
    handle.set(module::load(&LIBRARIES, &image.get()?)?)
}

fn unload_library(handle: u64) -> Done {
    LIBRARIES.remove(handle)?.unload(&KERNELS);
    Ok(())
}

fn get_kernel(kernel: Out<u64>, handle: u64, name: Text) -> Done {
    kernel.set(LIBRARIES.get(handle)?.function(&KERNELS, &name.get()?)?)
}

fn kernel_count(count: Out<u32>, handle: u64) -> Done {
    count.set(LIBRARIES.get(handle)?.kernels.len() as u32)
}

fn library_module(module: Out<u64>, handle: u64) -> Done {
    context::current()?;
    module.set(LIBRARIES.get(handle)?.handle)
}

fn kernel_function(function: Out<u64>, kernel: u64) -> Done {
    context::current()?;
    function.set(KERNELS.get(kernel)?.as_function())
}

fn kernel_library(handle: Out<u64>, kernel: u64) -> Done {
    handle.set(KERNELS.get(kernel)?.module)
}

/// A kernel's name as C text that lives as long as the process.
fn c_name(name: &'static str) -> *const c_char {
    static NAMES: Mutex<Option<HashMap<&'static str, CString>>> = Mutex::new(None);
    let mut names = crate::locks::lock(&NAMES);
    names
        .get_or_insert_default()
        .entry(name)
        .or_insert_with(|| CString::new(name).unwrap_or_default())
        .as_ptr()
}

fn kernel_name(name: Out<*const c_char>, kernel: u64) -> Done {
    name.set(c_name(KERNELS.get(kernel)?.kernel.name))
}

fn function_name(name: Out<*const c_char>, function: u64) -> Done {
    name.set(c_name(FUNCTIONS.get(function)?.kernel.name))
}

fn function_module(module: Out<u64>, function: u64) -> Done {
    module.set(FUNCTIONS.get(function)?.module)
}

/// Each of the two forms takes one kind of handle only, as on a GPU.
fn parameter(
    handles: &Registry<Function>,
    handle: u64,
    index: usize,
    offset: Out<usize>,
    bytes: Out<usize>,
) -> Done {
    let function: Arc<Function> = handles.get(handle)?;
    let (at, size) = *layout(function.kernel.parameters).get(index).ok_or(Status::INVALID_VALUE)?;
    offset.set(at)?;
    bytes.set_if_wanted(size);
    Ok(())
}

fn kernel_parameter(kernel: u64, index: usize, offset: Out<usize>, bytes: Out<usize>) -> Done {
    parameter(&KERNELS, kernel, index, offset, bytes)
}

fn function_parameter(function: u64, index: usize, offset: Out<usize>, bytes: Out<usize>) -> Done {
    parameter(&FUNCTIONS, function, index, offset, bytes)
}

/// `CU_FUNC_ATTRIBUTE_*`: threads per block, registers, versions; the sizes are 0.
fn attribute_value(attribute: u32) -> Result<i32, Status> {
    match attribute {
        0 => Ok(1024),
        1..=3 => Ok(0),
        4 => Ok(32),
        5 | 6 => Ok(90),
        7..=15 => Ok(0),
        _ => Err(Status::INVALID_VALUE),
    }
}

fn kernel_attribute(value: Out<i32>, attribute: u32, kernel: u64, _: i32) -> Done {
    KERNELS.get(kernel)?;
    value.set(attribute_value(attribute)?)
}

fn set_kernel_attribute(_: u32, _: i32, kernel: u64, _: i32) -> Done {
    KERNELS.get(kernel).map(|_| ())
}

fn set_kernel_cache(kernel: u64, _: u32, _: i32) -> Done {
    KERNELS.get(kernel).map(|_| ())
}

fn function_attribute(value: Out<i32>, attribute: u32, function: u64) -> Done {
    module::launchable(function)?;
    value.set(attribute_value(attribute)?)
}

fn set_function_attribute(function: u64, _: u32, _: i32) -> Done {
    module::launchable(function).map(|_| ())
}

fn set_function_cache(function: u64, _: u32) -> Done {
    module::launchable(function).map(|_| ())
}

fn is_loaded(state: Out<u32>, function: u64) -> Done {
    FUNCTIONS.get(function)?;
    state.set(1)
}

fn load_function(function: u64) -> Done {
    FUNCTIONS.get(function).map(|_| ())
}

fn occupancy(blocks: Out<i32>, function: u64, block: i32, _: usize) -> Done {
    module::launchable(function)?;
    if block <= 0 {
        return Err(Status::INVALID_VALUE);
    }
    blocks.set((2048 / block).clamp(1, 32))
}

fn occupancy_with_flags(blocks: Out<i32>, function: u64, block: i32, shared: usize, _: u32) -> Done {
    occupancy(blocks, function, block, shared)
}
