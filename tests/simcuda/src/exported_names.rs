//! Which exported name a request for (name, CUDA version) means; shared with the build script.
//!
//! The driver keeps one export for each ABI of a function; `cuGetProcAddress` picks the newest one that is not newer
//! than the version asked for. Source: the version macros of `cuda.h` and the requests of the real runtime.

/// For a name: (first CUDA version, suffix) in rising order. A name that is not listed has one export without suffix.
const VERSIONS: &[(&str, &[(u32, &str)])] = &[
    ("cuCtxCreate", &[(2000, ""), (3020, "_v2"), (11040, "_v3"), (12050, "_v4")]),
    ("cuCtxDestroy", &[(2000, ""), (4000, "_v2")]),
    ("cuCtxPopCurrent", &[(2000, ""), (4000, "_v2")]),
    ("cuCtxPushCurrent", &[(2000, ""), (4000, "_v2")]),
    ("cuCtxGetDevice", &[(2000, ""), (13000, "_v2")]),
    ("cuCtxSynchronize", &[(2000, ""), (13000, "_v2")]),
    ("cuDeviceTotalMem", &[(2000, ""), (3020, "_v2")]),
    ("cuDeviceGetUuid", &[(9020, ""), (11040, "_v2")]),
    ("cuDevicePrimaryCtxRelease", &[(7000, ""), (11000, "_v2")]),
    ("cuDevicePrimaryCtxReset", &[(7000, ""), (11000, "_v2")]),
    ("cuDevicePrimaryCtxSetFlags", &[(7000, ""), (11000, "_v2")]),
    ("cuEventDestroy", &[(2000, ""), (4000, "_v2")]),
    ("cuEventElapsedTime", &[(2000, ""), (12080, "_v2")]),
    ("cuGetProcAddress", &[(11030, ""), (12000, "_v2")]),
    ("cuGraphAddDependencies", &[(10000, ""), (12030, "_v2")]),
    ("cuGraphAddKernelNode", &[(10000, ""), (12000, "_v2")]),
    ("cuGraphAddNode", &[(12020, ""), (12030, "_v2")]),
    ("cuGraphExecKernelNodeSetParams", &[(10010, ""), (12000, "_v2")]),
    ("cuGraphExecUpdate", &[(10020, ""), (12000, "_v2")]),
    ("cuGraphGetEdges", &[(10000, ""), (12030, "_v2")]),
    ("cuGraphInstantiate", &[(10000, ""), (11000, "_v2")]),
    ("cuGraphKernelNodeGetParams", &[(10000, ""), (12000, "_v2")]),
    ("cuGraphKernelNodeSetParams", &[(10000, ""), (12000, "_v2")]),
    ("cuGraphNodeGetDependencies", &[(10000, ""), (12030, "_v2")]),
    ("cuGraphNodeGetDependentNodes", &[(10000, ""), (12030, "_v2")]),
    ("cuGraphRemoveDependencies", &[(10000, ""), (12030, "_v2")]),
    ("cuIpcOpenMemHandle", &[(4010, ""), (11000, "_v2")]),
    ("cuLinkAddData", &[(5050, ""), (6050, "_v2")]),
    ("cuLinkAddFile", &[(5050, ""), (6050, "_v2")]),
    ("cuLinkCreate", &[(5050, ""), (6050, "_v2")]),
    ("cuMemAdvise", &[(8000, ""), (12020, "_v2")]),
    ("cuMemAlloc", &[(2000, ""), (3020, "_v2")]),
    ("cuMemAllocHost", &[(2000, ""), (3020, "_v2")]),
    ("cuMemAllocPitch", &[(2000, ""), (3020, "_v2")]),
    ("cuMemFree", &[(2000, ""), (3020, "_v2")]),
    ("cuMemGetAddressRange", &[(2000, ""), (3020, "_v2")]),
    ("cuMemGetInfo", &[(2000, ""), (3020, "_v2")]),
    ("cuMemHostGetDevicePointer", &[(2020, ""), (3020, "_v2")]),
    ("cuMemHostRegister", &[(4000, ""), (6050, "_v2")]),
    ("cuMemPrefetchAsync", &[(8000, ""), (12020, "_v2")]),
    ("cuMemcpy2D", &[(2000, ""), (3020, "_v2")]),
    ("cuMemcpy2DAsync", &[(2000, ""), (3020, "_v2")]),
    ("cuMemcpy2DUnaligned", &[(2000, ""), (3020, "_v2")]),
    ("cuMemcpy3D", &[(2000, ""), (3020, "_v2")]),
    ("cuMemcpy3DAsync", &[(2000, ""), (3020, "_v2")]),
    ("cuMemcpy3DBatchAsync", &[(12080, ""), (13000, "_v2")]),
    ("cuMemcpyBatchAsync", &[(12080, ""), (13000, "_v2")]),
    ("cuMemcpyDtoD", &[(2000, ""), (3020, "_v2")]),
    ("cuMemcpyDtoDAsync", &[(3000, ""), (3020, "_v2")]),
    ("cuMemcpyDtoH", &[(2000, ""), (3020, "_v2")]),
    ("cuMemcpyDtoHAsync", &[(2000, ""), (3020, "_v2")]),
    ("cuMemcpyHtoD", &[(2000, ""), (3020, "_v2")]),
    ("cuMemcpyHtoDAsync", &[(2000, ""), (3020, "_v2")]),
    ("cuMemsetD16", &[(2000, ""), (3020, "_v2")]),
    ("cuMemsetD2D16", &[(2000, ""), (3020, "_v2")]),
    ("cuMemsetD2D32", &[(2000, ""), (3020, "_v2")]),
    ("cuMemsetD2D8", &[(2000, ""), (3020, "_v2")]),
    ("cuMemsetD32", &[(2000, ""), (3020, "_v2")]),
    ("cuMemsetD8", &[(2000, ""), (3020, "_v2")]),
    ("cuModuleGetGlobal", &[(2000, ""), (3020, "_v2")]),
    ("cuStreamBatchMemOp", &[(8000, ""), (11070, "_v2")]),
    ("cuStreamBeginCapture", &[(10000, ""), (10010, "_v2")]),
    ("cuStreamDestroy", &[(2000, ""), (4000, "_v2")]),
    ("cuStreamGetCaptureInfo", &[(10010, ""), (11030, "_v2"), (12030, "_v3")]),
    ("cuStreamGetCtx", &[(9020, ""), (12050, "_v2")]),
    ("cuStreamUpdateCaptureDependencies", &[(11030, ""), (12030, "_v2")]),
    ("cuStreamWaitValue32", &[(8000, ""), (11070, "_v2")]),
    ("cuStreamWaitValue64", &[(9000, ""), (11070, "_v2")]),
    ("cuStreamWriteValue32", &[(8000, ""), (11070, "_v2")]),
    ("cuStreamWriteValue64", &[(9000, ""), (11070, "_v2")]),
];

