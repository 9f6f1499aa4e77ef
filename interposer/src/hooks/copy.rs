//! Handlers of copies: which ranges each call reads and writes, and which host memory is searched for addresses. What follows from that is the runtime's
//! matter; what the descriptors of rows and slices say is `descriptor`'s, fills are `fill`'s.

#![expect(unsafe_code, reason = "reads the descriptors that the program passes to the driver")]

use super::Call;
use super::descriptor::{rows_of, search_rows, search_slices, slices_of};
use crate::ffi::stream::Stream;
use crate::ffi::types::*;
use crate::outcome::Outcome;
use crate::runtime::copies::{self, Operand};
use crate::runtime::escapes::{self, Source};
use crate::runtime::peers;

/// The ranges of a batch of copies; host addresses among them mean nothing to the arena.
///
/// # Safety
/// Each list has `count` entries.
unsafe fn batch_of(
    dsts: *const CUdeviceptr,
    srcs: *const CUdeviceptr,
    sizes: *const usize,
    count: usize,
) -> Vec<Operand> {
    if dsts.is_null() || srcs.is_null() || sizes.is_null() {
        return Vec::new();
    }
    // SAFETY: the caller's promise.
    let dsts = unsafe { std::slice::from_raw_parts(dsts, count) };
    // SAFETY: the caller's promise.
    let srcs = unsafe { std::slice::from_raw_parts(srcs, count) };
    // SAFETY: the caller's promise.
    let sizes = unsafe { std::slice::from_raw_parts(sizes, count) };
    let pairs = dsts.iter().zip(srcs).zip(sizes);
    pairs.flat_map(|((&dst, &src), &bytes)| [Operand::write(dst, bytes), Operand::read(src, bytes)]).collect()
}

pub(super) fn any(
    call: &Call<unsafe extern "C" fn(CUdeviceptr, CUdeviceptr, usize) -> CUresult>,
    dst: CUdeviceptr,
    src: CUdeviceptr,
    bytes: usize,
) -> Outcome {
    if let Err(code) = escapes::search_any(Source::flat(src, bytes)) {
        return Outcome::Fail(code);
    }
    copies::handle(
        Stream::from(call.null_stream),
        &[Operand::write(dst, bytes), Operand::read(src, bytes)],
        || peers::copy((dst, src), bytes, Stream::from(call.null_stream), || call.invoke(dst, src, bytes)),
    )
}

pub(super) fn any_async(
    call: &Call<unsafe extern "C" fn(CUdeviceptr, CUdeviceptr, usize, CUstream) -> CUresult>,
    dst: CUdeviceptr,
    src: CUdeviceptr,
    bytes: usize,
    stream: CUstream,
) -> Outcome {
    if let Err(code) = escapes::search_any(Source::flat(src, bytes)) {
        return Outcome::Fail(code);
    }
    copies::handle(
        Stream::from(call.stream(stream)),
        &[Operand::write(dst, bytes), Operand::read(src, bytes)],
        || {
            let on = Stream::from(call.stream(stream));
            peers::copy((dst, src), bytes, on, || call.invoke(dst, src, bytes, stream))
        },
    )
}

pub(super) fn to_device(
    call: &Call<unsafe extern "C" fn(CUdeviceptr, *const c_void, usize) -> CUresult>,
    dst: CUdeviceptr,
    src: *const c_void,
    bytes: usize,
) -> Outcome {
    // SAFETY: the program passes the source to the driver in this very call.
    if let Err(code) = unsafe { escapes::search_host(Source::flat(src.expose_provenance() as u64, bytes)) } {
        return Outcome::Fail(code);
    }
    copies::handle(Stream::from(call.null_stream), &[Operand::write(dst, bytes)], || {
        call.invoke(dst, src, bytes)
    })
}

pub(super) fn to_device_async(
    call: &Call<unsafe extern "C" fn(CUdeviceptr, *const c_void, usize, CUstream) -> CUresult>,
    dst: CUdeviceptr,
    src: *const c_void,
    bytes: usize,
    stream: CUstream,
) -> Outcome {
    // SAFETY: the program passes the source to the driver in this very call.
    if let Err(code) = unsafe { escapes::search_host(Source::flat(src.expose_provenance() as u64, bytes)) } {
        return Outcome::Fail(code);
    }
    copies::handle(Stream::from(call.stream(stream)), &[Operand::write(dst, bytes)], || {
        call.invoke(dst, src, bytes, stream)
    })
}

pub(super) fn to_host(
    call: &Call<unsafe extern "C" fn(*mut c_void, CUdeviceptr, usize) -> CUresult>,
    dst: *mut c_void,
    src: CUdeviceptr,
    bytes: usize,
) -> Outcome {
    copies::handle(Stream::from(call.null_stream), &[Operand::read(src, bytes)], || {
        call.invoke(dst, src, bytes)
    })
}

pub(super) fn to_host_async(
    call: &Call<unsafe extern "C" fn(*mut c_void, CUdeviceptr, usize, CUstream) -> CUresult>,
    dst: *mut c_void,
    src: CUdeviceptr,
    bytes: usize,
    stream: CUstream,
) -> Outcome {
    copies::handle(Stream::from(call.stream(stream)), &[Operand::read(src, bytes)], || {
        call.invoke(dst, src, bytes, stream)
    })
}

pub(super) fn peer(
    call: &Call<unsafe extern "C" fn(CUdeviceptr, CUcontext, CUdeviceptr, CUcontext, usize) -> CUresult>,
    dst: CUdeviceptr,
    dst_ctx: CUcontext,
    src: CUdeviceptr,
    src_ctx: CUcontext,
    bytes: usize,
) -> Outcome {
    copies::handle(
        Stream::from(call.null_stream),
        &[Operand::write(dst, bytes), Operand::read(src, bytes)],
        || call.invoke(dst, dst_ctx, src, src_ctx, bytes),
    )
}

