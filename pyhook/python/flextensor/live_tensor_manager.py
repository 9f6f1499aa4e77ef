"""What `OffloadManager.get_tensor_manager()` gives: the offloaded model as the runtime has it, in the words of a `TensorManager`.

It asks and reports, and controls what its manager controls. Driving a model by hand, phase by phase, is left to `TensorManager`; the life of an
offloaded model, to `OffloadManager`.
"""

import contextlib
import tempfile
from typing import Any

import torch
from torch import nn

from flextensor import state_handler
from flextensor.gpu_memory import GPUMemoryUsage
from flextensor.offload_timing import OffloadTimingReport
from flextensor.phases import OffloadPhase


class LiveTensorManager:
    """A view of one offloaded model: what it says is as of now. After `release()` its questions raise RuntimeError."""

    def __init__(self, manager: Any, managed: Any) -> None:
        self._manager = manager
        self._managed = managed

    @property
    def model(self) -> nn.Module:
        """The offloaded model."""
        return self._live().model

    @property
    def device_gpu(self) -> torch.device:
        """Where its forwards run."""
        return torch.device("cuda", self._live().config.gpu_device)

    @property
    def loader_type(self) -> str:
        """The configured `transfer_mode`."""
        return self._live().config.transfer_mode

    def trap(self, name: str) -> contextlib.AbstractContextManager[Any]:
        """A manual block (`OffloadManager.offload_block`)."""
        self._live()
        return self._manager.offload_block(name)

    def export_state(self) -> state_handler.TensorManagerState:
        """What was learnt and decided, as a copy of its own: for `offload_from_state`. RuntimeError before INFERENCE, and where
        nothing is offloaded (no GPU)."""
        with tempfile.TemporaryDirectory(prefix="flextensor-") as folder:
            self._session().save_profile(folder)
            return state_handler.load(folder)

    def save_profile(self, profile_directory: str) -> None:
        """Writes profile.json (`OffloadManager.save_profile`)."""
        self._live()
        self._manager.save_profile(profile_directory)

    def load_profile(self, profile_directory: str, model: nn.Module) -> None:
        """Starts a model from a saved profile (`OffloadManager.load_profile`)."""
        self._live()
        self._manager.load_profile(profile_directory, model)

    def get_memory_transfer_stats(self) -> dict[int, float] | None:
        """Milliseconds of one copy to the GPU by bytes, as measured while the model was profiled; None before INFERENCE."""
        if self._live().session is None or self._manager.phase is not OffloadPhase.INFERENCE:
            return None
        additions = self.export_state().additions or {}
        curve = next((gpu["idle"] for gpu in additions.get("gpus", ())), [])
        return {point["copy_bytes"]: point["copy_bytes"] / point["gb_per_s"] / 1e6 for point in curve}

    def get_gpu_memory_usage(self) -> GPUMemoryUsage:
        """GPU memory of the weights (`OffloadManager.get_gpu_memory_usage`)."""
        self._live()
        return self._manager.get_gpu_memory_usage()

    def collect_offload_timing(self) -> OffloadTimingReport | None:
        """Times since the last collection (`OffloadManager.collect_offload_timing`)."""
        self._live()
        return self._manager.collect_offload_timing()

    def is_profiling_suspended(self) -> bool:
        """Whether recording is suspended."""
        self._live()
        return self._manager.is_profiling_suspended()

    def suspend_profiling(self) -> None:
        """Suspends recording (`OffloadManager.suspend_profiling`)."""
        self._live()
        self._manager.suspend_profiling()

    def resume_profiling(self) -> None:
        """Undoes one suspension (`OffloadManager.resume_profiling`)."""
        self._live()
        self._manager.resume_profiling()

    def pause_profiling(self) -> contextlib.AbstractContextManager[None]:
        """Suspends recording in a `with` block (`OffloadManager.pause_profiling`)."""
        self._live()
        return self._manager.pause_profiling()

    def clear_profiling_durations(self) -> None:
        """Forgets recorded times (`OffloadManager.clear_profiling_durations`)."""
        self._live()
        self._manager.clear_profiling_durations()

    def sync_prev_onload(self) -> None:
        """Nothing is left to be done (`OffloadManager.sync_prev_onload`)."""

    def join_after_forward(self) -> None:
        """Nothing is left to be done (`OffloadManager.join_after_forward`)."""

    def release_memory(self) -> None:
        """Nothing is left to be done: what only learning needs goes with it."""

    def shutdown(self, *, preserve_model: bool = True) -> None:
        """Takes the model out of offloading (`OffloadManager.release`); harmless when repeated."""
        if self._manager.model is self._managed.model:
            self._manager.release(preserve_model=preserve_model)

    def _live(self) -> Any:
        if self._manager.model is not self._managed.model:
            raise RuntimeError(f"the model of this view of manager {self._manager.name!r} was released")
        return self._managed

    def _session(self) -> Any:
        session = self._live().session
        if session is None:
            raise RuntimeError("there is no state: there is no GPU, and nothing is offloaded")
        return session


class NoOpTensorManager:
    """What stands for it where offloading is switched off: nothing was learnt, nothing happens."""

    def trap(self, name: str) -> contextlib.AbstractContextManager[Any]:
        """A block that does nothing."""
        return contextlib.nullcontext()

    def get_memory_transfer_stats(self) -> dict[int, float] | None:
        """None: nothing was measured."""
        return None

    def get_gpu_memory_usage(self) -> GPUMemoryUsage:
        """Zeros."""
        return GPUMemoryUsage(0, 0, 0)

    def collect_offload_timing(self) -> OffloadTimingReport | None:
        """None: nothing was timed."""
        return None

    def is_profiling_suspended(self) -> bool:
        """False."""
        return False

    def suspend_profiling(self) -> None:
        """Nothing."""

    def resume_profiling(self) -> None:
        """Nothing."""

    def pause_profiling(self) -> contextlib.AbstractContextManager[None]:
        """A block that does nothing."""
        return contextlib.nullcontext()

    def clear_profiling_durations(self) -> None:
        """Nothing."""

    def save_profile(self, profile_directory: str) -> None:
        """Nothing is written."""

    def sync_prev_onload(self) -> None:
        """Nothing."""

    def join_after_forward(self) -> None:
        """Nothing."""

    def release_memory(self) -> None:
        """Nothing."""

    def shutdown(self, *, preserve_model: bool = True) -> None:
        """Nothing."""
