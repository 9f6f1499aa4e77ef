"""How torch gets its memory: every allocator configuration, and weights in pools of their own."""

import ctypes.util
import os
import shutil
import subprocess
from pathlib import Path

import torch
from lab import FORWARDS, WIDTH, Lab, Skip, Stack, case

UNMANAGED = "memory that cuMemAlloc did not give is not managed; one line says that the budget is not held"


def forwards(lab: Lab, model: torch.nn.Module):
    for index in range(FORWARDS):
        # Sizes that come and go, so that the allocator works too.
        x = lab.randn((8, 64, 300)[index % 3], WIDTH)
        with torch.no_grad():
            yield model(x)
        if index % 6 == 5 and lab.cuda:
            torch.cuda.empty_cache()


@case(
    environment={"PYTORCH_CUDA_ALLOC_CONF": "expandable_segments:True"},
    streams=None,
    keeps_budget=False,
    because=UNMANAGED,
)
def expandable_segments(lab: Lab):
    """Segments that torch maps itself and lets grow."""
    lab.need_cuda()
    yield from forwards(lab, lab.build(Stack))


@case(
    environment={"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"},
    streams=None,
    keeps_budget=False,
    because=UNMANAGED,
)
def malloc_async(lab: Lab):
    """The driver's stream-ordered pool instead of torch's cache."""
    lab.need_cuda()
    yield from forwards(lab, lab.build(Stack))


@case(environment={"PYTORCH_NO_CUDA_MEMORY_CACHING": "1"})
def no_caching(lab: Lab):
    """Every tensor is an allocation, and every drop is a free."""
    lab.need_cuda()
    yield from forwards(lab, lab.build(lambda: Stack(6)))


@case(environment={"PYTORCH_CUDA_ALLOC_CONF": "max_split_size_mb:32,garbage_collection_threshold:0.6"})
def split_and_collected(lab: Lab):
    """A cache with limits of its own."""
    lab.need_cuda()
    yield from forwards(lab, lab.build(lambda: Stack(6)))


@case()
def memory_pool(lab: Lab):
    """A model in a torch.cuda.MemPool, its activations outside."""
    lab.need_cuda()
    pool = torch.cuda.MemPool()
    with torch.cuda.use_mem_pool(pool):
        model = lab.build(lambda: Stack(6))
    yield from forwards(lab, model)


ALLOCATOR = r"""
#include <dlfcn.h>
#include <stddef.h>
#include <sys/types.h>
typedef int (*take_t)(void **, size_t);
typedef int (*give_t)(void *);
void *take(ssize_t bytes, int device, void *stream) {
    static take_t cuda_malloc;
    void *address = NULL;
    if (!cuda_malloc) cuda_malloc = (take_t)dlsym(RTLD_DEFAULT, "cudaMalloc");
    return cuda_malloc && cuda_malloc(&address, (size_t)bytes) == 0 ? address : NULL;
}
void give(void *address, ssize_t bytes, int device, void *stream) {
    static give_t cuda_free;
    if (!cuda_free) cuda_free = (give_t)dlsym(RTLD_DEFAULT, "cudaFree");
    if (cuda_free) cuda_free(address);
}
"""


def pluggable_allocator(folder: Path) -> torch.cuda.memory.CUDAPluggableAllocator:
    """An allocator in a library of its own that asks the runtime for each piece."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise Skip("needs a C compiler")
    source, library = folder / "allocator.c", folder / f"allocator-{os.getpid()}.so"
    source.write_text(ALLOCATOR)
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, source, "-ldl"], check=True)
    # The runtime's functions in the global scope, for a library that links nothing.
    runtime = next((name for name in loaded() if "libcudart" in name), ctypes.util.find_library("cudart"))
    if runtime is None:
        raise Skip("no libcudart is loaded")
    ctypes.CDLL(runtime, mode=ctypes.RTLD_GLOBAL)
    return torch.cuda.memory.CUDAPluggableAllocator(str(library), "take", "give")


def loaded() -> list[str]:
    """The files of all libraries in this process."""
    lines = Path("/proc/self/maps").read_text().splitlines()
    return sorted({line.split(maxsplit=5)[5] for line in lines if len(line.split(maxsplit=5)) == 6})


@case()
def pluggable(lab: Lab):
    """A model in the memory of a pluggable allocator."""
    lab.need_cuda()
    allocator = pluggable_allocator(Path(os.environ.get("GPU_CASES_CACHE", "/tmp")))
    pool = torch.cuda.MemPool(allocator.allocator())
    with torch.cuda.use_mem_pool(pool):
        model = lab.build(lambda: Stack(6))
    yield from forwards(lab, model)
    # The allocator outlives what lies in its memory.
    lab.kept = (allocator, pool)


@case()
def memory_snapshot(lab: Lab):
    """The cache's own history and snapshot, taken while weights are streamed."""
    lab.need_cuda()
    torch.cuda.memory._record_memory_history(max_entries=10000)
    try:
        model = lab.build(lambda: Stack(6))
        for output in forwards(lab, model):
            snapshot = torch.cuda.memory_snapshot()
            live = sum(
                block["size"]
                for segment in snapshot
                for block in segment["blocks"]
                if block["state"] == "active_allocated"
            )
            yield output, live > lab.weights_bytes() // 2
        history = torch.cuda.memory._snapshot()
        yield bool(history["segments"]), len(history["device_traces"]) > 0
    finally:
        torch.cuda.memory._record_memory_history(enabled=None)
