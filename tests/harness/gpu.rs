//! A device with one context for test programs: memory, streams, events and simcuda's kernels, without ceremony.
//!
//! Everything here is one or two driver calls; what is special about a call belongs to `driver`.

use crate::driver::{Driver, Failure, Route, check};
use cudarc::driver::sys;
use std::collections::HashMap;
use std::ffi::{CString, c_char, c_void};
use std::sync::Mutex;

/// Bytes of a page of device memory.
pub const PAGE: usize = 2 << 20;

/// The result of a driver call.
pub type Done<T = ()> = Result<T, Failure>;

/// Every kernel that simcuda offers (docs/simcuda.md).
const KERNELS: &[&str] = &[
    "fill",
    "write_words",
    "check",
    "check_slow",
    "check_struct",
    "check_two",
    "scale_inplace",
    "copy_words",
    "pause",
    "prepare_pointers",
    "check_indirect",
    "gemv_batch",
    "rmsnorm",
    "silu_mul",
    "add",
    "embed",
    "attention",
];

/// One argument of a launch.
#[derive(Clone, Debug)]
pub enum Argument {
    /// An address or another 64-bit value.
    Word(u64),
    /// A 32-bit value.
    Number(u32),
    /// A 32-bit float.
    Float(f32),
    /// A struct by value, as 64-bit words.
    Struct(Vec<u64>),
}

/// How a launch passes its arguments, and by which call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Style {
    /// `cuLaunchKernel` with an array of pointers.
    Parameters,
    /// `cuLaunchKernel` with one packed buffer.
    Packed,
    /// `cuLaunchKernelEx`.
    Extended,
    /// `cuLaunchKernelEx` with programmatic stream serialization.
    Programmatic,
}

/// Which kind of handle a launch is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Handle {
    /// A `CUkernel` of a library.
    Kernel,
    /// A `CUfunction` of a module.
    Function,
}

/// A device with its primary context, current on the thread that opened it.
pub struct Gpu {
    /// The driver below.
    pub driver: Driver,
    /// The device's primary context.
    pub context: u64,
    module: u64,
    library: u64,
    handles: Mutex<HashMap<(Handle, &'static str), u64>>,
}

/// The properties of device memory of device 0.
#[must_use]
pub fn device_memory() -> sys::CUmemAllocationProp {
    located(sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_DEVICE)
}

/// The properties of memory at NUMA node 0 of the host.
#[must_use]
pub fn host_memory() -> sys::CUmemAllocationProp {
    located(sys::CUmemLocationType::CU_MEM_LOCATION_TYPE_HOST_NUMA)
}

fn located(kind: sys::CUmemLocationType) -> sys::CUmemAllocationProp {
    sys::CUmemAllocationProp {
        type_: sys::CUmemAllocationType::CU_MEM_ALLOCATION_TYPE_PINNED,
        requestedHandleTypes: sys::CUmemAllocationHandleType::CU_MEM_HANDLE_TYPE_NONE,
        location: sys::CUmemLocation { type_: kind, id: 0 },
        win32HandleMetaData: std::ptr::null_mut(),
        allocFlags: sys::CUmemAllocationProp_st__bindgen_ty_1 {
            compressionType: 0,
            gpuDirectRDMACapable: 0,
            usage: 0,
            reserved: [0; 4],
        },
    }
}

/// Access of device 0.
#[must_use]
pub fn device_access(writes: bool) -> sys::CUmemAccessDesc {
    sys::CUmemAccessDesc {
        location: device_memory().location,
        flags: if writes {
            sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READWRITE
        } else {
            sys::CUmemAccess_flags::CU_MEM_ACCESS_FLAGS_PROT_READ
        },
    }
}

impl Argument {
    fn bytes(&self) -> Vec<u8> {
        match self {
            Self::Word(value) => value.to_le_bytes().to_vec(),
            Self::Number(value) => value.to_le_bytes().to_vec(),
            Self::Float(value) => value.to_le_bytes().to_vec(),
            Self::Struct(words) => words.iter().flat_map(|word| word.to_le_bytes()).collect(),
        }
    }
}

/// The arguments in one buffer, each at its natural alignment.
fn packed(arguments: &[Argument]) -> Vec<u8> {
    let mut buffer = Vec::new();
    for argument in arguments {
        let bytes = argument.bytes();
        buffer.resize(buffer.len().next_multiple_of(bytes.len().clamp(1, 8)), 0);
        buffer.extend(bytes);
    }
    buffer
}

impl Gpu {
    /// Opens device 0 by the route of `HARNESS_ROUTE`.
    ///
    /// # Errors
    /// The first driver call that fails; code 999 of `dlopen` without a driver.
    pub fn open() -> Done<Self> {
        Self::open_by(Route::from_environment())
    }

    /// Opens device 0 by a route.
    ///
    /// # Errors
    /// As `open`.
    pub fn open_by(route: Route) -> Done<Self> {
        Self::open_device(route, 0)
    }

