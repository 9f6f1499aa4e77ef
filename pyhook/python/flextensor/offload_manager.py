"""OffloadManager: the interface of programs that offload a model themselves, and the managers of this process by name.

A manager holds at most one model; what that model has in the runtime, and what happens in its forwards, is
`managed_model`'s. Functions of the same names for the default manager are in `interface`.
"""

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any

from torch import nn

from flextensor import acceptance, live_config, replan_request, saved_state, units
from flextensor.config import OffloadConfig
from flextensor.gpu_memory import GPUMemoryUsage
from flextensor.instrumentation import instrumentable
from flextensor.managed_model import ManagedModel
from flextensor.model_proxy import Binding, OffloadModelProxy, is_proxy, subject
from flextensor.offload_timing import OffloadTimingCollector, OffloadTimingReport
from flextensor.phases import OffloadPhase
from flextensor.replan import StrategyReplanStatus

__all__ = [
    "DEFAULT_MANAGER_NAME",
    "GPUMemoryUsage",
    "OffloadManager",
    "OffloadModelProxy",
    "OffloadPhase",
    "StrategyReplanStatus",
    "get_offload_manager",
]

DEFAULT_MANAGER_NAME = "default"
"""The manager that is meant where none is named."""


@instrumentable
class OffloadManager:
    """One model's offloading, from `offload()` to `release()`. Get one with `get_offload_manager(name)`.

    A manager belongs to the thread that asked for it first; forwards of its model may run on any thread.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.config = OffloadConfig()
        self._managed: ManagedModel | None = None
        self._compile_ids = 0

    def init(self, config: OffloadConfig | None = None) -> None:
        """Keeps `config` for the next `offload()`."""
        if config is not None:
            self.set_config(config)

    def set_config(self, config: OffloadConfig) -> None:
        """Replaces the configuration. After `offload()` the live model keeps what it was offloaded with: a UserWarning
        names the options that differ; RuntimeError if `skip_discovery` does."""
        if self._managed is not None:
            live_config.say_what_stays(self._managed.config, config)
        self.config = config

    def offload(
        self,
        model: nn.Module,
        config: OffloadConfig | None = None,
        compile_fn: Callable[[nn.Module], nn.Module] | None = None,
    ) -> Any:
        """Offloads `model` and returns a proxy that stands for it.

        The model's tensors go to the GPU one at a time and keep their addresses from then on; after
        `iters_before_inference` forwards the plan is in force. A model of this manager that is still offloaded is
        released before. `compile_fn` compiles each unit by itself: while profiling with `profile_mode="view"`, else
        when the plan is in force; a unit for which it raises stays eager.

        Raises TypeError for what is no module; RuntimeError for a compiled model, without a GPU (pinned_memory=True),
        and without libflextensor.so in the process; ValidationError for a configuration that is wrong.
        """
        return self._offload(model, config, compile_fn, None)

    def offload_from_state(
        self,
        model: nn.Module,
        state: Any,
        config: OffloadConfig | None = None,
        *,
        allow_strategy_replan: bool = True,
    ) -> Any:
        """As `offload`, starting from a saved state: the content of a profile.json as a mapping, text, or an object
        that can be made into one. When this raises, the model must be thrown away."""
        with saved_state.as_folder(state) as folder:
            return self._offload(model, config, None, folder, allow_replan=allow_strategy_replan)

    def _offload(
        self,
        model: nn.Module,
        config: OffloadConfig | None,
        compile_fn: Callable[[nn.Module], nn.Module] | None,
        profile: str | None,
        *,
        allow_replan: bool = True,
        binding: Binding | None = None,
    ) -> Any:
        if is_proxy(model):
            model = subject(model)
        acceptance.refuse_unfit(model)
        checked = (config or self.config).checked()
        if checked.shm_enabled:
            raise RuntimeError(
                "shm_enabled=True is not supported yet: shared memory needs sessions, which come later"
            )
        if profile is not None:
            saved_state.check(profile, model)
        acceptance.say_without_effect(checked)
        self.release()
        if config is not None:
            self.config = config
        self._managed = ManagedModel(
            model,
            checked,
            self.name,
            compile_fn=compile_fn,
            profile=profile,
            allow_replan=allow_replan,
            binding=binding,
        )
        self._compile_ids += 1
        return OffloadModelProxy(self._managed.binding)

    # Where the model stands.

    @property
    def model(self) -> nn.Module | None:
        """The offloaded model; None before `offload()` and after `release()`."""
        return self._managed.model if self._managed else None

    @property
    def phase(self) -> OffloadPhase:
        """The phase of the model."""
        return self._managed.phase if self._managed else OffloadPhase.NOT_INITIALIZED

    @property
    def iters_before_inference(self) -> int:
        """Forwards from the first one to INFERENCE on the path that the model takes: at least one of each phase, none
        of DISCOVERY where it is skipped, three more where compiled units are profiled."""
        if self._managed is not None:
            return self._managed.course.iters_before_inference
        return max(self.config.discovery_iters, 1) + max(self.config.profiling_iters, 1)

    @property
    def eager_profiling_iters(self) -> int:
        """Timed forwards of PROFILING, at least 1."""
        return self._managed.eager_profiling_iters if self._managed else max(self.config.profiling_iters, 1)

    @property
    def skip_discovery_honored(self) -> bool | None:
        """Whether DISCOVERY was skipped; None without a model, or if it was not asked for."""
        if self._managed is None or not self._managed.config.skip_discovery:
            return None
        return self._managed.course.skip_honored

    @property
    def external_compile_active(self) -> bool:
        """Whether the program compiles the units itself, as it said when it offloaded the model."""
        return self._managed is not None and self._managed.is_compiled_by_program

    @property
    def compiled_offload_active(self) -> bool:
        """Whether units are compiled, by `compile_fn` or by the program."""
        return self._managed is not None and self._managed.has_compiled_units

    @property
    def compiled_profile_active(self) -> bool:
        """Whether PROFILING is timing compiled units now."""
        managed = self._managed
        return (
            managed is not None
            and managed.compiles_while_profiling
            and managed.phase is OffloadPhase.PROFILING
        )

    @property
    def compiled_replan_active(self) -> bool:
        """Whether a requested replan is counting forwards."""
        return self._managed is not None and self._managed.replan.is_in_progress

    @property
    def compiled_offload_manager_id(self) -> int:
        """A number for the compiled model of this manager; 0 where nothing is compiled."""
        return self._compile_ids if self.compiled_offload_active else 0

    @property
    def strategy_replan_status(self) -> StrategyReplanStatus:
        """Where a replan stands; looking changes nothing."""
        managed = self._managed
        if managed is None:
            return StrategyReplanStatus("idle", False, None)
        can_request = replan_request.why_not(managed) is None
        return StrategyReplanStatus(managed.replan.state, can_request, managed.replan.applied)

    def offload_units(self) -> units.Named:
        """Paths and modules of the units, outermost only, each once; empty without a model."""
        return self._managed.unit_list() if self._managed else ()

    def resident_units(self) -> units.Named:
        """Paths and modules of the outermost subtrees that are no units and hold none; empty without a model."""
        return units.residents(self._managed.model, self._managed.unit_list()) if self._managed else ()

    def get_gpu_memory_usage(self) -> GPUMemoryUsage:
        """GPU memory of the model's weights; zeros when switched off. RuntimeError before INFERENCE."""
        managed = self._managed
        if managed is None or self.phase is not OffloadPhase.INFERENCE:
            raise RuntimeError(
                f"GPU memory usage is known in phase INFERENCE only; this is phase {self.phase.name}"
            )
        if managed.session is None:
            return GPUMemoryUsage(0, 0, 0)
        ring, resident = managed.session.placed(managed.session.report())
        return GPUMemoryUsage(ring, resident, ring + resident)

    def update_state(self, *, replay_generation: int = -1) -> None:
        """One iteration, for programs whose model runs in manual blocks or as replays of graphs; forwards of the
        model say so themselves. Nothing happens without a model."""
        if self._managed is not None:
            self._managed.update_state(replay_generation)

    def offload_block(self, name: str) -> contextlib.AbstractContextManager[Any]:
        """A context manager around a part of a pass, timed and named by itself. RuntimeError before `offload()`, and
        where DISCOVERY was skipped: what runs in a block is only known by running it."""
        managed = self._needs("offload_block()")
        if managed.config.skip_discovery and managed.course.skip_honored:
            raise RuntimeError(
                f"offload_block({name!r}) needs DISCOVERY, which skip_discovery=True left out: what runs in a block is "
                "learnt by running it"
            )
        return _block(managed, name) if managed.config.enabled else contextlib.nullcontext()

    # Times.

    def clear_profiling_durations(self) -> None:
        """Forgets the times recorded so far; which tensors belong to what stays known, and so does the count of
        forwards. RuntimeError before `offload()`."""
        self._needs("clear_profiling_durations()").clear_durations()

    def suspend_profiling(self) -> None:
        """From now on forwards are not timed, and in PROFILING not counted, until as many `resume_profiling()`.
        RuntimeError before `offload()`. Does nothing when switched off."""
        self._needs("suspend_profiling()").course.suspend()

    def resume_profiling(self) -> None:
        """Undoes one `suspend_profiling()`; RuntimeError before `offload()` and when there is none to undo."""
        self._needs("resume_profiling()").course.resume()

    def is_profiling_suspended(self) -> bool:
        """Whether recording is suspended; always False when switched off."""
        return self._managed is not None and self._managed.course.is_suspended

    @contextlib.contextmanager
    def pause_profiling(self) -> Iterator[None]:
        """`suspend_profiling()` and `resume_profiling()` around a `with` block; nests."""
        self.suspend_profiling()
        try:
            yield
        finally:
            self.resume_profiling()

    def collect_offload_timing(self) -> OffloadTimingReport | None:
        """The passes in INFERENCE since the last collection or reset; None when `offload_timing` is off, before
        `offload()`, and when there are none."""
        timing = self._timing()
        return timing.collect() if timing else None

    def reset_offload_timing(self) -> None:
        """Begins a new window of times; a pass that was not read yet is dropped."""
        if (timing := self._timing()) is not None:
            timing.reset()

    def update_offload_timing(self, *, replay_generation: int = -1) -> bool:
        """Keeps the times of the replay that ended last, of one generation (0 or more) once. False if there is
        nothing to keep."""
        return self._managed is not None and self._managed.update_timing(replay_generation)

    def reset_offload_timing_sampling(self) -> None:
        """Begins a new window of times in which only chosen passes count: those between `begin_offload_timing_sample()` and
        `finish_offload_timing_sample()`."""
        if (timing := self._timing()) is not None:
            timing.reset()
            timing.sample(False)

    def begin_offload_timing_sample(self) -> None:
        """From now on passes count, until the sample is finished or cancelled."""
        if (timing := self._timing()) is not None:
            timing.sample(True)

    def finish_offload_timing_sample(self, *, replay_generation: int | None) -> bool:
        """Keeps the pass that ended last (`replay_generation` None), or the replay of that generation, and ends the sample. False if there
        was nothing to keep, or times are off."""
        timing = self._timing()
        return timing is not None and timing.finish_sample(replay_generation)

    def cancel_offload_timing_sample(self) -> None:
        """Ends the sample without the pass that ended last."""
        if (timing := self._timing()) is not None:
            timing.cancel_sample()

    def _timing(self) -> OffloadTimingCollector | None:
        return self._managed.timing if self._managed is not None else None

    def request_strategy_replan(self, *, manual_update_state: bool = False) -> int:
        """Measures anew after units were compiled, and has the plan made that follows, whatever it gains. Returns the number of
        forwards to drive: three to warm up, then `profiling_iters` (at least 1), of which the first is observed; or 0 with a WARNING if no
        new plan can follow. `strategy_replan_status` says afterwards whether the plan changed; with few `profiling_iters` it may change a few
        forwards later. With `manual_update_state`: the number of replays, each followed by `update_state()`; weights in graphs stay, so that
        the times are what comes of it."""
        return replan_request.request(self._managed, manual=manual_update_state)

    def join_after_forward(self) -> None:
        """Nothing is left to be done: the end of a capture waits for our copies by itself."""

    def sync_prev_onload(self) -> None:
        """Nothing is left to be done: every launch waits for the copies that it needs by itself."""

    def benchmark_transfers(self) -> None:
        """Nothing is left to be done: the link is measured when the plan is made."""

    def get_layer_label_by_idx(self) -> list[str]:
        """The paths of the units, in the order of `offload_units()`; empty without a model."""
        return [path for path, _ in self.offload_units()]

    def get_tensor_manager(self) -> Any:
        """What the runtime has of the model, in a TensorManager's words (`live_tensor_manager`): statistics, state, memory. None without
        a model."""
        if self._managed is None:
            return None
        from flextensor import live_tensor_manager

        kind = live_tensor_manager
        if not self._managed.config.enabled:
            return kind.NoOpTensorManager()
        return kind.LiveTensorManager(self, self._managed)

    # Profiles.

    def save_profile(self, profile_directory: str | os.PathLike[str] | None = None) -> None:
        """Writes profile.json to a folder (None = `profile_storage_dir`); when switched off nothing is written.

        RuntimeError before `offload()` and before INFERENCE; ValueError without a folder and with `profile_read_only`;
        OSError where writing fails.
        """
        managed = self._needs("save_profile()")
        if self.config.profile_read_only:
            raise ValueError("profile_read_only is True: profiles are loaded, never saved")
        folder = self._folder(profile_directory)
        if managed.session is None:
            return
        if self.phase is not OffloadPhase.INFERENCE:
            raise RuntimeError(
                f"a profile can be saved in phase INFERENCE only; this is phase {self.phase.name}"
            )
        managed.session.save_profile(folder)

    def load_profile(
        self, profile_directory: str | os.PathLike[str] | None = None, model: nn.Module | None = None
    ) -> None:
        """Starts `model` (None = the offloaded one) from a saved profile: it goes on in INFERENCE, without learning.
        It may be called before any `offload()`: then it offloads the model, whose own forwards are managed from
        then on.

        RuntimeError without a model; ValueError without a folder, and for a profile that does not fit;
        FileNotFoundError if there is none. When switched off nothing is read.
        """
        chosen = model if model is not None else self.model
        if chosen is None:
            raise RuntimeError("load_profile() has no model: pass one, or offload() it before")
        folder = self._folder(profile_directory)
        if is_proxy(chosen):
            chosen = subject(chosen)
        managed = self._managed
        if self.config.enabled and managed is not None and managed.model is chosen:
            # The program goes on with the proxy that it has.
            kept, replans = managed.binding, managed.allow_replan
            self._offload(chosen, None, managed.compile_fn, folder, allow_replan=replans, binding=kept)
        elif self.config.enabled:
            self._offload(chosen, None, managed.compile_fn if managed else None, folder)
        elif self._managed is None:
            self._offload(chosen, None, None, None)

    def offload_from_profile(
        self,
        model: nn.Module,
        profile_directory: str | os.PathLike[str],
        config: OffloadConfig | None = None,
        compile_fn: Callable[[nn.Module], nn.Module] | None = None,
    ) -> Any:
        """As `offload`, starting from a saved profile, in INFERENCE at once. When switched off nothing is read.
        Raises as `load_profile` and `offload` do."""
        enabled = (config or self.config).enabled
        return self._offload(model, config, compile_fn, os.fspath(profile_directory) if enabled else None)

    def _folder(self, given: str | os.PathLike[str] | None) -> str:
        folder = given if given is not None else self.config.profile_storage_dir
        if folder is None:
            raise ValueError("no profile folder: pass profile_directory or set profile_storage_dir")
        return os.fspath(folder)

    # The end.

    def release(self, *, preserve_model: bool = True) -> None:
        """Takes the model out of offloading: weights go back to where they were, forwards are its own again, GPU memory
        is given back. `preserve_model=False`: the model is about to be thrown away, its weights are emptied instead.
        Nothing happens without a model."""
        managed, self._managed = self._managed, None
        if managed is not None:
            managed.release(preserve_model=preserve_model)

    def _needs(self, what: str) -> ManagedModel:
        if self._managed is None:
            raise RuntimeError(f"{what} needs an offloaded model: call offload() first")
        return self._managed


@contextlib.contextmanager
def _block(managed: ManagedModel, label: str) -> Iterator[str]:
    managed.block_enters(label)
    try:
        yield label
    finally:
        managed.block_leaves(label)


_LOCK = threading.Lock()
_MANAGERS: dict[str, tuple[OffloadManager, int]] = {}


def get_offload_manager(name: str = DEFAULT_MANAGER_NAME) -> OffloadManager:
    """The manager of this name, made at the first call. RuntimeError on another thread than that of the first call."""
    here = threading.get_ident()
    with _LOCK:
        manager, owner = (
            _MANAGERS.setdefault(name, (OffloadManager(name), here))
            if name not in _MANAGERS
            else _MANAGERS[name]
        )
    if owner != here:
        raise RuntimeError(
            f"offload manager {name!r} belongs to thread {owner}, and this is thread {here}: use one manager and model "
            "for each thread"
        )
    return manager
