//! Handlers of fills: which range each call writes. One handler serves words of 8, 16 and 32 bits. What follows from a write is the runtime's matter.

use super::Call;
use super::descriptor::span;
use crate::ffi::stream::Stream;
use crate::ffi::types::*;
use crate::outcome::Outcome;
use crate::runtime::copies::{self, Operand};

/// Bytes of `count` words like `V`.
fn bytes_of<V>(count: usize) -> usize {
    count.saturating_mul(size_of::<V>())
}

/// The range that a fill node writes.
pub(super) fn of_node(node: &MemsetNodeParams) -> Operand {
    let row = node.width.saturating_mul(node.element_size as usize);
    Operand::write(node.dst, span(node.pitch, row, node.height))
}

pub(super) fn words<V: Copy>(
    call: &Call<unsafe extern "C" fn(CUdeviceptr, V, usize) -> CUresult>,
    dst: CUdeviceptr,
    value: V,
    count: usize,
) -> Outcome {
    copies::handle(Stream::from(call.null_stream), &[Operand::write(dst, bytes_of::<V>(count))], || {
        call.invoke(dst, value, count)
    })
}

pub(super) fn words_async<V: Copy>(
    call: &Call<unsafe extern "C" fn(CUdeviceptr, V, usize, CUstream) -> CUresult>,
    dst: CUdeviceptr,
    value: V,
    count: usize,
    stream: CUstream,
) -> Outcome {
    copies::handle(Stream::from(call.stream(stream)), &[Operand::write(dst, bytes_of::<V>(count))], || {
        call.invoke(dst, value, count, stream)
    })
}

pub(super) fn rows<V: Copy>(
    call: &Call<unsafe extern "C" fn(CUdeviceptr, usize, V, usize, usize) -> CUresult>,
    dst: CUdeviceptr,
    pitch: usize,
    value: V,
    width: usize,
    height: usize,
) -> Outcome {
    let bytes = span(pitch, bytes_of::<V>(width), height);
    copies::handle(Stream::from(call.null_stream), &[Operand::write(dst, bytes)], || {
        call.invoke(dst, pitch, value, width, height)
    })
}

pub(super) fn rows_async<V: Copy>(
    call: &Call<unsafe extern "C" fn(CUdeviceptr, usize, V, usize, usize, CUstream) -> CUresult>,
    dst: CUdeviceptr,
    pitch: usize,
    value: V,
    width: usize,
    height: usize,
    stream: CUstream,
) -> Outcome {
    let bytes = span(pitch, bytes_of::<V>(width), height);
    copies::handle(Stream::from(call.stream(stream)), &[Operand::write(dst, bytes)], || {
        call.invoke(dst, pitch, value, width, height, stream)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fill_writes_as_many_bytes_as_its_words_have() {
        assert_eq!(bytes_of::<c_uchar>(3), 3);
        assert_eq!(bytes_of::<c_ushort>(3), 6);
        assert_eq!(bytes_of::<c_uint>(3), 12);
        // Three rows of two words each, 16 bytes apart.
        assert_eq!(span(16, bytes_of::<c_uint>(2), 3), 40);
    }
}
