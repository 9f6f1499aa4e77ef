//! Copies and memsets.
#![expect(unsafe_code, reason = "exports under fixed names")]

use crate::abi::{Copy2d, Copy3d, MEMORY_DEVICE, MEMORY_HOST, MEMORY_UNIFIED};
use crate::call::stream_exports;
use crate::exec::copy::{CopyJob, Direction, Row, SetJob};
use crate::exec::stream::Stream;
use crate::exec::work::Work;
use crate::exec::{NullStream, capture, enqueue, stream_of};
use crate::memory::access::{self, End};
use crate::memory::physical::Place;
use crate::memory::space::{self, HostKind};
use crate::pointer::{In, Out};
use crate::settings::settings;
use crate::status::{Done, Status};
use std::sync::Arc;

stream_exports! {
    cuMemcpy, cuMemcpy_ptds(target: u64, source: u64, bytes: usize) => copy_now;
    cuMemcpyHtoD_v2, cuMemcpyHtoD_v2_ptds(target: u64, source: u64, bytes: usize) => copy_now;
    cuMemcpyDtoH_v2, cuMemcpyDtoH_v2_ptds(target: u64, source: u64, bytes: usize) => copy_now;
    cuMemcpyDtoD_v2, cuMemcpyDtoD_v2_ptds(target: u64, source: u64, bytes: usize) => copy_now;
    cuMemcpyPeer, cuMemcpyPeer_ptds(target: u64, target_context: u64, source: u64, source_context: u64, bytes: usize) => peer_now;
    cuMemcpyAsync, cuMemcpyAsync_ptsz(target: u64, source: u64, bytes: usize, stream: u64) => copy_later;
    cuMemcpyHtoDAsync_v2, cuMemcpyHtoDAsync_v2_ptsz(target: u64, source: u64, bytes: usize, stream: u64) => copy_later;
    cuMemcpyDtoHAsync_v2, cuMemcpyDtoHAsync_v2_ptsz(target: u64, source: u64, bytes: usize, stream: u64) => copy_later;
    cuMemcpyDtoDAsync_v2, cuMemcpyDtoDAsync_v2_ptsz(target: u64, source: u64, bytes: usize, stream: u64) => copy_later;
    cuMemcpyPeerAsync, cuMemcpyPeerAsync_ptsz(target: u64, target_context: u64, source: u64, source_context: u64, bytes: usize, stream: u64) => peer_later;
    cuMemcpy2D_v2, cuMemcpy2D_v2_ptds(copy: In<Copy2d>) => copy_2d_now;
    cuMemcpy2DUnaligned_v2, cuMemcpy2DUnaligned_v2_ptds(copy: In<Copy2d>) => copy_2d_now;
    cuMemcpy2DAsync_v2, cuMemcpy2DAsync_v2_ptsz(copy: In<Copy2d>, stream: u64) => copy_2d_later;
    cuMemcpy3D_v2, cuMemcpy3D_v2_ptds(copy: In<Copy3d>) => copy_3d_now;
    cuMemcpy3DAsync_v2, cuMemcpy3DAsync_v2_ptsz(copy: In<Copy3d>, stream: u64) => copy_3d_later;
    cuMemcpy3DPeer, cuMemcpy3DPeer_ptds(copy: In<Copy3d>) => copy_3d_now;
    cuMemcpy3DPeerAsync, cuMemcpy3DPeerAsync_ptsz(copy: In<Copy3d>, stream: u64) => copy_3d_later;
    cuMemcpyBatchAsync, cuMemcpyBatchAsync_ptsz(targets: In<u64>, sources: In<u64>, sizes: In<usize>, count: usize, attributes: In<u8>, indices: In<usize>, attribute_count: usize, failed: Out<usize>, stream: u64) => batch_12080;
    cuMemcpyBatchAsync_v2, cuMemcpyBatchAsync_v2_ptsz(targets: In<u64>, sources: In<u64>, sizes: In<usize>, count: usize, attributes: In<u8>, indices: In<usize>, attribute_count: usize, stream: u64) => batch_13000;
    cuMemsetD8_v2, cuMemsetD8_v2_ptds(target: u64, value: u8, count: usize) => set_8;
    cuMemsetD16_v2, cuMemsetD16_v2_ptds(target: u64, value: u16, count: usize) => set_16;
    cuMemsetD32_v2, cuMemsetD32_v2_ptds(target: u64, value: u32, count: usize) => set_32;
    cuMemsetD8Async, cuMemsetD8Async_ptsz(target: u64, value: u8, count: usize, stream: u64) => set_8_later;
    cuMemsetD16Async, cuMemsetD16Async_ptsz(target: u64, value: u16, count: usize, stream: u64) => set_16_later;
    cuMemsetD32Async, cuMemsetD32Async_ptsz(target: u64, value: u32, count: usize, stream: u64) => set_32_later;
    cuMemsetD2D8_v2, cuMemsetD2D8_v2_ptds(target: u64, pitch: usize, value: u8, width: usize, height: usize) => set_2d_8;
    cuMemsetD2D32_v2, cuMemsetD2D32_v2_ptds(target: u64, pitch: usize, value: u32, width: usize, height: usize) => set_2d_32;
    cuMemsetD2D8Async, cuMemsetD2D8Async_ptsz(target: u64, pitch: usize, value: u8, width: usize, height: usize, stream: u64) => set_2d_8_later;
    cuMemsetD2D32Async, cuMemsetD2D32Async_ptsz(target: u64, pitch: usize, value: u32, width: usize, height: usize, stream: u64) => set_2d_32_later;
}

