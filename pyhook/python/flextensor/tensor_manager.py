"""TensorManager: discovery, profiling and inference of one model, driven by hand.

It learns and decides; pages are the runtime's. On a GPU the model is brought there and named to the runtime (`session`), and what
the strategy chose is told to it. On the CPU (`device_gpu="cpu"`) everything is in place already: labels, times, decisions and
profiles work the same. `OffloadManager` does all this by itself.
"""

import contextlib
import copy
import dataclasses
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from flextensor import (
    diagnostics,
    manager_arguments,
    manager_session,
    placement,
    runtime_choice,
)
from flextensor.benchmark_tensor_mode import BenchmarkReplace, TensorBenchmarkMode
from flextensor.collectors import LayerStatistics, TensorStatistics
from flextensor.host_pinning import HostPinRegistry, PinnedMemoryMode, make_host_pinner
from flextensor.learnt_model import LearntModel
from flextensor.manager_arguments import ProfileMode
from flextensor.memory_transfer_benchmark import benchmark_memory_transfers
from flextensor.model_tensors import Model, ModelDict, storage_of, streamable
from flextensor.recording import Recording, view_buffer_bytes
from flextensor.state_keeping import StateKeeping
from flextensor.strategy.protocol import Strategy, StrategyResult
from flextensor.trap_tensor_mode import Discovering, Guarded, Timed, Trap


