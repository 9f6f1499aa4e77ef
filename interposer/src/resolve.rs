//! The three routes by which a program comes to call us instead of the driver:
//! 1. exported `cu*` names of the table, found by the dynamic linker (`hooks` makes them; the driver is looked for at the first call);
//! 2. `dlsym` on a handle, which we export and which jumps on to the real one for everything but the table's names;
//! 3. `cuGetProcAddress`, whose answer is replaced by the address that came back.
//!
//! The choice is always made by the *driver's own address* of a function, so that the ABI version and the per-thread form agree by
//! construction; an address that is not in the table is left alone. Nothing here takes a lock, allocates, logs or starts anything: it runs
//! inside the constructors of other libraries, before our own. Two threads that resolve at the same time store the same values.

#![expect(unsafe_code, reason = "dynamic linker calls, and the dlsym that we export")]

use crate::ffi::types::{CUresult, c_char, c_int, c_void};
use crate::{hooks, init};
use std::ffi::CStr;
use std::sync::atomic::{AtomicBool, AtomicPtr, Ordering};

#[cfg(not(all(target_arch = "x86_64", target_os = "linux", target_env = "gnu")))]
compile_error!("the dlsym hook is written for x86_64 Linux with glibc");

type Dlsym = unsafe extern "C" fn(*mut c_void, *const c_char) -> *mut c_void;

/// glibc's dlsym, or that of the next interposer in the chain; null until it was looked for.
static REAL_DLSYM: AtomicPtr<c_void> = AtomicPtr::new(std::ptr::null_mut());
/// The driver will not be unloaded any more, so another image is never taken for it.
static PINNED: AtomicBool = AtomicBool::new(false);

/// What is called where no dlsym could be found at all.
unsafe extern "C" fn no_dlsym(_handle: *mut c_void, _name: *const c_char) -> *mut c_void {
    std::ptr::null_mut()
}

/// Address of the real dlsym. No once-guard: the lookup takes the loader's lock, whose holder may be waiting for us.
extern "C" fn real_dlsym_address() -> *mut c_void {
    let known = REAL_DLSYM.load(Ordering::Relaxed);
    if !known.is_null() {
        return known;
    }
    // dlvsym is not exported by us, so this is glibc's; RTLD_NEXT starts behind our library.
    for version in [c"GLIBC_2.34", c"GLIBC_2.2.5"] {
        // SAFETY: both strings are NUL-terminated.
        let found = unsafe { libc::dlvsym(libc::RTLD_NEXT, c"dlsym".as_ptr(), version.as_ptr()) };
        if !found.is_null() && found != dlsym as *mut c_void {
            REAL_DLSYM.store(found, Ordering::Relaxed);
            return found;
        }
    }
    no_dlsym as *mut c_void
}

/// The real dlsym, called with our library as the caller: for explicit handles, and `RTLD_DEFAULT`, which do not look at the caller.
pub(crate) fn real_dlsym(handle: *mut c_void, name: &CStr) -> *mut c_void {
    // SAFETY: the address is that of a function with dlsym's signature.
    let real = unsafe { std::mem::transmute::<*mut c_void, Dlsym>(real_dlsym_address()) };
    // SAFETY: the name is NUL-terminated; the handle is the caller's.
    unsafe { real(handle, name.as_ptr()) }
}

/// What the global scope has first under a name: what libraries that name no other one are bound to. (`RTLD_DEFAULT` would begin with our own library, which
/// is linked to look at itself first.)
pub(crate) fn first_in_the_process(name: &CStr) -> *mut c_void {
    // SAFETY: no name means the program itself, which is loaded.
    let program = unsafe { libc::dlopen(std::ptr::null(), libc::RTLD_LAZY) };
    if program.is_null() {
        return std::ptr::null_mut();
    }
    let found = real_dlsym(program, name);
    // SAFETY: gives back the reference taken above.
    unsafe { libc::dlclose(program) };
    found
}

