//! The door to libflextensor.so: finds its C interface (docs/c-api.md) in this process, once, and wraps each
//! function.
//!
//! This crate never links the interposer: a second copy of its state would know nothing. What to say through
//! the door is left to [`crate::calls`] and [`crate::marks`].
#![expect(
    unsafe_code,
    reason = "symbols of another shared object are looked up and called here, and nowhere else in this crate"
)]

use std::ffi::{CStr, c_char, c_void};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// The interface version that this crate speaks.
pub(crate) const API_VERSION: u32 = 1;

static TABLE: OnceLock<Table> = OnceLock::new();
static SILENT: AtomicBool = AtomicBool::new(false);

/// The interface, or why there is none. Once it was found a call costs one load; until then symbols are looked up by every call, because the library
/// may still come ([`Table::attach`]).
pub(crate) fn table() -> Result<&'static Table, String> {
    if SILENT.load(Ordering::Relaxed) {
        return Err(
            "this process keeps silent: it was forked from one that uses the GPU, or the hook was switched off"
                .into(),
        );
    }
    match TABLE.get() {
        Some(table) => Ok(table),
        None => {
            let found = Table::resolve()?;
            Ok(TABLE.get_or_init(|| found))
        }
    }
}

/// From now on no call goes out: for forked children, whose interposer is switched off as well.
pub(crate) fn silence() {
    SILENT.store(true, Ordering::Relaxed);
}

/// Whether nothing of passes has to be told now. Costs two loads.
pub(crate) fn is_quiet() -> bool {
    let word = TABLE.get().map_or(std::ptr::null(), |table| table.words.quiet);
    // SAFETY: null, or the address of a word that stays, is aligned, and is only written whole (docs/c-api.md).
    let word = unsafe { word.cast::<AtomicU32>().as_ref() };
    word.is_some_and(|word| word.load(Ordering::Relaxed) != 0)
}

/// So many more passes go on of which nothing was told, or as many fewer.
pub(crate) fn count_untold(passes: i64) {
    let word = TABLE.get().map_or(std::ptr::null_mut(), |table| table.words.untold);
    // SAFETY: null, or the address of a word that stays, is aligned, and is a count that everybody changes as a whole (docs/c-api.md).
    let word = unsafe { word.cast::<AtomicU32>().as_ref() };
    if let Some(word) = word.filter(|_| passes != 0) {
        // Modulo 2^32: a count that goes down by one is one to which 2^32 - 1 is added.
        word.fetch_add(passes as u32, Ordering::Relaxed);
    }
}

/// Words of the library that are read, or counted in, without a call.
struct Words {
    quiet: *const u32,
    untold: *mut u32,
}

// SAFETY: the addresses are those of atomic words, and are the same for every thread.
unsafe impl Send for Words {}
// SAFETY: as above.
unsafe impl Sync for Words {}