    /// Opens a device by its number, by the route of `HARNESS_ROUTE`.
    ///
    /// # Errors
    /// As `open`.
    pub fn open_on(device: i32) -> Done<Self> {
        Self::open_device(Route::from_environment(), device)
    }

    fn open_device(route: Route, device: i32) -> Done<Self> {
        let driver = Driver::open(route).ok_or(Failure { function: "dlopen", code: 999 })?;
        check("cuInit", driver.init(0))?;
        let mut context = 0;
        check("cuDevicePrimaryCtxRetain", driver.primary_retain(&mut context, device))?;
        check("cuCtxSetCurrent", driver.set_current(context))?;
        Ok(Self { driver, context, module: 0, library: 0, handles: Mutex::default() })
    }

    /// Loads simcuda's kernels as a module and as a library.
    ///
    /// # Errors
    /// What the driver says about the image; a GPU refuses it.
    pub fn load_kernels(&mut self) -> Done {
        let mut text = String::from("simcuda\n");
        for kernel in KERNELS {
            text.push_str(&format!("kernel {kernel}\n"));
        }
        let image = CString::new(text).expect("the image has no NUL");
        check("cuModuleLoadData", self.driver.module_load(&mut self.module, image.as_ptr()))?;
        let none = std::ptr::null_mut();
        let code = self.driver.library_load(&mut self.library, image.as_ptr(), none, none, 0, none, none, 0);
        check("cuLibraryLoadData", code)
    }

    /// Makes the context current on another thread.
    ///
    /// # Errors
    /// What the driver says.
    pub fn enter(&self) -> Done {
        check("cuCtxSetCurrent", self.driver.set_current(self.context))
    }

    /// `cuMemAlloc`.
    ///
    /// # Errors
    /// What the driver says.
    pub fn alloc(&self, bytes: usize) -> Done<u64> {
        let mut address = 0;
        check("cuMemAlloc", self.driver.mem_alloc(&mut address, bytes))?;
        Ok(address)
    }

    /// `cuMemFree`.
    ///
    /// # Errors
    /// What the driver says.
    pub fn free(&self, address: u64) -> Done {
        check("cuMemFree", self.driver.mem_free(address))
    }

    /// Page-locked host memory.
    ///
    /// # Errors
    /// What the driver says.
    pub fn host_alloc(&self, bytes: usize) -> Done<u64> {
        let mut address = 0;
        check("cuMemHostAlloc", self.driver.host_alloc(&mut address, bytes, 0))?;
        Ok(address)
    }

    /// A reservation of `bytes`.
    ///
    /// # Errors
    /// What the driver says.
    pub fn reserve(&self, bytes: usize) -> Done<u64> {
        let mut address = 0;
        check("cuMemAddressReserve", self.driver.address_reserve(&mut address, bytes, 0, 0, 0))?;
        Ok(address)
    }

    /// A handle with these properties.
    ///
    /// # Errors
    /// What the driver says.
    pub fn create(&self, bytes: usize, properties: &sys::CUmemAllocationProp) -> Done<u64> {
        let mut handle = 0;
        check("cuMemCreate", self.driver.mem_create(&mut handle, bytes, properties, 0))?;
        Ok(handle)
    }

    /// Maps a whole handle and opens it to device 0.
    ///
    /// # Errors
    /// What the driver says.
    pub fn map(&self, address: u64, bytes: usize, handle: u64) -> Done {
        check("cuMemMap", self.driver.mem_map(address, bytes, 0, handle, 0))?;
        check("cuMemSetAccess", self.driver.set_access(address, bytes, &device_access(true), 1))
    }

    /// Unmaps whole mappings.
    ///
    /// # Errors
    /// What the driver says.
    pub fn unmap(&self, address: u64, bytes: usize) -> Done {
        check("cuMemUnmap", self.driver.mem_unmap(address, bytes))
    }

    /// A non-blocking stream.
    ///
    /// # Errors
    /// What the driver says.
    pub fn stream(&self) -> Done<u64> {
        let mut stream = 0;
        check("cuStreamCreate", self.driver.stream_create(&mut stream, 1))?;
        Ok(stream)
    }

    /// An event without timing.
    ///
    /// # Errors
    /// What the driver says.
    pub fn event(&self) -> Done<u64> {
        let mut event = 0;
        check("cuEventCreate", self.driver.event_create(&mut event, 2))?;
        Ok(event)
    }

    /// Records an event.
    ///
    /// # Errors
    /// What the driver says.
    pub fn record(&self, event: u64, stream: u64) -> Done {
        check("cuEventRecord", self.driver.event_record(event, stream))
    }

    /// Makes a stream wait for an event.
    ///
    /// # Errors
    /// What the driver says.
    pub fn wait(&self, stream: u64, event: u64) -> Done {
        check("cuStreamWaitEvent", self.driver.stream_wait(stream, event, 0))
    }