/// `dlsym` for the whole process. glibc's looks at its caller (RTLD_NEXT), so this is no function that calls it but one that jumps to it with the
/// program's stack and registers, unless the filter has an answer.
///
/// # Safety
/// As dlsym(3).
#[cfg_attr(not(test), unsafe(no_mangle))]
#[unsafe(naked)]
pub(crate) unsafe extern "C" fn dlsym(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    core::arch::naked_asm!(
        ".cfi_startproc",
        "endbr64",
        // Keep both arguments, and the stack aligned to 16 bytes for the calls.
        "push rdi",
        ".cfi_adjust_cfa_offset 8",
        "push rsi",
        ".cfi_adjust_cfa_offset 8",
        "sub rsp, 8",
        ".cfi_adjust_cfa_offset 8",
        "call {filter}",
        "test rax, rax",
        "jne 2f",
        "call {real}",
        "add rsp, 8",
        ".cfi_adjust_cfa_offset -8",
        "pop rsi",
        ".cfi_adjust_cfa_offset -8",
        "pop rdi",
        ".cfi_adjust_cfa_offset -8",
        "jmp rax",
        "2:",
        ".cfi_adjust_cfa_offset 24",
        "add rsp, 24",
        ".cfi_adjust_cfa_offset -24",
        "ret",
        ".cfi_endproc",
        filter = sym dlsym_filter,
        real = sym real_dlsym_address,
    )
}

/// Our answer to a dlsym, or null to let the real one answer.
unsafe extern "C" fn dlsym_filter(handle: *mut c_void, name: *const c_char) -> *mut c_void {
    // RTLD_DEFAULT and RTLD_NEXT depend on the caller and go on untouched.
    if name.is_null() || handle == libc::RTLD_DEFAULT || handle == libc::RTLD_NEXT {
        return std::ptr::null_mut();
    }
    // SAFETY: dlsym's caller passes a NUL-terminated name.
    let name = unsafe { CStr::from_ptr(name) };
    // Exactly the table's names: a prefix would also match cudnn*, cublas*, cufft*, cuFile*.
    if !name.to_bytes().starts_with(b"cu") || init::stock_addresses() {
        return std::ptr::null_mut();
    }
    let Some(row) = hooks::row_of_name(name.to_bytes()) else { return std::ptr::null_mut() };
    // A failure goes to the real dlsym again, which leaves its message for dlerror.
    let found = real_dlsym(handle, name);
    if found.is_null() {
        return std::ptr::null_mut();
    }
    if found != row.original() {
        if !adopt(handle, found) {
            return std::ptr::null_mut();
        }
        // `adopt` looked for names that this driver may not have. The last lookup must be one that succeeds: it clears dlerror.
        if real_dlsym(handle, name) != row.original() {
            return std::ptr::null_mut();
        }
    }
    row.shell()
}

/// Learns the driver by a function of it: the address of every name of the table, by lookups on `handle`. False, and no change, if `found` does
/// not lie in a driver that we take for the real one.
fn adopt(handle: *mut c_void, found: *mut c_void) -> bool {
    if PINNED.load(Ordering::Relaxed) {
        return false;
    }
    let Some(image) = driver_image(found) else { return false };
    let mut all_inside = true;
    for row in hooks::rows() {
        let address = real_dlsym(handle, row.c_name);
        all_inside &= address.is_null() || image.holds(address.addr());
        row.set_original(if image.holds(address.addr()) { address } else { std::ptr::null_mut() });
    }
    if !all_inside {
        // The handle's scope is wider than the driver, and has functions of such names before the driver's: ask the driver itself.
        adopt_by_file(&image);
    }
    true
}

