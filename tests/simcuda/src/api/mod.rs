//! The exported functions, by field. Each is a row that names its body; `call` does what is common to all.

pub(crate) mod contexts;
pub(crate) mod copies;
pub(crate) mod devices;
pub(crate) mod events;
pub(crate) mod graphs;
pub(crate) mod host;
pub(crate) mod launches;
pub(crate) mod memory;
pub(crate) mod modules;
pub(crate) mod pointers;
pub(crate) mod pools;
pub(crate) mod resolve;
pub(crate) mod streams;
pub(crate) mod vmm;

use crate::call::Export;

/// Exports that only answer "not supported", written by the build script.
pub(crate) mod rest {
    #![expect(unsafe_code, reason = "exports under fixed names")]
    use crate::call::not_supported;
    include!(concat!(env!("OUT_DIR"), "/not_supported.rs"));
}

/// Every export.
pub(crate) fn exports() -> impl Iterator<Item = &'static Export> {
    [
        contexts::TABLE,
        copies::STREAM_TABLE,
        devices::TABLE,
        events::TABLE,
        events::STREAM_TABLE,
        graphs::TABLE,
        graphs::STREAM_TABLE,
        host::TABLE,
        launches::STREAM_TABLE,
        memory::TABLE,
        modules::TABLE,
        pointers::TABLE,
        pools::TABLE,
        pools::STREAM_TABLE,
        resolve::TABLE,
        streams::TABLE,
        streams::STREAM_TABLE,
        vmm::TABLE,
        rest::TABLE,
    ]
    .into_iter()
    .flatten()
}
