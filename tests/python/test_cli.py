"""The command line: what it checks before it starts a program, what the program gets, and what it says."""

import ast
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import PACKAGE, ROOT

CLEAN = {
    name: value
    for name, value in os.environ.items()
    if not name.startswith("FT_") and name not in ("LD_PRELOAD", "LD_LIBRARY_PATH")
}


def stand_in(folder):
    """A copy of the package in `folder` with the recording stand-in as its library."""
    source = ROOT / "tests" / "python" / "fake_interposer.c"
    package = folder / "flextensor"
    shutil.copytree(
        PACKAGE, package, ignore=shutil.ignore_patterns("libflextensor.so", "__pycache__", ".*.new")
    )
    library = package / "libflextensor.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, source, "-ldl", "-lpthread"], check=True)
    return package


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """The package with a library that can be preloaded."""
    return stand_in(tmp_path_factory.mktemp("installed"))


def flextensor(package, *arguments, **environment):
    """Runs the command of `package`."""
    return subprocess.run(
        [sys.executable, "-m", "flextensor", *arguments],
        env={**CLEAN, "PYTHONPATH": str(package.parent), **environment},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_run_starts_the_program_with_the_library_preloaded_and_options_as_variables(package):
    program = "import os; print(os.environ['LD_PRELOAD'], os.environ['FT_MAX_GPU_MEM'])"
    result = flextensor(package, "run", "--max-gpu-mem", "8GiB", "--", sys.executable, "-c", program)
    assert (result.returncode, result.stdout, result.stderr) == (
        0,
        f"{package / 'libflextensor.so'} 8GiB\n",
        "",
    )


def test_run_gives_the_exit_code_of_the_program(package):
    assert flextensor(package, "run", "--", sys.executable, "-c", "raise SystemExit(37)").returncode == 37


def test_run_keeps_other_preloads_behind_ours(package, tmp_path):
    other = tmp_path / "other.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", other, "-xc", "-"], input=b"int other;", check=True)
    result = flextensor(
        package,
        "run",
        "--",
        sys.executable,
        "-c",
        "import os; print(os.environ['LD_PRELOAD'])",
        LD_PRELOAD=str(other),
    )
    assert result.stdout.strip() == f"{package / 'libflextensor.so'}:{other}"


def test_run_inside_run_names_the_library_once(package):
    inner = "import os; print(os.environ['LD_PRELOAD'])"
    result = flextensor(
        package, "run", "--", sys.executable, "-m", "flextensor", "run", "--", sys.executable, "-c", inner
    )
    assert result.stdout.strip() == str(package / "libflextensor.so")


def test_an_option_of_the_program_stays_with_the_program(package):
    result = flextensor(
        package, "run", sys.executable, "-c", "import sys; print(sys.argv[1:])", "--max-gpu-mem", "1"
    )
    assert result.stdout.strip() == "['--max-gpu-mem', '1']"


def test_a_nonsense_budget_stops_before_anything_is_started(package, tmp_path):
    mark = tmp_path / "started"
    result = flextensor(package, "run", "--max-gpu-mem", "lots", "--", "touch", str(mark))
    assert result.returncode == 2
    assert "max_gpu_mem" in result.stderr and "lots" in result.stderr and "allowed" in result.stderr
    assert not mark.exists()


def test_an_unknown_variable_is_refused_with_a_suggestion(package):
    result = flextensor(package, "run", "--", "true", FT_MAX_GPU_MEN="8GiB")
    assert result.returncode == 2
    assert "FT_MAX_GPU_MEN" in result.stderr and "FT_MAX_GPU_MEM" in result.stderr


def test_an_unreadable_configuration_file_is_named(package):
    result = flextensor(package, "run", "--config", "/nowhere/flex.toml", "--", "true")
    assert result.returncode == 2
    assert "/nowhere/flex.toml" in result.stderr


