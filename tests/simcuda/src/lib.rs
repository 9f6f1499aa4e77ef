//! simcuda (map to come).
