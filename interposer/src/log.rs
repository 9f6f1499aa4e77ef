//! Lines for people, on stderr: one fixed stack buffer, one `write(2)` a line, no allocation, no lock. Nothing ever goes to stdout, and
//! nothing at all is written before the first successful `cuInit`. Numbers go to the report, not here; the call path does not log.

#![expect(unsafe_code, reason = "write(2) without std's lock")]

use std::fmt::Write;
use std::sync::atomic::{AtomicU8, Ordering};

/// How important a line is; a line is written if its level is at or below the configured one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub(crate) enum Level {
    /// We cannot do what was asked.
    Error = 1,
    /// Something is not as it should be; we carry on.
    Warn = 2,
    /// The few lines that everybody wants to see (the default).
    Notice = 3,
    /// Steps.
    Info = 4,
    /// Details.
    Debug = 5,
}

/// A line with its prefix and newline is cut to this many bytes: a write of no more is not torn by other writers of a pipe (PIPE_BUF).
const LINE_BYTES: usize = 1024;

static LEVEL: AtomicU8 = AtomicU8::new(Level::Notice as u8);

/// From now on, lines above `level` are dropped.
pub(crate) fn set_level(level: Level) {
    LEVEL.store(level as u8, Ordering::Relaxed);
}

/// True if a line of this level would be written.
pub(crate) fn enabled(level: Level) -> bool {
    level as u8 <= LEVEL.load(Ordering::Relaxed)
}

/// Text that ends at the buffer's end instead of failing.
struct Line {
    bytes: [u8; LINE_BYTES],
    len: usize,
}

impl Write for Line {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        // One byte is kept for the newline.
        let room = LINE_BYTES - 1 - self.len;
        let mut take = text.len().min(room);
        while !text.is_char_boundary(take) {
            take -= 1;
        }
        self.bytes[self.len..self.len + take].copy_from_slice(&text.as_bytes()[..take]);
        self.len += take;
        if take < text.len() { Err(std::fmt::Error) } else { Ok(()) }
    }
}

fn compose(text: std::fmt::Arguments<'_>) -> Line {
    let mut line = Line { bytes: [0; LINE_BYTES], len: 0 };
    // A line that does not fit is cut: that is all an error here means.
    let _ = line.write_str("flextensor: ");
    let _ = line.write_fmt(text);
    line.bytes[line.len] = b'\n';
    line.len += 1;
    line
}

/// Writes one line, unless `level` is above the configured one.
pub(crate) fn line(level: Level, text: std::fmt::Arguments<'_>) {
    if !enabled(level) {
        return;
    }
    let line = compose(text);
    // SAFETY: the buffer is a local of at least `len` bytes. A failed write has nobody to be told.
    unsafe { libc::write(libc::STDERR_FILENO, line.bytes.as_ptr().cast(), line.len) };
}

macro_rules! error {
    ($($text:tt)*) => { $crate::log::line($crate::log::Level::Error, format_args!($($text)*)) };
}
macro_rules! warning {
    ($($text:tt)*) => { $crate::log::line($crate::log::Level::Warn, format_args!($($text)*)) };
}
macro_rules! notice {
    ($($text:tt)*) => { $crate::log::line($crate::log::Level::Notice, format_args!($($text)*)) };
}
macro_rules! info {
    ($($text:tt)*) => { $crate::log::line($crate::log::Level::Info, format_args!($($text)*)) };
}
macro_rules! debug {
    ($($text:tt)*) => { $crate::log::line($crate::log::Level::Debug, format_args!($($text)*)) };
}
pub(crate) use {debug, error, info, notice, warning};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_carries_the_prefix_and_ends_with_a_newline() {
        let line = compose(format_args!("budget {} GiB", 8));
        assert_eq!(&line.bytes[..line.len], b"flextensor: budget 8 GiB\n");
    }

    #[test]
    fn a_line_that_is_too_long_is_cut_at_a_character_and_still_ends_with_a_newline() {
        let line = compose(format_args!("{}", "ä".repeat(2 * LINE_BYTES)));
        assert!(line.len <= LINE_BYTES);
        assert_eq!(line.bytes[line.len - 1], b'\n');
        assert!(std::str::from_utf8(&line.bytes[..line.len]).is_ok());
    }
}