def test_an_unknown_option_is_refused_with_a_suggestion(package):
    for arguments, words in (
        (("run", "--max-gpu", "8GiB", "--", "true"), "unknown option --max-gpu; did you mean --max-gpu-mem?"),
        (
            ("run", "--max-gpu-men=8GiB", "true"),
            "unknown option --max-gpu-men=8GiB; did you mean --max-gpu-mem?",
        ),
        (("run", "--zzz", "true"), "unknown option --zzz"),
        (("report", "a.json", "b.json"), "unknown argument b.json"),
        (("rum", "true"), "unknown command 'rum'; did you mean run?"),
    ):
        result = flextensor(package, *arguments)
        assert (result.returncode, result.stdout) == (2, ""), arguments
        assert result.stderr.rstrip().endswith(words), result.stderr


def test_a_missing_program_gives_127_and_its_name(package):
    result = flextensor(package, "run", "--", "no-such-program-anywhere")
    assert (result.returncode, "no-such-program-anywhere" in result.stderr) == (127, True)


def test_a_file_that_is_not_executable_gives_126(package, tmp_path):
    (tmp_path / "notes.txt").write_text("text")
    assert flextensor(package, "run", "--", str(tmp_path / "notes.txt")).returncode == 126


def test_run_without_a_program_says_how_it_is_called(package):
    result = flextensor(package, "run")
    assert result.returncode == 2 and "flextensor run [options] -- PROGRAM" in result.stderr


def test_a_package_in_a_folder_with_a_space_is_refused_with_the_reason(package, tmp_path):
    moved = tmp_path / "my folder" / "flextensor"
    shutil.copytree(package, moved)
    result = flextensor(moved, "run", "--", "true")
    assert result.returncode == 3 and "space or a colon" in result.stderr


def test_a_missing_library_is_named(package, tmp_path):
    shutil.copytree(package, tmp_path / "flextensor", ignore=shutil.ignore_patterns("libflextensor.so"))
    result = flextensor(tmp_path / "flextensor", "run", "--", "true")
    assert result.returncode == 3 and "libflextensor.so is missing" in result.stderr


def test_a_library_that_the_linker_ignores_is_noticed(package, tmp_path):
    shutil.copytree(package, tmp_path / "flextensor")
    (tmp_path / "flextensor" / "libflextensor.so").write_bytes(b"not a library at all")
    result = flextensor(tmp_path / "flextensor", "run", "--", "true")
    assert (
        result.returncode == 3
        and "did not preload" in result.stderr
        and "cannot be preloaded" in result.stderr
    )


def test_a_library_that_kills_its_process_is_noticed(package, tmp_path):
    shutil.copytree(package, tmp_path / "flextensor")
    code = b"extern int nowhere(void); __attribute__((constructor)) static void start(void) { nowhere(); }"
    library = tmp_path / "flextensor" / "libflextensor.so"
    library.unlink()
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, "-xc", "-"], input=code, check=True)
    result = flextensor(tmp_path / "flextensor", "run", "--", "true")
    assert result.returncode == 3 and "nowhere" in result.stderr


def test_a_library_of_another_interface_version_is_refused(package):
    result = flextensor(package, "run", "--", "true", FAKE_VERSION="9")
    assert result.returncode == 3 and "version 9" in result.stderr


def test_a_static_program_is_started_with_a_warning(package, tmp_path):
    program = tmp_path / "static"
    built = subprocess.run(
        ["gcc", "-static", "-o", program, "-xc", "-"], input=b"int main(void) { return 5; }", check=False
    )
    if built.returncode:
        pytest.skip("this machine has no static C library")
    result = flextensor(package, "run", "--", str(program))
    assert result.returncode == 5 and "linked statically" in result.stderr


def test_help_lists_every_option_of_the_table(package):
    from flextensor import _native

    text = flextensor(package, "run", "--help").stdout
    assert all(f"--{key.replace('_', '-')}" in text for key, *_ in _native.option_table())


