"""The names and parameters that the documents give the Python interface: none is missing, and none is called otherwise."""

import ast
import inspect

import pytest
from conftest import PACKAGE

pytest.importorskip("torch", reason="needs the torch that tools/ci_torch.sh installs")
import flextensor

# Of OffloadManager: methods with their parameters, properties with None.
MANAGER = {
    "init": ["config"],
    "set_config": ["config"],
    "offload": ["model", "config", "compile_fn"],
    "offload_from_profile": ["model", "profile_directory", "config", "compile_fn"],
    "offload_from_state": ["model", "state", "config", "allow_strategy_replan"],
    "offload_block": ["name"],
    "offload_units": [],
    "resident_units": [],
    "get_gpu_memory_usage": [],
    "save_profile": ["profile_directory"],
    "load_profile": ["profile_directory", "model"],
    "clear_profiling_durations": [],
    "suspend_profiling": [],
    "resume_profiling": [],
    "pause_profiling": [],
    "is_profiling_suspended": [],
    "collect_offload_timing": [],
    "reset_offload_timing": [],
    "update_offload_timing": ["replay_generation"],
    "reset_offload_timing_sampling": [],
    "begin_offload_timing_sample": [],
    "finish_offload_timing_sample": ["replay_generation"],
    "cancel_offload_timing_sample": [],
    "request_strategy_replan": ["manual_update_state"],
    "update_state": ["replay_generation"],
    "release": ["preserve_model"],
    "get_tensor_manager": [],
    "sync_prev_onload": [],
    "join_after_forward": [],
    "get_layer_label_by_idx": [],
    "benchmark_transfers": [],
    "phase": None,
    "model": None,
    "iters_before_inference": None,
    "eager_profiling_iters": None,
    "skip_discovery_honored": None,
    "external_compile_active": None,
    "compiled_offload_active": None,
    "compiled_replan_active": None,
    "compiled_profile_active": None,
    "compiled_offload_manager_id": None,
    "strategy_replan_status": None,
}

# Of the package: functions with their parameters.
FUNCTIONS = {
    "init": ["config", "name"],
    "offload": ["model", "config", "name", "compile_fn"],
    "set_config": ["config", "name"],
    "save_profile": ["profile_directory", "name"],
    "load_profile": ["profile_directory", "model", "name"],
    "offload_from_profile": ["model", "profile_directory", "config", "name", "compile_fn"],
    "offload_from_state": ["model", "state", "config", "name", "allow_strategy_replan"],
    "offload_block": ["block_name", "name"],
    "release": ["name", "preserve_model"],
    "get_gpu_memory_usage": ["name"],
    "reset_offload_timing": ["name"],
    "collect_offload_timing": ["name"],
    "update_offload_timing": ["name", "replay_generation"],
    "offload_units": ["name"],
    "resident_units": ["name"],
    "request_strategy_replan": ["name", "manual_update_state"],
    "update_state": ["name", "replay_generation"],
    "clear_profiling_durations": ["name"],
    "suspend_profiling": ["name"],
    "resume_profiling": ["name"],
    "pause_profiling": ["name"],
    "get_offload_manager": ["name"],
    "load_config": ["config_path", "env_prefix", "use_env", "config_file_env_var", "kwargs"],
    "load_config_from_file": ["config_path", "env_var", "kwargs"],
    "load_config_from_env": ["prefix", "kwargs"],
    "load_model_from_profile": [
        "tensor_manager", "profile_directory", "model_class", "model_args", "safetensor_path", "model_kwargs",
        "buffer_device", "diagnose", "strict",
    ],
    "format_offload_timing_table": ["data"],
}  # fmt: skip

OTHERS = (
    "DEFAULT_MANAGER_NAME GPUMemoryUsage OffloadConfig OffloadManager OffloadModelProxy PinnedMemoryMode StrategyReplanStatus "
    "OffloadTimingReport OffloadTimingSnapshot TrapTimingRecord TrapTimingStats TensorManager Strategy BenchmarkReplace "
    "PreloadToDevice TensorBenchmarkMode ShmCoordinatorError ShmCreatorDiedError ShmCreatorFailedError "
    "AdaptiveKnapsackStrategy AdaptiveStrategy BudgetFillGreedyStrategy BudgetFillLayerDEStrategy BudgetFillStrategy "
    "BudgetFillTensorDEStrategy GlobalOffloadStrategy GlobalTensorSelectionStrategy GreedyStrategy KnapsackBlockStrategy "
    "KnapsackStrategy NthLayerStrategy"
).split()


def undocumented(node, path):
    """Public classes, functions and methods below a node that have no docstring."""
    for child in node.body:
        if isinstance(child, ast.FunctionDef | ast.ClassDef) and not child.name.startswith("_"):
            if not ast.get_docstring(child):
                yield f"{path}.{child.name}"
            if isinstance(child, ast.ClassDef):
                yield from undocumented(child, f"{path}.{child.name}")


@pytest.mark.parametrize(
    "file", sorted(PACKAGE.rglob("*.py")), ids=lambda file: str(file.relative_to(PACKAGE))
)
def test_everything_public_of_a_file_is_documented(file):
    tree = ast.parse(file.read_text())
    assert ast.get_docstring(tree) and list(undocumented(tree, file.stem)) == []


# Sessions that share memory come later.
NOT_YET = {"SharedOffloadSession"}


def parameters(function):
    return [name for name in inspect.signature(function).parameters if name != "self"]


@pytest.mark.parametrize("name", MANAGER)
def test_a_manager_has_every_documented_member(name):
    member = inspect.getattr_static(flextensor.OffloadManager, name)
    if MANAGER[name] is None:
        assert isinstance(member, property)
    else:
        assert parameters(getattr(flextensor.OffloadManager, name)) == MANAGER[name]
    assert inspect.getdoc(member), "it is documented"


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_package_has_every_documented_function(name):
    function = getattr(flextensor, name)
    assert parameters(function) == FUNCTIONS[name] and inspect.getdoc(function)


def test_the_package_has_every_other_documented_name_and_lists_it():
    listed = set(dir(flextensor)) & set(flextensor.__all__)
    assert {*FUNCTIONS, *OTHERS} <= listed
    for name in OTHERS:
        assert getattr(flextensor, name) is not None
    assert not NOT_YET & listed, "what exists by now is to be listed above"


def test_nothing_public_of_a_manager_is_undocumented_by_this_list():
    public = {name for name in vars(flextensor.OffloadManager) if not name.startswith("_")}
    assert public == set(MANAGER)