/// Pageable bytes that the driver takes into its own buffer, so that the call returns at once.
const STAGED: u64 = 64 << 10;

/// One end of a copy as the driver sees it, and whether it lies in host memory.
fn end(address: u64, bytes: u64) -> Result<(End, bool), Status> {
    let view = space::view();
    if view.is_device_address(address) {
        let (_, mapping) = view.mapping(address).ok_or(Status::INVALID_VALUE)?;
        let covered: u64 = view.pieces(address, bytes).iter().map(|piece| piece.bytes).sum();
        if covered != bytes {
            return Err(Status::INVALID_VALUE);
        }
        return Ok((End::Mapped(address), mapping.object.place == Place::Host));
    }
    match view.host_kind(address, bytes) {
        HostKind::Pinned => Ok((End::Mapped(address), true)),
        HostKind::Pageable if address != 0 => Ok((End::Pageable(address), true)),
        // One copy must lie within one registration, as measured.
        HostKind::Crossing | HostKind::Pageable => Err(Status::INVALID_VALUE),
    }
}

fn row(target: u64, source: u64, bytes: u64) -> Result<(Row, Direction), Status> {
    let ((target, target_host), (source, source_host)) = (end(target, bytes)?, end(source, bytes)?);
    let direction = match (source_host, target_host) {
        (true, false) => Direction::HostToDevice,
        (false, true) => Direction::DeviceToHost,
        _ => Direction::Inside,
    };
    Ok((Row { target, source, bytes }, direction))
}

/// Takes pageable sources into a buffer and lets the rows point there.
fn stage(rows: &mut [Row]) -> Vec<u8> {
    let total: u64 = rows.iter().map(|row| row.bytes).sum();
    let mut staging = Vec::with_capacity(total as usize);
    for row in rows {
        let at = staging.len();
        staging.extend(access::snapshot(row.source.address(), row.bytes));
        // The capacity was taken at once, so the buffer does not move.
        row.source = End::Pageable(staging.as_ptr() as u64 + at as u64);
    }
    staging
}