/// One row for a function: its name here, its symbol, its signature. Makes the table, its look-up and a
/// caller for each.
macro_rules! interface {
    ($(
        $(#[$doc:meta])*
        fn $name:ident = $symbol:literal ($($argument:ident: $kind:ty),*) $(-> $result:ty)?;
    )*) => {
        /// The functions of docs/c-api.md.
        pub(crate) struct Table {
            $($name: unsafe extern "C" fn($($kind),*) $(-> $result)?,)*
            words: Words,
        }

        impl Table {
            fn from_symbols() -> Result<Self, String> {
                let mut table = Self {
                    // SAFETY: the symbol's signature is fixed by docs/c-api.md for the version checked
                    // before.
                    $($name: unsafe {
                        std::mem::transmute::<*mut c_void, unsafe extern "C" fn($($kind),*) $(-> $result)?>(
                            required($symbol)?,
                        )
                    },)*
                    words: Words { quiet: std::ptr::null(), untold: std::ptr::null_mut() },
                };
                table.words = Words { quiet: table.raw_quiet(), untold: table.raw_untold() };
                Ok(table)
            }

            $($(#[$doc])*
            pub(crate) fn $name(&self, $($argument: $kind),*) $(-> $result)? {
                // SAFETY: the interface accepts any id and address from any thread; pointers come from the
                // typed wrappers below and from `Text`, which keep them alive and terminated across the call.
                unsafe { (self.$name)($($argument),*) }
            })*
        }
    };
}

interface! {
    /// Starts the library in a process that it was not preloaded into.
    fn attach = c"ft_attach"() -> i32;
    /// The phase number, or -1 while switched off.
    fn phase = c"ft_phase"() -> i32;
    fn raw_model_begin = c"ft_model_begin"(name: *const c_char) -> u64;
    fn raw_model_owner = c"ft_model_owner"(
        model: u64, owner: u32, path: *const c_char, class: *const c_char, trap: i32
    ) -> i32;
    fn raw_model_weight = c"ft_model_weight"(
        model: u64, name: *const c_char, address: u64, bytes: u64, owner: u32, flags: u32
    ) -> i32;
    /// Ends the naming of a model.
    fn model_end = c"ft_model_end"(model: u64) -> i32;
    fn raw_model_strategy = c"ft_model_strategy"(model: u64, json: *const c_char) -> i32;
    /// Asks for a new plan for what the model does now.
    fn model_replan = c"ft_model_replan"(model: u64) -> i32;
    /// Forgets a model that the program let go.
    fn model_drop = c"ft_model_drop"(model: u64);
    /// Gives the weight at `address` private pages for good.
    fn weight_private = c"ft_weight_private"(address: u64) -> i32;
    /// The forward that is going on wrote the weight at `address`.
    fn weight_written = c"ft_weight_written"(address: u64) -> i32;
    /// A forward of the root begins.
    fn pass_begin = c"ft_pass_begin"(model: u64, shape: u64);
    /// The root's forward has returned.
    fn pass_end = c"ft_pass_end"(model: u64);
    /// Passes of which nothing was told have begun and ended.
    fn passes_untold = c"ft_passes_untold"(model: u64, count: u64);
    fn raw_quiet = c"ft_quiet"() -> *const u32;
    fn raw_untold = c"ft_untold"() -> *mut u32;
    /// An owner's forward begins.
    fn owner_enter = c"ft_owner_enter"(model: u64, owner: u32);
    /// An owner's forward has returned.
    fn owner_exit = c"ft_owner_exit"(model: u64, owner: u32);
    /// A trap's forward begins.
    fn trap_enter = c"ft_trap_enter"(model: u64, trap: u32);
    /// A trap's forward has returned.
    fn trap_exit = c"ft_trap_exit"(model: u64, trap: u32);
    /// The events wanted now, as bits.
    fn wants = c"ft_wants"(model: u64) -> u32;
    fn raw_model_course = c"ft_model_course"(
        model: u64, discovery: u32, profiling: u32, warmups: u32, flags: u32, profile: *const c_char
    ) -> i32;
    /// The phase number of one model; -1 where there is none.
    fn model_phase = c"ft_model_phase"(model: u64) -> i32;
    /// 0 suspends, 1 resumes, 2 clears the times of a model.
    fn model_profiling = c"ft_model_profiling"(model: u64, what: u32) -> i32;
    fn raw_configure = c"ft_configure"(json: *const c_char) -> i32;
    fn raw_profile_save = c"ft_profile_save"(folder: *const c_char) -> i32;
    fn raw_config_json = c"ft_config_json"(buffer: *mut c_char, capacity: usize) -> i64;
    fn raw_report_json = c"ft_report_json"(buffer: *mut c_char, capacity: usize) -> i64;
    fn raw_arena = c"ft_arena"(bytes: *mut u64) -> u64;
}

impl Table {
    fn resolve() -> Result<Self, String> {
        let Some(version) = symbol(c"ft_api_version") else {
            return Err(
                "libflextensor.so is not preloaded into this process (start it with `flextensor run`)".into(),
            );
        };
        // SAFETY: every version of the interface keeps this one signature.
        let version = unsafe { std::mem::transmute::<*mut c_void, unsafe extern "C" fn() -> u32>(version) };
        // SAFETY: takes nothing and only returns a constant.
        let found = unsafe { version() };
        if found != API_VERSION {
            return Err(format!(
                "the preloaded libflextensor.so speaks interface version {found}, this package speaks \
                 {API_VERSION}: install matching ones"
            ));
        }
        Self::from_symbols()
    }

    /// Begins the naming of a model; 0 when refused.
    pub(crate) fn model_begin(&self, name: &Text) -> u64 {
        self.raw_model_begin(name.pointer())
    }

    /// Names an owner: an innermost module that holds weights.
    pub(crate) fn model_owner(&self, model: u64, owner: u32, path: &Text, class: &Text, trap: i32) -> i32 {
        self.raw_model_owner(model, owner, path.pointer(), class.pointer(), trap)
    }

    /// Names the storage of a weight.
    pub(crate) fn model_weight(
        &self,
        model: u64,
        name: &Text,
        address: u64,
        bytes: u64,
        owner: u32,
        flags: u32,
    ) -> i32 {
        self.raw_model_weight(model, name.pointer(), address, bytes, owner, flags)
    }

    /// Who chooses what is streamed of a model; none takes it back.
    pub(crate) fn model_strategy(&self, model: u64, json: Option<&Text>) -> i32 {
        self.raw_model_strategy(model, json.map_or(std::ptr::null(), Text::pointer))
    }

    /// The model's own counts and profile.
    pub(crate) fn model_course(
        &self,
        model: u64,
        counts: [u32; 3],
        skip_discovery: bool,
        profile: Option<&Text>,
    ) -> i32 {
        let [discovery, profiling, warmups] = counts;
        let profile = profile.map_or(std::ptr::null(), Text::pointer);
        self.raw_model_course(model, discovery, profiling, warmups, u32::from(skip_discovery), profile)
    }

    /// Changes options; `json` is an object.
    pub(crate) fn configure(&self, json: &Text) -> i32 {
        self.raw_configure(json.pointer())
    }

    /// Writes profile.json to a folder; none = the configured one.
    pub(crate) fn profile_save(&self, folder: Option<&Text>) -> i32 {
        self.raw_profile_save(folder.map_or(std::ptr::null(), Text::pointer))
    }

    /// The effective configuration as JSON.
    pub(crate) fn config_json(&self) -> String {
        read_text(|buffer, capacity| self.raw_config_json(buffer, capacity))
    }

    /// The run report as JSON.
    pub(crate) fn report_json(&self) -> String {
        read_text(|buffer, capacity| self.raw_report_json(buffer, capacity))
    }

    /// First address and length in bytes of the range that holds every managed region; zeros while none
    /// exists.
    pub(crate) fn arena(&self) -> (u64, u64) {
        let mut bytes = 0;
        let first = self.raw_arena(&raw mut bytes);
        (first, bytes)
    }
}

/// A text for the C side: what follows an inner NUL is cut off, as C would read it.
pub(crate) struct Text(std::ffi::CString);

impl Text {
    /// Copies `text`.
    pub(crate) fn new(text: &str) -> Self {
        let whole = text.split('\0').next().unwrap_or_default();
        Self(std::ffi::CString::new(whole).unwrap_or_default())
    }

    fn pointer(&self) -> *const c_char {
        self.0.as_ptr()
    }
}

/// Calls `fill` until its text fits: the text may grow between two calls.
fn read_text(fill: impl Fn(*mut c_char, usize) -> i64) -> String {
    let mut buffer = vec![0_u8; 16 << 10];
    loop {
        let length = usize::try_from(fill(buffer.as_mut_ptr().cast(), buffer.len())).unwrap_or(0);
        if length < buffer.len() {
            return String::from_utf8_lossy(&buffer[..length]).into_owned();
        }
        buffer.resize(length + 4096, 0);
    }
}

fn required(name: &CStr) -> Result<*mut c_void, String> {
    symbol(name).ok_or_else(|| {
        format!("the preloaded libflextensor.so lacks {}: install matching versions", name.to_string_lossy())
    })
}

fn symbol(name: &CStr) -> Option<*mut c_void> {
    // SAFETY: the name is NUL-terminated; a preloaded library is in the global scope that RTLD_DEFAULT
    // searches.
    let found = unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) };
    (!found.is_null()).then_some(found)
}
