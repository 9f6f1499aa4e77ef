//! Harness (to come).
