//! What the driver says about a kernel: the layout of its parameters, its name. Caching by handle is the caller's.

#![expect(unsafe_code, reason = "typed calls into the driver")]

use super::real::driver;
use super::types::*;

/// No kernel has more parameters: 32,764 bytes of them at most, of at least one byte. Guards against a driver that never says "no more".
const PARAMETERS_MAX: usize = 32_764;

fn layout(info: impl Fn(usize, &mut usize, &mut usize) -> CUresult) -> Result<Vec<(usize, usize)>, CUresult> {
    let mut parameters = Vec::new();
    for index in 0..PARAMETERS_MAX {
        let (mut offset, mut size) = (0, 0);
        match info(index, &mut offset, &mut size) {
            CUresult::CUDA_SUCCESS => parameters.push((offset, size)),
            // The driver tells the end in no other way (the count call came in 13.2).
            CUresult::CUDA_ERROR_INVALID_VALUE => return Ok(parameters),
            code => return Err(code),
        }
    }
    Err(CUresult::CUDA_ERROR_UNKNOWN)
}

/// What two opinions on a handle of unknown kind come to. An empty list may mean the wrong kind: it is believed only if the other form does not
/// know the handle, and not if the other form could not be asked.
fn agreed(
    by_function: Result<Vec<(usize, usize)>, CUresult>,
    by_kernel: impl FnOnce() -> Result<Vec<(usize, usize)>, CUresult>,
) -> Option<Vec<(usize, usize)>> {
    let list = match by_function {
        Ok(list) if !list.is_empty() => return Some(list),
        other => other,
    };
    match (list, by_kernel()) {
        (_, Ok(list)) if !list.is_empty() => Some(list),
        (Ok(list), Ok(_) | Err(CUresult::CUDA_ERROR_INVALID_HANDLE))
        | (Err(CUresult::CUDA_ERROR_INVALID_HANDLE), Ok(list)) => Some(list),
        _ => None,
    }
}

/// Offset and size, in bytes, of every parameter of the kernel behind the handle that a launch was given: a `CUfunction`, or (what
/// runtimes mostly pass) a `CUkernel`. `None` if the driver answers for neither: drivers before 12.4, or a bad handle.
pub(crate) fn param_layout(function: CUfunction) -> Option<Vec<(usize, usize)>> {
    // SAFETY: the pointers are to locals; the driver refuses a handle of the other kind.
    let by_function =
        layout(|i, offset, size| unsafe { driver().cuFuncGetParamInfo(function, i, offset, size) });
    let kernel: CUkernel = function.cast();
    // SAFETY: as above.
    let by_kernel =
        || layout(|i, offset, size| unsafe { driver().cuKernelGetParamInfo(kernel, i, offset, size) });
    // A CUkernel given to the function form answers INVALID_VALUE or INVALID_HANDLE at once.
    agreed(by_function, by_kernel)
}

/// The kernel's name, as its module has it; `None` where the driver does not tell (before 12.3).
pub(crate) fn name(function: CUfunction) -> Option<String> {
    let mut text: *const c_char = std::ptr::null();
    // SAFETY: the pointer is to a local; the driver refuses a handle of the other kind.
    let mut code = unsafe { driver().cuFuncGetName(&mut text, function) };
    if !code.is_success() || text.is_null() {
        // SAFETY: as above.
        code = unsafe { driver().cuKernelGetName(&mut text, function.cast()) };
    }
    if !code.is_success() || text.is_null() {
        return None;
    }
    // SAFETY: the driver's text lives as long as the kernel's module, which a launch of it keeps.
    let text = unsafe { std::ffi::CStr::from_ptr(text) };
    Some(text.to_string_lossy().into_owned())
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
        assert_eq!(three, Ok(vec![(0, 8), (8, 8), (16, 8)]));
        let refused = CUresult::CUDA_ERROR_INVALID_HANDLE;
        assert_eq!(layout(|_, _, _| refused), Err(refused));
        assert!(
            layout(|_, _, _| CUresult::CUDA_SUCCESS).is_err(),
            "a driver that never ends is not believed"
        );
    }

    #[test]
    fn no_parameters_are_believed_only_of_a_kernel_that_both_forms_were_asked_about() {
        let unknown = CUresult::CUDA_ERROR_INVALID_HANDLE;
        let unsupported = CUresult::CUDA_ERROR_NOT_SUPPORTED;
        assert_eq!(agreed(Ok(Vec::new()), || Ok(vec![(0, 8)])), Some(vec![(0, 8)]));
        assert_eq!(agreed(Ok(Vec::new()), || Err(unknown)), Some(Vec::new()));
        assert_eq!(agreed(Ok(Vec::new()), || Ok(Vec::new())), Some(Vec::new()));
        assert_eq!(agreed(Ok(Vec::new()), || Err(unsupported)), None);
        assert_eq!(agreed(Err(unsupported), || Ok(Vec::new())), None);
        assert_eq!(agreed(Err(unknown), || Err(unknown)), None);
    }
}
