//! End-to-end tests.

// The preload itself: routes to driver functions, inertness, what it exports and needs.
mod loader;
