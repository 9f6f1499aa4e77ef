"""Modes in which the tensors that operations make on the CPU are measured, or brought to the GPU.

`with BenchmarkReplace(device, host_pinner=pinner) as mode: model.to(torch.bfloat16)` measures every weight on the way.
What the results are used for is left to `TensorManager.benchmark_context`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map

from flextensor.collectors import TensorStatistics
from flextensor.host_pinning import HostPinner
from flextensor.memory_transfer_benchmark import copy_ms


class TensorBenchmarkMode(TorchFunctionMode, ABC):
    """What such modes have in common. Every result of an operation that is a CPU tensor with memory goes through
    `replaced`, once; what that returns takes its place.

    `pinned_memory_limit_mb`: larger tensors (MiB) are not pinned; None: no limit. `host_pinner` None pins by torch's
    allocator."""

    def __init__(
        self,
        device_gpu: torch.device,
        pinned_memory: bool = True,
        iterations: int = 10,
        pinned_memory_limit_mb: float | None = None,
        host_pinner: HostPinner | None = None,
    ) -> None:
        super().__init__()
        if iterations < 1:
            raise ValueError(f"iterations is {iterations}: allowed is 1 or more")
        self.device_gpu = torch.device(device_gpu)
        self.pinned_memory = pinned_memory
        self.iterations = iterations
        self.pinned_memory_limit_mb = pinned_memory_limit_mb
        self.host_pinner = host_pinner if host_pinner is not None else HostPinner()
        self._tensors: dict[int, torch.Tensor] = {}

    @abstractmethod
    def get_results(self) -> dict[str, Any]:
        """`tensor_statistics_map`: TensorStatistics by `id` of the tensor; `tensors_map`: the tensors by `id`."""

    @abstractmethod
    def replaced(self, tensor: torch.Tensor) -> torch.Tensor:
        """What takes the place of a tensor that came up for the first time."""

    def __torch_function__(
        self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        return tree_map(self._seen, func(*args, **(kwargs or {})))

    def _seen(self, value: Any) -> Any:
        if not isinstance(value, torch.Tensor) or id(value) in self._tensors or not _has_memory(value):
            return value
        # Whatever is done with it here is no operation of the program.
        with torch._C.DisableTorchFunction():
            tensor = self.replaced(value)
        self._tensors[id(tensor)] = tensor
        return tensor


class BenchmarkReplace(TensorBenchmarkMode):
    """Measures how long each tensor takes to the GPU, as the median of `iterations` copies, from the memory that later
    copies come from: tensors are pinned by `host_pinner`, and the pinned ones take their place."""

    def __init__(
        self,
        device_gpu: torch.device,
        pinned_memory: bool = True,
        iterations: int = 10,
        pinned_memory_limit_mb: float | None = None,
        *,
        host_pinner: HostPinner,
    ) -> None:
        super().__init__(device_gpu, pinned_memory, iterations, pinned_memory_limit_mb, host_pinner)
        self._statistics: dict[int, TensorStatistics] = {}

    def replaced(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor, pinned if it may be; its copy is measured."""
        nbytes = tensor.numel() * tensor.element_size()
        limit = self.pinned_memory_limit_mb
        if self.pinned_memory and (limit is None or nbytes <= limit * (1 << 20)):
            tensor = self.host_pinner.pin(tensor)
        milliseconds = copy_ms(tensor.detach(), self.device_gpu, self.iterations)
        name = f"tensor.{len(self._statistics)}"
        self._statistics[id(tensor)] = TensorStatistics(id(tensor), name, nbytes, milliseconds)
        return tensor

    def get_results(self) -> dict[str, Any]:
        """`tensor_statistics_map`: TensorStatistics by `id` of the tensor; `tensors_map`: the tensors by `id`."""
        return {"tensor_statistics_map": dict(self._statistics), "tensors_map": dict(self._tensors)}


class PreloadToDevice(TensorBenchmarkMode):
    """Brings every tensor to the GPU and measures nothing. `pinned_memory`, `iterations`, `pinned_memory_limit_mb` and `host_pinner`
    are taken for the sake of callers that pass them to every mode, and have no effect."""

    def replaced(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor on the GPU."""
        return tensor.to(self.device_gpu)

    def get_results(self) -> dict[str, Any]:
        """`tensors_map`: the tensors by `id`; `tensor_statistics_map` is empty."""
        return {"tensor_statistics_map": {}, "tensors_map": dict(self._tensors)}


def _has_memory(tensor: torch.Tensor) -> bool:
    return tensor.device.type == "cpu" and tensor.layout is torch.strided and tensor.numel() > 0
