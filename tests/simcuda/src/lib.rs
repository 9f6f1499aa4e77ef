//! simcuda: a `libcuda.so.1` for machines without a GPU. Tests and the demo run against it (docs/simcuda.md).
//!
//! Memory is real (one file mapped at many addresses), time is real (streams are threads), bytes are real (kernels are
//! host functions). A program that forgets a wait computes wrong bytes here as it would on a GPU, and simcuda says where.
//!
//! - `api`: the exported functions, by field; `call`: what each of them does besides its body
//! - `exec`: contexts, streams, events, copies, captures, graphs, and the search for unordered work
//! - `memory`: physical memory, addresses, checked access
//! - `kernels`: the host functions and their parameter layouts
//! - `settings`, `faults`, `journal`, `report`: what a test sets and what it learns
//! - `abi`, `pointer`, `status`, `exported_names`: the C border
//! - `registry`, `locks`: handles and locks
//!
//! Nothing here knows the library that is tested. The exported names clash with that library's own exports, so no test
//! names this crate: it is found as a shared library at run time.

mod abi;
mod api;
mod call;
mod exec;
mod exported_names;
mod faults;
mod journal;
mod kernels;
mod locks;
mod memory;
mod pointer;
mod registry;
mod report;
mod settings;
mod status;
