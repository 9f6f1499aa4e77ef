"""flextensor: runs PyTorch programs whose weights do not fit the GPU memory budget.

A program that is started by `flextensor run` needs nothing from here: arriving in it is left to `hook`, the command
line to `cli`. Programs that want a say use the names below: each is imported from its module when it is first asked
for, so that importing the package loads neither torch nor the native module. Defined here are only the questions
about the running process.
"""

import importlib as _importlib
import json as _json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flextensor.benchmark_tensor_mode import BenchmarkReplace as BenchmarkReplace
    from flextensor.benchmark_tensor_mode import PreloadToDevice as PreloadToDevice
    from flextensor.benchmark_tensor_mode import TensorBenchmarkMode as TensorBenchmarkMode
    from flextensor.config import OffloadConfig as OffloadConfig
    from flextensor.config import load_config as load_config
    from flextensor.config import load_config_from_env as load_config_from_env
    from flextensor.config import load_config_from_file as load_config_from_file
    from flextensor.gpu_memory import GPUMemoryUsage as GPUMemoryUsage
    from flextensor.host_pinning import PinnedMemoryMode as PinnedMemoryMode
    from flextensor.interface import clear_profiling_durations as clear_profiling_durations
    from flextensor.interface import collect_offload_timing as collect_offload_timing
    from flextensor.interface import get_gpu_memory_usage as get_gpu_memory_usage
    from flextensor.interface import init as init
    from flextensor.interface import load_profile as load_profile
    from flextensor.interface import offload as offload
    from flextensor.interface import offload_block as offload_block
    from flextensor.interface import offload_from_profile as offload_from_profile
    from flextensor.interface import offload_from_state as offload_from_state
    from flextensor.interface import offload_units as offload_units
    from flextensor.interface import pause_profiling as pause_profiling
    from flextensor.interface import release as release
    from flextensor.interface import request_strategy_replan as request_strategy_replan
    from flextensor.interface import reset_offload_timing as reset_offload_timing
    from flextensor.interface import resident_units as resident_units
    from flextensor.interface import resume_profiling as resume_profiling
    from flextensor.interface import save_profile as save_profile
    from flextensor.interface import set_config as set_config
    from flextensor.interface import suspend_profiling as suspend_profiling
    from flextensor.interface import update_offload_timing as update_offload_timing
    from flextensor.interface import update_state as update_state
    from flextensor.model_proxy import OffloadModelProxy as OffloadModelProxy
    from flextensor.offload_manager import DEFAULT_MANAGER_NAME as DEFAULT_MANAGER_NAME
    from flextensor.offload_manager import OffloadManager as OffloadManager
    from flextensor.offload_manager import get_offload_manager as get_offload_manager
    from flextensor.offload_timing import OffloadTimingReport as OffloadTimingReport
    from flextensor.offload_timing import OffloadTimingSnapshot as OffloadTimingSnapshot
    from flextensor.offload_timing import TrapTimingRecord as TrapTimingRecord
    from flextensor.offload_timing import TrapTimingStats as TrapTimingStats
    from flextensor.offload_timing import format_offload_timing_table as format_offload_timing_table
    from flextensor.phases import OffloadPhase as OffloadPhase
    from flextensor.profile_loading import load_model_from_profile as load_model_from_profile
    from flextensor.replan import StrategyReplanStatus as StrategyReplanStatus
    from flextensor.shm import ShmCoordinatorError as ShmCoordinatorError
    from flextensor.shm import ShmCreatorDiedError as ShmCreatorDiedError
    from flextensor.shm import ShmCreatorFailedError as ShmCreatorFailedError
    from flextensor.strategy import AdaptiveKnapsackStrategy as AdaptiveKnapsackStrategy
    from flextensor.strategy import AdaptiveStrategy as AdaptiveStrategy
    from flextensor.strategy import BudgetFillGreedyStrategy as BudgetFillGreedyStrategy
    from flextensor.strategy import BudgetFillLayerDEStrategy as BudgetFillLayerDEStrategy
    from flextensor.strategy import BudgetFillStrategy as BudgetFillStrategy
    from flextensor.strategy import BudgetFillTensorDEStrategy as BudgetFillTensorDEStrategy
    from flextensor.strategy import GlobalOffloadStrategy as GlobalOffloadStrategy
    from flextensor.strategy import GlobalTensorSelectionStrategy as GlobalTensorSelectionStrategy
    from flextensor.strategy import GreedyStrategy as GreedyStrategy
    from flextensor.strategy import KnapsackBlockStrategy as KnapsackBlockStrategy
    from flextensor.strategy import KnapsackStrategy as KnapsackStrategy
    from flextensor.strategy import NthLayerStrategy as NthLayerStrategy
    from flextensor.strategy import Strategy as Strategy
    from flextensor.tensor_manager import TensorManager as TensorManager

