"""The benchmark's packages: wheels that only their own process sees, and environments in memory. Needs neither torch nor a GPU."""

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import packages
import pytest
import wheels
from bench_stand_ins import LINK
from conftest import BENCH

# --- the peers' packages ----------------------------------------------------------


def wheel(folder: Path, name: str, entries: dict[str, str]) -> None:
    with zipfile.ZipFile(folder / f"{name}-1.0-py3-none-any.whl", "w") as archive:
        for entry, content in entries.items():
            archive.writestr(entry, content)


def test_the_package_of_our_name_is_seen_by_its_own_process_only(tmp_path):
    wheel(tmp_path, "flextensor", {"flextensor/__init__.py": "whose = 'theirs'"})
    wheel(tmp_path, "other", {"other.py": "x = 1"})
    installed = tmp_path / "installed"
    (installed / "flextensor").mkdir(parents=True)
    (installed / "flextensor" / "__init__.py").write_text("whose = 'inherited'")
    sites = wheels.unpack(tmp_path, tmp_path / "sites")

    def seen(python_flextensor: bool) -> str:
        path = wheels.search_path(str(installed), sites, python_flextensor=python_flextensor)
        code = "import other, importlib.util as u; import sys; print('flextensor' if u.find_spec('flextensor') else 'none'); import flextensor; print(flextensor.whose)"
        ended = subprocess.run(
            [sys.executable, "-S", "-c", code], env={"PYTHONPATH": path}, capture_output=True, text=True
        )
        return ended.stdout.split()[-1]

    assert seen(True) == "theirs"
    assert seen(False) == "none"


def test_what_is_no_wheel_is_named(tmp_path):
    with pytest.raises(ValueError, match="no wheels"):
        wheels.unpack(tmp_path, tmp_path / "sites")
    (tmp_path / "broken-1.0-py3-none-any.whl").write_text("x")
    with pytest.raises(ValueError, match=r"broken-1\.0"):
        wheels.unpack(tmp_path, tmp_path / "sites")


def test_a_wheel_that_needs_an_installer_is_refused(tmp_path):
    wheel(tmp_path, "odd", {"odd-1.0.data/purelib/odd.py": "x = 1"})
    with pytest.raises(ValueError, match=r"odd-1\.0.*installer"):
        wheels.unpack(tmp_path, tmp_path / "sites")


# --- packages in memory -------------------------------------------------------------


def installed(site: Path, name: str, files: dict[str, str], requires=(), listed: bool = True) -> None:
    """Puts a distribution into a folder as an installer would; not `listed`: as a system's package manager does."""
    metadata = [f"Name: {name}", "Version: 1.0", *(f"Requires-Dist: {text}" for text in requires)]
    info = f"{name.replace('-', '_')}-1.0.dist-info"
    everything = {**files, f"{info}/METADATA": "\n".join(["Metadata-Version: 2.1", *metadata, ""])}
    if listed:
        everything[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in [*everything, "../../../bin/tool"])
    for path, content in everything.items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_text(content)


@pytest.fixture
def site(tmp_path):
    """Installed packages: one that is asked for, what it requires, and what happens to be there."""
    site = tmp_path / "site"
    requires = [
        "part[fast]>=1",
        "absent>=2",
        'elsewhere; sys_platform == "win32"',
        'rarely; extra == "all"',
    ]
    torch = {"torch/__init__.py": "import part\n", "torch/lib.so": "0" * 50, "torch/include/api.h": ""}
    installed(site, "torch", {**torch, "torch/__pycache__/old.pyc": ""}, requires)
    installed(site, "part", {"part.py": "x = 1\n"}, ['Speed.Up; extra == "fast"', 'slow; extra == "slow"'])
    installed(
        site, "speed-up", {"speed_up/__init__.py": "", "speed_up/inner/more.py": "y = 2\n"}, listed=False
    )
    installed(site, "triton", {"triton/backends/nvidia/include/api.h": ""})
    for name in ("elsewhere", "rarely", "slow", "scipy"):
        installed(site, name, {f"{name}.py": ""})
    return site


def test_what_a_program_needs_is_what_is_installed_of_its_requirements_and_theirs(site):
    found = packages.needed(["torch", "diffusers"], [str(site)])
    assert set(found) == {"torch", "part", "speed-up"}
    assert set(packages.needed(["torch"], [str(site)], beside=["Part"])) == {"torch"}


def test_an_environment_has_what_is_needed_with_byte_code_and_large_files_linked(site, tmp_path, monkeypatch):
    monkeypatch.setattr(packages, "LARGE_BYTES", 50)
    found = packages.needed(["torch", "triton"], [str(site)])
    python = packages.environment(tmp_path / "memory", found)
    code = (
        "import importlib.metadata as m, importlib.util as u, torch, part, speed_up.inner.more as more;"
        "print(torch.__file__, torch.__cached__, u.find_spec('scipy'), m.version('speed-up'), more.y)"
    )
    ended = subprocess.run([python, "-c", code], env={}, capture_output=True, text=True)
    file, cached, scipy, version, y = ended.stdout.split()
    place = Path(file).parent.parent
    assert place.is_relative_to(python.parents[1]) and (scipy, version, y) == ("None", "1.0", "2")
    assert Path(cached).exists() and [path.name for path in Path(cached).parent.iterdir()] == [
        Path(cached).name
    ]
    assert not Path(file).is_symlink()
    assert (place / "torch" / "lib.so").resolve() == (site / "torch" / "lib.so").resolve()
    # Nobody reads the headers of torch; triton's compiler reads its own.
    assert not (place / "torch" / "include").exists()
    assert (place / "triton" / "backends" / "nvidia" / "include" / "api.h").exists()


