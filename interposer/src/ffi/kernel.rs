//! What the driver says about a kernel: the layout of its parameters, its name. Caching by handle is the caller's.

#![expect(unsafe_code, reason = "typed calls into the driver")]

use super::real::driver;
use super::types::*;
use std::ffi::CStr;

/// No kernel has more parameters: 32,764 bytes of them at most, of at least one byte. Guards against a driver that never says "no more".
const PARAMETERS_MAX: usize = 32_764;

fn layout(info: impl Fn(usize, &mut usize, &mut usize) -> CUresult) -> Option<Vec<(usize, usize)>> {
    let mut parameters = Vec::new();
    for index in 0..PARAMETERS_MAX {
        let (mut offset, mut size) = (0, 0);
        match info(index, &mut offset, &mut size) {
            CUresult::CUDA_SUCCESS => parameters.push((offset, size)),
            // The driver tells the end in no other way (the count call came in 13.2).
            CUresult::CUDA_ERROR_INVALID_VALUE => return Some(parameters),
            _ => return None,
        }
    }
    None
}

/// Offset and size, in bytes, of every parameter of the kernel behind the handle that a launch was given: a `CUfunction`, or (what
/// runtimes mostly pass) a `CUkernel`. `None` if the driver answers for neither: drivers before 12.4, or a bad handle.
pub(crate) fn param_layout(function: CUfunction) -> Option<Vec<(usize, usize)>> {
    // SAFETY: the pointers are to locals; the driver refuses a handle of the other kind.
    let by_function =
        layout(|i, offset, size| unsafe { driver().cuFuncGetParamInfo(function, i, offset, size) });
    // A CUkernel given to the function form answers INVALID_VALUE or INVALID_HANDLE at once: an empty list needs the second opinion.
    if by_function.as_ref().is_some_and(|parameters| !parameters.is_empty()) {
        return by_function;
    }
    let kernel: CUkernel = function.cast();
    // SAFETY: as above.
    let by_kernel =
        layout(|i, offset, size| unsafe { driver().cuKernelGetParamInfo(kernel, i, offset, size) });
    by_kernel.or(by_function)
}

/// The kernel's (mangled) name, for reports.
pub(crate) fn name(function: CUfunction) -> Option<String> {
    let mut text: *const c_char = std::ptr::null();
    // SAFETY: the pointer is to a local; the driver refuses a handle of the other kind.
    let mut code = unsafe { driver().cuFuncGetName(&mut text, function) };
    if !code.is_success() {
        // SAFETY: as above.
        code = unsafe { driver().cuKernelGetName(&mut text, function.cast()) };
    }
    if !code.is_success() || text.is_null() {
        return None;
    }
    // SAFETY: the driver returned a NUL-terminated name that lives as long as the kernel, which the running launch keeps alive.
    Some(unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_layout_ends_at_the_first_invalid_index_and_fails_on_any_other_error() {
        let three = layout(|index, offset, size| {
            (*offset, *size) = (index * 8, 8);
            if index < 3 { CUresult::CUDA_SUCCESS } else { CUresult::CUDA_ERROR_INVALID_VALUE }
        });
        assert_eq!(three, Some(vec![(0, 8), (8, 8), (16, 8)]));
        assert_eq!(layout(|_, _, _| CUresult::CUDA_ERROR_INVALID_HANDLE), None);
        assert_eq!(
            layout(|_, _, _| CUresult::CUDA_SUCCESS),
            None,
            "a driver that never ends is not believed"
        );
    }
}
