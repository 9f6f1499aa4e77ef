"""Measures copies from host memory to the GPU, one tensor or one size at a time.

`pinned` memory is the caller's to make; what is measured is the copy alone, on an otherwise idle device.
"""

import statistics
import time
from collections.abc import Iterable

import torch

from flextensor.collectors import LayerStatistics
from flextensor.diagnostics import format_memory_transfer_table
from flextensor.host_pinning import HostPinner, NoOpHostPinner

_WARM_UPS = 2
_SAMPLES = 10

__all__ = ["benchmark_memory_transfers", "copy_ms", "format_memory_transfer_table"]


def copy_ms(tensor: torch.Tensor, device: torch.device, iterations: int = _SAMPLES) -> float:
    """The median of `iterations` copies of a host tensor to `device`, in milliseconds: by CUDA events on a GPU, by the clock
    elsewhere. ValueError for fewer than one."""
    if iterations < 1:
        raise ValueError(f"iterations is {iterations}: allowed is 1 or more")
    target = torch.empty_like(tensor, device=device)
    once = _by_events if device.type == "cuda" else _by_clock
    for _ in range(_WARM_UPS):
        once(target, tensor)
    return statistics.median(once(target, tensor) for _ in range(iterations))


def _by_events(target: torch.Tensor, source: torch.Tensor) -> float:
    with torch.cuda.device(target.device):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        target.copy_(source, non_blocking=True)
        end.record()
        end.synchronize()
        return begin.elapsed_time(end)


def _by_clock(target: torch.Tensor, source: torch.Tensor) -> float:
    begun = time.perf_counter()
    target.copy_(source)
    return (time.perf_counter() - begun) * 1e3


def sizes_to_measure(
    layer_stats: Iterable[LayerStatistics], max_depth: int = 4, max_size_bytes: int = 4 << 30
) -> list[int]:
    """The largest layer's bytes, at most `max_size_bytes`, and `max_depth` - 1 halvings of it; empty without weights."""
    largest = max((sum(t.size_bytes for t in layer.tensors) for layer in layer_stats), default=0)
    sizes = [min(largest, max_size_bytes) >> depth for depth in range(max_depth)]
    return [size for size in sizes if size > 0]


def benchmark_memory_transfers(
    layer_stats: list[LayerStatistics],
    device_gpu: torch.device | str,
    max_depth: int = 4,
    max_size_bytes: int = 4 << 30,
    pin_memory: bool = True,
    host_pinner: HostPinner | None = None,
) -> dict[int, float]:
    """Milliseconds by bytes of copies in `sizes_to_measure`. `pin_memory` pins the source, by `host_pinner` or by torch's
    allocator; it must be False where `device_gpu` is no GPU."""
    device = torch.device(device_gpu)
    pinner = (host_pinner or HostPinner()) if pin_memory else NoOpHostPinner()
    times = {}
    for size in sizes_to_measure(layer_stats, max_depth, max_size_bytes):
        source = pinner.pin(torch.zeros(size, dtype=torch.uint8))
        # A copy that the clock sees as nothing still takes some time.
        times[size] = max(copy_ms(source, device), 1e-6)
        if pinner.registry is not None:
            pinner.registry.release(source.untyped_storage().data_ptr())
    return times
