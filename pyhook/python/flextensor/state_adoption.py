"""State adoption: a live model is brought into the placement of a saved state, storage by storage.

Tensors that the state streams go to (pinned) host memory, all others to the GPU. Planning reads only; carrying out is not
transactional. Tensors that share a storage move together and share one again.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import nn

from flextensor.host_pinning import HostPinner
from flextensor.model_tensors import NamedTensor, become, storage_of, tensors_of
from flextensor.state_handler import TensorManagerState

HOST_RESERVE_BYTES = 4 << 30
"""Host memory that is left free unless somebody says otherwise: Python, frameworks and loaders grow."""
GPU_RESERVE_BYTES = 1 << 30
"""GPU memory that is left free unless somebody says otherwise: the CUDA runtime and frameworks grow."""

_HOST = torch.device("cpu")


@dataclass(frozen=True)
class MemoryCapacity:
    """Bytes that may be used, reserves taken off."""

    host_bytes: int
    gpu_bytes: int


@dataclass(frozen=True)
class StorageMigration:
    """One storage that changes its device."""

    storage_id: str
    """Its address now, in hexadecimal."""
    names: tuple[str, ...]
    """The tensors that lie in it."""
    source_device: str
    destination_device: str
    nbytes: int


@dataclass(frozen=True)
class StateTransitionPlan:
    """What carrying out will do: first the migrations, those to the host first, then the pinning, one group after the other."""

    migrations: tuple[StorageMigration, ...]
    pinning_groups: tuple[tuple[str, ...], ...]
    """Names of the tensors of each storage that is pinned."""
    peak_host_bytes: int
    """Host memory that is needed beyond what the model has now, at the worst moment."""
    peak_gpu_bytes: int
    """The same of GPU memory."""


@dataclass(frozen=True)
class _Storage:
    """One storage and the tensors in it."""

    key: str
    tensors: tuple[NamedTensor, ...]
    device: torch.device
    nbytes: int

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(each.name for each in self.tensors)


def check_reserves(host_reserve_bytes: int, gpu_reserve_bytes: int) -> None:
    """ValueError for a reserve that is no whole number from 0 on."""
    for name, given in (("host_reserve_bytes", host_reserve_bytes), ("gpu_reserve_bytes", gpu_reserve_bytes)):
        if isinstance(given, bool) or not isinstance(given, int) or given < 0:
            raise ValueError(f"{name} is {given!r}: allowed is a whole number of bytes, 0 or more")


def available(device: torch.device, host_reserve_bytes: int, gpu_reserve_bytes: int) -> MemoryCapacity:
    """What is free now, less the reserves. Without a GPU all of `device`'s memory is the host's."""
    gpu = 0
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        gpu = free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return MemoryCapacity(
        max(_available_host_bytes() - host_reserve_bytes, 0), max(gpu - gpu_reserve_bytes, 0)
    )


def _available_host_bytes() -> int:
    """MemAvailable of the system."""
    for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) << 10
    raise RuntimeError("/proc/meminfo does not tell MemAvailable")


def plan(
    model: nn.Module,
    state: TensorManagerState,
    device: torch.device,
    capacity: MemoryCapacity,
    *,
    pins: bool,
    pinning_copies: bool,
) -> StateTransitionPlan:
    """The plan for `model`. `pins`: what is streamed is pinned, and `pinning_copies`: into new memory, so that each storage is there
    twice for a moment. RuntimeError when it would need more than `capacity`."""
    managed = state.managed_names()
    moves: list[tuple[_Storage, torch.device]] = []
    groups: list[_Storage] = []
    for storage in _storages(model):
        streamed = managed.issuperset(storage.names)
        target = _HOST if streamed else device
        if storage.device != target:
            moves.append((storage, target))
        if streamed and pins and not _is_pinned(storage):
            groups.append(storage)
    # What leaves the GPU makes room there before anything comes.
    moves.sort(key=lambda move: move[1].type != "cpu")
    peak_host, peak_gpu = _peaks(moves, groups if pinning_copies else [], device)
    for what, needed, there in (
        ("host", peak_host, capacity.host_bytes),
        ("GPU", peak_gpu, capacity.gpu_bytes),
    ):
        if needed > there:
            raise RuntimeError(
                f"the transition needs {needed} bytes of {what} memory, and {there} are available beyond the reserve"
            )
    migrations = (
        StorageMigration(storage.key, storage.names, str(storage.device), str(target), storage.nbytes)
        for storage, target in moves
    )
    return StateTransitionPlan(tuple(migrations), tuple(group.names for group in groups), peak_host, peak_gpu)


def _peaks(
    moves: list[tuple[_Storage, torch.device]], copied: list[_Storage], device: torch.device
) -> tuple[int, int]:
    """The most bytes beyond today's, of the host and of the GPU."""
    used = {"host": 0, "gpu": 0}
    peak = dict(used)

    def where(place: torch.device) -> str:
        return "host" if place.type == "cpu" else "gpu"

    for storage, target in moves:
        used[where(target)] += storage.nbytes
        peak[where(target)] = max(peak[where(target)], used[where(target)])
        # The old one goes as soon as the new one is in place.
        used[where(storage.device)] -= storage.nbytes
    for storage in copied:
        peak["host"] = max(peak["host"], used["host"] + storage.nbytes)
    return peak["host"], peak["gpu"] if device.type != "cpu" else 0


