//! What the driver says about its devices. What follows from it is the caller's.

#![expect(unsafe_code, reason = "typed calls into the driver")]

use super::real::driver;
use super::result::CudaResult;
use super::types::{CUresult, c_char, c_uint};

/// Bytes of memory that the device has.
pub(crate) fn total_memory(device: i32) -> CudaResult<usize> {
    let mut bytes = 0;
    // SAFETY: the pointer is to a local that lives through the call.
    unsafe { driver().cuDeviceTotalMem_v2(&mut bytes, device) }.ok()?;
    Ok(bytes)
}

/// Bytes of memory that are free on the current context's device.
pub(crate) fn free_memory() -> CudaResult<usize> {
    free_and_total_memory().map(|(free, _)| free)
}

/// The same, and the bytes that the device has.
pub(crate) fn free_and_total_memory() -> CudaResult<(usize, usize)> {
    let (mut free, mut total) = (0, 0);
    // SAFETY: both pointers are to locals that live through the call.
    unsafe { driver().cuMemGetInfo_v2(&mut free, &mut total) }.ok()?;
    Ok((free, total))
}

/// `CU_DEVICE_ATTRIBUTE_INTEGRATED`.
const INTEGRATED: c_uint = 18;

/// Whether the device has no memory of its own: it works in the host's.
pub(crate) fn is_integrated(device: i32) -> CudaResult<bool> {
    let mut value = 0;
    // SAFETY: the pointer is to a local that lives through the call.
    unsafe { driver().cuDeviceGetAttribute(&mut value, INTEGRATED, device) }.ok()?;
    Ok(value != 0)
}

/// The device's UUID as tools print it, `GPU-` and five groups of hexadecimal digits; of a part of a GPU (MIG) its own.
pub(crate) fn uuid(device: i32) -> CudaResult<String> {
    let mut bytes = [0; 16];
    // SAFETY: the pointer is to 16 bytes that live through the call.
    let mut code = unsafe { driver().cuDeviceGetUuid_v2(&mut bytes, device) };
    if code == CUresult::CUDA_ERROR_NOT_SUPPORTED {
        // SAFETY: as above.
        code = unsafe { driver().cuDeviceGetUuid(&mut bytes, device) };
    }
    code.ok()?;
    Ok(uuid_text(bytes))
}

fn uuid_text(bytes: [u8; 16]) -> String {
    let mut text = "GPU".to_owned();
    for (at, byte) in bytes.iter().enumerate() {
        let dash = if matches!(at, 0 | 4 | 6 | 8 | 10) { "-" } else { "" };
        text += &format!("{dash}{byte:02x}");
    }
    text
}

/// Where the device sits, as `0000:1b:00.0` in lower case: the name of its folder below `/sys/bus/pci/devices`.
pub(crate) fn pci_bus_id(device: i32) -> CudaResult<String> {
    let mut text: [c_char; 32] = [0; 32];
    // SAFETY: the buffer has the length that is given, and lives through the call.
    unsafe { driver().cuDeviceGetPCIBusId(text.as_mut_ptr(), text.len() as i32, device) }.ok()?;
    let bytes = text.iter().take_while(|&&c| c != 0).map(|&c| c as u8);
    Ok(bytes.map(|byte| char::from(byte).to_ascii_lowercase()).collect())
}

/// The driver's version: 12080 is 12.8. 0 where it does not tell.
pub(crate) fn driver_version() -> u32 {
    let mut version = 0;
    // SAFETY: the pointer is to a local that lives through the call.
    let code = unsafe { driver().cuDriverGetVersion(&mut version) };
    if code.is_success() { version.unsigned_abs() } else { 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_is_written_as_tools_write_it() {
        let bytes = std::array::from_fn(|at| at as u8 * 0x11);
        assert_eq!(uuid_text(bytes), "GPU-00112233-4455-6677-8899-aabbccddeeff");
    }
}
