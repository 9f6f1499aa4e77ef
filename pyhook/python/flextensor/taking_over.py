"""Weights that lie in GPU memory of before the library came: their storages get managed memory, with the same bytes.

A storage stays the same object, so parameters, views and whatever else the program has of it follow by themselves. What the
driver gave as one allocation goes back to it before anything of it is allocated anew: no moment has two copies of the model on the GPU.
"""

import bisect
import logging
import sys
from collections.abc import Iterable

import torch
from torch import nn

from flextensor import _native, naming

_LOG = logging.getLogger("flextensor")
# torch puts storages up to this size into small allocations, which are never managed.
_SMALL_BYTES = 1 << 20
# Up to this much is put aside on the GPU itself, where there is room twice over.
_ASIDE_BYTES = 1 << 30


class GpuMemory:
    """torch's allocator on one GPU. Tests on machines without one put their own here."""

    def __init__(self, device: torch.device) -> None:
        self.device = device

    def is_managed(self, address: int) -> bool:
        """Whether the address lies in memory that the library can move."""
        first, size = _native.arena()
        return first <= address < first + size

    def settle(self) -> None:
        """Waits until nothing is under way."""
        torch.cuda.synchronize(self.device)

    def give_back(self) -> None:
        """What the allocator keeps without using it goes back to the driver."""
        torch.cuda.empty_cache()

    def reserved_bytes(self) -> int:
        """What the allocator has of the driver."""
        return torch.cuda.memory_reserved(self.device)

    def has_room(self, nbytes: int) -> bool:
        """Whether the driver has so much left."""
        return torch.cuda.mem_get_info(self.device)[0] >= nbytes

    def allocations(self) -> list[tuple[int, int]]:
        """Address and bytes of everything that the allocator has of the driver."""
        return [(segment["address"], segment["total_size"]) for segment in torch.cuda.memory_snapshot()]


def take_over(model: nn.Module, memory: GpuMemory) -> int:
    """Gives managed memory to every storage of `model` on the GPU that has none; returns their bytes. Storages of 1 MiB
    and less stay, and so do those that are not the allocator's own (shared with another process or library)."""
    found = _unmanaged(model, memory)
    if not found:
        return 0
    memory.settle()
    taken = 0
    # Tensors that keep the holes of old allocations busy.
    held: list[torch.Tensor] = []
    for storages in _by_allocation(found, memory.allocations()):
        sizes = [storage.nbytes() for storage in storages]
        if not _move_group(storages, sizes, memory, held):
            _LOG.warning(
                "%d bytes of weights stay where they are: torch's allocator takes its memory in a way that the library does "
                "not manage (expandable segments, cudaMallocAsync, pieces below managed_min_bytes)",
                sum(storage.nbytes() for storage in found) - taken,
            )
            break
        taken += sum(sizes)
    held.clear()
    memory.give_back()
    return taken


def _unmanaged(model: nn.Module, memory: GpuMemory) -> list[torch.UntypedStorage]:
    found: dict[int, torch.UntypedStorage] = {}
    for tensor in _tensors(model):
        for storage, address, nbytes in naming.storages(tensor):
            is_own = nbytes > _SMALL_BYTES and storage.device == memory.device and storage.resizable()
            if is_own and not memory.is_managed(address):
                found.setdefault(address, storage)
    return list(found.values())


def _by_allocation(
    found: list[torch.UntypedStorage], allocations: list[tuple[int, int]]
) -> list[list[torch.UntypedStorage]]:
    """The storages, those together that lie in one allocation of the driver's."""
    allocations = sorted(allocations)
    groups: dict[int, list[torch.UntypedStorage]] = {}
    for storage in found:
        address = storage.data_ptr()
        at = bisect.bisect_right(allocations, (address, sys.maxsize)) - 1
        is_inside = at >= 0 and address < sum(allocations[at])
        groups.setdefault(allocations[at][0] if is_inside else address, []).append(storage)
    return list(groups.values())


def _tensors(model: nn.Module) -> Iterable[torch.Tensor]:
    for owner in model.modules():
        for _, tensor in naming.own_tensors(owner):
            yield tensor
        for value in list(vars(owner).values()):
            if isinstance(value, torch.Tensor):
                yield value


def _move_group(
    storages: list[torch.UntypedStorage], sizes: list[int], memory: GpuMemory, held: list[torch.Tensor]
) -> bool:
    """Moves all storages of one allocation of the driver's. False if what the allocator gives is not managed; they have memory
    again, and their bytes, all the same."""
    nbytes = sum(sizes)
    on_gpu = nbytes <= _ASIDE_BYTES and memory.has_room(2 * nbytes)
    aside = [_bytes_of(storage).to(storage.device if on_gpu else "cpu", copy=True) for storage in storages]
    memory.settle()
    for storage in storages:
        storage.resize_(0)
    memory.give_back()
    is_managed = True
    for storage, copy in zip(storages, aside, strict=True):
        is_managed = _allocate(storage, copy.numel(), memory, held) and is_managed
        _bytes_of(storage).copy_(copy)
    memory.settle()
    return is_managed


def _allocate(
    storage: torch.UntypedStorage, nbytes: int, memory: GpuMemory, held: list[torch.Tensor]
) -> bool:
    """Gives an empty storage managed memory; where there is none, what the allocator has, and False."""
    while True:
        storage.resize_(nbytes)
        if memory.is_managed(storage.data_ptr()):
            return True
        # A hole in an old allocation, or an allocator that is not served. Something else takes the hole, once.
        storage.resize_(0)
        before = memory.reserved_bytes()
        filler = torch.empty(nbytes, dtype=torch.uint8, device=storage.device)
        if memory.reserved_bytes() > before and not memory.is_managed(filler.data_ptr()):
            del filler
            storage.resize_(nbytes)
            return False
        held.append(filler)


def _bytes_of(storage: torch.UntypedStorage) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
