"""Kernels other than the usual GEMM that read streamed weights: Triton, fp8, programmatic dependent launches."""

import ctypes
import hashlib
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import torch
from lab import FORWARDS, INNER, WIDTH, Lab, Skip, case
from torch import nn

try:
    import triton
    import triton.language as tl
    from triton.language.extra.cuda import gdc_launch_dependents, gdc_wait
except ImportError:
    triton = None

if triton is not None:

    @triton.jit
    def product_rows(x, w, y, width, BLOCK: tl.constexpr):
        """y[row] = sum of x * w[row]."""
        row = tl.program_id(0)
        total = tl.zeros([BLOCK], dtype=tl.float32)
        for start in range(0, width, BLOCK):
            at = start + tl.arange(0, BLOCK)
            inside = at < width
            total += tl.load(x + at, mask=inside, other=0.0).to(tl.float32) * tl.load(
                w + row * width + at, mask=inside, other=0.0
            ).to(tl.float32)
        tl.store(y + row, tl.sum(total))

    @triton.jit
    def produce_early(x, y, width, BLOCK: tl.constexpr):
        """y = tanh(x), but lets its dependent start before anything is written."""
        gdc_wait()
        gdc_launch_dependents()
        at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        value = tl.load(x + at, mask=at < width, other=0.0)
        tl.store(y + at, 2.0 * tl.sigmoid(2.0 * value) - 1.0, mask=at < width)

    @triton.jit
    def consume_late(x, w, y, width, BLOCK: tl.constexpr):
        """y[row] = sum of (x + 1) * w[row] / 8; the "+ 1" part reads the weight before the predecessor has ended."""
        row = tl.program_id(0)
        early = tl.zeros([BLOCK], dtype=tl.float32)
        for start in range(0, width, BLOCK):
            at = start + tl.arange(0, BLOCK)
            early += tl.load(w + row * width + at, mask=at < width, other=0.0)
        gdc_wait()
        gdc_launch_dependents()
        late = tl.zeros([BLOCK], dtype=tl.float32)
        for start in range(0, width, BLOCK):
            at = start + tl.arange(0, BLOCK)
            late += tl.load(x + at, mask=at < width, other=0.0) * tl.load(
                w + row * width + at, mask=at < width, other=0.0
            )
        tl.store(y + row, tl.sum(early + late) / 8.0)


def need_triton(lab: Lab, capability: tuple[int, int] = (8, 0)) -> None:
    lab.need_cuda(capability)
    if triton is None:
        raise Skip("needs triton")


class TritonProduct(nn.Module):
    """A vector times a matrix, by our own kernel; the weight is 12 MiB in bf16."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(INNER, WIDTH) * 0.03)
        self.back = nn.Linear(INNER, WIDTH)

    def forward(self, x):
        y = torch.empty(INNER, dtype=x.dtype, device=x.device)
        product_rows[(INNER,)](x, self.weight, y, WIDTH, BLOCK=512)
        return x + torch.tanh(self.back(y[None]))[0]


@case()
def triton_reader(lab: Lab):
    """A Triton kernel that reads a streamed weight."""
    need_triton(lab)
    model = lab.build(lambda: nn.Sequential(*(TritonProduct() for _ in range(7))))
    for _ in range(FORWARDS):
        with torch.no_grad():
            yield model(lab.randn(WIDTH))


class TritonChain(nn.Module):
    """A producer and a consumer joined by a programmatic dependent launch; the weight is 16 MiB in float32."""

    def __init__(self, width: int = 2048) -> None:
        super().__init__()
        self.width, self.weight = width, nn.Parameter(torch.randn(width, width) * 0.03)

    def forward(self, x):
        middle, y = torch.empty_like(x), torch.empty_like(x)
        produce_early[(triton.cdiv(self.width, 256),)](x, middle, self.width, BLOCK=256, launch_pdl=True)
        consume_late[(self.width,)](middle, self.weight, y, self.width, BLOCK=512, launch_pdl=True)
        return y


@case()
def pdl_triton(lab: Lab):
    """Triton's dependent launches: the second kernel reads its streamed weight before the first has ended."""
    need_triton(lab, (9, 0))
    model = lab.build(lambda: nn.Sequential(*(TritonChain() for _ in range(10))), torch.float32)
    for _ in range(FORWARDS):
        with torch.no_grad():
            yield model(lab.randn(2048, dtype=torch.float32))


