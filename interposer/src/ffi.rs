//! The door to the driver: its C types, the real entry points, and one safe wrapper for each internal call.
//! The only place, with the hook shells, the resolver and the C interface, where unsafe code is expected.
//! What to do with the driver, and when, is left to `runtime` and `hooks`.

pub(crate) mod capture;
pub(crate) mod context;
pub(crate) mod copy;
pub(crate) mod device;
pub(crate) mod event;
pub(crate) mod host;
pub(crate) mod kernel;
pub(crate) mod peer;
pub(crate) mod pointer;
pub(crate) mod pool;
pub(crate) mod real;
pub(crate) mod result;
pub(crate) mod stream;
pub(crate) mod types;
pub(crate) mod vmm;
