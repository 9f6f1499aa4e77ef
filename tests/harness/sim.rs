//! simcuda's two controls (docs/simcuda.md) for test programs; `None` on a real driver.
#![expect(unsafe_code, reason = "finds C functions at run time")]

use std::ffi::{CStr, CString, c_char, c_void};

/// The controls of the simulated driver that this process has loaded.
pub struct Sim {
    stat: extern "C" fn(*const c_char) -> u64,
    set: extern "C" fn(*const c_char, u64) -> u32,
}

fn symbol(library: *mut c_void, name: &CStr) -> Option<*mut c_void> {
    // SAFETY: the library stays open, and the name is NUL-terminated.
    let address = unsafe { libc::dlsym(library, name.as_ptr()) };
    (!address.is_null()).then_some(address)
}

impl Sim {
    /// Finds the controls in `libcuda.so.1`.
    #[must_use]
    pub fn find() -> Option<Self> {
        // SAFETY: the name is NUL-terminated; a driver library may be loaded at any time.
        let library = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW) };
        if library.is_null() {
            return None;
        }
        let (stat, set) = (symbol(library, c"simcuda_stat")?, symbol(library, c"simcuda_set")?);
        // SAFETY: simcuda documents this signature.
        let stat = unsafe { std::mem::transmute::<*mut c_void, extern "C" fn(*const c_char) -> u64>(stat) };
        // SAFETY: as above.
        let set =
            unsafe { std::mem::transmute::<*mut c_void, extern "C" fn(*const c_char, u64) -> u32>(set) };
        Some(Self { stat, set })
    }

    /// A number of the journal as it stands now.
    ///
    /// # Panics
    /// For a name that simcuda does not know.
    #[must_use]
    pub fn stat(&self, name: &str) -> u64 {
        let text = CString::new(name).expect("a name has no NUL");
        let value = (self.stat)(text.as_ptr());
        assert_ne!(value, u64::MAX, "simcuda has no number {name}");
        value
    }

    /// Changes a time or speed.
    ///
    /// # Panics
    /// For a name that simcuda does not know.
    pub fn set(&self, name: &str, value: u64) {
        let text = CString::new(name).expect("a name has no NUL");
        assert_eq!((self.set)(text.as_ptr(), value), 0, "simcuda has no setting {name}");
    }
}
