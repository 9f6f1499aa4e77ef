//! Kernel handles, parameters, and what a write to a read-only mapping does.

use super::facts::Facts;
use harness::driver::{Failure, check};
use harness::gpu::{self, Gpu, PAGE};
use std::ffi::{CStr, c_void};

/// A kernel that stores 64-bit words, for simcuda and for a GPU. Its first parameter is the address of three.
struct Image {
    text: &'static CStr,
    kernel: &'static CStr,
}

const SIMCUDA: Image = Image { text: c"simcuda\nkernel fill\n", kernel: c"fill" };

/// Stores its second parameter at its first; the third is not used.
const GPU: Image = Image {
    text: c".version 7.0
.target sm_50
.address_size 64
.visible .entry poke(.param .u64 address, .param .u64 value, .param .u64 unused)
{
    .reg .b64 %a, %v;
    ld.param.u64 %a, [address];
    ld.param.u64 %v, [value];
    cvta.to.global.u64 %a, %a;
    st.global.u64 [%a], %v;
    ret;
}
",
    kernel: c"poke",
};

/// The function of a module, and the kernel of a library.
struct Loaded {
    function: u64,
    kernel: u64,
}

pub(crate) fn observe(gpu: &Gpu, facts: &mut Facts) -> Result<(), Failure> {
    let loaded = load(gpu, facts)?;
    parameters(gpu, facts, &loaded);
    access(gpu, facts, &loaded)
}

/// Loads the module and the library; what a function and a kernel of them are to each other.
fn load(gpu: &Gpu, facts: &mut Facts) -> Result<Loaded, Failure> {
    let driver = &gpu.driver;
    let none: *mut c_void = std::ptr::null_mut();
    let (mut module, mut library) = (0, 0);
    let simulated = driver.module_load(&mut module, SIMCUDA.text.as_ptr()) == 0;
    let image = if simulated { SIMCUDA } else { GPU };
    if !simulated {
        check("cuModuleLoadData", driver.module_load(&mut module, image.text.as_ptr()))?;
    }
    check(
        "cuLibraryLoadData",
        driver.library_load(&mut library, image.text.as_ptr(), none, none, 0, none, none, 0),
    )?;
    let (mut function, mut kernel, mut twin) = (0, 0, 0);
    check("cuModuleGetFunction", driver.module_function(&mut function, module, image.kernel.as_ptr()))?;
    check("cuLibraryGetKernel", driver.library_kernel(&mut kernel, library, image.kernel.as_ptr()))?;
    facts.code("the function of a kernel", driver.kernel_function(&mut twin, kernel), 0);
    facts.holds("a kernel and its function are different handles", twin != kernel);
    facts.code(
        "a kernel that is not there",
        driver.library_kernel(&mut twin, library, c"nothing".as_ptr()),
        500,
    );
    Ok(Loaded { function, kernel })
}

/// Where parameters lie.
fn parameters(gpu: &Gpu, facts: &mut Facts, &Loaded { function, kernel }: &Loaded) {
    let driver = &gpu.driver;
    let (mut offset, mut bytes) = (0, 0);
    facts.code(
        "a parameter of a function",
        driver.function_parameter(function, 1, &mut offset, &mut bytes),
        0,
    );
    facts.state("offset of a function's second parameter", offset as u64, 8);
    facts.state("bytes of a function's second parameter", bytes as u64, 8);
    facts.code("a parameter of a kernel", driver.kernel_parameter(kernel, 2, &mut offset, &mut bytes), 0);
    facts.state("offset of a kernel's third parameter", offset as u64, 16);
    facts.code("a parameter behind the last", driver.kernel_parameter(kernel, 3, &mut offset, &mut bytes), 1);
    facts.code(
        "a kernel where a function is asked for",
        driver.function_parameter(kernel, 0, &mut offset, &mut bytes),
        400,
    );
}

/// Kernels that write memory which is read-only, by one address or by all.
fn access(gpu: &Gpu, facts: &mut Facts, &Loaded { function, kernel }: &Loaded) -> Result<(), Failure> {
    let driver = &gpu.driver;
    let place = gpu.reserve(PAGE)?;
    let handle = gpu.create(PAGE, &gpu::device_memory())?;
    gpu.map(place, PAGE, handle)?;
    let values = [place, 8, 5];
    let pointers: Vec<*const c_void> = values.iter().map(|value| (&raw const *value).cast()).collect();
    let launch = |handle| driver.launch(handle, 1, 1, 1, 1, 1, 1, 0, 0, pointers.as_ptr(), std::ptr::null());
    facts.code("launching a function", launch(function), 0);
    facts.code("launching a kernel", launch(kernel), 0);
    facts.code("their end", driver.context_synchronize(), 0);
    facts.code(
        "making the mapping read-only",
        driver.set_access(place, PAGE, &gpu::device_access(false), 1),
        0,
    );
    let alias = gpu.reserve(PAGE)?;
    facts.code("mapping it a second time", driver.mem_map(alias, PAGE, 0, handle, 0), 0);
    facts.code(
        "access to the second mapping",
        driver.set_access(alias, PAGE, &gpu::device_access(true), 1),
        0,
    );
    facts.code("a fill through the second mapping", driver.set_d8(alias, 1, PAGE), 0);
    facts.code("its end", driver.context_synchronize(), 0);
    let word = gpu.word(place).unwrap_or_default();
    facts.state("a word of it, read through the read-only mapping", word, 0x0101_0101_0101_0101);
    let mut behind = 0;
    facts.code("asking for the handle behind it", driver.retain_handle(&mut behind, alias), 0);
    facts.holds("the handle behind an address is the one that was mapped", behind == handle);
    facts.code("releasing that handle", driver.mem_release(behind), 0);
    facts.code(
        "making the mapping writable again",
        driver.set_access(place, PAGE, &gpu::device_access(true), 1),
        0,
    );
    facts.code("launching a kernel that writes it", launch(kernel), 0);
    facts.code("its end", driver.context_synchronize(), 0);
    facts.code(
        "making the mapping read-only again",
        driver.set_access(place, PAGE, &gpu::device_access(false), 1),
        0,
    );
    facts.code("reading it", gpu.word(place).map_or_else(|failure| failure.code, |_| 0), 0);
    facts.code("launching a kernel that writes it", launch(kernel), 0);
    facts.code("its end", driver.context_synchronize(), 700);
    let mut address = 0;
    facts.code("the context after that", driver.mem_alloc(&mut address, PAGE), 700);
    Ok(())
}