/// A copy as a queue entry; `parts` are (target, source, bytes).
pub(crate) fn job(parts: &[(u64, u64, u64)], asynchronous: bool) -> Result<CopyJob, Status> {
    let mut rows = Vec::with_capacity(parts.len());
    let mut direction = Direction::Inside;
    for (target, source, bytes) in parts.iter().copied().filter(|part| part.2 > 0) {
        let (row, way) = row(target, source, bytes)?;
        rows.push(row);
        direction = way;
    }
    let torn = direction == Direction::DeviceToHost && is_torn_reader();
    Ok(CopyJob { rows, direction, asynchronous, staging: None, torn, by_owners: false })
}

/// Whether the calling thread has one of the names that were said to read what others may be writing.
#[expect(unsafe_code, reason = "asks for the thread's name")]
fn is_torn_reader() -> bool {
    let readers = &settings().torn_readers;
    if readers.is_empty() {
        return false;
    }
    let mut name = [0_u8; 16];
    // SAFETY: the kernel writes at most 16 bytes with a NUL.
    let told = unsafe { libc::prctl(libc::PR_GET_NAME, name.as_mut_ptr()) } == 0;
    let name = name.split(|&byte| byte == 0).next().unwrap_or_default();
    told && readers.iter().any(|reader| reader.as_bytes() == name)
}

fn pageable(end: End) -> bool {
    matches!(end, End::Pageable(_))
}

/// Queues a copy and waits where the driver waits.
fn copy(stream: &Arc<Stream>, parts: &[(u64, u64, u64)], asynchronous: bool) -> Done {
    submit(stream, job(parts, asynchronous)?, asynchronous)
}

/// The same between two contexts.
fn copy_between(stream: &Arc<Stream>, part: (u64, u64, u64), asynchronous: bool) -> Done {
    submit(stream, CopyJob { by_owners: true, ..job(&[part], asynchronous)? }, asynchronous)
}

fn submit(stream: &Arc<Stream>, mut job: CopyJob, asynchronous: bool) -> Done {
    if job.rows.is_empty() {
        return Ok(());
    }
    let total: u64 = job.rows.iter().map(|row| row.bytes).sum();
    let from_pageable = job.rows.iter().all(|row| pageable(row.source));
    let touches_pageable = job.rows.iter().any(|row| pageable(row.source) || pageable(row.target));
    let to_pageable = job.rows.iter().any(|row| pageable(row.target));
    let mut waits = touches_pageable || (!asynchronous && job.direction != Direction::Inside);
    if asynchronous && from_pageable && !to_pageable && total <= STAGED && capture::of(stream).is_none() {
        job.staging = Some(stage(&mut job.rows));
        waits = false;
    }
    let number = enqueue(stream, Work::Copy(Arc::new(job)))?;
    if let Some(number) = number.filter(|_| waits) {
        stream.wait_for(number);
        return stream.usable();
    }
    Ok(())
}

fn copy_now(null: NullStream, target: u64, source: u64, bytes: usize) -> Done {
    let stream = stream_of(null, 0)?;
    capture::unsafe_call()?;
    copy(&stream, &[(target, source, bytes as u64)], false)
}

fn copy_later(null: NullStream, target: u64, source: u64, bytes: usize, stream: u64) -> Done {
    copy(&stream_of(null, stream)?, &[(target, source, bytes as u64)], true)
}

fn peer_now(null: NullStream, target: u64, _: u64, source: u64, _: u64, bytes: usize) -> Done {
    let stream = stream_of(null, 0)?;
    capture::unsafe_call()?;
    copy_between(&stream, (target, source, bytes as u64), false)
}

fn peer_later(null: NullStream, target: u64, _: u64, source: u64, _: u64, bytes: usize, stream: u64) -> Done {
    copy_between(&stream_of(null, stream)?, (target, source, bytes as u64), true)
}

/// The base address of one side of a pitched copy.
fn base(memory_type: u32, host: u64, device: u64) -> Result<u64, Status> {
    match memory_type {
        MEMORY_HOST => Ok(host),
        MEMORY_DEVICE | MEMORY_UNIFIED => Ok(device),
        // Arrays.
        3 => Err(Status::NOT_SUPPORTED),
        _ => Err(Status::INVALID_VALUE),
    }
}

