"""What the Python tests share: the recording stand-in for libflextensor.so, and a hook that is fresh for
every test.

The stand-in must be preloaded and torch must be the build made by tools/ci_torch.sh; tools/test_python.sh
arranges both. Run without them, the tests that need them are skipped and say so; those of the command line
run anyway.
"""

import ctypes
import gc
import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "pyhook" / "python" / "flextensor"
ARRIVE = PACKAGE / "_arrive.py"
BENCH = ROOT / "bench"
sys.path.insert(0, str(PACKAGE.parent))

WANTS, PHASE, REFUSE_MODELS, WEIGHT_ANSWER, PRIVATE_ANSWER, ATTACH_ANSWER, REPLAN_ANSWER = range(7)


def arrive():
    """Executes the arrival text as the interposer does."""
    exec(compile(ARRIVE.read_text(), str(ARRIVE), "exec"), {"__name__": "_arrive", "__file__": str(ARRIVE)})


class Calls:
    """The calls that the stand-in recorded, as tuples of a name and numbers or texts."""

    def __init__(self, library):
        self._library = library
        self._library.fake_take.restype = ctypes.c_size_t

    def answer(self, which, value):
        """Sets an answer of the stand-in."""
        self._library.fake_set(which, ctypes.c_long(value))

    def take(self, *names):
        """The calls since the last time; only those with one of `names` if given."""
        size = self._library.fake_take(None, ctypes.c_size_t(0)) + 1
        buffer = ctypes.create_string_buffer(size + 4096)
        self._library.fake_take(buffer, ctypes.c_size_t(len(buffer)))
        calls = []
        for line in buffer.value.decode().splitlines():
            name, *rest = line.split(" ")
            calls.append((name, *(int(word) if word.lstrip("-").isdigit() else word for word in rest)))
        return [call for call in calls if not names or call[0] in names]

    def names(self):
        """Only the names of the calls since the last time."""
        return names(self.take())


def names(calls):
    """Only the names of recorded calls."""
    return [call[0] for call in calls]


@pytest.fixture
def library(tmp_path):
    """A file that stands for libflextensor.so where nothing is preloaded."""
    path = tmp_path / "libfake.so"
    path.write_text("not a library")
    return path


@pytest.fixture
def calls(monkeypatch):
    """A fresh hook for which every tensor lies on the GPU, and the record of what it says."""
    if not hasattr(ctypes.CDLL(None), "fake_take"):
        pytest.skip("needs the recording stand-in preloaded: run tools/test_python.sh")
    torch = pytest.importorskip("torch", reason="needs the torch that tools/ci_torch.sh installs")
    assert not torch.cuda.is_available(), "these tests are for a torch without a GPU"
    from flextensor import hook, naming

    def retire():
        if hook._process is not None:
            hook._process._on = False
            hook._process._unhook_all()
        hook._process, hook._refused = None, False

    retire()
    gc.collect()
    record = Calls(ctypes.CDLL(None))
    ctypes.CDLL(None).fake_reset()
    monkeypatch.setattr(naming, "on_gpu", lambda tensor: tensor.device.type == "cpu")
    yield record
    retire()


@pytest.fixture
def python():
    """Runs a program text in a new interpreter under the stand-in: `python("...", "-I")`."""

    def run(program, *options, **environment):
        return subprocess.run(
            [sys.executable, *options, "-c", program],
            env={**os.environ, "FAKE_ARRIVE": str(ARRIVE), **environment},
            capture_output=True,
            text=True,
            timeout=120,
        )

    return run


@pytest.fixture
def nets():
    """Small models."""
    torch = pytest.importorskip("torch")
    from torch import nn

    class Block(nn.Module):
        def __init__(self, width=4):
            super().__init__()
            self.up = nn.Linear(width, 2 * width)
            self.down = nn.Linear(2 * width, width, bias=False)

        def forward(self, x):
            return x + self.down(self.up(x).relu())

    class Net(nn.Module):
        def __init__(self, blocks=2, width=4):
            super().__init__()
            self.embed = nn.Embedding(8, width)
            self.layers = nn.ModuleList(Block(width) for _ in range(blocks))
            self.head = nn.Linear(width, 8, bias=False)

        def forward(self, tokens, attention_mask=None):
            x = self.embed(tokens)
            for layer in self.layers:
                x = layer(x)
            return self.head(x)

    return SimpleNamespace(Block=Block, Net=Net, tokens=torch.zeros(1, 3, dtype=torch.long), torch=torch)
