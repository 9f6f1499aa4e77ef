//! flextensor._native (map to come).
