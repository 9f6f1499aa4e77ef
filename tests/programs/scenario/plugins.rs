//! Stories of libraries that are opened while the program runs and launch kernels by driver functions of their own finding.

#![expect(unsafe_code, reason = "opens a library and calls its functions")]

use super::Told;
use super::scene::{MAY_STREAM, Scene};
use harness::driver::check;
use harness::gpu::Handle;
use std::ffi::{CStr, CString, c_void};

const COUNT: u64 = 6;
const PAGES: u64 = 2;

pub(crate) fn tell(story: &str) -> Option<Told> {
    let (scope, when) = match story {
        "a plugin in a scope of its own" => (libc::RTLD_LOCAL, When::Before),
        "a plugin that looks at itself first" => (libc::RTLD_DEEPBIND, When::Before),
        "a plugin in a scope of its own that comes late" => (libc::RTLD_LOCAL, When::Learnt),
        "a plugin that looks at itself first and comes late" => (libc::RTLD_DEEPBIND, When::Learnt),
        _ => return None,
    };
    Some(weights_read_by_a_plugin(scope, when))
}

/// When the library is opened: before the model is named, or when it has been learnt.
#[derive(PartialEq, Eq)]
enum When {
    Before,
    Learnt,
}

type Launch = extern "C" fn(u64, u64, *mut u64, i32) -> u32;

/// The functions of the library that `PLUGIN` names.
struct Plugin {
    launches: [Launch; 2],
}

impl Plugin {
    fn open(scope: i32) -> Self {
        let path = std::env::var("PLUGIN").expect("PLUGIN names the library");
        let path = CString::new(path).expect("a path has no NUL");
        // SAFETY: the path is NUL-terminated; the library has no constructors.
        let library = unsafe { libc::dlopen(path.as_ptr(), libc::RTLD_NOW | scope) };
        assert!(!library.is_null(), "the plugin cannot be opened");
        Self { launches: [c"launch_as_linked", c"launch_as_looked_up"].map(|name| function(library, name)) }
    }
}

fn function(library: *mut c_void, name: &CStr) -> Launch {
    // SAFETY: the handle is open, and the name is NUL-terminated.
    let address = unsafe { libc::dlsym(library, name.as_ptr()) };
    assert!(!address.is_null(), "the plugin has no {name:?}");
    // SAFETY: the plugin's functions have this signature.
    unsafe { std::mem::transmute::<*mut c_void, Launch>(address) }
}

/// In turns, every weight is read by the program, and by the plugin in both ways.
fn weights_read_by_a_plugin(scope: i32, when: When) -> Told {
    let plugin = (when == When::Before).then(|| Plugin::open(scope));
    let mut scene = Scene::set(COUNT, PAGES, MAY_STREAM)?;
    scene.learn()?;
    let plugin = plugin.unwrap_or_else(|| Plugin::open(scope));
    let kernel = scene.gpu.kernel("check", Handle::Kernel)?;
    for round in 0..6_usize {
        scene.pass_with(|scene, at| match (round + at) % 3 {
            0 => scene.check(scene.main, at),
            way => {
                let weight = scene.weights[at];
                let mut arguments = [weight.address, weight.bytes, weight.seed, scene.counter];
                let launch = plugin.launches[way - 1];
                check("the plugin's launch", launch(kernel, scene.main, arguments.as_mut_ptr(), 4))
            }
        })?;
    }
    scene.finish()
}
