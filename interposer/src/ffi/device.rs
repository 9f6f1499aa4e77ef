//! What the driver says about its devices and itself.

#![expect(unsafe_code, reason = "typed calls into the driver")]

use super::real::driver;
use super::result::CudaResult;
use super::types::*;
use std::ffi::CStr;

/// Number of devices that the program can see.
pub(crate) fn count() -> CudaResult<i32> {
    let mut count = 0;
    // SAFETY: the pointer is to a local that lives through the call.
    unsafe { driver().cuDeviceGetCount(&mut count) }.ok()?;
    Ok(count)
}

/// The driver's version, 13000 for 13.0.
pub(crate) fn driver_version() -> CudaResult<i32> {
    let mut version = 0;
    // SAFETY: the pointer is to a local that lives through the call.
    unsafe { driver().cuDriverGetVersion(&mut version) }.ok()?;
    Ok(version)
}

/// One number that the driver keeps about a device.
pub(crate) fn attribute(device: i32, attribute: CUdevice_attribute) -> CudaResult<i32> {
    let mut value = 0;
    // SAFETY: the pointer is to a local that lives through the call.
    unsafe { driver().cuDeviceGetAttribute(&mut value, attribute, device) }.ok()?;
    Ok(value)
}

/// Bytes of memory that the device has.
pub(crate) fn total_memory(device: i32) -> CudaResult<usize> {
    let mut bytes = 0;
    // SAFETY: the pointer is to a local that lives through the call.
    unsafe { driver().cuDeviceTotalMem_v2(&mut bytes, device) }.ok()?;
    Ok(bytes)
}

fn text(fill: impl FnOnce(*mut c_char, c_int) -> CUresult) -> CudaResult<String> {
    let mut buffer = [0_u8; 128];
    // One byte stays zero whatever the driver writes.
    fill(buffer.as_mut_ptr().cast(), 127).ok()?;
    let text = CStr::from_bytes_until_nul(&buffer).unwrap_or_default();
    Ok(text.to_string_lossy().into_owned())
}

/// The product's name.
pub(crate) fn name(device: i32) -> CudaResult<String> {
    // SAFETY: the buffer has the length that is passed.
    text(|buffer, len| unsafe { driver().cuDeviceGetName(buffer, len, device) })
}

/// The PCI address, as `0000:17:00.0`.
pub(crate) fn pci_bus_id(device: i32) -> CudaResult<String> {
    // SAFETY: the buffer has the length that is passed.
    text(|buffer, len| unsafe { driver().cuDeviceGetPCIBusId(buffer, len, device) })
}

/// The device's (or its MIG instance's) unique number.
pub(crate) fn uuid(device: i32) -> CudaResult<[u8; 16]> {
    let mut uuid = CUuuid { bytes: [0; 16] };
    // SAFETY: the pointer is to a local that lives through the call.
    unsafe { driver().cuDeviceGetUuid_v2(&mut uuid, device) }.ok()?;
    Ok(uuid.bytes.map(|byte| byte.cast_unsigned()))
}