def execute(model: nn.Module, planned: StateTransitionPlan, pinner: HostPinner) -> None:
    """Carries a plan out. ValueError when the model is not as it was when the plan was made; RuntimeError, naming completed and current
    groups, when a step fails: what is done stays done."""
    storages = {storage.key: storage for storage in _storages(model)}
    for each in planned.migrations:
        storage = storages.get(each.storage_id)
        if storage is None or storage.names != each.names or str(storage.device) != each.source_device:
            raise ValueError(
                f"the model is not as it was when the plan was made: {', '.join(each.names)} have moved; plan again"
            )
    done: list[str] = []
    for each in planned.migrations:
        with _step(done, f"migration of {', '.join(each.names)} to {each.destination_device}"):
            _move(storages[each.storage_id], torch.device(each.destination_device))
    for group in planned.pinning_groups:
        with _step(done, f"pinning of {', '.join(group)}"):
            _pin(_storage_with(model, group), pinner)


class _step:
    """One step: completed, or said to be the one that failed."""

    def __init__(self, done: list[str], what: str) -> None:
        self._done, self._what = done, what

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, where: object) -> None:
        if error is None:
            self._done.append(self._what)
        elif isinstance(error, Exception):
            completed = "; ".join(self._done) or "none"
            raise RuntimeError(
                f"state adoption failed. current: {self._what}: {error}. completed: {completed}. what is completed stays so; "
                "discard the model"
            ) from error


def _storages(model: nn.Module) -> Iterator[_Storage]:
    """Every storage of the model with its tensors; meta tensors have none."""
    found: dict[tuple[str, int], list[NamedTensor]] = {}
    for each in tensors_of(model):
        if each.tensor.is_meta or each.tensor.layout is not torch.strided:
            continue
        address = storage_of(each.tensor)
        if address:
            found.setdefault((str(each.tensor.device), address), []).append(each)
    for (_, address), tensors in found.items():
        tensor = tensors[0].tensor
        yield _Storage(f"{address:#x}", tuple(tensors), tensor.device, tensor.untyped_storage().nbytes())


def _storage_with(model: nn.Module, names: tuple[str, ...]) -> _Storage:
    for storage in _storages(model):
        if storage.names == names:
            return storage
    raise ValueError(f"{', '.join(names)} no longer lie in one storage")


def _is_pinned(storage: _Storage) -> bool:
    return storage.device.type == "cpu" and storage.tensors[0].tensor.is_pinned()


def _whole(storage: _Storage) -> torch.Tensor:
    """All bytes of a storage."""
    source = storage.tensors[0].tensor.untyped_storage()
    return torch.empty(0, dtype=torch.uint8, device=storage.device).set_(source)


def _move(storage: _Storage, device: torch.device) -> None:
    _rebind(storage, _whole(storage).to(device))


def _pin(storage: _Storage, pinner: HostPinner) -> None:
    whole = _whole(storage)
    pinned = pinner.pin(whole)
    if pinned is not whole:
        _rebind(storage, pinned)


def _rebind(storage: _Storage, whole: torch.Tensor) -> None:
    """The tensors of a storage now lie in `whole`, as they lay in their own."""
    memory = whole.untyped_storage()
    seen: set[int] = set()
    for each in storage.tensors:
        tensor = each.tensor
        if id(tensor) in seen:  # one tensor under several names
            continue
        seen.add(id(tensor))
        empty = torch.empty(0, dtype=tensor.dtype, device=whole.device)
        become(tensor, empty.set_(memory, tensor.storage_offset(), tensor.shape, tensor.stride()))
