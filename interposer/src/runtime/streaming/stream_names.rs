//! The pager's names of the program's streams, and the streams behind them.

use std::sync::atomic::{AtomicU64, Ordering};

use flextensor_core::pager::StreamId;

use crate::ffi::stream::Stream;
use crate::ffi::types::CUstream;

/// The pager's name of a stream. The legacy default stream has two handles; each thread's own default stream has the same one, so that
/// the thread's number goes into the name.
pub(in super::super) fn stream_id(stream: Stream) -> StreamId {
    match stream.number() as u64 {
        LEGACY => StreamId(0),
        PER_THREAD => StreamId(thread_number() << 32 | PER_THREAD),
        handle => StreamId(handle),
    }
}

const LEGACY: u64 = 1;
const PER_THREAD: u64 = 2;

/// Whether it is a thread's own default stream.
pub(super) fn is_of_a_thread(stream: Stream) -> bool {
    stream.number() as u64 == PER_THREAD
}

/// The stream behind a name. None for another thread's own default stream: only that thread can reach it.
pub(in super::super) fn program_stream(stream: StreamId) -> Option<Stream> {
    let handle = if stream.0 & u64::from(u32::MAX) == PER_THREAD {
        if stream.0 >> 32 != thread_number() {
            return None;
        }
        PER_THREAD
    } else {
        stream.0
    };
    let raw: CUstream = std::ptr::with_exposed_provenance_mut(handle as usize);
    Some(Stream::from(raw))
}

fn thread_number() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    thread_local! {
        static NUMBER: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
    }
    let number = NUMBER.try_with(std::cell::Cell::get).unwrap_or(0);
    if number != 0 {
        return number;
    }
    let made = NEXT.fetch_add(1, Ordering::Relaxed);
    let _ = NUMBER.try_with(|cell| cell.set(made));
    made
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(handle: usize) -> StreamId {
        let raw: CUstream = std::ptr::without_provenance_mut(handle);
        stream_id(Stream::from(raw))
    }

    #[test]
    fn both_handles_of_the_legacy_stream_are_one_stream() {
        assert_eq!(named(0), named(1));
    }

    #[test]
    fn the_own_default_streams_of_two_threads_are_two_streams() {
        let here = named(2);
        let there = std::thread::spawn(|| named(2)).join().expect("the thread only names a stream");
        assert_ne!(here, there);
        assert!(program_stream(here).is_some());
        assert!(program_stream(there).is_none());
    }
}
