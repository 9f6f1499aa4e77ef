"""`offload()` in a program that was not started with the library: loading it, and giving weights memory that it manages."""

import os
import subprocess
import sys

import pytest
from conftest import PACKAGE, ROOT

torch = pytest.importorskip("torch", reason="needs the torch that tools/ci_torch.sh installs")
from flextensor import loading, naming, taking_over  # noqa: E402
from torch import nn  # noqa: E402

STAND_IN = ROOT / "target" / "fake_interposer.so"
SETUP = f"""
import sys, ctypes, logging
sys.path.insert(0, {str(PACKAGE.parent)!r})
import torch, flextensor
from pathlib import Path
from flextensor import _native, loading, naming, session
loading.library = lambda: Path({str(STAND_IN)!r})
naming.on_gpu = lambda tensor: True
session.cuda_is_available = lambda: True
session.device_of = lambda config: torch.device("cpu")
from flextensor import taking_over
taking_over.GpuMemory.give_back = lambda self: print("gave back")
taking_over.GpuMemory.settle = lambda self: None
def said():
    library = ctypes.CDLL(None)
    buffer = ctypes.create_string_buffer(1 << 16)
    library.fake_take(buffer, ctypes.c_size_t(1 << 16))
    return buffer.value.decode()
"""


def run(program, **environment):
    """Runs a program text in an interpreter that no library is preloaded into."""
    if not STAND_IN.is_file():
        pytest.skip("needs the recording stand-in: run tools/test_python.sh")
    kept = {name: value for name, value in os.environ.items() if name != "LD_PRELOAD"}
    done = subprocess.run(
        [sys.executable, "-c", SETUP + program],
        env={**kept, **environment},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done


def test_offload_loads_the_library_and_starts_it_before_it_names_the_model():
    done = run(
        """
assert not flextensor.is_active() and not loading.came_late()
model = flextensor.offload(torch.nn.Linear(4, 4), flextensor.OffloadConfig(pinned_memory=False))
assert loading.came_late() and flextensor.is_active()
calls = [line.split()[0] for line in said().splitlines()]
assert calls.count("attach") == 1 and calls.index("attach") < calls.index("model_begin"), calls
flextensor.release()
flextensor.offload(torch.nn.Linear(4, 4), flextensor.OffloadConfig(pinned_memory=False))
print(len([line for line in said().splitlines() if line.startswith("model_begin")]))
"""
    )
    assert done.stdout.splitlines()[-1] == "1"
    line = "CUDA graphs that were captured before must be captured again"
    assert done.stderr.count(line) == 1, done.stderr


def test_a_library_that_is_not_there_or_does_not_start_is_a_runtime_error_that_says_what_to_do():
    done = run(
        """
def refused(model=None):
    linear = torch.nn.Linear(4, 4)
    weight = linear.weight.detach().clone()
    try:
        flextensor.offload(linear, flextensor.OffloadConfig())
    except RuntimeError as error:
        assert torch.equal(linear.weight, weight)
        print(error)
loading.library = lambda: Path("/nonexistent/libflextensor.so")
refused()
loading.library = lambda: Path(%r)
ctypes.CDLL(%r, mode=ctypes.RTLD_GLOBAL).fake_set(5, ctypes.c_long(-3))
loading._came_late = True
refused()
ctypes.CDLL(None).fake_set(5, ctypes.c_long(-1))
ctypes.CDLL(None).fake_set(1, ctypes.c_long(-1))
refused()
"""
        % (str(STAND_IN), str(STAND_IN))
    )
    missing, unfit, off = [line for line in done.stdout.splitlines() if "libflextensor" in line]
    assert "cannot be loaded" in missing and "flextensor run" in missing
    assert "could not start" in unfit and "stderr says why" in unfit and "FT_ENABLED" not in unfit and "flextensor run" in unfit
    assert "switched off" in off and "FT_ENABLED" in off


def test_switched_off_nothing_is_loaded():
    done = run(
        """
model = flextensor.offload(torch.nn.Linear(4, 4), flextensor.OffloadConfig(enabled=False))
model(torch.zeros(1, 4))
assert not loading.came_late() and not hasattr(ctypes.CDLL(None), "ft_api_version")
"""
    )
    assert "captured" not in done.stderr


class Memory:
    """An allocator that stands for torch's on a GPU: storages of the CPU, of which some count as managed."""

    device = torch.device("cpu")

    def __init__(self, monkeypatch):
        self.old = {}  # address -> bytes, of before the library
        self.log = []
        self.room = 1 << 40
        self.grows = False
        self.serves = True
        self.holes = 0  # that many places of old allocations are free, and are dealt out first
        self.dealt_holes = set()
        self._reserved = 0
        monkeypatch.setattr(naming, "on_gpu", lambda tensor: not tensor.is_meta)

    def of_before(self, model):
        for tensor in model.parameters():
            storage = tensor.untyped_storage()
            self.old[storage.data_ptr()] = storage.nbytes()

    def is_managed(self, address):
        if self.holes and not self.is_old(address) and address not in self.dealt_holes:
            self.holes -= 1
            self.dealt_holes.add(address)
        return self.serves and address not in self.dealt_holes and not self.is_old(address)

    def is_old(self, address):
        return any(first <= address < first + size for first, size in self.old.items())

    def settle(self):
        self.log.append("settle")

    def give_back(self):
        self.log.append("give back")

    def reserved_bytes(self):
        self._reserved += self.grows
        return self._reserved

    def has_room(self, nbytes):
        return self.room >= nbytes

    def allocations(self):
        return list(self.old.items())


@pytest.fixture
def memory(monkeypatch):
    return Memory(monkeypatch)


WIDTH = 640  # 1.6 MB of floats: more than torch's small allocations


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH, bias=False)
        self.second = nn.Linear(WIDTH, WIDTH, bias=False)
        self.head = nn.Linear(WIDTH, WIDTH, bias=False)
        self.head.weight = self.first.weight
        self.norm = nn.LayerNorm(WIDTH)
        self.half = self.second.weight.detach()[: WIDTH // 2]


def test_every_large_storage_gets_managed_memory_and_stays_the_same_object(memory):
    model = Tied().requires_grad_(False)
    parameters = dict(model.named_parameters(remove_duplicate=False))
    bytes_before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    storages = {name: tensor.untyped_storage()._cdata for name, tensor in parameters.items()}
    memory.of_before(model)
    norm = model.norm.weight.data_ptr()
    taken = taking_over.take_over(model, memory)
    assert taken == 2 * WIDTH * WIDTH * 4
    for name, tensor in model.named_parameters(remove_duplicate=False):
        assert tensor is parameters[name] and tensor.untyped_storage()._cdata == storages[name]
        assert torch.equal(tensor, bytes_before[name])
    assert memory.is_managed(model.first.weight.data_ptr())
    assert memory.is_managed(model.second.weight.data_ptr())
    assert model.head.weight is model.first.weight
    assert model.half.data_ptr() == model.second.weight.data_ptr(), "a view follows its storage"
    assert model.norm.weight.data_ptr() == norm, "small allocations are never managed"


def test_weight_by_weight_old_memory_goes_back_before_new_is_asked_for(memory, monkeypatch):
    model = Tied().requires_grad_(False)
    memory.of_before(model)
    alive = []
    resize = torch.UntypedStorage.resize_

    def watched(storage, nbytes):
        resize(storage, nbytes)
        alive.append(sum(each.untyped_storage().nbytes() for each in {model.first.weight, model.second.weight}))

    monkeypatch.setattr(torch.UntypedStorage, "resize_", watched)
    taking_over.take_over(model, memory)
    whole = 2 * WIDTH * WIDTH * 4
    assert max(alive) <= whole and min(alive) == whole // 2
    assert memory.log.count("give back") == 3, "once for each weight, and at the end"


def test_weights_of_one_allocation_leave_it_together(memory):
    flat = torch.arange(2 * WIDTH * WIDTH, dtype=torch.float32)
    model = nn.ModuleList(nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(2)).requires_grad_(False)
    memory.of_before(model)
    addresses = sorted(memory.old)
    # One allocation of the driver's around both.
    memory.allocations = lambda: [(addresses[0], addresses[-1] + WIDTH * WIDTH * 4 - addresses[0])]
    for at, layer in enumerate(model):
        layer.weight.copy_(flat[at * WIDTH * WIDTH :][: WIDTH * WIDTH].view(WIDTH, WIDTH))
    memory.room = 0  # nothing can be put aside on the GPU
    taking_over.take_over(model, memory)
    assert memory.log.count("give back") == 2, "once for the allocation, and at the end"
    for at, layer in enumerate(model):
        assert torch.equal(layer.weight.flatten(), flat[at * WIDTH * WIDTH :][: WIDTH * WIDTH])
        assert memory.is_managed(layer.weight.data_ptr())


def test_holes_in_old_allocations_are_kept_busy_until_memory_is_managed(memory):
    model = Tied().requires_grad_(False)
    bytes_before = model.first.weight.clone(), model.second.weight.clone()
    memory.of_before(model)
    memory.holes = 3
    assert taking_over.take_over(model, memory) == 2 * WIDTH * WIDTH * 4
    assert memory.holes == 0 and len(memory.dealt_holes) == 3
    for layer, before in zip((model.first, model.second), bytes_before, strict=True):
        assert memory.is_managed(layer.weight.data_ptr()) and torch.equal(layer.weight, before)


def test_an_allocator_that_is_not_served_keeps_the_weights_whole_and_is_said(memory, caplog):
    model = Tied().requires_grad_(False)
    before = model.first.weight.clone()
    memory.of_before(model)
    memory.serves, memory.grows = False, True
    assert taking_over.take_over(model, memory) == 0
    assert "does not manage" in caplog.text and str(2 * WIDTH * WIDTH * 4) in caplog.text
    assert torch.equal(model.first.weight, before)


def test_what_is_managed_already_and_what_is_not_the_allocators_own_is_left_alone(memory):
    model = Tied().requires_grad_(False)
    address = model.first.weight.data_ptr()
    assert taking_over.take_over(model, memory) == 0 and memory.log == []
    assert model.first.weight.data_ptr() == address
    shared = torch.from_numpy(__import__("numpy").zeros((WIDTH, WIDTH), dtype="float32"))
    other = nn.Module()
    other.weight = nn.Parameter(shared, requires_grad=False)
    memory.of_before(other)
    assert taking_over.take_over(other, memory) == 0 and other.weight.data_ptr() == shared.data_ptr()



class Failure(Exception):
    """What a test injects."""


class Interrupts:
    """Raises at the n-th step that moves memory: storages that change their size, copies, and what asks the allocator. From
    then on storages get no memory `refuses` times."""

    def __init__(self, monkeypatch, memory, at, kind=Failure, refuses=0):
        self.at, self.kind, self.refuses = at, kind, refuses
        self.steps = 0
        self.has_raised = False
        for owner, name in (
            (torch.UntypedStorage, "resize_"),
            (torch.Tensor, "copy_"),
            (torch.Tensor, "to"),
            (torch, "empty"),
            (memory, "settle"),
            (memory, "give_back"),
            (memory, "reserved_bytes"),
        ):
            monkeypatch.setattr(owner, name, self.watched(getattr(owner, name), name))

    def watched(self, real, name):
        def step(*arguments, **keywords):
            if name == "empty" and arguments == (0,):
                return real(*arguments, **keywords)
            self.steps += 1
            if self.steps == self.at:
                self.has_raised = True
                raise self.kind("injected")
            if self.has_raised and name == "resize_" and arguments[1] and self.refuses:
                self.refuses -= 1
                raise Failure("there is no memory")
            return real(*arguments, **keywords)

        return step


def together(memory):
    """Two weights in one allocation of the driver's, and views of them; with what they hold."""
    model = Tied().requires_grad_(False)
    memory.old, memory.dealt_holes, memory.holes = {}, set(), 1
    memory.of_before(model)
    memory.allocations = lambda: [(0, 1 << 62)]
    return model, {name: tensor.clone() for name, tensor in [*model.state_dict().items(), ("half", model.half)]}


def assert_has(model, before):
    for name, tensor in [*model.state_dict().items(), ("half", model.half)]:
        # An empty storage has no address to read from.
        assert tensor.untyped_storage().nbytes() and torch.equal(tensor, before[name]), name
    assert model.head.weight is model.first.weight
    assert model.half.data_ptr() == model.second.weight.data_ptr(), "a view follows its storage"


@pytest.mark.parametrize("kind", [Failure, KeyboardInterrupt])
def test_whatever_step_fails_every_weight_has_the_bytes_of_before(memory, kind):
    raised = 0
    for at in range(1, 100):
        model, before = together(memory)
        with pytest.MonkeyPatch.context() as patch:
            interrupts = Interrupts(patch, memory, at, kind)
            try:
                taking_over.take_over(model, memory)
            except kind:
                raised += 1
        assert_has(model, before)
        if not interrupts.has_raised:
            break
    assert raised == at - 1 and raised > 12


@pytest.mark.parametrize("refuses", [1, 2, 3, 4, 100])
def test_without_memory_to_go_back_to_the_tensors_get_the_copies_and_the_error_says_so(memory, refuses):
    elsewhere = 0
    for at in range(1, 100):
        model, before = together(memory)
        parameters = [model.first.weight, model.second.weight]
        with pytest.MonkeyPatch.context() as patch:
            interrupts = Interrupts(patch, memory, at, refuses=refuses)
            try:
                taking_over.take_over(model, memory)
            except Failure:
                pass
            except RuntimeError as error:
                elsewhere += 1
                assert isinstance(error.__cause__, Failure) and "injected" in str(error)
                assert "copies in host memory" in str(error)
        assert_has(model, before)
        assert model.first.weight is parameters[0] and model.second.weight is parameters[1]
        if not interrupts.has_raised:
            break
    # With fewer refusals than twice the storages the second attempt finds memory.
    assert (elsewhere > 0) == (refuses >= 3)


def test_an_interrupt_stays_one_where_weights_have_to_stay_in_host_memory(memory, monkeypatch, caplog):
    model, before = together(memory)
    with pytest.MonkeyPatch.context() as patch:
        Interrupts(patch, memory, 7, KeyboardInterrupt, refuses=100)
        with pytest.raises(KeyboardInterrupt):
            taking_over.take_over(model, memory)
    assert_has(model, before)
    assert "copies in host memory" in caplog.text


def test_a_model_is_let_go_of_even_if_it_cannot_be_brought_back():
    done = run(
        """
from flextensor import hook
loading.require_library()
class Broken(Exception): pass
def breaks(*arguments): raise Broken("take over")
taking_over.take_over = breaks
def stuck(self): raise Broken("move back")
session.Session._move_back = stuck
host = hook.process()
let_go, seen = host.let_go, []
host.let_go = lambda model: (seen.append(model), let_go(model))
linear = torch.nn.Linear(4, 4)
try:
    flextensor.offload(linear, flextensor.OffloadConfig(pinned_memory=False))
except Broken as error:
    assert str(error.__context__) == "take over"
    print("let go", [each is linear for each in seen])
"""
    )
    assert "let go [True]" in done.stdout


def test_a_limit_that_leaves_out_what_was_there_before_is_said_once():
    program = """
for _ in range(2):
    flextensor.offload(torch.nn.Linear(4, 4), flextensor.OffloadConfig(pinned_memory=False))
    flextensor.release()
"""
    line = "gpu_limit is 8GiB, but GPU memory that this process held before"
    assert run(program, FAKE_CONFIG='{"gpu_limit": "8GiB"}').stderr.count(line) == 1
    assert "gpu_limit" not in run(program, FAKE_CONFIG='{"gpu_limit": null}').stderr


def test_threads_that_offload_at_once_load_the_library_once_and_each_waits_for_its_start():
    done = run(
        """
import threading, types
loads, attached = [], []
load, attach = loading._load, _native.attach
inside, go_on = threading.Event(), threading.Event()
def slow_load():
    loads.append(1); inside.set(); go_on.wait(); load()
loading._load = slow_load
def counted():
    attached.append(threading.get_ident()); return attach()
loading._native = types.SimpleNamespace(connect=_native.connect, phase=_native.phase, attach=counted)
first = threading.Thread(target=loading.require_library); first.start(); inside.wait()
second = threading.Thread(target=loading.require_library); second.start()
go_on.set()
first.join(); second.join()
print(len(loads), len(set(attached)))
"""
    )
    assert done.stdout.split() == ["1", "2"]