    /// Waits for everything.
    ///
    /// # Errors
    /// What the driver says, errors of earlier work included.
    pub fn synchronize(&self) -> Done {
        check("cuCtxSynchronize", self.driver.context_synchronize())
    }

    /// Copies bytes to the device, synchronously.
    ///
    /// # Errors
    /// What the driver says.
    pub fn upload(&self, target: u64, data: &[u8]) -> Done {
        check("cuMemcpyHtoD", self.driver.copy_h2d(target, data.as_ptr() as u64, data.len()))
    }

    /// Copies bytes from the device, synchronously.
    ///
    /// # Errors
    /// What the driver says.
    pub fn download(&self, source: u64, bytes: usize) -> Done<Vec<u8>> {
        let mut data = vec![0u8; bytes];
        check("cuMemcpyDtoH", self.driver.copy_d2h(data.as_mut_ptr() as u64, source, bytes))?;
        Ok(data)
    }

    /// One 64-bit word of device memory.
    ///
    /// # Errors
    /// What the driver says.
    pub fn word(&self, source: u64) -> Done<u64> {
        let bytes = self.download(source, 8)?;
        Ok(bytes.iter().rev().fold(0, |value, byte| value << 8 | u64::from(*byte)))
    }

    /// The launchable handle of a kernel.
    ///
    /// # Errors
    /// What the driver says.
    ///
    /// # Panics
    /// Before `load_kernels`.
    pub fn kernel(&self, name: &'static str, kind: Handle) -> Done<u64> {
        assert!(self.library != 0, "load_kernels comes first");
        let mut handles = self.handles.lock().expect("nobody panics with the lock");
        if let Some(known) = handles.get(&(kind, name)) {
            return Ok(*known);
        }
        let text = CString::new(name).expect("a name has no NUL");
        let mut handle = 0;
        let pointer: *const c_char = text.as_ptr();
        let code = match kind {
            Handle::Kernel => self.driver.library_kernel(&mut handle, self.library, pointer),
            Handle::Function => self.driver.module_function(&mut handle, self.module, pointer),
        };
        check("cuLibraryGetKernel or cuModuleGetFunction", code)?;
        handles.insert((kind, name), handle);
        Ok(handle)
    }

    /// Launches a kernel by `cuLaunchKernel` on a `CUkernel` with an array of pointers.
    ///
    /// # Errors
    /// What the driver says.
    pub fn launch(&self, name: &'static str, stream: u64, arguments: &[Argument]) -> Done {
        self.launch_as(name, Handle::Kernel, Style::Parameters, stream, arguments)
    }

    /// Launches a kernel in a chosen way.
    ///
    /// # Errors
    /// What the driver says.
    pub fn launch_as(
        &self,
        name: &'static str,
        kind: Handle,
        style: Style,
        stream: u64,
        arguments: &[Argument],
    ) -> Done {
        let function = self.kernel(name, kind)?;
        let values: Vec<Vec<u8>> = arguments.iter().map(Argument::bytes).collect();
        let pointers: Vec<*const c_void> = values.iter().map(|value| value.as_ptr().cast()).collect();
        let buffer = packed(arguments);
        let length = buffer.len();
        let extra: [*const c_void; 5] = [
            std::ptr::without_provenance(1),
            buffer.as_ptr().cast(),
            std::ptr::without_provenance(2),
            (&raw const length).cast(),
            std::ptr::null(),
        ];
        let none = std::ptr::null();
        let driver = &self.driver;
        match style {
            Style::Parameters => {
                let code = driver.launch(function, 1, 1, 1, 32, 1, 1, 0, stream, pointers.as_ptr(), none);
                check("cuLaunchKernel", code)
            }
            Style::Packed => {
                let code = driver.launch(function, 1, 1, 1, 32, 1, 1, 0, stream, none, extra.as_ptr());
                check("cuLaunchKernel with extra", code)
            }
            Style::Extended | Style::Programmatic => {
                let mut attribute = sys::CUlaunchAttribute {
                    id: sys::CUlaunchAttributeID_enum::CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION,
                    pad: [0; 4],
                    value: sys::CUlaunchAttributeValue { programmaticStreamSerializationAllowed: 1 },
                };
                let config = sys::CUlaunchConfig {
                    gridDimX: 1,
                    gridDimY: 1,
                    gridDimZ: 1,
                    blockDimX: 32,
                    blockDimY: 1,
                    blockDimZ: 1,
                    sharedMemBytes: 0,
                    hStream: stream as sys::CUstream,
                    attrs: &raw mut attribute,
                    numAttrs: u32::from(style == Style::Programmatic),
                };
                check("cuLaunchKernelEx", driver.launch_ex(&config, function, pointers.as_ptr(), none))
            }
        }
    }
}