def test_help_says_which_options_are_not_supported_yet(package):
    from flextensor import _native

    text = " ".join(flextensor(package, "run", "--help").stdout.split())
    limited = [(key, limit) for key, *_, limit in _native.option_table() if limit]
    beginnings = ("NOT SUPPORTED YET", "Only in programs that use the Python interface")
    assert limited and all(limit.startswith(beginnings) for _, limit in limited)
    for key, limit in limited:
        assert f"--{key.replace('_', '-')} VALUE {limit}" in text, key
    assert sum(text.count(beginning) for beginning in beginnings) == len(limited)


def test_doctor_says_that_flextensor_is_switched_off_and_misses_nothing_for_it(package):
    result = flextensor(package, "doctor", FT_ENABLED="0")
    assert "disabled FT_ENABLED switches flextensor off" in result.stdout
    assert "missing  configuration" not in result.stdout and "hook routes" not in result.stdout
    assert "disabled" not in flextensor(package, "doctor").stdout


def test_doctor_without_a_gpu_says_so_and_fails(package):
    if Path("/dev/nvidiactl").exists():
        pytest.skip("this machine has a GPU")
    result = flextensor(package, "doctor")
    assert result.returncode == 1
    assert (
        "no GPU driver found" in result.stdout
        and "can be preloaded" in result.stdout
        and "something is missing" in result.stdout
    )


def test_doctor_says_of_an_integrated_gpu_that_programs_run_there_as_without_us(capsys):
    """FastVideo PR 1715: offloading where GPU and host share one memory only takes more of it."""
    from flextensor import doctor

    class Driver:
        """Answers as a driver with one integrated GPU."""

        def cuDeviceGetName(self, name, capacity, device):
            name.value = b"integrated"
            return 0

        def cuDeviceTotalMem_v2(self, total, device):
            total._obj.value = 8 << 30
            return 0

        def cuDeviceGetPCIBusId(self, *_):
            return 1

        def cuDeviceGetAttribute(self, value, attribute, device):
            value._obj.value = 1
            return 0

    found = doctor.Findings()
    doctor._device(found, Driver(), 0)
    said = capsys.readouterr().out
    assert "note     GPU 0 is integrated" in said and "as without flextensor" in said
    assert "GB/s" not in said and not found.missing


def test_doctor_names_a_wrong_configuration(package):
    result = flextensor(package, "doctor", FT_MAX_GPU_MEM="lots")
    assert "missing  configuration" in result.stdout and "lots" in result.stdout


REPORT = {
    "version": "0.1.0",
    "phase": "INFERENCE",
    "models": [
        {
            "name": "Llama",
            "phase": "INFERENCE",
            "weights": 58,
            "passes": 31,
            "measured": [{"shape": "ab", "median_ms": 380.5, "passes": 20, "ratio": 1.063}],
            "observed": [
                {
                    "shape": "ab",
                    "uses": 113,
                    "launches": 226,
                    "computed_ms": 201.5,
                    "waited_ms": 179.25,
                    "waits": [{"name": "layers.0.up", "use": 7, "waited_ms": 12.5}],
                }
            ],
        }
    ],
    "plan": {
        "budget_bytes": 8 << 30,
        "resident_bytes": 7 << 30,
        "ring_bytes": 600 << 20,
        "streamed_bytes": 19 << 30,
        "predicted_ms": 372.0,
        "bound_ms": 358.0,
        "notes": ["a weight below the page size stayed"],
    },
    "placements": [
        {"name": "lm_head.weight", "bytes": 2 << 30, "streamed_bytes": 0},
        {"name": "layers.0.up", "bytes": 448 << 20, "streamed_bytes": 448 << 20},
    ],
    "counters": {"hits": 12345, "prefetch_bytes": 19 << 30, "doubtful": 0},
    "hooks": {
        "routes": {"elf": True, "dlsym": False, "cuGetProcAddress": None},
        "bypasses": {"not managed": 17},
        "failures": 3,
        "panics": 0,
    },
    "memory": {"weights_gpu_bytes": 8 << 30, "ring_bytes": 600 << 20, "host_bytes": 19 << 30},
}


