"""How the hook comes into a process, and where it stays away: each test starts an interpreter under the
stand-in."""

import os
import shutil
import subprocess
import sys
import venv

import pytest
from conftest import ARRIVE, PACKAGE

pytest.importorskip("torch", reason="needs the torch that tools/ci_torch.sh installs")

# What stands for a program: it knows nothing of us but for the signal that the real interposer gives by
# itself.
SIGNAL = """
import ctypes
def signal():
    ctypes.CDLL(None).fake_bring_in()
    for _ in range(1000):
        pass
"""
MODEL = """
import torch
signal()
from flextensor import naming
naming.on_gpu = lambda tensor: True
net = torch.nn.Linear(2, 2)
net(torch.ones(1, 2))
buffer = ctypes.create_string_buffer(1 << 16)
ctypes.CDLL(None).fake_take(buffer, ctypes.c_size_t(len(buffer)))
print([line.split()[0] for line in buffer.value.decode().splitlines()])
"""
EXPECTED = (
    "['model_begin', 'model_owner', 'model_weight', 'model_weight', 'model_end', 'pass_begin', 'pass_end']"
)


def test_the_hook_arrives_in_a_program_that_does_not_import_it(python):
    result = python(SIGNAL + MODEL)
    assert (result.returncode, result.stdout.strip(), result.stderr) == (0, EXPECTED, "")


def test_the_hook_arrives_in_an_isolated_interpreter(python):
    assert python(SIGNAL + MODEL, "-I").stdout.strip() == EXPECTED


def test_the_hook_arrives_beside_a_sitecustomize_of_the_program(python, tmp_path):
    (tmp_path / "sitecustomize.py").write_text("import sys; sys.flag_of_the_site = 1\n")
    result = python(SIGNAL + MODEL + "import sys; print(sys.flag_of_the_site)", PYTHONPATH=str(tmp_path))
    assert result.stdout.split("\n")[:2] == [EXPECTED, "1"]


def test_the_hook_arrives_in_another_virtual_environment(tmp_path):
    venv.create(tmp_path / "env", symlinks=True)
    import torch

    result = subprocess.run(
        [tmp_path / "env" / "bin" / "python", "-c", SIGNAL + MODEL],
        env={
            **os.environ,
            "FAKE_ARRIVE": str(ARRIVE),
            "PYTHONPATH": os.path.dirname(os.path.dirname(torch.__file__)),
        },
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert result.stdout.strip() == EXPECTED, result.stderr


def test_a_signal_before_torch_is_imported_does_nothing_and_a_later_one_works(python):
    program = SIGNAL + "signal()\nimport sys\nassert 'flextensor' not in sys.modules\n" + MODEL
    result = python(program)
    assert (result.stdout.strip(), result.stderr) == (EXPECTED, "")


def test_signals_in_the_middle_of_the_import_of_torch_do_no_harm(python):
    program = (
        SIGNAL
        + """
import sys
class Finder:
    count = 0
    def find_spec(self, name, path=None, target=None):
        if name.startswith('torch.'):
            Finder.count += 1
            signal()
sys.meta_path.insert(0, Finder())
"""
        + MODEL
        + "assert Finder.count > 100"
    )
    result = python(program)
    assert (result.returncode, result.stdout.strip(), result.stderr) == (0, EXPECTED, "")


def test_a_process_without_torch_stays_as_it_is(python):
    result = python(
        SIGNAL + "import sys\nbefore = set(sys.modules)\nsignal()\nprint(set(sys.modules) - before)"
    )
    assert (result.stdout.strip(), result.stderr) == ("set()", "")


def test_a_package_without_its_native_module_gives_one_line_and_nothing_else(python, tmp_path):
    copy = tmp_path / "flextensor"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    result = python(
        SIGNAL + "import torch\nsignal()\nsignal()\nprint('done')", FAKE_ARRIVE=str(copy / "_arrive.py")
    )
    assert (result.returncode, result.stdout.strip()) == (0, "done")
    assert (
        result.stderr.count("\n") == 1
        and "no weight is streamed: the Python hook did not load" in result.stderr
    )


def test_another_interface_version_gives_one_line_that_names_both(python):
    result = python(SIGNAL + "import torch\nsignal()\nsignal()\nprint('done')", FAKE_VERSION="7")
    assert result.stdout.strip() == "done"
    assert (
        result.stderr.count("\n") == 1
        and "version 7" in result.stderr
        and "version 1" not in result.stderr.replace("speaks 1", "")
    )


def test_without_the_preload_the_native_module_says_so():
    result = subprocess.run(
        [sys.executable, "-c", "import flextensor\nprint(flextensor.is_active())\nflextensor.report()"],
        env={**{k: v for k, v in os.environ.items() if k != "LD_PRELOAD"}, "PYTHONPATH": str(PACKAGE.parent)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert result.stdout.strip() == "False"
    assert "libflextensor.so is not preloaded" in result.stderr


def test_a_package_of_the_same_name_is_left_alone_with_one_line(python, tmp_path):
    (tmp_path / "flextensor").mkdir()
    (tmp_path / "flextensor" / "__init__.py").write_text("other = True\n")
    program = (
        SIGNAL + "import torch, flextensor\nsignal()\nsignal()\nprint(flextensor.other, flextensor.__file__)"
    )
    result = python(program, PYTHONPATH=str(tmp_path))
    assert result.stdout.split()[0] == "True" and str(tmp_path) in result.stdout
    assert result.stderr.count("\n") == 1 and "another package named flextensor" in result.stderr


def test_a_forked_child_says_nothing(python):
    program = (
        SIGNAL
        + MODEL
        + """
import os, sys
sys.stdout.flush()
child = os.fork()
if child:
    os.waitpid(child, 0)
net(torch.ones(1, 2))
torch.nn.Linear(2, 2)(torch.ones(1, 2))
ctypes.CDLL(None).fake_take(buffer, ctypes.c_size_t(len(buffer)))
print(len(buffer.value.decode().splitlines()))
if not child:
    sys.stdout.flush()
    os._exit(0)
"""
    )
    result = python(program)
    in_child, in_parent = result.stdout.strip().split("\n")[1:]
    assert in_child == "0" and int(in_parent) > 2, (result.stdout, result.stderr)


def test_data_loader_workers_run_beside_the_hook(python):
    program = (
        SIGNAL
        + MODEL
        + """
from torch.utils.data import DataLoader
class Data(torch.utils.data.Dataset):
    def __len__(self): return 8
    def __getitem__(self, index): return torch.nn.Linear(2, 2)(torch.ones(2)).detach() * 0 + index
print(sum(batch.sum().item() for batch in DataLoader(Data(), batch_size=2, num_workers=2)))
"""
    )
    result = python(program)
    assert result.stdout.strip().split("\n")[1:] == ["56.0"], result.stderr


def test_the_interpreter_ends_cleanly_with_a_live_model(python):
    result = python(SIGNAL + MODEL + "import threading\nsignal()\n")
    assert (result.returncode, result.stderr) == (0, "")
