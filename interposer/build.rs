//! Link arguments of libflextensor.so. Here and not in RUSTFLAGS, which would also reach build scripts, and break them.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    for argument in [
        "-soname,libflextensor.so",
        // Never unmapped: programs keep our addresses.
        "-z,nodelete",
        // All our references are bound when we are loaded: nothing is resolved inside a hook.
        "-z,now",
        // Our own references to exported names stay inside: another library's `cuInit` must not become ours.
        "-Bsymbolic",
    ] {
        println!("cargo:rustc-cdylib-link-arg=-Wl,{argument}");
    }
}
