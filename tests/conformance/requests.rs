//! Every request that a real CUDA 13 stack makes is answered, in the form that was asked for.
#![expect(unsafe_code, reason = "calls a driver function found at run time")]

use std::collections::BTreeMap;
use std::ffi::{CString, c_char, c_void};

type Resolver = unsafe extern "C" fn(*const c_char, *mut *mut c_void, i32, u64, *mut u32) -> u32;

struct Simulated {
    library: libloading::Library,
}

impl Simulated {
    fn open() -> Self {
        // SAFETY: simcuda's initialisation touches nothing of this process.
        let library = unsafe { libloading::Library::new(harness::run::simcuda_library()) };
        Self { library: library.expect("simcuda loads") }
    }

    fn export(&self, name: &str) -> Option<usize> {
        // SAFETY: only the address is used.
        let symbol = unsafe { self.library.get::<*const c_void>(name.as_bytes()) };
        symbol.ok().map(|symbol| *symbol as usize)
    }

    fn request(&self, name: &str, version: i32, flags: u64) -> (u32, usize, u32) {
        // SAFETY: the export has this signature.
        let resolver = unsafe { self.library.get::<Resolver>("cuGetProcAddress_v2") };
        let resolver = resolver.expect("simcuda exports it");
        let (mut address, mut status) = (std::ptr::null_mut(), u32::MAX);
        let name = CString::new(name).expect("a name has no NUL");
        // SAFETY: all pointers are valid for the call.
        let code = unsafe { resolver(name.as_ptr(), &mut address, version, flags, &mut status) };
        (code, address as usize, status)
    }
}

#[test]
fn every_request_of_a_real_runtime_is_answered() {
    let driver = Simulated::open();
    let fixture = concat!(env!("CARGO_MANIFEST_DIR"), "/fixtures/driver_symbols_13.tsv");
    let rows = std::fs::read_to_string(fixture).unwrap();
    let mut answered = 0;
    for row in rows.lines().skip(1) {
        let fields: Vec<&str> = row.split('\t').collect();
        let (name, version, flags) = (fields[1], fields[2].trim(), fields[3].trim());
        if name.is_empty() {
            assert_eq!(driver.request("", 0, 0).0, 500, "the empty name is not found");
        } else if version.is_empty() {
            assert!(driver.export(name).is_some(), "{name} is exported");
        } else {
            let (code, address, status) =
                driver.request(name, version.parse().unwrap(), flags.parse().unwrap());
            assert_eq!((code, status), (0, 0), "{row}");
            assert_ne!(address, 0, "{row}");
        }
        answered += 1;
    }
    assert!(answered > 500, "only {answered} rows");
}

#[test]
fn the_version_and_the_stream_flag_choose_the_form() {
    let driver = Simulated::open();
    let expected: BTreeMap<(&str, i32, u64), &str> = BTreeMap::from([
        (("cuMemAlloc", 3020, 0), "cuMemAlloc_v2"),
        (("cuMemAlloc", 13000, 2), "cuMemAlloc_v2"),
        (("cuGetProcAddress", 11030, 0), "cuGetProcAddress"),
        (("cuGetProcAddress", 12000, 0), "cuGetProcAddress_v2"),
        (("cuMemcpyHtoDAsync", 7000, 2), "cuMemcpyHtoDAsync_v2_ptsz"),
        (("cuMemcpyHtoD", 7000, 2), "cuMemcpyHtoD_v2_ptds"),
        (("cuMemsetD8", 7000, 2), "cuMemsetD8_v2_ptds"),
        (("cuLaunchKernel", 4000, 1), "cuLaunchKernel"),
        (("cuLaunchKernel", 7000, 2), "cuLaunchKernel_ptsz"),
        (("cuStreamGetCaptureInfo", 10010, 0), "cuStreamGetCaptureInfo"),
        (("cuStreamGetCaptureInfo", 11030, 2), "cuStreamGetCaptureInfo_v2_ptsz"),
        (("cuStreamGetCaptureInfo", 12030, 0), "cuStreamGetCaptureInfo_v3"),
        (("cuMemcpyBatchAsync", 12080, 0), "cuMemcpyBatchAsync"),
        (("cuMemcpyBatchAsync", 13000, 2), "cuMemcpyBatchAsync_v2_ptsz"),
        (("cuEventElapsedTime", 12000, 0), "cuEventElapsedTime"),
    ]);
    for ((name, version, flags), export) in expected {
        let (code, address, _) = driver.request(name, version, flags);
        assert_eq!((code, Some(address)), (0, driver.export(export)), "{name} {version} {flags} is {export}");
    }
}

#[test]
fn unknown_names_and_versions_before_the_function_say_why() {
    let driver = Simulated::open();
    assert_eq!(driver.request("cuNothing", 13000, 0), (500, 0, 1));
    assert_eq!(driver.request("cuGetProcAddress", 11000, 0), (500, 0, 2));
    assert_eq!(driver.request("cudnnCreate", 13000, 0), (500, 0, 1));
}
