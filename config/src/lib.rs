//! flextensor-config (map to come).
#![forbid(unsafe_code)]
