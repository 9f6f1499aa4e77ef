"""Bringing a model to the GPU and back, budgets, and what is said where there is no library."""

import logging
import subprocess
import sys

import pytest

torch = pytest.importorskip("torch", reason="needs the torch that tools/ci_torch.sh installs")
from flextensor import gpu_budget  # noqa: E402
from torch import nn  # noqa: E402


@pytest.fixture
def move():
    from flextensor import session

    return session.move


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(8, 4)
        self.head = nn.Linear(4, 8, bias=False)
        self.head.weight = self.embed.weight
        flat = torch.arange(12.0)
        self.left = nn.Parameter(flat[:6].view(2, 3), requires_grad=False)
        self.right = nn.Parameter(flat[4:].view(2, 4).t())
        self.register_buffer("mask", torch.ones(3))
        self.table = torch.full((2,), 5.0)
        self.note = "not a tensor"


def test_a_parameter_stays_the_same_object():
    from flextensor.session import _put

    model = Tied()
    parameter = model.embed.weight
    _put(model.embed, "weight", parameter, torch.full((8, 4), 3.0))
    assert model.embed.weight is parameter is model.head.weight and parameter[0, 0] == 3.0
    assert isinstance(parameter, nn.Parameter) and parameter.requires_grad


def test_everything_goes_and_what_was_one_parameter_stays_one(move):
    model = Tied()
    homes = move(model, torch.device("meta"))
    assert {tensor.device.type for tensor in [*model.state_dict().values(), model.table]} == {"meta"}
    assert model.head.weight is model.embed.weight and model.left.requires_grad is False
    assert {home.type for _, _, home in homes} == {"cpu"} and len(homes) == 6


def test_tensors_of_one_storage_share_one_again_with_their_views():
    from flextensor import session

    model = Tied()
    right = model.right.detach().clone()
    moved = []
    storages = {}
    shared = session._shared_storages(model)
    for name in ["left", "right"]:
        tensor = getattr(model, name)
        assert session._storage_of(tensor) in shared
        made = session._moved(tensor, torch.device("cpu"), storages)
        moved.append((name, tensor, made))
    (_, _, left), (_, _, again) = moved
    assert left.untyped_storage().data_ptr() == again.untyped_storage().data_ptr()
    assert torch.equal(again, right) and again.stride() == model.right.stride()
    assert session._storage_of(model.embed.weight) not in shared, (
        "one parameter in two places is no second tensor"
    )


def test_a_budget_is_capped_at_what_is_free_and_refused_below_256_mib(caplog):
    log = logging.getLogger("test")
    gib = 1 << 30
    assert gpu_budget.capped(2 * gib, 3 * gib, gpu_budget.MIN_GPU_BUDGET_BYTES, "cuda:0", log) == 2 * gib
    with caplog.at_level(logging.WARNING):
        assert gpu_budget.capped(3 * gib, 2 * gib, gpu_budget.MIN_GPU_BUDGET_BYTES, "cuda:0", log) == 2 * gib
    assert "capped at the 2048 MiB" in caplog.text
    with pytest.raises(RuntimeError, match="255 MiB of GPU memory are free on cuda:0"):
        gpu_budget.capped(3 * gib, 255 << 20, gpu_budget.MIN_GPU_BUDGET_BYTES, "cuda:0", log)
    assert gpu_budget.resolve_gpu_budget(None, 0) is None
    with pytest.raises(ValueError, match="max_gpu_mem_fraction = 2"):
        gpu_budget.resolve_gpu_budget(2, 0)


def test_without_the_library_offload_says_how_to_start_the_program():
    program = (
        "import flextensor as ft, torch\n"
        "from flextensor import managed_model, session\n"
        "managed_model.require_gpu = lambda config: True\n"
        "try:\n    ft.offload(torch.nn.Linear(2, 2), ft.OffloadConfig())\n"
        "except RuntimeError as error:\n    print(error)\n"
        "print(ft.get_offload_manager().model)\n"
    )
    import os
    from pathlib import Path

    import flextensor

    environment = {**os.environ, "PYTHONPATH": str(Path(flextensor.__file__).parents[1])}
    environment.pop("LD_PRELOAD", None)
    answer = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    said, model = answer.stdout.strip().splitlines()
    assert "flextensor run" in said and "LD_PRELOAD" in said and model == "None", answer.stderr


def test_components_are_recorded_with_their_arguments(tmp_path):
    import json

    from flextensor import instrumentation

    @instrumentation.instrumentable
    class Part:
        def __init__(self, size, *, name="x", what=None):
            self.size = size

    Part(3, what={"a": [1, object()]})
    record = instrumentation.get_registry().records()[-1]
    assert record.class_name.endswith("Part") and record.args["size"] == 3 and record.args["name"] == "x"
    assert record.args["what"]["a"][0] == 1 and record.args["what"]["a"][1].startswith("<object")
    path = instrumentation.dump_to_directory(tmp_path, extra={"more": 1})
    content = json.loads(path.read_text())
    assert content["more"] == 1 and content["components"][-1]["args"]["size"] == 3
    assert content["host"]["total_bytes"] > content["host"]["available_bytes"] > 0
    with pytest.raises(TypeError):
        Part()


def test_the_example_runs_without_a_gpu_as_its_page_says():
    import os
    from pathlib import Path

    import flextensor
    from conftest import ROOT

    environment = {**os.environ, "PYTHONPATH": str(Path(flextensor.__file__).parents[1])}
    answer = subprocess.run(
        [sys.executable, str(ROOT / "examples" / "offload.py")],
        env=environment,
        capture_output=True,
        text=True,
    )
    assert answer.stdout.splitlines() == [
        "24 units, 4 forwards to learn",
        *["phase PROFILING"] * 3,
        "phase INFERENCE",
        "ring 0 MiB, residents 0 MiB",
        "no transfer times: nothing is offloaded",
        "released: NOT_INITIALIZED, weights on cpu",
    ], answer.stderr
