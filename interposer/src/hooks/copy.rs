//! Handlers of copies and fills.

use super::Call;
use crate::ffi::types::*;
use crate::outcome::{Outcome, Reason};

pub(super) fn any(
    _call: &Call<unsafe extern "C" fn(CUdeviceptr, CUdeviceptr, usize) -> CUresult>,
    _dst: CUdeviceptr,
    _src: CUdeviceptr,
    _bytes: usize,
) -> Outcome {
    Outcome::Bypass(Reason::NotManaged)
}

pub(super) fn any_async(
    _call: &Call<unsafe extern "C" fn(CUdeviceptr, CUdeviceptr, usize, CUstream) -> CUresult>,
    _dst: CUdeviceptr,
    _src: CUdeviceptr,
    _bytes: usize,
    _stream: CUstream,
) -> Outcome {
    Outcome::Bypass(Reason::NotManaged)
}

pub(super) fn to_device(
    _call: &Call<unsafe extern "C" fn(CUdeviceptr, *const c_void, usize) -> CUresult>,
    _dst: CUdeviceptr,
    _src: *const c_void,
    _bytes: usize,
) -> Outcome {
    Outcome::Bypass(Reason::NotManaged)
}

pub(super) fn to_device_async(
    _call: &Call<unsafe extern "C" fn(CUdeviceptr, *const c_void, usize, CUstream) -> CUresult>,
    _dst: CUdeviceptr,
    _src: *const c_void,
    _bytes: usize,
    _stream: CUstream,
) -> Outcome {
    Outcome::Bypass(Reason::NotManaged)
}

pub(super) fn to_host(
    _call: &Call<unsafe extern "C" fn(*mut c_void, CUdeviceptr, usize) -> CUresult>,
    _dst: *mut c_void,
    _src: CUdeviceptr,
    _bytes: usize,
) -> Outcome {
    Outcome::Bypass(Reason::NotManaged)
}

pub(super) fn to_host_async(
    _call: &Call<unsafe extern "C" fn(*mut c_void, CUdeviceptr, usize, CUstream) -> CUresult>,
    _dst: *mut c_void,
    _src: CUdeviceptr,
    _bytes: usize,
    _stream: CUstream,
) -> Outcome {
    Outcome::Bypass(Reason::NotManaged)
}

pub(super) fn on_device(
    _call: &Call<unsafe extern "C" fn(CUdeviceptr, CUdeviceptr, usize) -> CUresult>,
    _dst: CUdeviceptr,
    _src: CUdeviceptr,
    _bytes: usize,
) -> Outcome {
    Outcome::Bypass(Reason::NotManaged)
}

pub(super) fn on_device_async(
    _call: &Call<unsafe extern "C" fn(CUdeviceptr, CUdeviceptr, usize, CUstream) -> CUresult>,
    _dst: CUdeviceptr,
    _src: CUdeviceptr,
    _bytes: usize,
    _stream: CUstream,
) -> Outcome {
    Outcome::Bypass(Reason::NotManaged)
}

pub(super) fn peer(
    _call: &Call<unsafe extern "C" fn(CUdeviceptr, CUcontext, CUdeviceptr, CUcontext, usize) -> CUresult>,
    _dst: CUdeviceptr,
    _dst_ctx: CUcontext,
    _src: CUdeviceptr,
    _src_ctx: CUcontext,
    _bytes: usize,
) -> Outcome {
    Outcome::Bypass(Reason::NotManaged)
}

pub(super) fn peer_async(
    _call: &Call<
        unsafe extern "C" fn(CUdeviceptr, CUcontext, CUdeviceptr, CUcontext, usize, CUstream) -> CUresult,
    >,
    _dst: CUdeviceptr,
    _dst_ctx: CUcontext,
    _src: CUdeviceptr,
    _src_ctx: CUcontext,
    _bytes: usize,
    _stream: CUstream,
) -> Outcome {
    Outcome::Bypass(Reason::NotManaged)
}

pub(super) fn rows(
    _call: &Call<unsafe extern "C" fn(*const Memcpy2D) -> CUresult>,
    _copy: *const Memcpy2D,
) -> Outcome {
    Outcome::Bypass(Reason::NotManaged)
}

pub(super) fn rows_async(
    _call: &Call<unsafe extern "C" fn(*const Memcpy2D, CUstream) -> CUresult>,
    _copy: *const Memcpy2D,
    _stream: CUstream,
) -> Outcome {
    Outcome::Bypass(Reason::NotManaged)
}

pub(super) fn slices(
    _call: &Call<unsafe extern "C" fn(*const Memcpy3D) -> CUresult>,
    _copy: *const Memcpy3D,
) -> Outcome {
    Outcome::Bypass(Reason::NotManaged)
}

pub(super) fn slices_async(
    _call: &Call<unsafe extern "C" fn(*const Memcpy3D, CUstream) -> CUresult>,
    _copy: *const Memcpy3D,
    _stream: CUstream,
) -> Outcome {
    Outcome::Bypass(Reason::NotManaged)
}