def test_an_environment_is_made_once_for_the_same_packages(site, tmp_path):
    def python(*roots: str) -> Path:
        return packages.environment(tmp_path / "memory", packages.needed(roots, [str(site)]))

    first = python("torch")
    (site / "part.py").write_text("x = 2\n")
    assert python("torch") == first
    assert next(first.parents[1].rglob("part.py")).read_text() == "x = 1\n"
    assert python("torch", "scipy") != first
    assert {path.name for path in (tmp_path / "memory").iterdir()} == {
        first.parents[1].name,
        python("torch", "scipy").parents[1].name,
    }


def test_an_environment_that_fails_half_way_leaves_nothing(site, tmp_path, monkeypatch):
    def refuse(*_):
        raise OSError("no space left")

    monkeypatch.setattr(packages, "_copy", refuse)
    with pytest.raises(OSError, match="no space left"):
        packages.environment(tmp_path / "memory", packages.needed(["torch"], [str(site)]))
    assert list((tmp_path / "memory").iterdir()) == []


SEEN = """
import json, sys
def where(name):
    try:
        return __import__(name).__file__
    except ImportError:
        return None
names = ("torch", "scipy", "other", "flextensor")
print(json.dumps(dict(event="built", program="llama", build="gpu", layers=4, weights_bytes=8 << 30)))
print(json.dumps(dict(event="case", case="x", ms=1.0, min_ms=1.0, first_ms=1.0, checked_ms=[1.0], timed_ms=[1.0], digest="d", agree=True, differing=[],
    finite=True, timed_window=[0, 1], torch_peak_bytes=1)))
print(json.dumps({name: where(name) for name in names} | {"prefix": sys.pycache_prefix}), file=open(sys.argv[-1], "w"))
print(json.dumps(dict(event="end")))
"""


def seen_by_a_program(tmp_path, library, site, memory) -> tuple[int, str, dict]:
    """Runs a program that says what it sees through `run.py --packages-in`; exit code, output, and what it saw."""
    (tmp_path / "seen.py").write_text(SEEN)
    (tmp_path / "link.py").write_text(LINK)
    (tmp_path / "wheels").mkdir()
    wheel(tmp_path / "wheels", "flextensor", {
        "flextensor/__init__.py": "", "flextensor-1.0.dist-info/METADATA": "Metadata-Version: 2.1\nName: flextensor\nVersion: 1.0\nRequires-Dist: scipy\n",
    })  # fmt: skip
    wheel(tmp_path / "wheels", "other", {"other.py": ""})
    ended = subprocess.run(
        [sys.executable, str(BENCH / "run.py"), "--lib", str(library), "--out", str(tmp_path / "out"), "--link", sys.executable, str(tmp_path / "link.py"),
         "--program", sys.executable, str(tmp_path / "seen.py"), "--modes", "native", "--packages-in", str(memory), "--wheels", str(tmp_path / "wheels"),
         f"--program-option={tmp_path / 'seen.json'}"],
        # As an installed package is found: behind what the child is given.
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(tmp_path / "start"), "SITE": str(site)}, capture_output=True, text=True,
    )  # fmt: skip
    return ended.returncode, ended.stdout, json.loads((tmp_path / "seen.json").read_text())


@pytest.fixture
def starting(tmp_path, site):
    """Makes the folder a site of this Python, and of no other, in processes that have `start` on PYTHONPATH."""
    (tmp_path / "start").mkdir()
    (tmp_path / "start" / "sitecustomize.py").write_text(
        f"import os, sys\nif sys.prefix == {sys.prefix!r}: sys.path.insert(1, os.environ['SITE'])\n"
    )


def test_programs_run_in_the_environment_and_only_a_peer_sees_what_its_wheel_needs(
    tmp_path, library, site, starting
):
    code, out, seen = seen_by_a_program(tmp_path, library, site, tmp_path / "memory")
    assert code == 0, out
    assert Path(seen["torch"]).is_relative_to(tmp_path / "memory") and seen["prefix"] is None
    assert seen["other"] and seen["scipy"] is None and seen["flextensor"] is None
    sites = {name: tmp_path / name for name in ("flextensor_py", "flextensor_py_needs", "shared")}
    assert wheels.search_path("", sites, python_flextensor=False) == str(sites["shared"])
    assert wheels.search_path("", sites, python_flextensor=True).split(":") == [
        str(sites[name]) for name in sites
    ]
    needs = [folder for folder in (tmp_path / "memory").iterdir() if folder.name.startswith("packages-")]
    assert [(folder / "scipy.py").exists() for folder in needs] == [True]


def test_where_no_environment_can_be_made_one_line_says_so_and_what_is_installed_is_used(
    tmp_path, library, site, starting
):
    (tmp_path / "memory").write_text("a file")
    code, out, seen = seen_by_a_program(tmp_path, library, site, tmp_path / "memory")
    assert code == 0, out
    assert [
        line.endswith("those that are installed are used") for line in out.splitlines() if "memory" in line
    ] == [True]
    assert seen["torch"] == str(site / "torch" / "__init__.py") and seen["scipy"] and seen["prefix"]


def test_an_environment_in_which_the_program_cannot_start_is_not_used(tmp_path, library, site, starting):
    (site / "torch" / "__init__.py").write_text("import scipy, part\n")
    code, out, seen = seen_by_a_program(tmp_path, library, site, tmp_path / "memory")
    assert code == 0, out
    assert "No module named 'scipy'; those that are installed are used" in out
    assert seen["torch"] == str(site / "torch" / "__init__.py")