/// As the end of `adopt`, by a handle of the driver alone. Apart, because opening, even of what is open, allocates.
#[cold]
fn adopt_by_file(image: &Image) {
    // SAFETY: the loader's name of a loaded object; NOLOAD only looks among those.
    let handle = unsafe { libc::dlopen(image.path, libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    if handle.is_null() {
        return;
    }
    for row in hooks::rows() {
        let address = real_dlsym(handle, row.c_name);
        if image.holds(address.addr()) {
            row.set_original(address);
        }
    }
    // SAFETY: gives back the reference taken above; the program's own keeps the driver loaded.
    unsafe { libc::dlclose(handle) };
}

/// Where a driver lies in memory, and the loader's name of it.
struct Image {
    start: usize,
    end: usize,
    path: *const c_char,
}

impl Image {
    fn holds(&self, address: usize) -> bool {
        (self.start..self.end).contains(&address)
    }
}

/// What the walk over the loaded objects looks for, and finds.
struct ImageSearch {
    address: usize,
    image: Option<Image>,
}

/// The loaded object that holds `address`, if it is a driver: an object of our namespace whose file is called
/// `libcuda.so`, `libcuda.so.1`, `libcuda.so.580.95` ...
fn driver_image(address: *mut c_void) -> Option<Image> {
    let mut search = ImageSearch { address: address.addr(), image: None };
    // SAFETY: the callback is called only during this call, with the pointer that is passed here.
    unsafe { libc::dl_iterate_phdr(Some(visit_object), (&raw mut search).cast()) };
    search.image
}

unsafe extern "C" fn visit_object(info: *mut libc::dl_phdr_info, _size: usize, data: *mut c_void) -> c_int {
    // SAFETY: dl_iterate_phdr passes a valid description, and back the pointer that `driver_image` gave it.
    let info = unsafe { &*info };
    // SAFETY: as above; nothing else uses the search during the walk.
    let search = unsafe { &mut *data.cast::<ImageSearch>() };
    if info.dlpi_phdr.is_null() {
        return 0;
    }
    // SAFETY: the loader's table of `dlpi_phnum` program headers, which lives as long as the object.
    let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
    let (mut start, mut end, mut holds) = (usize::MAX, 0, false);
    for header in headers.iter().filter(|header| header.p_type == libc::PT_LOAD) {
        let from = (info.dlpi_addr as usize).wrapping_add(header.p_vaddr as usize);
        let to = from.wrapping_add(header.p_memsz as usize);
        (start, end) = (start.min(from), end.max(to));
        holds |= (from..to).contains(&search.address);
    }
    if !holds {
        return 0;
    }
    let ours = (start..end).contains(&own_dlsym());
    if !ours && !info.dlpi_name.is_null() {
        // SAFETY: the loader's NUL-terminated name of the object.
        let path = unsafe { CStr::from_ptr(info.dlpi_name) };
        search.image = is_driver_file(path.to_bytes()).then_some(Image { start, end, path: info.dlpi_name });
    }
    1
}

/// True for paths of a driver library: `libcuda.so` with or without a version.
fn is_driver_file(path: &[u8]) -> bool {
    let file = path.rsplit(|&byte| byte == b'/').next().unwrap_or(path);
    match file.strip_prefix(b"libcuda.so") {
        Some(rest) => rest.is_empty() || rest[0] == b'.',
        None => false,
    }
}

/// The original of an exported function whose slot is empty: called by the dynamic linker's route, before any dlsym showed us the driver.
/// Errors are what the program gets: the driver is not loaded in this process, or is too old for the function.
#[cold]
pub(crate) fn find_original(slot: &AtomicPtr<c_void>, name: &str) -> Result<*mut c_void, CUresult> {
    let absent =
        if name == "cuInit" { CUresult::CUDA_ERROR_NO_DEVICE } else { CUresult::CUDA_ERROR_NOT_INITIALIZED };
    // SAFETY: the name is NUL-terminated; NOLOAD only looks among the loaded objects.
    let handle = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_LAZY | libc::RTLD_NOLOAD) };
    if handle.is_null() {
        return Err(absent);
    }
    let found = real_dlsym(handle, c"cuInit");
    let adopted = !found.is_null() && adopt(handle, found);
    // SAFETY: gives back the reference taken above; the program's own keeps the driver loaded.
    unsafe { libc::dlclose(handle) };
    if !adopted {
        return Err(absent);
    }
    let address = slot.load(Ordering::Acquire);
    if address.is_null() { Err(CUresult::CUDA_ERROR_NOT_SUPPORTED) } else { Ok(address) }
}