pub(super) fn peer_async(
    call: &Call<
        unsafe extern "C" fn(CUdeviceptr, CUcontext, CUdeviceptr, CUcontext, usize, CUstream) -> CUresult,
    >,
    dst: CUdeviceptr,
    dst_ctx: CUcontext,
    src: CUdeviceptr,
    src_ctx: CUcontext,
    bytes: usize,
    stream: CUstream,
) -> Outcome {
    copies::handle(
        Stream::from(call.stream(stream)),
        &[Operand::write(dst, bytes), Operand::read(src, bytes)],
        || call.invoke(dst, dst_ctx, src, src_ctx, bytes, stream),
    )
}

pub(super) fn rows(
    call: &Call<unsafe extern "C" fn(*const Memcpy2D) -> CUresult>,
    copy: *const Memcpy2D,
) -> Outcome {
    // SAFETY: the program passes the descriptor, and its source, to the driver in this very call.
    if let Err(code) = unsafe { search_rows(copy) } {
        return Outcome::Fail(code);
    }
    // SAFETY: as above.
    let operands = unsafe { rows_of(copy) };
    copies::handle(Stream::from(call.null_stream), &operands, || call.invoke(copy))
}

pub(super) fn rows_async(
    call: &Call<unsafe extern "C" fn(*const Memcpy2D, CUstream) -> CUresult>,
    copy: *const Memcpy2D,
    stream: CUstream,
) -> Outcome {
    // SAFETY: the program passes the descriptor, and its source, to the driver in this very call.
    if let Err(code) = unsafe { search_rows(copy) } {
        return Outcome::Fail(code);
    }
    // SAFETY: as above.
    let operands = unsafe { rows_of(copy) };
    copies::handle(Stream::from(call.stream(stream)), &operands, || call.invoke(copy, stream))
}

pub(super) fn slices(
    call: &Call<unsafe extern "C" fn(*const Memcpy3D) -> CUresult>,
    copy: *const Memcpy3D,
) -> Outcome {
    // SAFETY: the program passes the descriptor, and its source, to the driver in this very call.
    if let Err(code) = unsafe { search_slices(copy) } {
        return Outcome::Fail(code);
    }
    // SAFETY: as above.
    let operands = unsafe { slices_of(copy) };
    copies::handle(Stream::from(call.null_stream), &operands, || call.invoke(copy))
}

pub(super) fn slices_async(
    call: &Call<unsafe extern "C" fn(*const Memcpy3D, CUstream) -> CUresult>,
    copy: *const Memcpy3D,
    stream: CUstream,
) -> Outcome {
    // SAFETY: the program passes the descriptor, and its source, to the driver in this very call.
    if let Err(code) = unsafe { search_slices(copy) } {
        return Outcome::Fail(code);
    }
    // SAFETY: as above.
    let operands = unsafe { slices_of(copy) };
    copies::handle(Stream::from(call.stream(stream)), &operands, || call.invoke(copy, stream))
}

#[expect(clippy::too_many_arguments, reason = "the driver's signature")]
pub(super) fn batch_with_index(
    call: &Call<
        unsafe extern "C" fn(
            *mut CUdeviceptr,
            *mut CUdeviceptr,
            *mut usize,
            usize,
            *mut c_void,
            *mut usize,
            usize,
            *mut usize,
            CUstream,
        ) -> CUresult,
    >,
    dsts: *mut CUdeviceptr,
    srcs: *mut CUdeviceptr,
    sizes: *mut usize,
    count: usize,
    attrs: *mut c_void,
    attr_indices: *mut usize,
    num_attrs: usize,
    failed: *mut usize,
    stream: CUstream,
) -> Outcome {
    // SAFETY: the program passes the lists, of `count` entries each, to the driver in this very call.
    let operands = unsafe { batch_of(dsts, srcs, sizes, count) };
    let sources = operands.iter().filter(|operand| !operand.writes);
    let mut sources = sources.map(|operand| Source::flat(operand.address, operand.bytes as usize));
    if let Err(code) = sources.try_for_each(escapes::search_any) {
        return Outcome::Fail(code);
    }
    copies::handle(Stream::from(call.stream(stream)), &operands, || {
        call.invoke(dsts, srcs, sizes, count, attrs, attr_indices, num_attrs, failed, stream)
    })
}

#[expect(clippy::too_many_arguments, reason = "the driver's signature")]
pub(super) fn batch(
    call: &Call<
        unsafe extern "C" fn(
            *mut CUdeviceptr,
            *mut CUdeviceptr,
            *mut usize,
            usize,
            *mut c_void,
            *mut usize,
            usize,
            CUstream,
        ) -> CUresult,
    >,
    dsts: *mut CUdeviceptr,
    srcs: *mut CUdeviceptr,
    sizes: *mut usize,
    count: usize,
    attrs: *mut c_void,
    attr_indices: *mut usize,
    num_attrs: usize,
    stream: CUstream,
) -> Outcome {
    // SAFETY: the program passes the lists, of `count` entries each, to the driver in this very call.
    let operands = unsafe { batch_of(dsts, srcs, sizes, count) };
    let sources = operands.iter().filter(|operand| !operand.writes);
    let mut sources = sources.map(|operand| Source::flat(operand.address, operand.bytes as usize));
    if let Err(code) = sources.try_for_each(escapes::search_any) {
        return Outcome::Fail(code);
    }
    copies::handle(Stream::from(call.stream(stream)), &operands, || {
        call.invoke(dsts, srcs, sizes, count, attrs, attr_indices, num_attrs, stream)
    })
}
