"""Peace with torch.compile: no graph break, guard, recompilation or warning more than without the hook,
and no hook where code is compiled."""

import warnings

import pytest
from conftest import WANTS, arrive

torch = pytest.importorskip("torch", reason="needs the torch that tools/ci_torch.sh installs")

MARKS = ("pass_begin", "pass_end", "owner_enter", "owner_exit", "trap_enter", "trap_exit")


@pytest.fixture(autouse=True)
def clean_compiler():
    """The compiler's caches and counters start empty."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*global hooks.*")
        yield


def graphs():
    """How many graphs were made, and the reasons for every break between two."""
    counters = torch._dynamo.utils.counters
    return counters["stats"]["unique_graphs"], dict(counters["graph_break"])


def hooked(net):
    """The paths of modules with any hook."""
    return {path for path, part in net.named_modules() if part._forward_hooks or part._forward_pre_hooks}


def test_a_compiled_model_runs_as_one_graph_with_marks_around_it(calls, nets):
    calls.answer(WANTS, 3)
    net = nets.Net()
    compiled = torch.compile(net, backend="eager", fullgraph=True)
    arrive()
    for _ in range(3):
        compiled(nets.tokens)
    assert graphs() == (1, {})
    assert [call[0] for call in calls.take(*MARKS)] == ["pass_begin", "pass_end"] * 3
    assert hooked(net) == set()


def test_names_of_a_compiled_model_are_those_of_the_model_itself(calls, nets):
    net = nets.Net()
    compiled = torch.compile(net, backend="eager")
    arrive()
    compiled(nets.tokens)
    told = calls.take()
    assert told[0] == ("model_begin", 1, "Net")
    assert [call[2] for call in told if call[0] == "model_weight"] == [
        name for name, _ in net.named_parameters()
    ]


def test_a_model_wrapped_after_the_arrival_raises_no_warning(calls, nets):
    arrive()
    net = nets.Net()
    compiled = torch.compile(net, backend="eager", fullgraph=True)
    for _ in range(2):
        compiled(nets.tokens)
    assert graphs() == (1, {})
    assert [call[0] for call in calls.take(*MARKS)] == ["pass_begin", "pass_end"] * 2


def test_a_compiled_function_around_a_model_is_traced_without_hooks(calls, nets):
    calls.answer(WANTS, 3)
    arrive()
    net = nets.Net()

    @torch.compile(backend="eager", fullgraph=True)
    def step(tokens):
        return net(tokens).relu()

    for _ in range(3):
        step(nets.tokens)
    assert graphs() == (1, {})


def test_a_root_that_is_compiled_from_inside_later_gives_no_break_and_no_recompilation(calls, nets):
    calls.answer(WANTS, 3)
    arrive()
    net = nets.Net()
    net(nets.tokens)
    assert hooked(net) > {"", "layers.0"}

    @torch.compile(backend="eager", fullgraph=True)
    def step(tokens):
        return net(tokens).relu()

    step(nets.tokens)
    net(nets.tokens)
    for wants in (0, 3, 0):
        calls.answer(WANTS, wants)
        net(nets.tokens)
        step(nets.tokens)
    assert graphs() == (1, {})


def test_module_compile_in_place_leaves_the_compiled_module_and_what_is_below_unhooked(calls, nets):
    calls.answer(WANTS, 3)
    arrive()
    net = nets.Net()
    for layer in net.layers:
        layer.compile(backend="eager", fullgraph=True)
    for _ in range(3):
        net(nets.tokens)
    assert graphs()[1] == {}
    assert hooked(net) == {"", "embed", "head"}
    told = [call[0] for call in calls.take(*MARKS)]
    assert told.count("pass_begin") == told.count("pass_end") == 3
    assert "trap_enter" not in told


def test_a_pass_during_which_something_is_compiled_still_ends(calls, nets):
    arrive()
    net = nets.Net()
    net(nets.tokens)
    net.layers[0].compile(backend="eager")
    calls.take()
    net(nets.tokens)
    assert calls.names() == ["pass_begin", "pass_end"]


def test_a_compiled_forward_attribute_keeps_marks_outside(calls, nets):
    calls.answer(WANTS, 3)
    arrive()
    net = nets.Net()
    net.forward = torch.compile(net.forward, backend="eager", fullgraph=True)
    for _ in range(3):
        net(nets.tokens)
    assert graphs() == (1, {})
    assert [call[0] for call in calls.take(*MARKS)] == ["pass_begin", "pass_end"] * 3


def test_explain_counts_the_same_graphs_with_the_hook_as_without(calls, nets):
    net = nets.Net()
    without = torch._dynamo.explain(net)(nets.tokens)
    torch._dynamo.reset()
    calls.answer(WANTS, 3)
    arrive()
    net(nets.tokens)
    with_hook = torch._dynamo.explain(net)(nets.tokens)
    assert (with_hook.graph_count, with_hook.graph_break_count) == (
        without.graph_count,
        without.graph_break_count,
    )
    assert with_hook.graph_break_count == 0


def test_code_of_ours_that_runs_between_graphs_is_not_compiled(calls, nets):
    arrive()
    net = nets.Net()

    class Broken(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.net = net

        def forward(self, tokens):
            torch._dynamo.graph_break()
            return self.net(tokens)

    outer = Broken()

    @torch.compile(backend="eager")
    def step(tokens):
        return outer(tokens)

    for _ in range(3):
        step(nets.tokens)
    with_hook = graphs()[0]
    from flextensor import hook

    hook._process._on = False
    hook._process._unhook_all()
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    for _ in range(3):
        step(nets.tokens)
    assert graphs()[0] == with_hook


def test_the_compiler_is_not_imported_by_the_hook_and_is_watched_when_the_program_imports_it(python):
    program = """
import ctypes, sys, torch
assert 'torch._dynamo' not in sys.modules
ctypes.CDLL(None).fake_bring_in()
for _ in range(1000): pass
from flextensor import hook, naming
naming.on_gpu = lambda tensor: True
assert 'torch._dynamo' not in sys.modules
net = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2))
@torch.compile(backend='eager', fullgraph=True)
def step(x): return net(x)
step(torch.ones(1, 2))
import torch._dynamo.callback as callback
assert callback.__spec__.loader is callback.__loader__ and type(callback.__loader__).__name__ == 'SourceFileLoader', callback.__loader__
print(torch._dynamo.utils.counters['graph_break'], len(callback.callback_handler.start_callbacks))
"""
    result = python(program)
    assert result.returncode == 0, result.stderr
    assert result.stdout.strip() == "Counter() 1"
