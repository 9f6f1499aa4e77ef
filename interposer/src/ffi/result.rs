//! A failed driver call as a Rust error. Decides nothing about what follows from it.

use super::types::CUresult;
use std::fmt;

/// A driver call that did not succeed, with the code it returned.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct CudaError(pub(crate) CUresult);

/// What every safe wrapper of this folder returns.
pub(crate) type CudaResult<T> = Result<T, CudaError>;

impl CudaError {
    /// True when the driver does not have, or does not allow, the function.
    pub(crate) fn is_unsupported(self) -> bool {
        self.0 == CUresult::CUDA_ERROR_NOT_SUPPORTED
    }
}

impl fmt::Debug for CudaError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(out)
    }
}

impl fmt::Display for CudaError {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self, out)
    }
}

impl std::error::Error for CudaError {}

impl CUresult {
    /// `Ok` for success, the code as an error otherwise.
    pub(crate) fn ok(self) -> CudaResult<()> {
        if self.is_success() { Ok(()) } else { Err(CudaError(self)) }
    }
}

impl From<CudaError> for CUresult {
    fn from(error: CudaError) -> CUresult {
        error.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_shown_with_its_name_and_number() {
        let error = CUresult(2).ok().expect_err("2 is no success");
        assert_eq!(error.to_string(), "CUDA_ERROR_OUT_OF_MEMORY (2)");
        assert!(!error.is_unsupported() && CudaError(CUresult(801)).is_unsupported());
        assert_eq!(CUresult(0).ok(), Ok(()));
    }
}
