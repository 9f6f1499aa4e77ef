"""Pins host memory for fast copies to the GPU, by torch's pinned allocator or in place by `cudaHostRegister`.

For programs that pin tensors themselves, and for `TensorManager`. The runtime pins its own memory (one registered arena,
whatever `pinned_memory_mode` says); nothing here touches that.
"""

import logging
import threading
from typing import Any, Literal, get_args

import torch

PinnedMemoryMode = Literal["torch", "host_register"]
"""How to pin: "torch" copies into torch's pinned allocator, "host_register" pins existing storage in place."""

_LOG = logging.getLogger("flextensor")
# cudaHostRegisterPortable: pinned for every CUDA context of the process.
_PORTABLE = 1
_SUCCESS = 0
_NOT_REACHED = (RuntimeError, OSError, AttributeError, ImportError)


def is_available() -> bool:
    """Whether memory can be pinned in place here: there is a GPU, and torch reaches `cudaHostRegister`."""
    try:
        _cudart()
    except _NOT_REACHED as error:
        _LOG.debug("cudaHostRegister cannot be used: %s", error)
        return False
    return True


def _cudart() -> Any:
    """The CUDA runtime as torch loaded it; RuntimeError with the reason where there is none."""
    if not torch.cuda.is_available():
        raise RuntimeError("torch.cuda.is_available() is False")
    try:
        cudart = torch.cuda.cudart()
        _ = cudart.cudaHostRegister, cudart.cudaHostUnregister
    except _NOT_REACHED as error:
        raise RuntimeError(f"the CUDA runtime cannot be reached through torch: {error}") from error
    return cudart


def _storage(tensor: torch.Tensor) -> tuple[int, int] | None:
    """Address and bytes of the host memory behind a tensor; None where there is nothing to pin."""
    if tensor.device.type != "cpu" or not tensor.numel():
        return None
    storage = tensor.untyped_storage()
    address, nbytes = storage.data_ptr(), storage.nbytes()
    return (address, nbytes) if address and nbytes else None


