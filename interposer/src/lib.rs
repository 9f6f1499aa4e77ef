//! libflextensor.so (map to come).
