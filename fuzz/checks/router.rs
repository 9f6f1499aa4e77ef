//! What must hold of every lookup of a driver function: code and status are the driver's, and so is the address, unless it is one that the library hooks: then it is the
//! library's own function of exactly the name that the driver chose. Shared by the fuzz target and the program that replays its corpus under the preloaded library.
#![allow(unsafe_code, reason = "calls lookups by their addresses, with arbitrary text")]

use std::ffi::{CStr, CString, c_char, c_int, c_void};

type Lookup = unsafe extern "C" fn(*const c_char, *mut *mut c_void, c_int, u64) -> u32;
type LookupWithStatus = unsafe extern "C" fn(*const c_char, *mut *mut c_void, c_int, u64, *mut u32) -> u32;

/// Both forms of the lookup, by one side.
#[derive(Clone, Copy)]
pub(crate) struct Forms {
    /// `cuGetProcAddress`.
    pub(crate) plain: Lookup,
    /// `cuGetProcAddress_v2`.
    pub(crate) with_status: LookupWithStatus,
}

impl Forms {
    /// From the addresses of the functions.
    ///
    /// # Safety
    /// They are those of `cuGetProcAddress` and `cuGetProcAddress_v2` of a driver, or stand in for them.
    pub(crate) unsafe fn at(plain: *mut c_void, with_status: *mut c_void) -> Self {
        assert!(!plain.is_null() && !with_status.is_null(), "a lookup is missing");
        // SAFETY: the caller's promise.
        let plain = unsafe { std::mem::transmute::<*mut c_void, Lookup>(plain) };
        // SAFETY: as above.
        let with_status = unsafe { std::mem::transmute::<*mut c_void, LookupWithStatus>(with_status) };
        Self { plain, with_status }
    }
}

/// The lookups that are compared, and a handle of the driver for the third one, `dlsym`.
#[derive(Clone, Copy)]
pub(crate) struct Sides {
    /// What a program gets.
    pub(crate) ours: Forms,
    /// The driver's own.
    pub(crate) drivers: Forms,
    /// An open handle of the driver.
    pub(crate) driver: Opened,
}

/// A handle of `dlopen` that stays open.
#[derive(Clone, Copy)]
pub(crate) struct Opened(pub(crate) *mut c_void);

// SAFETY: the loader's handles may be used by any thread.
unsafe impl Sync for Opened {}
// SAFETY: as above.
unsafe impl Send for Opened {}

/// What one lookup said.
#[derive(Debug, PartialEq, Eq)]
struct Answer {
    code: u32,
    address: usize,
    status: u32,
}

/// Stands in variables before a lookup: what is left untouched is seen.
const UNTOUCHED: usize = 0xA5A5_A5A5;

/// How often each side was asked, and how often the answer was a function of the library.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    /// Lookups.
    pub(crate) asked: u64,
    /// Answers that were not the driver's address.
    pub(crate) replaced: u64,
}

/// Input: one byte of variant, four of version, eight of flags, then the name.
pub(crate) fn check(sides: &Sides, data: &[u8], tally: &mut Tally) {
    let Some((head, name)) = data.split_at_checked(13) else { return };
    let name = name.split(|&byte| byte == 0).next().unwrap_or_default();
    let name = CString::new(name).expect("it was cut at the first NUL");
    let version = i32::from_le_bytes(head[1..5].try_into().expect("four bytes"));
    let flags = u64::from_le_bytes(head[5..13].try_into().expect("eight bytes"));
    let variant = head[0];
    tally.asked += 1;
    match variant % 4 {
        3 => by_dlsym(sides, &name, tally),
        with_status => {
            // In variant 2 nobody wants the status.
            let ask = |forms: Forms| ask(forms, &name, version, flags, with_status);
            let (drivers, ours) = (ask(sides.drivers), ask(sides.ours));
            compare(&drivers, &ours, tally);
        }
    }
}

fn ask(forms: Forms, name: &CStr, version: i32, flags: u64, variant: u8) -> Answer {
    let mut address: *mut c_void = std::ptr::without_provenance_mut(UNTOUCHED);
    let mut status = u32::MAX;
    let wanted = if variant == 1 { &raw mut status } else { std::ptr::null_mut() };
    let code = match variant {
        // SAFETY: the name is NUL-terminated, and the variable is a local.
        0 => unsafe { (forms.plain)(name.as_ptr(), &mut address, version, flags) },
        // SAFETY: as above; the status is a local or null.
        _ => unsafe { (forms.with_status)(name.as_ptr(), &mut address, version, flags, wanted) },
    };
    Answer { code, address: address.addr(), status }
}

/// By `dlsym` on the driver's handle: null where the driver has no such name, else the driver's function or ours of that name.
fn by_dlsym(sides: &Sides, name: &CStr, tally: &mut Tally) {
    // SAFETY: the handle is open, and the name NUL-terminated.
    let found = unsafe { libc::dlsym(sides.driver.0, name.as_ptr()) };
    if found.is_null() || name.to_bytes().is_empty() {
        return;
    }
    // The handle's scope reaches libraries of other names, too.
    let ours = sides.ours.with_status as *mut c_void;
    if object_at(found) == object_at(ours) {
        let named = name_at(found).unwrap_or_default();
        assert_eq!(named.as_bytes(), name.to_bytes(), "another function stands for the driver's");
        tally.replaced += 1;
    }
}

fn compare(drivers: &Answer, ours: &Answer, tally: &mut Tally) {
    assert_eq!((ours.code, ours.status), (drivers.code, drivers.status), "{ours:?} for {drivers:?}");
    if ours.address == drivers.address {
        return;
    }
    assert_eq!(drivers.code, 0, "what failed was answered: {ours:?}");
    tally.replaced += 1;
    let theirs: *mut c_void = std::ptr::without_provenance_mut(drivers.address);
    let ours: *mut c_void = std::ptr::without_provenance_mut(ours.address);
    let (theirs, ours) = (name_at(theirs), name_at(ours));
    assert!(theirs.is_some() && theirs == ours, "{ours:?} stands for {theirs:?}");
}

/// Where the loaded object begins that holds the address.
fn object_at(address: *mut c_void) -> *mut c_void {
    described(address).map_or(std::ptr::null_mut(), |info| info.dli_fbase)
}

/// The exported name of the function at exactly this address.
fn name_at(address: *mut c_void) -> Option<String> {
    let info = described(address)?;
    if info.dli_saddr != address || info.dli_sname.is_null() {
        return None;
    }
    // SAFETY: the loader's own text, which lives as long as the object.
    Some(unsafe { CStr::from_ptr(info.dli_sname) }.to_string_lossy().into_owned())
}

fn described(address: *mut c_void) -> Option<libc::Dl_info> {
    // SAFETY: a plain C struct; all-zero is valid.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: dladdr only looks the address up, and fills a local.
    let known = unsafe { libc::dladdr(address, &mut info) } != 0;
    known.then_some(info)
}