/// The export behind `name` for a program written against CUDA `version` (such as 12080).
#[must_use]
pub(crate) fn export_name(name: &str, version: u32) -> String {
    let suffix = VERSIONS.iter().find(|(listed, _)| *listed == name).and_then(|(_, rows)| {
        rows.iter().rev().find(|(first, _)| *first <= version).or(rows.first()).map(|(_, suffix)| *suffix)
    });
    format!("{name}{}", suffix.unwrap_or(""))
}

/// The variant of an export that takes the null stream as the calling thread's own stream.
///
/// Synchronous copies and memsets end in `_ptds`, everything that takes a stream in `_ptsz`.
#[must_use]
pub(crate) fn per_thread_name(export: &str) -> String {
    let stem = export.strip_suffix("_v2").unwrap_or(export);
    let copies = stem.starts_with("cuMemcpy") || stem.starts_with("cuMemset");
    let suffix = if copies && !stem.ends_with("Async") { "_ptds" } else { "_ptsz" };
    format!("{export}{suffix}")
}

/// The CUDA version that brought a name, where it is listed.
#[allow(dead_code, reason = "the build script needs only the names")]
#[must_use]
pub(crate) fn first_version(name: &str) -> Option<u32> {
    VERSIONS
        .iter()
        .find(|(listed, _)| *listed == name)
        .and_then(|(_, rows)| rows.first())
        .map(|(first, _)| *first)
}

/// Every export that a listed name can mean.
#[allow(dead_code, reason = "only the build script needs it")]
#[must_use]
pub(crate) fn forms(name: &str) -> Vec<String> {
    let rows = VERSIONS.iter().find(|(listed, _)| *listed == name).map_or(&[][..], |(_, rows)| rows);
    rows.iter().map(|(_, suffix)| format!("{name}{suffix}")).collect()
}
