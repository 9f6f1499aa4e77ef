//! `checks/router.rs`, with input that coverage leads to. The library is linked into this program, so that its exports come first as under `LD_PRELOAD`, and its code is watched; the
//! driver is simcuda, found as `libcuda.so.1`. The program has called `cuInit`: the library is active.
#![no_main]

#[path = "../checks/router.rs"]
mod checks;

use checks::{Forms, Opened, Sides, Tally};
use flextensor as _;
use std::ffi::{CStr, c_char, c_void};
use std::sync::OnceLock;

unsafe extern "C" {
    fn cuGetProcAddress();
    fn cuGetProcAddress_v2();
    fn cuInit(flags: u32) -> u32;
    fn ft_status() -> u32;
}

type Stat = unsafe extern "C" fn(*const c_char) -> u64;

/// Stage "active", the self-test done, and all routes that go through lookups.
const ACTIVE: u32 = 2;

fn sides() -> &'static Sides {
    static SIDES: OnceLock<Sides> = OnceLock::new();
    SIDES.get_or_init(|| {
        // SAFETY: the name is NUL-terminated; a driver may be loaded at any time.
        let driver = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW) };
        assert!(!driver.is_null(), "LD_LIBRARY_PATH must lead to simcuda as libcuda.so.1");
        // SAFETY: the driver is open.
        let stat = unsafe { libc::dlsym(driver, c"simcuda_stat".as_ptr()) };
        assert!(!stat.is_null(), "the driver is no simcuda");
        // SAFETY: simcuda documents this signature.
        let stat = unsafe { std::mem::transmute::<*mut c_void, Stat>(stat) };
        let own = |name: &CStr| {
            // SAFETY: the name is NUL-terminated.
            let address = unsafe { stat(name.as_ptr()) };
            std::ptr::with_exposed_provenance_mut::<c_void>(address as usize)
        };
        // SAFETY: our own export of the driver's name.
        assert_eq!(unsafe { cuInit(0) }, 0);
        // SAFETY: takes nothing.
        assert_eq!(unsafe { ft_status() } & 0xff, ACTIVE, "the library did not start");
        // SAFETY: exports of these names.
        let ours = unsafe { Forms::at(cuGetProcAddress as *mut c_void, cuGetProcAddress_v2 as *mut c_void) };
        let (plain, with_status) = (own(c"address:cuGetProcAddress"), own(c"address:cuGetProcAddress_v2"));
        // SAFETY: simcuda told the addresses of its exports of these names.
        let drivers = unsafe { Forms::at(plain, with_status) };
        Sides { ours, drivers, driver: Opened(driver) }
    })
}

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    checks::check(sides(), data, &mut Tally::default());
});
