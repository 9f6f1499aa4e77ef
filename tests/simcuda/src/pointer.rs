//! Pointers that a C caller passes: null is an error, everything else is the caller's promise.
//!
//! These types appear only as parameters of exported functions, so each value of them comes from a caller of the driver
//! interface, who promises that a pointer that is not null is valid for the length of the call.
#![expect(unsafe_code, reason = "reads and writes what a C caller points to")]

use crate::status::{Done, Status};
use std::ffi::{CStr, c_char};

/// Where a result goes.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct Out<T>(*mut T);

impl<T> Out<T> {
    /// Stores the result.
    ///
    /// # Errors
    /// `INVALID_VALUE` when the caller passed null.
    pub(crate) fn set(self, value: T) -> Done {
        if self.0.is_null() {
            return Err(Status::INVALID_VALUE);
        }
        self.set_if_wanted(value);
        Ok(())
    }

    /// Stores a result that the caller may leave out.
    pub(crate) fn set_if_wanted(self, value: T) {
        if !self.0.is_null() {
            // SAFETY: not null, and the caller of the driver function promises room for one T.
            unsafe { self.0.write_unaligned(value) }
        }
    }

    /// Stores the element at `index` of an array; the caller promised at least that many.
    pub(crate) fn set_at(self, index: usize, value: T) {
        if self.0.is_null() {
            return;
        }
        // SAFETY: the caller of the driver function promises an array that reaches beyond `index`.
        let place = unsafe { self.0.add(index) };
        // SAFETY: as above; the place is inside the caller's array.
        unsafe { place.write_unaligned(value) }
    }

    pub(crate) fn at(address: u64) -> Self {
        Self(address as *mut T)
    }

    /// The same place, byte by byte.
    pub(crate) fn bytes(self) -> Out<u8> {
        Out(self.0.cast())
    }

    pub(crate) fn is_null(&self) -> bool {
        self.0.is_null()
    }

    /// The value that is there before the call, for parameters that go both ways.
    ///
    /// # Errors
    /// `INVALID_VALUE` when the caller passed null.
    pub(crate) fn current(self) -> Result<T, Status>
    where
        T: Copy,
    {
        In(self.0.cast_const()).get()
    }
}

/// Where an argument is read from.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct In<T>(*const T);

impl<T: Copy> In<T> {
    pub(crate) fn at(address: u64) -> Self {
        Self(address as *const T)
    }

    pub(crate) fn is_null(&self) -> bool {
        self.0.is_null()
    }

    /// The one element.
    ///
    /// # Errors
    /// `INVALID_VALUE` when the caller passed null.
    pub(crate) fn get(self) -> Result<T, Status> {
        if self.0.is_null() {
            return Err(Status::INVALID_VALUE);
        }
        // SAFETY: not null, and the caller of the driver function promises one readable T.
        Ok(unsafe { self.0.read_unaligned() })
    }

    /// `count` elements; none when `count` is 0.
    ///
    /// # Errors
    /// `INVALID_VALUE` when the caller passed null and a count.
    pub(crate) fn list(self, count: usize) -> Result<Vec<T>, Status> {
        if count > 0 && self.0.is_null() {
            return Err(Status::INVALID_VALUE);
        }
        (0..count)
            .map(|index| {
                // SAFETY: the caller of the driver function promises `count` readable elements.
                let place = unsafe { self.0.add(index) };
                In(place).get()
            })
            .collect()
    }
}

/// A NUL-terminated text argument.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub(crate) struct Text(*const c_char);

impl Text {
    /// The text, with bytes that are not UTF-8 replaced.
    ///
    /// # Errors
    /// `INVALID_VALUE` when the caller passed null.
    pub(crate) fn get(self) -> Result<String, Status> {
        if self.0.is_null() {
            return Err(Status::INVALID_VALUE);
        }
        // SAFETY: not null, and the caller of the driver function promises a NUL-terminated string.
        let text = unsafe { CStr::from_ptr(self.0) };
        Ok(text.to_string_lossy().into_owned())
    }
}
