//! Images, modules and libraries: text that names kernels, and handles for them.
//!
//! An image is the text `simcuda`, then a line `kernel NAME` for each kernel. A library's kernels (`CUkernel`) and a
//! module's functions (`CUfunction`) are different handles of the same thing, and some calls take only one kind.

use super::find;
use super::layout::Kernel;
use crate::locks::lock;
use crate::registry::Registry;
use crate::status::Status;
use std::collections::HashMap;
use std::sync::{Arc, Mutex};

/// A module or a library.
pub(crate) struct Module {
    pub(crate) handle: u64,
    pub(crate) kernels: Vec<&'static Kernel>,
    functions: Mutex<HashMap<&'static str, u64>>,
}

/// A kernel of one module or library.
pub(crate) struct Function {
    pub(crate) handle: u64,
    pub(crate) kernel: &'static Kernel,
    pub(crate) module: u64,
    /// The `CUfunction` made from this `CUkernel`, or 0.
    twin: Mutex<u64>,
}

pub(crate) static MODULES: Registry<Module> = Registry::new(5);
pub(crate) static LIBRARIES: Registry<Module> = Registry::new(6);
pub(crate) static FUNCTIONS: Registry<Function> = Registry::reusing(7);
pub(crate) static KERNELS: Registry<Function> = Registry::reusing(8);

/// The kernels that an image names.
fn parse(image: &str) -> Result<Vec<&'static Kernel>, Status> {
    let mut lines = image.lines().map(str::trim).filter(|line| !line.is_empty());
    if lines.next() != Some("simcuda") {
        return Err(Status::INVALID_IMAGE);
    }
    lines
        .map(|line| {
            line.strip_prefix("kernel ").and_then(|name| find(name.trim())).ok_or(Status::INVALID_IMAGE)
        })
        .collect()
}

/// Loads an image.
///
/// # Errors
/// `INVALID_IMAGE` for anything that is not text of simcuda, or names an unknown kernel.
pub(crate) fn load(registry: &Registry<Module>, image: &str) -> Result<u64, Status> {
    let kernels = parse(image)?;
    let module = registry.insert(|handle| Arc::new(Module { handle, kernels, functions: Mutex::default() }));
    Ok(module.handle)
}

impl Module {
    /// The handle of a kernel, the same for each request.
    ///
    /// # Errors
    /// `NOT_FOUND` when the image does not name it.
    pub(crate) fn function(&self, handles: &Registry<Function>, name: &str) -> Result<u64, Status> {
        let kernel = self.kernels.iter().find(|kernel| kernel.name == name).ok_or(Status::NOT_FOUND)?;
        let mut functions = lock(&self.functions);
        let module = self.handle;
        let handle = functions.entry(kernel.name).or_insert_with(|| {
            handles.insert(|handle| Arc::new(Function { handle, kernel, module, twin: Mutex::new(0) })).handle
        });
        Ok(*handle)
    }

    /// Ends the handles of all kernels.
    pub(crate) fn unload(&self, handles: &Registry<Function>) {
        for handle in lock(&self.functions).values() {
            if let Ok(function) = handles.remove(*handle) {
                let _ = FUNCTIONS.remove(*lock(&function.twin));
            }
        }
    }
}

impl Function {
    /// The `CUfunction` of a `CUkernel`.
    pub(crate) fn as_function(&self) -> u64 {
        let mut twin = lock(&self.twin);
        if *twin == 0 {
            let (kernel, module) = (self.kernel, self.module);
            *twin = FUNCTIONS
                .insert(|handle| Arc::new(Function { handle, kernel, module, twin: Mutex::new(0) }))
                .handle;
        }
        *twin
    }
}

/// What a launch may be given: either kind of handle.
///
/// # Errors
/// `INVALID_HANDLE` for anything else.
pub(crate) fn launchable(handle: u64) -> Result<&'static Kernel, Status> {
    let function = FUNCTIONS.find(handle).or_else(|| KERNELS.find(handle)).ok_or(Status::INVALID_HANDLE)?;
    Ok(function.kernel)
}