/// Learns the driver behind a handle, before anything looked it up. False if it is none.
pub(crate) fn meet(handle: *mut c_void) -> bool {
    let found = real_dlsym(handle, c"cuInit");
    let Some(row) = hooks::row_of_name(b"cuInit") else { return false };
    !found.is_null() && (found == row.original() || adopt(handle, found))
}

/// Where the driver whose functions we know lies in memory.
pub(crate) fn driver_range() -> Option<std::ops::Range<usize>> {
    let inside = hooks::rows().map(hooks::Row::original).find(|address| !address.is_null())?;
    driver_image(inside).map(|image| image.start..image.end)
}

/// Where our own `dlsym` stands.
pub(crate) fn own_dlsym() -> usize {
    (dlsym as *const c_void).addr()
}

/// The third route: what the driver answered to a `cuGetProcAddress` becomes ours if it is in the table.
///
/// # Safety
/// `answer` is null or points to the program's variable that the driver just wrote.
pub(crate) unsafe fn substitute(code: CUresult, answer: *mut *mut c_void) {
    if !code.is_success() || answer.is_null() || init::stock_addresses() {
        return;
    }
    // SAFETY: the driver wrote the variable and returned success.
    let address = unsafe { *answer };
    if let Some(row) = hooks::row_of_original(address) {
        // SAFETY: the program's variable, as above.
        unsafe { *answer = row.shell() };
    }
}

/// Keeps the driver loaded for the rest of the process, so that the stored addresses stay good, and returns a handle for lookups.
/// `None` if the driver's file cannot be found again.
pub(crate) fn pin() -> Option<*mut c_void> {
    let inside = hooks::rows().map(hooks::Row::original).find(|address| !address.is_null())?;
    // SAFETY: a plain C struct that dladdr fills; all-zero is valid.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: the pointer is to a local that lives through the call.
    if unsafe { libc::dladdr(inside, &mut info) } == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: the loader's name of the object; NOLOAD finds exactly that object again, NODELETE keeps it.
    let handle =
        unsafe { libc::dlopen(info.dli_fname, libc::RTLD_LAZY | libc::RTLD_NOLOAD | libc::RTLD_NODELETE) };
    if handle.is_null() {
        return None;
    }
    PINNED.store(true, Ordering::Relaxed);
    Some(handle)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_files_of_the_driver_count_as_the_driver() {
        for path in ["libcuda.so", "/usr/lib/x86_64-linux-gnu/libcuda.so.1", "/a b/libcuda.so.580.159.04"] {
            assert!(is_driver_file(path.as_bytes()), "{path}");
        }
        for path in [
            "",
            "/usr/lib/libcudart.so.13",
            "/usr/lib/libcuda.so/x",
            "/usr/lib/libcudadebugger.so.1",
            "libcuda.sox",
        ] {
            assert!(!is_driver_file(path.as_bytes()), "{path}");
        }
    }

    #[test]
    fn the_real_dlsym_is_not_ours_and_finds_libc_functions() {
        assert_ne!(real_dlsym_address(), dlsym as *mut c_void);
        let found = real_dlsym(libc::RTLD_DEFAULT, c"getpid");
        assert!(!found.is_null());
        // SAFETY: dlsym with a NUL-terminated name.
        assert_eq!(unsafe { dlsym(libc::RTLD_DEFAULT, c"getpid".as_ptr()) }, found);
    }

    #[test]
    fn an_address_outside_a_driver_is_never_adopted() {
        let ours = dlsym as *mut c_void;
        assert!(!adopt(std::ptr::null_mut(), ours), "our own image must never hold an original");
        assert!(!adopt(std::ptr::null_mut(), real_dlsym_address()), "libc is no driver");
        assert!(hooks::rows().all(|row| row.original().is_null()));
    }

    #[test]
    fn an_export_without_a_driver_says_that_there_is_no_device() {
        let slot = AtomicPtr::new(std::ptr::null_mut());
        assert_eq!(find_original(&slot, "cuInit"), Err(CUresult::CUDA_ERROR_NO_DEVICE));
        assert_eq!(find_original(&slot, "cuMemAlloc_v2"), Err(CUresult::CUDA_ERROR_NOT_INITIALIZED));
    }
}
