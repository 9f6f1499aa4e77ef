"""Weights that lie in GPU memory of before the library came: their storages get managed memory, with the same bytes.

A storage stays the same object, so parameters, views and whatever else the program has of it follow by themselves. What the
driver gave as one allocation is copied aside and goes back to it before anything of it is allocated anew, so no moment has two
copies of the model on the GPU. From then until the last storage of that allocation is filled, the bytes of those that are still empty
exist only in the copies: no forward may run meanwhile, and whatever is raised meanwhile is raised on only when each storage, or at
least each tensor of the model, has its bytes again. Taking the model away again after that is `session`'s.
"""

import bisect
import contextlib
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
    try:
        for storages in _by_allocation(found, memory.allocations()):
            nbytes = sum(storage.nbytes() for storage in storages)
            if not _move_group(model, storages, memory, held):
                _LOG.warning(
                    "%d bytes of weights stay where they are: torch's allocator takes its memory in a way that the library "
                    "does not manage (expandable segments, cudaMallocAsync, pieces below managed_min_bytes)",
                    sum(storage.nbytes() for storage in found) - taken,
                )
                break
            taken += nbytes
    finally:
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
    model: nn.Module, storages: list[torch.UntypedStorage], memory: GpuMemory, held: list[torch.Tensor]
) -> bool:
    """Moves all storages of one allocation of the driver's. False if what the allocator gives is not managed; they have memory
    again, and their bytes, all the same. They have them too where this raises; a RuntimeError says which tensors do not have
    them on the GPU."""
    nbytes = sum(storage.nbytes() for storage in storages)
    on_gpu = nbytes <= _ASIDE_BYTES and memory.has_room(2 * nbytes)
    aside = [_bytes_of(storage).to(storage.device if on_gpu else "cpu", copy=True) for storage in storages]
    memory.settle()
    try:
        return _replace(storages, aside, memory, held)
    except BaseException as error:
        held.clear()
        elsewhere = _put_back(model, storages, aside, memory)
        # Whoever keeps the error keeps this frame.
        aside.clear()
        if not elsewhere:
            raise
        text = (
            f"weights could not be given managed memory ({type(error).__name__}: {error}), and {elsewhere} bytes of them could "
            "not be put back on the GPU: their tensors were given the copies in host memory"
        )
        _LOG.error("%s", text)
        if isinstance(error, Exception):
            raise RuntimeError(text) from error
        raise


def _replace(
    storages: list[torch.UntypedStorage],
    aside: list[torch.Tensor],
    memory: GpuMemory,
    held: list[torch.Tensor],
) -> bool:
    """Empties the storages, and fills them again from `aside`; whether all have managed memory now."""
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
        # In `held` alone: the frame of an error would keep it busy.
        held.append(torch.empty(nbytes, dtype=torch.uint8, device=storage.device))
        if memory.reserved_bytes() > before and not memory.is_managed(held[-1].data_ptr()):
            held.pop()
            storage.resize_(nbytes)
            return False


def _put_back(
    model: nn.Module, storages: list[torch.UntypedStorage], aside: list[torch.Tensor], memory: GpuMemory
) -> int:
    """Fills every storage again after an error, with whatever memory there is; returns the bytes of those for which there is
    none, whose tensors in the model get the copy itself. What is raised here must not cost the bytes, and the first error is
    the one that counts."""
    left = _refill(list(range(len(storages))), storages, aside, memory)
    if left:
        # The copies themselves may be what takes the room.
        for at in left:
            with contextlib.suppress(BaseException):
                aside[at] = aside[at].cpu()
        left = _refill(left, storages, aside, memory)
    for at in left:
        with contextlib.suppress(BaseException):
            # A storage that could not be filled does not keep memory.
            storages[at].resize_(0)
        _give_the_copy(model, storages[at], aside[at])
    return sum(aside[at].numel() for at in left)


def _refill(
    wanted: list[int], storages: list[torch.UntypedStorage], aside: list[torch.Tensor], memory: GpuMemory
) -> list[int]:
    """Fills the storages of these numbers from `aside`; returns the numbers of those for which that failed."""
    with contextlib.suppress(BaseException):
        memory.give_back()
    left = set(wanted)
    for at in wanted:
        with contextlib.suppress(BaseException):
            storages[at].resize_(aside[at].numel())
            _bytes_of(storages[at]).copy_(aside[at])
            left.discard(at)
    try:
        memory.settle()
    except BaseException:
        # Nobody knows which copy failed.
        return wanted
    return sorted(left)


def _give_the_copy(model: nn.Module, storage: torch.UntypedStorage, copy: torch.Tensor) -> None:
    """Every tensor of `model` in `storage` lies in the copy from now on; the tensors stay the same objects."""
    for tensor in _tensors(model):
        for leaf in naming.leaves(tensor):
            if not leaf.is_meta and leaf.untyped_storage()._cdata == storage._cdata:
                try:
                    view = torch.empty(0, dtype=leaf.dtype, device=copy.device)
                    leaf.data = view.set_(
                        copy.untyped_storage(), leaf.storage_offset(), leaf.shape, leaf.stride()
                    )
                except BaseException:
                    _LOG.exception("a tensor of shape %s lost its bytes", tuple(leaf.shape))


def _bytes_of(storage: torch.UntypedStorage) -> torch.Tensor:
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(storage)