__version__ = "0.1.0"

# The public names by the module that defines them.
# fmt: off
_NAMES = {
    "benchmark_tensor_mode": ("BenchmarkReplace", "PreloadToDevice", "TensorBenchmarkMode"),
    "config": ("OffloadConfig", "load_config", "load_config_from_env", "load_config_from_file"),
    "host_pinning": ("PinnedMemoryMode",),
    "profile_loading": ("load_model_from_profile",),
    "strategy": (
        "AdaptiveKnapsackStrategy",
        "AdaptiveStrategy",
        "BudgetFillGreedyStrategy",
        "BudgetFillLayerDEStrategy",
        "BudgetFillStrategy",
        "BudgetFillTensorDEStrategy",
        "GlobalOffloadStrategy",
        "GlobalTensorSelectionStrategy",
        "GreedyStrategy",
        "KnapsackBlockStrategy",
        "KnapsackStrategy",
        "NthLayerStrategy",
        "Strategy",
    ),
    "tensor_manager": ("TensorManager",),
    "gpu_memory": ("GPUMemoryUsage",),
    "interface": (
        "clear_profiling_durations", "collect_offload_timing", "get_gpu_memory_usage", "init", "load_profile",
        "offload", "offload_block", "offload_from_profile", "offload_from_state", "offload_units",
        "pause_profiling", "release", "request_strategy_replan", "reset_offload_timing", "resident_units",
        "resume_profiling", "save_profile", "set_config", "suspend_profiling", "update_offload_timing",
        "update_state",
    ),
    "model_proxy": ("OffloadModelProxy",),
    "offload_manager": ("DEFAULT_MANAGER_NAME", "OffloadManager", "get_offload_manager"),
    "offload_timing": (
        "OffloadTimingReport", "OffloadTimingSnapshot", "TrapTimingRecord", "TrapTimingStats",
        "format_offload_timing_table",
    ),
    "phases": ("OffloadPhase",),
    "replan": ("StrategyReplanStatus",),
    "shm": ("ShmCoordinatorError", "ShmCreatorDiedError", "ShmCreatorFailedError"),
}
# fmt: on
_HOME = {name: module for module, names in _NAMES.items() for name in names}
__all__ = [
    "__version__",
    "is_active",
    "phase",
    "report",
    *_HOME,
]


def __getattr__(name: str) -> Any:
    module = _HOME.get(name)
    if module is None:
        raise AttributeError(f"module 'flextensor' has no attribute {name!r}")
    value = getattr(_importlib.import_module(f"flextensor.{module}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})


_PHASES = {0: "NOT_INITIALIZED", 1: "DISCOVERY", 2: "PROFILING", 3: "INFERENCE"}


def phase() -> str | None:
    """The phase that this process is in, or None when libflextensor.so is not loaded or switched off."""
    from flextensor import _native

    return _PHASES.get(_native.phase())


def is_active() -> bool:
    """Whether libflextensor.so is in this process, preloaded or loaded by `offload()`, and not switched off."""
    return phase() is not None


def report() -> dict[str, Any]:
    """The run report as it stands now (docs/report.md); empty before the program's first use of CUDA.
    RuntimeError when libflextensor.so is not loaded."""
    from flextensor import _native

    return _json.loads(_native.report_json() or "{}")
