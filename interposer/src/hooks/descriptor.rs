//! What the descriptors of copies of rows and slices say: the device ranges that they touch, and the host memory that is searched for addresses of weights.
//! Who passes them is `copy`'s and `node`'s matter.

#![expect(unsafe_code, reason = "reads the descriptors that the program passes to the driver")]

use crate::ffi::types::*;
use crate::runtime::copies::Operand;
use crate::runtime::escapes::{self, Source};

/// Bytes from the first row's first byte to the last row's last one.
pub(super) fn span(pitch: usize, width: usize, height: usize) -> usize {
    if height == 0 { 0 } else { pitch.saturating_mul(height - 1).saturating_add(width) }
}

/// The device ranges of a copy of rows.
///
/// # Safety
/// The descriptor is null or valid.
pub(super) unsafe fn rows_of(copy: *const Memcpy2D) -> Vec<Operand> {
    // SAFETY: the caller's promise.
    let Some(copy) = (unsafe { copy.as_ref() }) else { return Vec::new() };
    let mut operands = Vec::with_capacity(2);
    let start = |base: u64, pitch: usize, x: usize, y: usize| base + (pitch * y + x) as u64;
    if matches!(copy.dst_memory_type, memory_type::DEVICE | memory_type::UNIFIED) {
        let from = start(copy.dst_device, copy.dst_pitch, copy.dst_x_in_bytes, copy.dst_y);
        operands.push(Operand::write(from, span(copy.dst_pitch, copy.width_in_bytes, copy.height)));
    }
    if matches!(copy.src_memory_type, memory_type::DEVICE | memory_type::UNIFIED) {
        let from = start(copy.src_device, copy.src_pitch, copy.src_x_in_bytes, copy.src_y);
        operands.push(Operand::read(from, span(copy.src_pitch, copy.width_in_bytes, copy.height)));
    }
    operands
}

/// The device ranges of a copy of slices.
///
/// # Safety
/// The descriptor is null or valid.
pub(super) unsafe fn slices_of(copy: *const Memcpy3D) -> Vec<Operand> {
    // SAFETY: the caller's promise.
    let Some(copy) = (unsafe { copy.as_ref() }) else { return Vec::new() };
    let mut operands = Vec::with_capacity(2);
    let bytes = |pitch: usize, height: usize| {
        let rows = height.max(copy.height);
        span(pitch.saturating_mul(rows), span(pitch, copy.width_in_bytes, copy.height), copy.depth)
    };
    let start = |base: u64, pitch: usize, height: usize, [x, y, z]: [usize; 3]| {
        base + (pitch * (height.max(copy.height) * z + y) + x) as u64
    };
    if matches!(copy.dst_memory_type, memory_type::DEVICE | memory_type::UNIFIED) {
        let from = start(
            copy.dst_device,
            copy.dst_pitch,
            copy.dst_height,
            [copy.dst_x_in_bytes, copy.dst_y, copy.dst_z],
        );
        operands.push(Operand::write(from, bytes(copy.dst_pitch, copy.dst_height)));
    }
    if matches!(copy.src_memory_type, memory_type::DEVICE | memory_type::UNIFIED) {
        let from = start(
            copy.src_device,
            copy.src_pitch,
            copy.src_height,
            [copy.src_x_in_bytes, copy.src_y, copy.src_z],
        );
        operands.push(Operand::read(from, bytes(copy.src_pitch, copy.src_height)));
    }
    operands
}

/// Searches the source of a copy of rows, if it is host memory.
///
/// # Safety
/// The descriptor is null or valid, and so is the host memory that it names.
pub(super) unsafe fn search_rows(copy: *const Memcpy2D) -> Result<(), CUresult> {
    // SAFETY: the caller's promise.
    let Some(copy) = (unsafe { copy.as_ref() }) else { return Ok(()) };
    let first = (copy.src_pitch.wrapping_mul(copy.src_y)).wrapping_add(copy.src_x_in_bytes);
    let source = Source {
        address: first as u64,
        bytes: copy.width_in_bytes,
        pitch: copy.src_pitch,
        rows: copy.height,
        slice_pitch: 0,
        slices: 1,
    };
    // SAFETY: the caller's promise.
    unsafe { search_typed(source, copy.src_memory_type, copy.src_host, copy.src_device) }
}

/// Searches the source of a copy of slices, if it is host memory.
///
/// # Safety
/// The descriptor is null or valid, and so is the host memory that it names.
pub(super) unsafe fn search_slices(copy: *const Memcpy3D) -> Result<(), CUresult> {
    // SAFETY: the caller's promise.
    let Some(copy) = (unsafe { copy.as_ref() }) else { return Ok(()) };
    let slice_pitch = copy.src_pitch.wrapping_mul(copy.src_height.max(copy.height));
    let first = slice_pitch
        .wrapping_mul(copy.src_z)
        .wrapping_add(copy.src_pitch.wrapping_mul(copy.src_y))
        .wrapping_add(copy.src_x_in_bytes);
    let source = Source {
        address: first as u64,
        bytes: copy.width_in_bytes,
        pitch: copy.src_pitch,
        rows: copy.height,
        slice_pitch,
        slices: copy.depth,
    };
    // SAFETY: the caller's promise.
    unsafe { search_typed(source, copy.src_memory_type, copy.src_host, copy.src_device) }
}

/// `source.address` is the offset from the base of the side that the memory type chooses.
///
/// # Safety
/// The host memory that the source names is valid, if the type says host.
unsafe fn search_typed(
    mut source: Source,
    kind: u32,
    host: *const c_void,
    device: u64,
) -> Result<(), CUresult> {
    match kind {
        memory_type::HOST if !host.is_null() => {
            source.address = source.address.wrapping_add(host.expose_provenance() as u64);
            // SAFETY: the caller's promise.
            unsafe { escapes::search_host(source) }
        }
        memory_type::UNIFIED => {
            source.address = source.address.wrapping_add(device);
            escapes::search_any(source)
        }
        _ => Ok(()),
    }
}