class HostPinRegistry:
    """The memory that is pinned in place, to be released together. Thread-safe: the lock is held across each CUDA call, so
    no address is registered or unregistered twice. Entries are keyed by storage address: a tensor and its views are one, with the size and
    the tensor of the first pin, which is kept alive until it is released.

    Registrations belong to a process: a forked child makes its own registry, and releases nothing of its parent's."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._pinned: dict[int, tuple[torch.Tensor, int]] = {}

    def is_registered(self, ptr: int) -> bool:
        """Whether the storage at this address is tracked here."""
        with self._lock:
            return ptr in self._pinned

    def pin_in_place(self, tensor: torch.Tensor) -> torch.Tensor:
        """Pins the storage of `tensor`, and returns `tensor`. Nothing happens for tensors that are not on the CPU, meta, empty, without
        memory, or pinned already by anybody.

        RuntimeError when the CUDA runtime cannot be reached, or refuses with an error code."""
        storage = _storage(tensor)
        if storage is None:
            return tensor
        address, nbytes = storage
        with self._lock:
            if address in self._pinned or tensor.is_pinned():
                return tensor
            code = int(_cudart().cudaHostRegister(address, nbytes, _PORTABLE))
            if code != _SUCCESS:
                raise RuntimeError(
                    f"cudaHostRegister of {nbytes} bytes at {address:#x} failed with code {code}"
                )
            self._pinned[address] = (tensor, nbytes)
        return tensor

    def release(self, ptr: int) -> bool:
        """Unregisters one storage. True when that was done; False when it is not tracked, or with a WARNING when the CUDA runtime
        cannot be reached or refuses: then it stays tracked and alive, and can be released again."""
        with self._lock:
            if ptr not in self._pinned:
                _LOG.debug("release: nothing is pinned at %#x", ptr)
                return False
            try:
                cudart = _cudart()
            except _NOT_REACHED as error:
                _LOG.warning("cudaHostUnregister of %#x was not called: %s", ptr, error)
                return False
            return self._unregister(cudart, ptr)

    def release_all(self) -> None:
        """Unregisters every storage. What fails is logged as a WARNING, stays tracked and alive, and is tried again by the next
        call."""
        with self._lock:
            if not self._pinned:
                return
            try:
                cudart = _cudart()
            except _NOT_REACHED as error:
                _LOG.warning("cudaHostUnregister of %d storages was not called: %s", len(self._pinned), error)
                return
            for address in list(self._pinned):
                self._unregister(cudart, address)

    def _unregister(self, cudart: Any, address: int) -> bool:
        code = int(cudart.cudaHostUnregister(address))
        if code != _SUCCESS:
            _LOG.warning("cudaHostUnregister of %#x failed with code %d", address, code)
            return False
        del self._pinned[address]
        return True


class HostPinner:
    """Pins tensors, in the way that it was made for: without a registry by torch's pinned allocator (a copy), with one in
    place. `make_host_pinner` chooses, and checks that there is a GPU."""

    def __init__(self, registry: HostPinRegistry | None = None) -> None:
        self._registry = registry

    @property
    def registry(self) -> HostPinRegistry | None:
        """What is pinned in place is tracked there; None when torch's allocator pins."""
        return self._registry

    def pin(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor pinned: itself in place, or a copy; so write `t = pinner.pin(t)`. Tensors that are not on the CPU, meta,
        empty, or pinned already come back as they are. RuntimeError when pinning fails."""
        if self._registry is not None:
            return self._registry.pin_in_place(tensor)
        if _storage(tensor) is None or tensor.is_pinned():
            return tensor
        return tensor.pin_memory()

    def is_pinned(self, tensor: torch.Tensor) -> bool:
        """Whether the tensor is pinned, by torch or here. False for tensors without memory."""
        try:
            if self._registry is not None and self._registry.is_registered(
                tensor.untyped_storage().data_ptr()
            ):
                return True
            return tensor.is_pinned()
        except (RuntimeError, NotImplementedError) as error:
            _LOG.debug("is_pinned: the tensor has no storage: %s", error)
            return False

    def release_all(self) -> None:
        """Releases all that is pinned in place; nothing to do for torch's allocator."""
        if self._registry is not None:
            self._registry.release_all()


class NoOpHostPinner(HostPinner):
    """Pins nothing: for `pinned_memory=False`."""

    def __init__(self) -> None:
        super().__init__(None)

    def pin(self, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor as it is."""
        return tensor


def make_host_pinner(pinned_memory: bool, mode: PinnedMemoryMode) -> HostPinner:
    """The pinner for `pinned_memory` and `pinned_memory_mode`.

    ValueError for another mode. RuntimeError when memory is to be pinned and there is no GPU: set `pinned_memory=False` on
    purpose there. Where "host_register" cannot be used, torch's allocator pins instead, with a WARNING that says why; a
    mode that `pinned_memory=False` makes idle is said the same way."""
    if mode not in get_args(PinnedMemoryMode):
        allowed = ", ".join(get_args(PinnedMemoryMode))
        raise ValueError(f"pinned_memory_mode = {mode!r} is not allowed; allowed: {allowed}")
    if not pinned_memory:
        if mode != "torch":
            _LOG.warning("pinned_memory_mode=%r has no effect: pinned_memory is False", mode)
        return NoOpHostPinner()
    if not torch.cuda.is_available():
        raise RuntimeError(
            "pinned_memory=True needs a GPU, but torch.cuda.is_available() is False; set pinned_memory=False on machines "
            "without one"
        )
    if mode == "host_register":
        try:
            _cudart()
        except _NOT_REACHED as error:
            _LOG.warning("pinned_memory_mode='host_register' cannot be used, 'torch' is: %s", error)
            return HostPinner()
        return HostPinner(HostPinRegistry())
    return HostPinner()