fn parts_2d(copy: &Copy2d) -> Result<Vec<(u64, u64, u64)>, Status> {
    let (source, target) = (&copy.source, &copy.target);
    let from = base(source.memory_type, source.host, source.device)?;
    let to = base(target.memory_type, target.host, target.device)?;
    let width = copy.width_bytes;
    if copy.height > 1 && (source.pitch < width || target.pitch < width) {
        return Err(Status::INVALID_VALUE);
    }
    let at = |base: u64, pitch: usize, x: usize, y: usize| base + (y * pitch + x) as u64;
    if source.pitch == width && target.pitch == width && source.x_bytes == 0 && target.x_bytes == 0 {
        let bytes = (width * copy.height) as u64;
        return Ok(vec![(at(to, width, 0, target.y), at(from, width, 0, source.y), bytes)]);
    }
    Ok((0..copy.height)
        .map(|row| {
            let to = at(to, target.pitch, target.x_bytes, target.y + row);
            let from = at(from, source.pitch, source.x_bytes, source.y + row);
            (to, from, width as u64)
        })
        .collect())
}

/// The rows of a 3D copy between linear memories.
pub(crate) fn parts_3d(copy: &Copy3d) -> Result<Vec<(u64, u64, u64)>, Status> {
    let (source, target) = (&copy.source, &copy.target);
    let from = base(source.memory_type, source.host, source.device)?;
    let to = base(target.memory_type, target.host, target.device)?;
    let mut parts = Vec::new();
    for layer in 0..copy.depth {
        for row in 0..copy.height {
            let at = |side: &crate::abi::Side3d, base: u64| {
                let line = (side.z + layer) * side.height + side.y + row;
                base + (line * side.pitch + side.x_bytes) as u64
            };
            parts.push((at(target, to), at(source, from), copy.width_bytes as u64));
        }
    }
    Ok(parts)
}

fn copy_2d_now(null: NullStream, parameters: In<Copy2d>) -> Done {
    let stream = stream_of(null, 0)?;
    capture::unsafe_call()?;
    copy(&stream, &parts_2d(&parameters.get()?)?, false)
}

fn copy_2d_later(null: NullStream, parameters: In<Copy2d>, stream: u64) -> Done {
    copy(&stream_of(null, stream)?, &parts_2d(&parameters.get()?)?, true)
}

fn copy_3d_now(null: NullStream, parameters: In<Copy3d>) -> Done {
    let stream = stream_of(null, 0)?;
    capture::unsafe_call()?;
    copy(&stream, &parts_3d(&parameters.get()?)?, false)
}

fn copy_3d_later(null: NullStream, parameters: In<Copy3d>, stream: u64) -> Done {
    copy(&stream_of(null, stream)?, &parts_3d(&parameters.get()?)?, true)
}

/// The copies of a batch; `failed` gets the index of the one that is refused.
fn batch(
    null: NullStream,
    (targets, sources, sizes): (In<u64>, In<u64>, In<usize>),
    count: usize,
    failed: Option<Out<usize>>,
    stream: u64,
) -> Done {
    let stream = stream_of(null, stream)?;
    if stream.legacy {
        return Err(Status::INVALID_VALUE);
    }
    capture::forbid_on(&stream)?;
    let (targets, sources, sizes) = (targets.list(count)?, sources.list(count)?, sizes.list(count)?);
    for index in 0..count {
        let part = (targets[index], sources[index], sizes[index] as u64);
        if let Err(status) = copy(&stream, &[part], true) {
            if let Some(failed) = failed {
                failed.set_if_wanted(index);
            }
            return Err(status);
        }
    }
    Ok(())
}

#[expect(clippy::too_many_arguments, reason = "the driver's signature")]
fn batch_12080(
    null: NullStream,
    targets: In<u64>,
    sources: In<u64>,
    sizes: In<usize>,
    count: usize,
    _: In<u8>,
    _: In<usize>,
    _: usize,
    failed: Out<usize>,
    stream: u64,
) -> Done {
    batch(null, (targets, sources, sizes), count, Some(failed), stream)
}

