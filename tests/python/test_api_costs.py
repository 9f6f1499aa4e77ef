"""What the Python interface costs, counted rather than timed: modules that an import brings along, calls in a forward. Times are measured by
bench/forward_overhead.py."""

import subprocess
import sys

import pytest
from conftest import PACKAGE, PHASE, WANTS
from test_api_manager import INFERENCE, PROFILING, ft, on  # noqa: F401

torch = pytest.importorskip("torch", reason="needs the torch that tools/ci_torch.sh installs")
from torch import nn  # noqa: E402

# Of the package: what a program that offloads needs of it.
NEEDED_BY_OFFLOAD = {
    "_native", "acceptance", "around", "compiled_offload", "compiling", "config", "entered_inference", "gpu_budget", "gpu_memory",
    "instrumentation", "interface", "live_config", "loading", "managed_model", "model_proxy", "naming", "offload_manager", "offload_timing",
    "option_fields", "phases", "replan", "replan_request", "roots", "saved_state", "session", "taking_over", "unit_marks", "units",
}  # fmt: skip


def imported(before, statement):
    """The modules that `statement` imports after `before`."""
    program = (
        f"import sys; sys.path.insert(0, {str(PACKAGE.parent)!r})\n{before}\nold = set(sys.modules)\n{statement}\n"
        "print(*sorted(set(sys.modules) - old))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return set(done.stdout.split())


def test_importing_the_package_imports_nothing_else():
    new = imported("import importlib, json, typing", "import flextensor")
    assert new == {"flextensor"}


def test_what_offloading_needs_is_a_part_of_the_package_and_nothing_that_torch_has_not_loaded():
    new = imported("import torch", "import flextensor as ft; ft.offload, ft.OffloadConfig, ft.load_config")
    own = {name.removeprefix("flextensor.") for name in new if name.startswith("flextensor.")}
    assert own == NEEDED_BY_OFFLOAD
    assert {name for name in new if not name.startswith("flextensor")} == set()


class Unit(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(4), requires_grad=False)

    def forward(self, x):
        return x


class Model(nn.Module):
    def __init__(self, units):
        super().__init__()
        self.layers = nn.ModuleList(Unit() for _ in range(units))

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x


def python_calls(model):
    """Calls of functions of the package in one forward, and in which files they are."""
    files = []

    def watch(frame, event, _argument):
        if event == "call" and frame.f_code.co_filename.startswith(str(PACKAGE)):
            files.append(frame.f_code.co_filename.rsplit("/", 1)[-1])

    x = torch.zeros(1)
    sys.setprofile(watch)
    try:
        model(x)
    finally:
        sys.setprofile(None)
    return files


def offloaded(ft, calls, units, phase):  # noqa: F811
    calls.answer(WANTS, 3)
    model = ft.offload(Model(units), on(), name=f"{units} units")
    model(torch.zeros(1))
    calls.answer(PHASE, phase)
    calls.answer(WANTS, 3 if phase == PROFILING else 0)
    for _ in range(3):
        model(torch.zeros(1))
    return model


def test_in_inference_no_call_of_a_forward_belongs_to_a_unit(ft, calls):  # noqa: F811
    few, many = (len(python_calls(offloaded(ft, calls, units, INFERENCE))) for units in (40, 80))
    assert few == many, "what is looked at before a pass is bounded, and units have no hooks"


def test_in_inference_a_forward_costs_a_bounded_number_of_calls(ft, calls):  # noqa: F811
    made = python_calls(offloaded(ft, calls, 40, INFERENCE))
    assert len(made) <= 120, made
    assert "unit_marks.py" in made, "the root's hooks are counted"


def test_while_learning_a_unit_costs_two_calls_and_has_no_hook(ft, calls):  # noqa: F811
    models = [offloaded(ft, calls, units, PROFILING) for units in (40, 80)]
    few, many = map(python_calls, models)
    assert (len(many) - len(few)) / 40 == 2, (
        "a unit begins, and ends; what the runtime hears is told without Python"
    )
    assert not any(layer._forward_hooks or layer._forward_pre_hooks for layer in models[1].layers), (
        "a module with hooks is called by torch's long way"
    )
