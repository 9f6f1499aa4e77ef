//! The C interface of the preloaded library (docs/c-api.md) for test programs; `None` when it is not preloaded.
#![expect(unsafe_code, reason = "finds C functions at run time")]

use std::ffi::{CString, c_char, c_void};

macro_rules! interface {
    ($($name:ident($($arg:ident: $ty:ty),*) -> $ret:ty;)*) => {
        /// Every function of the interface.
        pub struct Ft {
            $($name: extern "C" fn($($ty),*) -> $ret,)*
        }

        impl Ft {
            /// Finds the interface in the global scope; `None` when any function is missing.
            #[must_use]
            pub fn find() -> Option<Self> {
                Some(Self {
                    $($name: {
                        let name = concat!(stringify!($name), "\0");
                        // SAFETY: the name is NUL-terminated.
                        let address = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr().cast()) };
                        if address.is_null() {
                            return None;
                        }
                        // SAFETY: the library documents this signature for this name.
                        unsafe { std::mem::transmute::<*mut c_void, extern "C" fn($($ty),*) -> $ret>(address) }
                    },)*
                })
            }
        }
    };
}

interface! {
    ft_api_version() -> u32;
    ft_phase() -> i32;
    ft_model_begin(name: *const c_char) -> u64;
    ft_model_owner(model: u64, owner: u32, path: *const c_char, class: *const c_char, trap: i32) -> i32;
    ft_model_weight(model: u64, name: *const c_char, address: u64, bytes: u64, owner: u32, flags: u32) -> i32;
    ft_model_end(model: u64) -> i32;
    ft_model_strategy(model: u64, json: *const c_char) -> i32;
    ft_model_replan(model: u64) -> i32;
    ft_model_drop(model: u64) -> ();
    ft_weight_private(address: u64) -> i32;
    ft_weight_written(address: u64) -> i32;
    ft_pass_begin(model: u64, shape: u64) -> ();
    ft_pass_end(model: u64) -> ();
    ft_owner_enter(model: u64, owner: u32) -> ();
    ft_owner_exit(model: u64, owner: u32) -> ();
    ft_trap_enter(model: u64, trap: u32) -> ();
    ft_trap_exit(model: u64, trap: u32) -> ();
    ft_wants(model: u64) -> u32;
    ft_config_json(buffer: *mut u8, capacity: usize) -> i64;
    ft_report_json(buffer: *mut u8, capacity: usize) -> i64;
    ft_arena(bytes: *mut u64) -> u64;
    ft_profile_save(folder: *const c_char) -> i32;
    ft_model_course(model: u64, discovery: u32, profiling: u32, warmups: u32, flags: u32, profile: *const c_char) -> i32;
    ft_model_phase(model: u64) -> i32;
    ft_model_profiling(model: u64, what: u32) -> i32;
    ft_configure(json: *const c_char) -> i32;
}

fn text(value: &str) -> CString {
    CString::new(value).expect("a name has no NUL")
}

/// A JSON text from a function that fills a buffer and returns the length.
fn json(function: extern "C" fn(*mut u8, usize) -> i64) -> Option<serde_json::Value> {
    let length = usize::try_from(function(std::ptr::null_mut(), 0)).ok()?;
    let mut buffer = vec![0u8; length + 4096];
    let length = usize::try_from(function(buffer.as_mut_ptr(), buffer.len())).ok()?;
    serde_json::from_slice(buffer.get(..length)?).ok()
}

/// Codes and ids are passed on as docs/c-api.md gives them.
impl Ft {
    /// `ft_api_version`.
    #[must_use]
    pub fn api_version(&self) -> u32 {
        (self.ft_api_version)()
    }

    /// `ft_phase`: 0 to 3, or -1 when switched off.
    #[must_use]
    pub fn phase(&self) -> i32 {
        (self.ft_phase)()
    }

    /// `ft_model_begin`; 0 = refused.
    #[must_use]
    pub fn model_begin(&self, name: &str) -> u64 {
        (self.ft_model_begin)(text(name).as_ptr())
    }

    /// `ft_model_owner`.
    pub fn model_owner(&self, model: u64, owner: u32, path: &str, class: &str, trap: i32) -> i32 {
        (self.ft_model_owner)(model, owner, text(path).as_ptr(), text(class).as_ptr(), trap)
    }

