//! Result codes of the driver interface, with the names and texts that `cuGetErrorName` and `cuGetErrorString` give.

use std::ffi::CStr;

/// A driver result that is not success. Exported functions return its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Status(pub(crate) u32);

/// What every implementation of an entry point returns.
pub(crate) type Done = Result<(), Status>;

macro_rules! codes {
    ($($name:ident $value:literal $text:literal)*) => {
        impl Status {
            $(
                #[allow(dead_code, reason = "the table describes codes that only faults on demand return")]
                pub(crate) const $name: Status = Status($value);
            )*
        }
        const TABLE: &[(u32, &str, &str)] = &[
            (0, "CUDA_SUCCESS\0", "no error\0"),
            $(($value, concat!("CUDA_ERROR_", stringify!($name), "\0"), concat!($text, "\0")),)*
        ];
    };
}

codes! {
    INVALID_VALUE 1 "invalid argument"
    OUT_OF_MEMORY 2 "out of memory"
    NOT_INITIALIZED 3 "initialization error"
    DEINITIALIZED 4 "driver shutting down"
    NO_DEVICE 100 "no CUDA-capable device is detected"
    INVALID_DEVICE 101 "invalid device ordinal"
    INVALID_IMAGE 200 "device kernel image is invalid"
    INVALID_CONTEXT 201 "invalid device context"
    INVALID_HANDLE 400 "invalid resource handle"
    ILLEGAL_STATE 401 "the operation cannot be performed in the present state"
    NOT_FOUND 500 "named symbol not found"
    NOT_READY 600 "device not ready"
    ILLEGAL_ADDRESS 700 "an illegal memory access was encountered"
    LAUNCH_OUT_OF_RESOURCES 701 "too many resources requested for launch"
    PRIMARY_CONTEXT_ACTIVE 708 "cannot set while device is active in this process"
    CONTEXT_IS_DESTROYED 709 "context is destroyed"
    HOST_MEMORY_ALREADY_REGISTERED 712 "part or all of the requested memory range is already mapped"
    HOST_MEMORY_NOT_REGISTERED 713 "pointer does not correspond to a registered memory region"
    OPERATING_SYSTEM 304 "OS call failed or operation not supported on this OS"
    NOT_PERMITTED 800 "operation not permitted"
    NOT_SUPPORTED 801 "operation not supported"
    STREAM_CAPTURE_UNSUPPORTED 900 "operation not permitted when stream is capturing"
    STREAM_CAPTURE_INVALIDATED 901 "operation failed due to a previous error during capture"
    STREAM_CAPTURE_MERGE 902 "operation would result in a merge of separate capture sequences"
    STREAM_CAPTURE_UNMATCHED 903 "capture was not ended in the same stream as it began"
    STREAM_CAPTURE_UNJOINED 904 "capturing stream has unjoined work"
    STREAM_CAPTURE_ISOLATION 905 "dependency created on uncaptured work in another stream"
    STREAM_CAPTURE_IMPLICIT 906 "operation would make the legacy stream depend on a capturing blocking stream"
    CAPTURED_EVENT 907 "operation not permitted on an event last recorded in a capturing stream"
    STREAM_CAPTURE_WRONG_THREAD 908 "attempt to terminate a thread-local capture sequence from another thread"
    GRAPH_EXEC_UPDATE_FAILURE 910 "the graph update was not performed because it included changes which violated constraints specific to instantiated graph update"
    UNKNOWN 999 "unknown error"
}

/// Name (`CUDA_ERROR_...`) and text of a code; `None` for a number that the driver does not know.
pub(crate) fn describe(code: u32) -> Option<(&'static CStr, &'static CStr)> {
    let (_, name, text) = TABLE.iter().find(|(value, ..)| *value == code)?;
    let c = |text: &'static str| CStr::from_bytes_until_nul(text.as_bytes()).ok();
    Some((c(name)?, c(text)?))
}