#[expect(clippy::too_many_arguments, reason = "the driver's signature")]
pub(super) fn batch_with_index(
    _call: &Call<
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
    _dsts: *mut CUdeviceptr,
    _srcs: *mut CUdeviceptr,
    _sizes: *mut usize,
    _count: usize,
    _attrs: *mut c_void,
    _attr_indices: *mut usize,
    _num_attrs: usize,
    _failed: *mut usize,
    _stream: CUstream,
) -> Outcome {
    Outcome::Bypass(Reason::NotManaged)
}

#[expect(clippy::too_many_arguments, reason = "the driver's signature")]
pub(super) fn batch(
    _call: &Call<
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
    _dsts: *mut CUdeviceptr,
    _srcs: *mut CUdeviceptr,
    _sizes: *mut usize,
    _count: usize,
    _attrs: *mut c_void,
    _attr_indices: *mut usize,
    _num_attrs: usize,
    _stream: CUstream,
) -> Outcome {
    Outcome::Bypass(Reason::NotManaged)
}

pub(super) fn fill_8(
    _call: &Call<unsafe extern "C" fn(CUdeviceptr, c_uchar, usize) -> CUresult>,
    _dst: CUdeviceptr,
    _value: c_uchar,
    _count: usize,
) -> Outcome {
    Outcome::Bypass(Reason::NotManaged)
}

pub(super) fn fill_8_async(
    _call: &Call<unsafe extern "C" fn(CUdeviceptr, c_uchar, usize, CUstream) -> CUresult>,
    _dst: CUdeviceptr,
    _value: c_uchar,
    _count: usize,
    _stream: CUstream,
) -> Outcome {
    Outcome::Bypass(Reason::NotManaged)
}

pub(super) fn fill_rows_8(
    _call: &Call<unsafe extern "C" fn(CUdeviceptr, usize, c_uchar, usize, usize) -> CUresult>,
    _dst: CUdeviceptr,
    _pitch: usize,
    _value: c_uchar,
    _width: usize,
    _height: usize,
) -> Outcome {
    Outcome::Bypass(Reason::NotManaged)
}

pub(super) fn fill_rows_8_async(
    _call: &Call<unsafe extern "C" fn(CUdeviceptr, usize, c_uchar, usize, usize, CUstream) -> CUresult>,
    _dst: CUdeviceptr,
    _pitch: usize,
    _value: c_uchar,
    _width: usize,
    _height: usize,
    _stream: CUstream,
) -> Outcome {
    Outcome::Bypass(Reason::NotManaged)
}

pub(super) fn fill_16(
    _call: &Call<unsafe extern "C" fn(CUdeviceptr, c_ushort, usize) -> CUresult>,
    _dst: CUdeviceptr,
    _value: c_ushort,
    _count: usize,
) -> Outcome {
    Outcome::Bypass(Reason::NotManaged)
}

pub(super) fn fill_16_async(
    _call: &Call<unsafe extern "C" fn(CUdeviceptr, c_ushort, usize, CUstream) -> CUresult>,
    _dst: CUdeviceptr,
    _value: c_ushort,
    _count: usize,
    _stream: CUstream,
) -> Outcome {
    Outcome::Bypass(Reason::NotManaged)
}

pub(super) fn fill_rows_16(
    _call: &Call<unsafe extern "C" fn(CUdeviceptr, usize, c_ushort, usize, usize) -> CUresult>,
    _dst: CUdeviceptr,
    _pitch: usize,
    _value: c_ushort,
    _width: usize,
    _height: usize,
) -> Outcome {
    Outcome::Bypass(Reason::NotManaged)
}

pub(super) fn fill_rows_16_async(
    _call: &Call<unsafe extern "C" fn(CUdeviceptr, usize, c_ushort, usize, usize, CUstream) -> CUresult>,
    _dst: CUdeviceptr,
    _pitch: usize,
    _value: c_ushort,
    _width: usize,
    _height: usize,
    _stream: CUstream,
) -> Outcome {
    Outcome::Bypass(Reason::NotManaged)
}

pub(super) fn fill_32(
    _call: &Call<unsafe extern "C" fn(CUdeviceptr, c_uint, usize) -> CUresult>,
    _dst: CUdeviceptr,
    _value: c_uint,
    _count: usize,
) -> Outcome {
    Outcome::Bypass(Reason::NotManaged)
}

pub(super) fn fill_32_async(
    _call: &Call<unsafe extern "C" fn(CUdeviceptr, c_uint, usize, CUstream) -> CUresult>,
    _dst: CUdeviceptr,
    _value: c_uint,
    _count: usize,
    _stream: CUstream,
) -> Outcome {
    Outcome::Bypass(Reason::NotManaged)
}

pub(super) fn fill_rows_32(
    _call: &Call<unsafe extern "C" fn(CUdeviceptr, usize, c_uint, usize, usize) -> CUresult>,
    _dst: CUdeviceptr,
    _pitch: usize,
    _value: c_uint,
    _width: usize,
    _height: usize,
) -> Outcome {
    Outcome::Bypass(Reason::NotManaged)
}

pub(super) fn fill_rows_32_async(
    _call: &Call<unsafe extern "C" fn(CUdeviceptr, usize, c_uint, usize, usize, CUstream) -> CUresult>,
    _dst: CUdeviceptr,
    _pitch: usize,
    _value: c_uint,
    _width: usize,
    _height: usize,
    _stream: CUstream,
) -> Outcome {
    Outcome::Bypass(Reason::NotManaged)
}
