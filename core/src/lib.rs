//! flextensor-core (map to come).
#![forbid(unsafe_code)]
