//! libflextensor.so: a preloaded library that streams weights under unchanged addresses.
//!
//! Life of a driver call. A program finds the driver's function by one of three routes and gets ours (`resolve`). Our function, a row of the
//! table in `hooks`, goes straight on to the driver while we are not active (`init`) or the thread is inside one of our own calls (`guard`).
//! Launches go straight on as well while nothing needs to be looked at (`quiet`). Otherwise its handler decides (`hooks/*.rs`), by the one live state of the process (`runtime`), and answers with an `Outcome`: done, none of
//! our business (with a counted reason), or failed with a code that the program understands. Our own driver calls go through typed pointers of
//! their own (`ffi`) and never through a hook. Before the first successful `cuInit` nothing of this happens: the library is inert.

mod account;
#[cfg_attr(test, allow(dead_code, reason = "exported only outside unit tests"))]
mod api;
mod backend;
mod ffi;
mod guard;
mod hooks;
mod init;
mod late;
mod log;
mod outcome;
mod quiet;
mod resolve;
mod runtime;
mod selftest;