PDL_SOURCE = r"""
#include <cuda_runtime.h>

__global__ void produce(const float* x, float* y, int width) {
    cudaGridDependencySynchronize();
    cudaTriggerProgrammaticLaunchCompletion();
    int at = blockIdx.x * blockDim.x + threadIdx.x;
    long long began = clock64();
    while (clock64() - began < 20000) {}  // long enough for the dependent to read its weight first
    if (at < width) y[at] = tanhf(x[at]);
}

__global__ void consume(const float* x, const float* w, float* y, int width) {
    __shared__ float parts[256];
    const float* row = w + (size_t)blockIdx.x * width;
    float sum = 0.f;
    for (int at = threadIdx.x; at < width; at += 256) sum += row[at];  // before the predecessor's end
    cudaGridDependencySynchronize();
    cudaTriggerProgrammaticLaunchCompletion();
    for (int at = threadIdx.x; at < width; at += 256) sum += row[at] * x[at];
    parts[threadIdx.x] = sum;
    for (int half = 128; half; half /= 2) {
        __syncthreads();
        if (threadIdx.x < half) parts[threadIdx.x] += parts[threadIdx.x + half];
    }
    if (threadIdx.x == 0) y[blockIdx.x] = parts[0] / 8.f;
}

extern "C" int chain(const float* x, const float* w, float* middle, float* y, int width, cudaStream_t stream) {
    cudaLaunchAttribute early;
    early.id = cudaLaunchAttributeProgrammaticStreamSerialization;
    early.val.programmaticStreamSerializationAllowed = 1;
    cudaLaunchConfig_t config = {};
    config.blockDim = dim3(256);
    config.stream = stream;
    config.attrs = &early;
    config.numAttrs = 1;
    config.gridDim = dim3((width + 255) / 256);
    cudaError_t error = cudaLaunchKernelEx(&config, produce, x, middle, width);
    if (error != cudaSuccess) return error;
    config.gridDim = dim3(width);
    return cudaLaunchKernelEx(&config, consume, (const float*)middle, w, y, width);
}
"""


def build_chain() -> ctypes.CDLL:
    """Compiles PDL_SOURCE once for all processes. Raises Skip without nvcc."""
    nvcc = shutil.which("nvcc") or shutil.which("/usr/local/cuda/bin/nvcc")
    if nvcc is None:
        raise Skip("needs nvcc")
    folder = Path(os.environ.get("GPU_CASES_CACHE", tempfile.gettempdir()))
    target = folder / f"pdl-chain-{hashlib.sha256(PDL_SOURCE.encode()).hexdigest()[:16]}.so"
    if not target.exists():
        with tempfile.TemporaryDirectory(dir=folder) as work:
            source, built = Path(work) / "chain.cu", Path(work) / "chain.so"
            source.write_text(PDL_SOURCE)
            subprocess.run(
                [nvcc, "-O2", "-arch=sm_90", "-shared", "-Xcompiler", "-fPIC", "-o", built, source],
                check=True,
                stdout=subprocess.DEVNULL,
            )
            os.replace(built, target)
    library = ctypes.CDLL(str(target))
    library.chain.argtypes = [ctypes.c_void_p] * 4 + [ctypes.c_int, ctypes.c_void_p]
    return library


class CudaChain(nn.Module):
    """The same chain through a CUDA runtime of its own, linked statically into a shared library."""

    def __init__(self, library: ctypes.CDLL, width: int = 2048) -> None:
        super().__init__()
        self.library, self.width, self.weight = library, width, nn.Parameter(torch.randn(width, width) * 0.03)

    def forward(self, x):
        middle, y = torch.empty_like(x), torch.empty_like(x)
        stream = torch.cuda.current_stream().cuda_stream
        code = self.library.chain(
            x.data_ptr(), self.weight.data_ptr(), middle.data_ptr(), y.data_ptr(), self.width, stream
        )
        if code:
            raise RuntimeError(f"launch failed: CUDA error {code}")
        return y


@case(limit_s=120)
def pdl_cuda(lab: Lab):
    """A CUDA C++ chain: the second kernel reads its streamed weight long before the first has ended."""
    lab.need_cuda((9, 0))
    library = build_chain()
    model = lab.build(lambda: nn.Sequential(*(CudaChain(library) for _ in range(10))), torch.float32)
    for _ in range(FORWARDS):
        with torch.no_grad():
            yield model(lab.randn(2048, dtype=torch.float32))


class Fp8Linear(nn.Module):
    """A linear in float8; the weight is 16 MiB."""

    def __init__(self, width: int = 4096) -> None:
        super().__init__()
        self.register_buffer("weight", (torch.randn(width, width) * 4).to(torch.float8_e4m3fn))
        self.register_buffer("scale", torch.tensor(1 / 256, dtype=torch.float32))
        self.register_buffer("one", torch.tensor(1.0, dtype=torch.float32))

    def forward(self, x):
        small = x.clamp(-400, 400).to(torch.float8_e4m3fn)
        return (
            x
            + torch._scaled_mm(
                small, self.weight.t(), scale_a=self.one, scale_b=self.scale, out_dtype=torch.bfloat16
            ).tanh()
        )


@case()
def fp8_scaled_mm(lab: Lab):
    """Weights in float8 as buffers, read by _scaled_mm."""
    if lab.cuda:
        lab.need_cuda((8, 9))
    model = lab.build(lambda: nn.Sequential(*(Fp8Linear() for _ in range(10))))
    for _ in range(FORWARDS):
        with torch.no_grad():
            yield model(lab.randn(32, 4096))