    /// `ft_model_weight`.
    pub fn model_weight(
        &self,
        model: u64,
        name: &str,
        address: u64,
        bytes: u64,
        owner: u32,
        flags: u32,
    ) -> i32 {
        (self.ft_model_weight)(model, text(name).as_ptr(), address, bytes, owner, flags)
    }

    /// `ft_model_course` without flags; `profile`: `None` = the configured folder, empty = none.
    pub fn model_course(&self, model: u64, counts: [u32; 3], profile: Option<&str>) -> i32 {
        let [discovery, profiling, warmups] = counts;
        let profile = profile.map(text);
        let folder = profile.as_ref().map_or(std::ptr::null(), |folder| folder.as_ptr());
        (self.ft_model_course)(model, discovery, profiling, warmups, 0, folder)
    }

    /// `ft_model_phase`.
    #[must_use]
    pub fn model_phase(&self, model: u64) -> i32 {
        (self.ft_model_phase)(model)
    }

    /// `ft_model_profiling`: 0 suspends, 1 resumes, 2 clears.
    pub fn model_profiling(&self, model: u64, what: u32) -> i32 {
        (self.ft_model_profiling)(model, what)
    }

    /// `ft_configure`.
    pub fn configure(&self, json: &str) -> i32 {
        (self.ft_configure)(text(json).as_ptr())
    }

    /// `ft_model_end`.
    pub fn model_end(&self, model: u64) -> i32 {
        (self.ft_model_end)(model)
    }

    /// `ft_model_strategy`; none takes back what was said.
    pub fn model_strategy(&self, model: u64, json: Option<&str>) -> i32 {
        let json = json.map(text);
        (self.ft_model_strategy)(model, json.as_ref().map_or(std::ptr::null(), |json| json.as_ptr()))
    }

    /// `ft_model_replan`.
    pub fn model_replan(&self, model: u64) -> i32 {
        (self.ft_model_replan)(model)
    }

    /// `ft_model_drop`.
    pub fn model_drop(&self, model: u64) {
        (self.ft_model_drop)(model);
    }

    /// `ft_weight_private`.
    pub fn weight_private(&self, address: u64) -> i32 {
        (self.ft_weight_private)(address)
    }

    /// `ft_weight_written`.
    pub fn weight_written(&self, address: u64) -> i32 {
        (self.ft_weight_written)(address)
    }

    /// `ft_pass_begin`.
    pub fn pass_begin(&self, model: u64, shape: u64) {
        (self.ft_pass_begin)(model, shape);
    }

    /// `ft_pass_end`.
    pub fn pass_end(&self, model: u64) {
        (self.ft_pass_end)(model);
    }

    /// `ft_owner_enter`.
    pub fn owner_enter(&self, model: u64, owner: u32) {
        (self.ft_owner_enter)(model, owner);
    }

    /// `ft_owner_exit`.
    pub fn owner_exit(&self, model: u64, owner: u32) {
        (self.ft_owner_exit)(model, owner);
    }

    /// `ft_trap_enter`.
    pub fn trap_enter(&self, model: u64, trap: u32) {
        (self.ft_trap_enter)(model, trap);
    }

    /// `ft_trap_exit`.
    pub fn trap_exit(&self, model: u64, trap: u32) {
        (self.ft_trap_exit)(model, trap);
    }

    /// `ft_wants`: bits 1, 2, 4.
    #[must_use]
    pub fn wants(&self, model: u64) -> u32 {
        (self.ft_wants)(model)
    }

    /// `ft_config_json`, parsed.
    #[must_use]
    pub fn config(&self) -> Option<serde_json::Value> {
        json(self.ft_config_json)
    }

    /// `ft_report_json`, parsed.
    #[must_use]
    pub fn report(&self) -> Option<serde_json::Value> {
        json(self.ft_report_json)
    }

    /// `ft_profile_save`; `None` = the configured folder.
    pub fn profile_save(&self, folder: Option<&str>) -> i32 {
        let folder = folder.map(text);
        (self.ft_profile_save)(folder.as_ref().map_or(std::ptr::null(), |folder| folder.as_ptr()))
    }

    /// `ft_arena`: first address and length; (0, 0) while there is none.
    #[must_use]
    pub fn arena(&self) -> (u64, u64) {
        let mut bytes = 0;
        let address = (self.ft_arena)(&mut bytes);
        (address, bytes)
    }
}