def test_report_shows_the_figures_of_a_run(package, tmp_path):
    (tmp_path / "report.json").write_text(json.dumps(REPORT))
    result = flextensor(package, "report", str(tmp_path / "report.json"))
    assert (result.returncode, result.stderr) == (0, "")
    for words in (
        "flextensor 0.1.0, phase INFERENCE",
        "Llama  INFERENCE       58      31",
        "8.00 GiB",
        "600.00 MiB",
        "358.00 ms",
        "passes of Llama, by the shape of their inputs",
        "1      380.50 ms      20         1.063",
        "a pass of Llama with inputs of shape ab: 113 uses, 226 launches that show weights",
        "computed 201.50 ms, waited for copies 179.25 ms",
        "layers.0.up      7  12.50 ms",
        "layers.0.up",
        "12,345",
        "passes us by",
        "not tested",
        "calls that we failed  3",
        "note: a weight below the page size stayed",
    ):
        assert words in result.stdout, (words, result.stdout)


def test_report_shows_no_hashes_no_empty_heads_and_the_switch_over_by_itself(package, tmp_path):
    plan = {**REPORT["plan"], "switch_ms": 6852.0, "gate_closed_ms": 1253.0}
    (tmp_path / "report.json").write_text(json.dumps({**REPORT, "plan": plan}))
    lines = [
        line.strip()
        for line in flextensor(package, "report", str(tmp_path / "report.json")).stdout.splitlines()
    ]
    table = lines[lines.index("passes of Llama, by the shape of their inputs") :][:3]
    assert "ab" not in " ".join(table).split()
    assert not {"what", "what  size", "route  state"} & set(lines)
    passes, switch = lines.index("time of a pass"), lines.index("switch-over, once")
    assert lines[passes + 1 : passes + 3] == ["predicted  372.00 ms", "bound      358.00 ms"]
    assert lines[switch + 1 : switch + 3] == ["whole            6852.00 ms", "launches waited  1253.00 ms"]


@pytest.mark.parametrize("key", sorted(REPORT))
def test_report_does_without_any_one_part(package, key):
    from flextensor import rendering

    for odd in ({}, [], None, "text", 7, [None, 7, {}], {"x": None}):
        assert list(rendering.render({**REPORT, key: odd}))
    assert list(rendering.render({name: value for name, value in REPORT.items() if name != key}))


def test_report_of_a_file_that_is_none_says_so(package, tmp_path):
    (tmp_path / "list.json").write_text("[]")
    (tmp_path / "broken.json").write_text("{")
    for name, words in (
        ("list.json", "holds a list"),
        ("broken.json", "is no run report"),
        ("absent.json", "cannot read"),
    ):
        result = flextensor(package, "report", str(tmp_path / name))
        assert result.returncode == 1 and words in result.stderr


def test_the_native_module_needs_no_python_library_of_the_machine_that_built_it():
    said = subprocess.run(
        ["readelf", "-dW", PACKAGE / "_native.abi3.so"], capture_output=True, text=True, check=True
    )
    needed = set(re.findall(r"NEEDED.*\[(.*)\]", said.stdout))
    assert needed <= {
        "libc.so.6",
        "libgcc_s.so.1",
        "ld-linux-x86-64.so.2",
        "libm.so.6",
        "libdl.so.2",
        "libpthread.so.0",
    }


def test_the_stub_describes_the_native_module_as_it_is():
    from flextensor import _native

    stub = ast.parse((PACKAGE / "_native.pyi").read_text())
    described = {
        getattr(node, "name", None) or node.target.id
        for node in stub.body
        if not isinstance(node, ast.Expr | ast.ImportFrom)
    }
    assert described == {name for name in dir(_native) if not name.startswith("_")}
