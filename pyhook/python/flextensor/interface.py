"""The functions of the package: each does what the method of the same name does for the manager of the given name.

They are the interface of most programs; everything is documented at `OffloadManager`.
"""

import contextlib
import os
from collections.abc import Callable
from typing import Any

from torch import nn

from flextensor.config import OffloadConfig
from flextensor.offload_manager import DEFAULT_MANAGER_NAME as _DEFAULT
from flextensor.offload_manager import GPUMemoryUsage, get_offload_manager
from flextensor.offload_timing import OffloadTimingReport
from flextensor.units import Named

_Compile = Callable[[nn.Module], nn.Module]
_Folder = str | os.PathLike[str]


def init(config: OffloadConfig | None = None, name: str = _DEFAULT) -> None:
    """Keeps `config` for the manager's next `offload()`."""
    get_offload_manager(name).init(config)


def offload(
    model: nn.Module,
    config: OffloadConfig | None = None,
    name: str = _DEFAULT,
    compile_fn: _Compile | None = None,
) -> Any:
    """Offloads `model` and returns the proxy that stands for it (`OffloadManager.offload`)."""
    return get_offload_manager(name).offload(model, config, compile_fn)


def set_config(config: OffloadConfig, name: str = _DEFAULT) -> None:
    """Replaces the configuration (`OffloadManager.set_config`)."""
    get_offload_manager(name).set_config(config)


def save_profile(profile_directory: _Folder | None = None, name: str = _DEFAULT) -> None:
    """Writes profile.json (`OffloadManager.save_profile`)."""
    get_offload_manager(name).save_profile(profile_directory)


def load_profile(
    profile_directory: _Folder | None = None, model: nn.Module | None = None, name: str = _DEFAULT
) -> None:
    """Starts a model from a saved profile (`OffloadManager.load_profile`)."""
    get_offload_manager(name).load_profile(profile_directory, model)


def offload_from_profile(
    model: nn.Module,
    profile_directory: _Folder,
    config: OffloadConfig | None = None,
    name: str = _DEFAULT,
    compile_fn: _Compile | None = None,
) -> Any:
    """Offloads a model that starts from a saved profile (`OffloadManager.offload_from_profile`)."""
    return get_offload_manager(name).offload_from_profile(model, profile_directory, config, compile_fn)


def offload_from_state(
    model: nn.Module,
    state: Any,
    config: OffloadConfig | None = None,
    name: str = _DEFAULT,
    *,
    allow_strategy_replan: bool = True,
) -> Any:
    """Offloads a model that starts from a saved state (`OffloadManager.offload_from_state`)."""
    manager = get_offload_manager(name)
    return manager.offload_from_state(model, state, config, allow_strategy_replan=allow_strategy_replan)


def offload_block(block_name: str, name: str = _DEFAULT) -> contextlib.AbstractContextManager[Any]:
    """A manual block (`OffloadManager.offload_block`)."""
    return get_offload_manager(name).offload_block(block_name)


def release(name: str = _DEFAULT, *, preserve_model: bool = True) -> None:
    """Takes the model out of offloading (`OffloadManager.release`)."""
    get_offload_manager(name).release(preserve_model=preserve_model)


def get_gpu_memory_usage(name: str = _DEFAULT) -> GPUMemoryUsage:
    """GPU memory of the model's weights (`OffloadManager.get_gpu_memory_usage`)."""
    return get_offload_manager(name).get_gpu_memory_usage()


def reset_offload_timing(name: str = _DEFAULT) -> None:
    """Begins a new window of times (`OffloadManager.reset_offload_timing`)."""
    get_offload_manager(name).reset_offload_timing()


def collect_offload_timing(name: str = _DEFAULT) -> OffloadTimingReport | None:
    """The times since the last collection (`OffloadManager.collect_offload_timing`)."""
    return get_offload_manager(name).collect_offload_timing()


def update_offload_timing(name: str = _DEFAULT, *, replay_generation: int = -1) -> bool:
    """Keeps the times of a replay (`OffloadManager.update_offload_timing`)."""
    return get_offload_manager(name).update_offload_timing(replay_generation=replay_generation)


def offload_units(name: str = _DEFAULT) -> Named:
    """The units (`OffloadManager.offload_units`)."""
    return get_offload_manager(name).offload_units()


def resident_units(name: str = _DEFAULT) -> Named:
    """The subtrees that hold no unit (`OffloadManager.resident_units`)."""
    return get_offload_manager(name).resident_units()


def request_strategy_replan(name: str = _DEFAULT, *, manual_update_state: bool = False) -> int:
    """Begins a replan (`OffloadManager.request_strategy_replan`)."""
    return get_offload_manager(name).request_strategy_replan(manual_update_state=manual_update_state)


def update_state(name: str = _DEFAULT, *, replay_generation: int = -1) -> None:
    """One iteration (`OffloadManager.update_state`)."""
    get_offload_manager(name).update_state(replay_generation=replay_generation)


def clear_profiling_durations(name: str = _DEFAULT) -> None:
    """Forgets recorded times (`OffloadManager.clear_profiling_durations`)."""
    get_offload_manager(name).clear_profiling_durations()


def suspend_profiling(name: str = _DEFAULT) -> None:
    """Suspends recording (`OffloadManager.suspend_profiling`)."""
    get_offload_manager(name).suspend_profiling()


def resume_profiling(name: str = _DEFAULT) -> None:
    """Undoes one suspension (`OffloadManager.resume_profiling`)."""
    get_offload_manager(name).resume_profiling()


def pause_profiling(name: str = _DEFAULT) -> contextlib.AbstractContextManager[None]:
    """Suspends recording in a `with` block (`OffloadManager.pause_profiling`)."""
    return get_offload_manager(name).pause_profiling()
