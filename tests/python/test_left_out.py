"""Workers whose environment lost LD_PRELOAD (nvbit #72): they run as without us, and `flextensor doctor` names
them; starters that keep the environment keep us.
"""

import ctypes
import json
import os
import subprocess
import sys

import pytest
from test_cli import CLEAN, flextensor, stand_in

# A program that says whether the library is loaded, uses the "driver", and waits.
WORKER = "import ctypes, sys; ctypes.CDLL(sys.argv[1]); print(hasattr(ctypes.CDLL(None), 'ft_api_version'), flush=True); sys.stdin.read()"

# Starts workers in environments of its own making, and waits for the end of its standard input.
STARTER = """
import json, os, subprocess, sys
worker, driver = sys.argv[1:3]
def start(change, program=None):
    environment = {name: value for name, value in {**os.environ, **change}.items() if value is not None}
    child = subprocess.Popen([sys.executable, "-c", worker, program or driver], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    return child, (child.pid, child.stdout.readline().strip())
started = {
    "kept": start({}),
    "lost": start({"LD_PRELOAD": None}),
    "overwritten": start({"LD_PRELOAD": sys.argv[3]}),
    "lost, no driver": start({"LD_PRELOAD": None}, sys.argv[3]),
}
print(json.dumps({name: said for name, (_, said) in started.items()}), flush=True)
sys.stdin.read()
for child, _ in started.values():
    child.communicate()
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    return stand_in(tmp_path_factory.mktemp("installed"))


@pytest.fixture(scope="module")
def libraries(tmp_path_factory):
    """Empty libraries: one by the driver's name, one that another tool preloads."""
    folder = tmp_path_factory.mktemp("libraries")
    made = [folder / "libcuda.so.1", folder / "libtool.so"]
    for path in made:
        subprocess.run(["gcc", "-shared", "-fPIC", "-o", path, "-xc", "-"], input=b"int empty;", check=True)
    return made


@pytest.fixture
def workers(package, libraries):
    """Name to process and answer of workers that a program under `flextensor run` has started, while they run."""
    driver, tool = map(str, libraries)
    starter = subprocess.Popen(
        [sys.executable, "-m", "flextensor", "run", "--", sys.executable, "-c", STARTER, WORKER, driver, tool],
        env={**CLEAN, "PYTHONPATH": str(package.parent)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    yield json.loads(starter.stdout.readline())
    starter.communicate()
    assert starter.returncode == 0


def test_workers_whose_environment_lost_the_preload_run_as_without_us_and_are_found(workers, libraries):
    from flextensor import left_out

    assert {name: answer for name, (_, answer) in workers.items()} == {
        "kept": "True",
        "lost": "False",
        "overwritten": "False",
        "lost, no driver": "False",
    }
    preload = {each.process: each.preload for each in left_out.processes(frozenset())}
    found = {name: preload[process] for name, (process, _) in workers.items() if process in preload}
    assert found == {"lost": "", "overwritten": str(libraries[1])}


def test_doctor_names_them_with_what_to_set(workers, package, libraries):
    said = flextensor(package, "doctor").stdout
    for name, given in [("lost", "no LD_PRELOAD"), ("overwritten", f"LD_PRELOAD={libraries[1]}")]:
        line = next(line for line in said.splitlines() if f"process {workers[name][0]} " in line)
        assert "uses the GPU driver without flextensor" in line and f"it was given {given};" in line
        assert line.endswith(f"set LD_PRELOAD={package / 'libflextensor.so'} where it is started")
    assert f"process {workers['kept'][0]} " not in said


def test_a_worker_whose_starter_has_gone_is_known_by_its_options(libraries):
    from flextensor import left_out

    command = [sys.executable, "-c", WORKER, str(libraries[0])]
    for environment, known in [({"FT_MAX_GPU_MEM": "8GiB"}, True), ({}, False)]:
        worker = subprocess.Popen(
            command, env={**CLEAN, **environment}, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert worker.stdout.readline() == "False\n"
        # This process may run under the stand-in, which has another name than the library.
        found = {each.process for each in left_out.processes(frozenset({"FT_MAX_GPU_MEM"}))}
        worker.communicate()
        assert (worker.pid in found) == known


TORCH = pytest.mark.skipif(
    not hasattr(ctypes.CDLL(None), "fake_take"),
    reason="needs the torch that tools/test_python.sh arranges",
)


@TORCH
@pytest.mark.parametrize("starter", ["torchrun", "spawn", "forkserver"])
def test_what_starts_workers_with_its_own_environment_keeps_the_preload(package, tmp_path, starter):
    pytest.importorskip("torch")
    script = tmp_path / "workers.py"
    script.write_text(
        "import ctypes, multiprocessing, os, sys\n"
        "def say(): os.write(1, b'True\\n' if hasattr(ctypes.CDLL(None), 'ft_api_version') else b'False\\n')\n"
        "if __name__ == '__main__' and sys.argv[1] == 'torchrun': say()\n"
        "elif __name__ == '__main__':\n"
        "    children = [multiprocessing.get_context(sys.argv[1]).Process(target=say) for _ in range(2)]\n"
        "    [child.start() for child in children]\n"
        "    [child.join() for child in children]\n"
    )
    by = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"] if starter == "torchrun" else []
    libraries = os.environ.get("LD_LIBRARY_PATH", "")
    result = flextensor(
        package, "run", "--", sys.executable, *by, str(script), starter, LD_LIBRARY_PATH=libraries
    )
    assert sorted(result.stdout.split()) == ["True", "True"], result.stderr
