//! Kernels: named host functions with a declared parameter layout.
//!
//! - `layout`: parameters, their offsets, captured arguments
//! - `call`: one launch: what it uses, and its run in three phases
//! - `checking`: kernels that write and verify patterns (for tests)
//! - `pointers`: kernels that reach memory through addresses in memory
//! - `transformer`: the float kernels of a small transformer
//! - `module`: images, modules, libraries, functions

pub(crate) mod call;
pub(crate) mod checking;
pub(crate) mod layout;
pub(crate) mod module;
pub(crate) mod pointers;
pub(crate) mod transformer;

use layout::Kernel;

/// The kernel of this name.
pub(crate) fn find(name: &str) -> Option<&'static Kernel> {
    [checking::KERNELS, pointers::KERNELS, transformer::KERNELS]
        .into_iter()
        .flatten()
        .find(|kernel| kernel.name == name)
}