class TensorManager(StateKeeping, Recording):
    """One model: `set_model`, `initialize_warmup`, passes, `initialize_profile`, passes, `initialize_inference`; in each pass
    `with manager.trap(label):` around the layers. With a profile (`load_profile`) the same three calls and no passes.

    `device_gpu`: where the model runs. `tensor_manager_load_strategy`: chooses what is streamed. `pinned_memory`, `pinned_memory_mode`: how host
    memory is pinned that is measured or adopted. `loader_type`: as `transfer_mode`. `remove_layers_operations`: layers that are taken out of the
    result (`strategy_operations.remove_layers_compound`). `blocks`: for `num_blocks`. `move_top_level_buffers_to_gpu`: whether the root's own
    buffers go along. `include_patterns` (None: ["*"]), `exclude_patterns`: which parameters may be streamed. `enable_diagnostics`: logs the three
    tables. `max_gpu_mem_fraction`: budget as a part of the GPU's memory, above 0 and at most 1. `profile_mode`: what the timed passes of
    other loaders did; here weights stand in place in each of them.

    ValueError for values that are not allowed; RuntimeError for `pinned_memory=True` without a GPU. Belongs to one thread."""

    def __init__(
        self,
        device_gpu: str | torch.device,
        tensor_manager_load_strategy: Strategy,
        pinned_memory: bool = True,
        pinned_memory_mode: PinnedMemoryMode = "torch",
        loader_type: str = "allocation_block_transfer",
        remove_layers_operations: list[dict[str, Any]] | None = None,
        blocks: int = 4,
        move_top_level_buffers_to_gpu: bool = True,
        use_shm: bool = False,
        include_patterns: list[str] | None = None,
        exclude_patterns: list[str] | None = None,
        enable_diagnostics: bool = False,
        max_gpu_mem_fraction: float | None = None,
        profile_mode: ProfileMode = "view",
        *,
        _direct_mode: bool = True,
        _use_trace_tensor: bool = False,
        _rearrange_transfers: bool = False,
        _compute_transfer_gap: int = 1,
        _enable_untraced_tensor_discovery: bool = True,
        _offload_timing: str = "off",
        _piecewise_prefetch: str = "warn",
    ) -> None:
        super().__init__()
        manager_arguments.check(loader_type, profile_mode, blocks, max_gpu_mem_fraction, use_shm)
        if not isinstance(tensor_manager_load_strategy, Strategy):
            raise TypeError(f"the strategy is {tensor_manager_load_strategy!r}: it has no method compute")
        manager_arguments.check_private(
            loader_type,
            profile_mode,
            direct=_direct_mode,
            traces=_use_trace_tensor,
            timing=_offload_timing,
            prefetch=_piecewise_prefetch,
        )
        self.device_gpu = torch.device(device_gpu)
        self.strategy = tensor_manager_load_strategy
        self.loader_type = loader_type
        self.profile_mode = profile_mode
        self.blocks = blocks
        self.include_patterns = list(include_patterns or ["*"])
        self.exclude_patterns = list(exclude_patterns or [])
        self.enable_diagnostics = enable_diagnostics
        self.max_gpu_mem_fraction = max_gpu_mem_fraction
        self.model: Model | None = None
        self._pinned_memory = pinned_memory
        self._pinner = make_host_pinner(pinned_memory, pinned_memory_mode)
        self._operations = copy.deepcopy(remove_layers_operations or [])
        placement.remove_layers_compound({}, [], self._operations)
        self._moves_buffers = move_top_level_buffers_to_gpu
        self._rearranges, self._gap = _rearrange_transfers, _compute_transfer_gap
        self._finds_untraced = _enable_untraced_tensor_discovery
        self._session: Any = None
        self._forget()

    def _forget(self) -> None:
        """Begins anew, without a model."""
        self.model = None
        self._phase = "no model"
        self._learnt: LearntModel | None = None
        self._inside: str | None = None
        self._seen: set[str] = set()
        self._forget_state()
        self._memory_stats: dict[int, float] | None = None
        self._measured: dict[int, TensorStatistics] = {}
        self.tensors_map: dict[int, torch.Tensor] = {}

    # The way of a model.

    def set_model(self, model: nn.Module | dict[str, object] | ModelDict) -> None:
        """The model to be learnt: a module, or modules and tensors by name. RuntimeError while there is another one."""
        if self._session is not None:
            raise RuntimeError("the manager still holds a model: shutdown() first")
        if not isinstance(model, nn.Module | dict | ModelDict):
            raise TypeError(
                f"the model is {type(model).__name__}: allowed are a module and a dictionary of modules"
            )
        self._forget()
        self._suspensions = 0
        self.collector = type(self.collector)()
        self.model = model
        self._phase = "model set"
        self._learnt = LearntModel(model)

    def initialize_warmup(self) -> Any:
        """Brings the model to the device, and begins discovery; returns the model. With a profile, inference is prepared at once."""
        model = self._require_model()
        self._to_device(model)
        self._learnt = LearntModel(model)
        self._phase = "inference prepared" if self._restored else "discovery"
        # A profile in a folder is read by the runtime itself.
        if self._restored and self._state is not None and self._profile_folder is None:
            self._tell_runtime(self._state.result())
        return model

    def initialize_profile(self) -> Any:
        """Begins profiling; returns the model. With a profile nothing has to be done. RuntimeError before discovery; ValueError when
        `profile_mode` "view" would need more memory than the budget."""
        model = self._require_model()
        if self._restored:
            return model
        self._require("discovery")
        self._check_view_budget()
        self._phase = "profiling"
        return model

    def initialize_inference(self) -> Any:
        """Asks the strategy, unless there is a profile, and begins inference; returns the model and lets go of it."""
        model = self._require_model()
        if not self._restored:
            self._require("profiling")
            self.prepare_infer_mode()
        elif self._phase != "inference prepared":
            raise RuntimeError("initialize_warmup() comes before initialize_inference()")
        self._end_pass()
        self._phase = "inference"
        self.model = self._learnt = None
        return model

    def prepare_warmup_mode(self) -> None:
        """`initialize_warmup`, without the model."""
        self.initialize_warmup()

    def prepare_profile_mode(self) -> None:
        """`initialize_profile`, without the model."""
        self.initialize_profile()

    def prepare_infer_mode(self) -> None:
        """Makes the decision from what was measured: transfer times, strategy, state."""
        learnt = self._require_learnt()
        tensors = self._tensor_statistics(learnt)
        stats, untimed = self.layer_stats(tensors)
        placement.report_quality(self.collector.durations(), untimed)
        self._decide(learnt, stats)

    def replan_from_compiled_durations(self, durations_by_label: dict[str, float], model: Model) -> bool:
        """Decides anew with other milliseconds by label, and tells the runtime; `model` is the one that was learnt. False before there is a
        decision to be replaced."""
        if self._state is None or not self._state.stats:
            return False
        stats = [
            dataclasses.replace(stat, duration=durations_by_label.get(stat.label, stat.duration))
            for stat in self._state.stats
        ]
        self._decide(LearntModel(model), stats)
        return True

    def _decide(self, learnt: LearntModel, stats: list[LayerStatistics]) -> None:
        memory_stats = self._memory_stats or {}
        result = placement.decide(
            self.strategy,
            stats,
            memory_stats,
            self._budget(),
            operations=self._operations,
            rearrange=self._rearranges,
            gap=self._gap,
        )
        self._state = placement.state_of(learnt.model, learnt.names, self.loader_type, stats, result)
        if self.enable_diagnostics:
            name = type(self.strategy).__name__
            diagnostics.log_tables(stats, memory_stats, self.collector.durations(), result, name)
        self._tell_runtime(result)

    # Traps.

    def trap(self, name: str) -> Trap:
        """A context manager around one layer of a pass. RuntimeError before `initialize_warmup`, and on entering inside another
        trap while the model is learnt."""
        if self._phase == "discovery":
            return Guarded(
                self, Discovering(name, self._describe, self._require_learnt().number_of, self._found)
            )
        if self._phase == "profiling":
            return Guarded(self, Timed(name, self._describe, self.device_gpu, self._timed))
        if self._phase in ("inference", "inference prepared"):
            return Guarded(self, Trap(name, self._describe))
        raise RuntimeError(
            f"trap({name!r}) needs initialize_warmup() before it; the manager has: {self._phase}"
        )

    def _found(self, label: str, used: list[int]) -> None:
        """What operations were given, and what the module of that name owns: kernels that no operation shows read it too."""
        owned = self._require_learnt().labels.get(label, []) if self._finds_untraced else []
        self.record_tensors(label, dict.fromkeys([*owned, *used]))

    def _timed(self, label: str, milliseconds: float) -> None:
        self.record_all(label, self._require_learnt().labels.get(label, []), milliseconds)

    def _describe(self) -> str:
        return f"manager for {self.device_gpu} in phase {self._phase}"

    def begin_trap(self, label: str) -> None:
        """A trap is entered: RuntimeError inside another one while the model is learnt. For `Guarded`."""
        if self._inside is not None and self._phase in ("discovery", "profiling"):
            raise RuntimeError(
                f"trap {label!r} is entered inside trap {self._inside!r}: traps do not nest while a model is learnt"
            )
        if self._session is not None and (label in self._seen or not self._seen):
            self._end_pass()
            self._session.begin_pass()
        self._seen.add(label)
        self._inside = label

    def end_trap(self) -> None:
        """The trap has ended. For `Guarded`."""
        self._inside = None

    def _end_pass(self) -> None:
        if self._session is not None and self._seen:
            self._session.end_pass()
        self._seen.clear()

    # Questions and the end.

    def get_memory_transfer_stats(self) -> dict[int, float] | None:
        """Milliseconds of one copy to the device by bytes, as measured when profiling ended; None before."""
        return None if self._memory_stats is None else dict(self._memory_stats)

    def get_gpu_memory_usage(self) -> Any:
        """Bytes of GPU memory of the ring and of resident weights (`GPUMemoryUsage`). RuntimeError before inference."""
        if self._phase != "inference":
            raise RuntimeError(
                f"get_gpu_memory_usage() needs initialize_inference() before it; the manager has: {self._phase}"
            )
        from flextensor.gpu_memory import GPUMemoryUsage

        ring, resident = self._session.placed(self._session.report()) if self._session is not None else (0, 0)
        return GPUMemoryUsage(ring, resident, ring + resident)

    @property
    def host_pin_registry(self) -> HostPinRegistry | None:
        """What this manager pinned in place; None in mode "torch"."""
        return self._pinner.registry

    @contextlib.contextmanager
    def benchmark_context(self, iterations: int = 10) -> Iterator[TensorBenchmarkMode]:
        """Measures the tensors that come up inside; their statistics count where the manager needs a copy's time."""
        mode = BenchmarkReplace(self.device_gpu, self._pinned_memory, iterations, host_pinner=self._pinner)
        with mode:
            yield mode
        results = mode.get_results()
        for number, found in results["tensor_statistics_map"].items():
            self._measured[storage_of(results["tensors_map"][number])] = found
        self.tensors_map.update(results["tensors_map"])

    def pin(self, tensor: torch.Tensor) -> torch.Tensor:
        """A host tensor, pinned in the way that this manager was made for; as it is with `pinned_memory=False`."""
        return self._pinner.pin(tensor)

    def release_memory(self) -> None:
        """Lets go of what was only needed to learn: samples of tensors and their copies."""
        self._measured.clear()
        self.tensors_map.clear()

    def shutdown(self, *, preserve_model: bool = True) -> None:
        """The end: the model leaves the runtime, back to where it came from, or is left empty; pinned memory is released. Harmless when
        repeated."""
        session, self._session = self._session, None
        if session is not None:
            self._seen.clear()
            session.close(preserve_model=preserve_model)
        self._pinner.release_all()
        self._forget()

    # Of its own use.

    def _require_model(self) -> Model:
        if self.model is None:
            raise RuntimeError(f"set_model() comes first; the manager has: {self._phase}")
        return self.model

    def _require_learnt(self) -> LearntModel:
        if self._learnt is None:
            raise RuntimeError(f"set_model() comes first; the manager has: {self._phase}")
        return self._learnt

    def _require(self, phase: str) -> None:
        if self._phase != phase:
            raise RuntimeError(f"{phase} comes first; the manager has: {self._phase}")

    def _tensor_statistics(self, learnt: LearntModel) -> dict[int, TensorStatistics]:
        """The tensors that may be streamed, with the time of a copy of each, which is measured here."""
        may = streamable(learnt.model, self.include_patterns, self.exclude_patterns)
        sized, _ = self.layer_stats(learnt.statistics(may, None, {}))
        pins = self._pinned_memory and self.device_gpu.type == "cuda"
        self._memory_stats = benchmark_memory_transfers(
            sized, self.device_gpu, pin_memory=pins, host_pinner=self._pinner
        )
        return learnt.statistics(may, self._memory_stats, self._measured)

    def _budget(self) -> int | None:
        if self.max_gpu_mem_fraction is None:
            return None
        if self.device_gpu.type != "cuda":
            raise RuntimeError(
                f"max_gpu_mem_fraction is a part of a GPU's memory, and device_gpu is {self.device_gpu}"
            )
        from flextensor.gpu_budget import resolve_gpu_budget

        return resolve_gpu_budget(self.max_gpu_mem_fraction, self.device_gpu)

    def _check_view_budget(self) -> None:
        if self.profile_mode != "view" or self.max_gpu_mem_fraction is None:
            return
        needed, budget = self.view_buffer_bytes(), self._budget()
        if budget is not None and needed > budget:
            raise ValueError(
                f"profile_mode='view' needs {needed} bytes of GPU memory, the budget is {budget}; "
                "profile_mode='getter' needs no more than one label's"
            )

    def view_buffer_bytes(self) -> int:
        """What profile mode "view" stands for: bytes of the largest label's own tensors, and of those that several labels share."""
        return view_buffer_bytes(self.collector, self._require_learnt().sizes())

    def _to_device(self, model: Model) -> None:
        if self.device_gpu.type != "cuda" or self._session is not None:
            return
        if not isinstance(model, nn.Module):
            raise TypeError(
                "a dictionary cannot be named to the runtime: wrap its modules in torch.nn.ModuleDict"
            )
        kept = {} if self._moves_buffers else dict(model._buffers)
        self._session = manager_session.begin(
            model,
            self.device_gpu,
            self.include_patterns,
            self.exclude_patterns,
            self.max_gpu_mem_fraction,
            self._profile_folder,
        )
        for name, buffer in kept.items():
            model._buffers[name] = buffer

    def _tell_runtime(self, result: StrategyResult) -> None:
        """The runtime streams what the strategy chose, from a forward soon after on."""
        if self._session is not None:
            names = sorted({tensor.name for tensors in result.strategy_map.values() for tensor in tensors})
            runtime_choice.stream(self._session.models(), type(self.strategy).__name__, names)
