//! End-to-end tests.

// The preload itself: routes to driver functions, inertness, what it exports and needs.
mod loader;

// Programs under a budget, on simcuda.
mod allocators;
mod check;
mod companions;
mod courses;
mod devices;
mod endless;
mod failure;
mod fork;
mod graphs;
mod groups;
mod invariants;
mod late;
mod launch_cost;
mod loading;
mod options;
mod others;
mod paging;
mod pressure;
mod profile_file;
mod proofs;
mod quiet;
mod replan;
mod reported;
mod router;
mod rows;
mod soak;
mod threads;
mod told;
mod waits;