#[expect(clippy::too_many_arguments, reason = "the driver's signature")]
fn batch_13000(
    null: NullStream,
    targets: In<u64>,
    sources: In<u64>,
    sizes: In<usize>,
    count: usize,
    _: In<u8>,
    _: In<usize>,
    _: usize,
    stream: u64,
) -> Done {
    batch(null, (targets, sources, sizes), count, None, stream)
}

/// A memset as a queue entry.
pub(crate) fn set_job(
    address: u64,
    pitch: u64,
    value: u32,
    unit: u64,
    width: u64,
    height: u64,
) -> Result<SetJob, Status> {
    if !address.is_multiple_of(unit) || (height > 1 && pitch < width * unit) {
        return Err(Status::INVALID_VALUE);
    }
    let set = SetJob { address, pitch, value, unit, width, height };
    for used in set.uses() {
        if used.bytes > 0 && matches!(end(used.address, used.bytes)?, (End::Pageable(_), _)) {
            return Err(Status::INVALID_VALUE);
        }
    }
    Ok(set)
}

/// Memsets are asynchronous to the host, the "synchronous" ones on device memory too.
fn set(stream: &Arc<Stream>, job: SetJob) -> Done {
    if job.width > 0 && job.height > 0 {
        enqueue(stream, Work::Set(Arc::new(job)))?;
    }
    Ok(())
}

fn set_now(null: NullStream, target: u64, value: u32, unit: u64, count: usize) -> Done {
    let stream = stream_of(null, 0)?;
    capture::unsafe_call()?;
    set(&stream, set_job(target, 0, value, unit, count as u64, 1)?)
}

fn set_8(null: NullStream, target: u64, value: u8, count: usize) -> Done {
    set_now(null, target, u32::from(value), 1, count)
}

fn set_16(null: NullStream, target: u64, value: u16, count: usize) -> Done {
    set_now(null, target, u32::from(value), 2, count)
}

fn set_32(null: NullStream, target: u64, value: u32, count: usize) -> Done {
    set_now(null, target, value, 4, count)
}

fn set_8_later(null: NullStream, target: u64, value: u8, count: usize, stream: u64) -> Done {
    set(&stream_of(null, stream)?, set_job(target, 0, u32::from(value), 1, count as u64, 1)?)
}

fn set_16_later(null: NullStream, target: u64, value: u16, count: usize, stream: u64) -> Done {
    set(&stream_of(null, stream)?, set_job(target, 0, u32::from(value), 2, count as u64, 1)?)
}

fn set_32_later(null: NullStream, target: u64, value: u32, count: usize, stream: u64) -> Done {
    set(&stream_of(null, stream)?, set_job(target, 0, value, 4, count as u64, 1)?)
}

fn set_2d_8(null: NullStream, target: u64, pitch: usize, value: u8, width: usize, height: usize) -> Done {
    capture::unsafe_call()?;
    set_2d_8_later(null, target, pitch, value, width, height, 0)
}

fn set_2d_32(null: NullStream, target: u64, pitch: usize, value: u32, width: usize, height: usize) -> Done {
    capture::unsafe_call()?;
    set_2d_32_later(null, target, pitch, value, width, height, 0)
}

fn set_2d_8_later(
    null: NullStream,
    target: u64,
    pitch: usize,
    value: u8,
    width: usize,
    height: usize,
    stream: u64,
) -> Done {
    let job = set_job(target, pitch as u64, u32::from(value), 1, width as u64, height as u64)?;
    set(&stream_of(null, stream)?, job)
}

fn set_2d_32_later(
    null: NullStream,
    target: u64,
    pitch: usize,
    value: u32,
    width: usize,
    height: usize,
    stream: u64,
) -> Done {
    let job = set_job(target, pitch as u64, value, 4, width as u64, height as u64)?;
    set(&stream_of(null, stream)?, job)
}
