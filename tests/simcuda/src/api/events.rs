//! Events.
#![expect(unsafe_code, reason = "exports under fixed names")]

use crate::call::{exports, stream_exports};
use crate::exec::event::{DISABLE_TIMING, EVENTS, Event, Record, State};
use crate::exec::work::Work;
use crate::exec::{NullStream, capture, context, stream_of};
use crate::pointer::Out;
use crate::status::{Done, Status};
use std::time::Instant;

exports! {
    Init cuEventCreate(handle: Out<u64>, flags: u32) => create;
    Init cuEventDestroy_v2(handle: u64) => destroy;
    Init cuEventQuery(handle: u64) => query;
    Init cuEventSynchronize(handle: u64) => synchronize;
    Init cuEventElapsedTime(milliseconds: Out<f32>, start: u64, end: u64) => elapsed;
    Init cuEventElapsedTime_v2(milliseconds: Out<f32>, start: u64, end: u64) => elapsed;
}

stream_exports! {
    cuEventRecord, cuEventRecord_ptsz(event: u64, stream: u64) => record;
    cuEventRecordWithFlags, cuEventRecordWithFlags_ptsz(event: u64, stream: u64, flags: u32) => record_with_flags;
}

fn create(handle: Out<u64>, flags: u32) -> Done {
    if flags & !7 != 0 || handle.is_null() {
        return Err(Status::INVALID_VALUE);
    }
    let context = context::current()?;
    handle.set(Event::create(flags, &context).handle)
}

fn destroy(handle: u64) -> Done {
    EVENTS.remove(handle).map(|_| ())
}

fn record(null: NullStream, event: u64, handle: u64) -> Done {
    let stream = stream_of(null, handle)?;
    let event = EVENTS.get(event)?;
    if !event.is_of(&stream) {
        return Err(Status::INVALID_HANDLE);
    }
    if let Some(state) = capture::mark(&stream)? {
        event.set(state);
        return Ok(());
    }
    capture::check_implicit(&stream)?;
    let record = Record::new();
    stream.submit(Work::Record(record.clone()), Vec::new());
    event.set(State::Recorded(record));
    Ok(())
}

fn record_with_flags(null: NullStream, event: u64, handle: u64, flags: u32) -> Done {
    if flags > 1 {
        return Err(Status::INVALID_VALUE);
    }
    record(null, event, handle)
}

/// What an event stands for, where a call may ask.
fn asked(handle: u64) -> Result<State, Status> {
    let state = EVENTS.get(handle)?.state();
    if !matches!(state, State::Captured(_)) {
        capture::unsafe_call()?;
    }
    Ok(state)
}

fn query(handle: u64) -> Done {
    match asked(handle)? {
        State::Never => Ok(()),
        State::Captured(_) => Err(Status::CAPTURED_EVENT),
        State::Recorded(record) if record.time().is_some() => EVENTS.get(handle)?.fault(),
        State::Recorded(_) => Err(Status::NOT_READY),
    }
}

fn synchronize(handle: u64) -> Done {
    match asked(handle)? {
        State::Never => Ok(()),
        State::Captured(_) => Err(Status::CAPTURED_EVENT),
        State::Recorded(record) => {
            record.block();
            EVENTS.get(handle)?.fault()
        }
    }
}

/// When an event that keeps time happened.
fn time(handle: u64) -> Result<Instant, Status> {
    let event = EVENTS.get(handle)?;
    if event.flags & DISABLE_TIMING != 0 {
        return Err(Status::INVALID_HANDLE);
    }
    match event.state() {
        State::Never => Err(Status::INVALID_HANDLE),
        State::Captured(_) => Err(Status::CAPTURED_EVENT),
        State::Recorded(record) => record.time().ok_or(Status::NOT_READY),
    }
}

fn elapsed(milliseconds: Out<f32>, start: u64, end: u64) -> Done {
    let (start, end) = (time(start)?, time(end)?);
    let forward = end.saturating_duration_since(start).as_secs_f32();
    let backward = start.saturating_duration_since(end).as_secs_f32();
    milliseconds.set((forward - backward) * 1e3)
}
