"""The benchmark's own logic: the order of runs, budgets, the comparison at equal bytes, the peers' packages. Needs neither torch nor a GPU."""

import json
import subprocess
import sys
import textwrap
import time
import zipfile
from pathlib import Path

import pytest

BENCH = Path(__file__).resolve().parents[2] / "bench"
sys.path.insert(0, str(BENCH))

import compare  # noqa: E402
import measure  # noqa: E402
import options  # noqa: E402
import packages  # noqa: E402
import peers  # noqa: E402
import sampler  # noqa: E402
import table  # noqa: E402
import wheels  # noqa: E402

GIB = measure.GIB


@pytest.fixture
def library(tmp_path):
    path = tmp_path / "libfake.so"
    path.write_text("not a library")
    return path


def line(mode="flextensor", budget=8.0, ms=400.0, **changes) -> dict:
    """A result line of a model of 26 GiB, whose native run takes 10 ms and 2 GiB beside its weights."""
    native, peer = mode == "native", measure.Mode(mode).is_peer
    values = dict(
        program="llama", case="decode1", build="host" if peer else "gpu", layers=16, mode=mode,
        budget_bytes=None if native or budget is None else int(budget * GIB), weights_bytes=26 * GIB,
        weights_gpu_bytes=26 * GIB if native else None if peer else int(budget * GIB), streamed_bytes=None if peer else 0 if native else 18 * GIB,
        device_bytes=29 * GIB if native else None, torch_peak_bytes=28 * GIB if native else None, host_bytes=None, first_steady_s=None,
        ms=10.0 if native else ms, digest="a", agree=True, differing=[], finite=True,
    )  # fmt: skip
    return values | changes


def judged(*lines) -> list[dict]:
    return [measure.judge(one, list(lines), 55e9) for one in lines]


# --- the order of runs --------------------------------------------------------


def test_all_means_native_ours_and_every_peer_with_the_matched_peer_before_ours(library):
    given = options.arguments(
        ["--modes", "all", "--lib", str(library), "--budgets", "8,16", "--match", "flextensor_py"]
    )
    runs = options.planned(given)
    assert [(run.mode, run.budget and run.budget // GIB, run.match) for run in runs] == [
        ("native", None, None),
        ("flextensor_py", 8, None),
        ("flextensor_py", 16, None),
        ("flextensor", None, "flextensor_py"),
        ("flextensor", 8, None),
        ("flextensor", 16, None),
        ("accelerate", None, None),
        ("accelerate_map", 8, None),
        ("accelerate_map", 16, None),
        ("diffusers_group", None, None),
    ]
    assert {run.build for run in runs if run.mode in peers.PEERS} == {"host"}


def test_peers_run_once_whatever_the_builds_of_ours(library):
    given = options.arguments(
        ["--modes", "native,flextensor,accelerate", "--lib", str(library), "--builds", "gpu,cpu"]
    )
    assert sum(run.mode == "accelerate" for run in options.planned(given)) == 1


def test_every_program_has_budgets_and_a_file_of_its_own():
    for name in options.PROGRAMS:
        given = options.arguments(["--program", name, "--modes", "native"])
        assert given.budgets and given.name == name and Path(given.program[-1]).is_file()


@pytest.mark.parametrize(
    "arguments, word",
    [
        (["--program", "gpt"], "unknown program gpt"),
        (["--modes", "native,magic"], "unknown mode magic"),
        (["--modes", "native", "--match", "vllm"], "unknown peer vllm"),
        (["--modes", "native", "--match", "accelerate"], "--lib None: not a file"),
        (["--modes", "native", "--wheels", "/nowhere"], "--wheels /nowhere: not a folder"),
        (["--modes", "native", "--budgets=-3%"], "budget '-3%'"),
        (["--modes", "native", "--peer-budgets", "0"], "budget '0'"),
    ],
)
def test_what_is_not_allowed_is_named(arguments, word, capsys):
    with pytest.raises(SystemExit) as end:
        options.arguments(arguments)
    assert end.value.code == 2 and word in capsys.readouterr().err


# --- budgets --------------------------------------------------------------------


def test_a_percentage_is_a_share_of_the_weights():
    assert measure.budget_bytes(measure.parse_budget("25%"), 8 * GIB) == 2 * GIB
    assert measure.budget_bytes(measure.parse_budget("3"), None) == 3 * GIB
    with pytest.raises(ValueError, match="33%"):
        measure.budget_bytes(measure.parse_budget("33%"), None)


# --- judging ----------------------------------------------------------------------


def test_a_peer_is_bound_by_the_bytes_that_it_took_and_its_excess_is_named():
    native = line("native")
    peer = judged(line("flextensor_py", torch_peak_bytes=int(11.5 * GIB)), native)[0]
    assert peer["weights_gpu_bytes"] == int(9.5 * GIB)
    assert peer["bound_ms"] == pytest.approx(16.5 * GIB / 55e9 * 1e3, rel=1e-3)
    assert peer["misses"] == ["1.50 GiB over its budget"] and peer["problems"] == []


def test_where_nvml_is_missing_the_driver_s_own_count_is_taken():
    native = line("native", device_bytes=None, device_used_bytes=29 * GIB)
    assert judged(line(device_used_bytes=11 * GIB), native)[0]["weights_device_bytes"] == 8 * GIB
    assert judged(line(device_bytes=12 * GIB), line("native"))[0]["weights_device_bytes"] == 9 * GIB
    assert judged(line(), line("native"))[0]["weights_device_bytes"] is None


def test_a_peer_without_a_memory_figure_has_no_bound():
    peer = judged(line("accelerate", budget=None), line("native"))[0]
    assert peer["bound_ms"] is None and peer["ratio"] is None


def test_a_share_of_computing_near_that_of_copying_loosens_the_target():
    bound = 18 * GIB / 55e9 * 1e3
    for native_ms, missed in ((bound * 0.5, True), (bound * 0.95, False)):
        native = line("native") | dict(ms=native_ms)
        assert bool(judged(line(ms=bound * 1.06), native)[0]["misses"]) is missed


def test_a_time_below_the_bound_is_no_success():
    bound = 18 * GIB / 55e9 * 1e3
    assert judged(line(ms=bound * 0.98), line("native"))[0]["misses"] == []
    assert "faster than the bound" in judged(line(ms=bound * 0.9), line("native"))[0]["misses"][0]
    # Nobody has to copy what is read by rows where it lies: 2 GiB of 18.
    rows = line(ms=bound * 0.9) | dict(rows_bytes=2 * GIB)
    assert judged(rows, line("native"))[0]["misses"] == []


@pytest.mark.parametrize("program, allowed", [("diffusion", 1.01), ("mixed", 1.10)])
def test_programs_with_a_target_of_their_own_are_held_to_it(program, allowed):
    native = line("native", program=program) | dict(ms=1000.0)
    near, far = (judged(line(program=program, ms=1000 * allowed + d), native)[0]["misses"] for d in (-1, 1))
    assert near == [] and far == [f"slower than {allowed} x bound"]


def test_the_prediction_is_that_of_the_plan_made_for_such_work():
    plans = [dict(resident_ms=200.0, predicted_ms=380.0), dict(resident_ms=11.0, predicted_ms=365.0)]
    assert judged(line(plans=plans), line("native"))[0]["predicted_ms"] == 365.0
    assert judged(line(plans=plans[:1]), line("native"))[0]["predicted_ms"] is None


def test_predictions_are_read_from_the_plan_and_from_shapes_that_have_one():
    plan = dict(predicted_ms=1.0, resident_ms=2.0)
    shapes = [dict(predicted_ms=3.0, resident_ms=4.0), dict(median_ms=5.0)]
    found = measure.plans_of(dict(plan=plan, models=[dict(measured=shapes)]))
    assert [one["predicted_ms"] for one in found] == [3.0, 1.0]
    assert measure.plans_of(None) == [] and measure.plans_of({}) == []


def test_steps_that_differ_from_the_native_run_are_named():
    native = line("native", digest="n", step_digests=["1", "2", "3"])
    wrong = judged(line(digest="o", step_digests=["1", "9", "3"]), native)[0]
    assert wrong["equal"] is False and "output differs from native from step 1 on" in wrong["problems"]


def test_a_run_that_ended_its_loops_early_is_compared_as_far_as_it_came():
    native = line("native", digest="n", step_digests=["1", "2", "3"])
    assert judged(line("flextensor_py", digest="o", step_digests=["1", "2"]), native)[0]["equal"] is True
    assert judged(line("flextensor_py", digest="o", step_digests=["1", "4"]), native)[0]["equal"] is False


def test_other_programs_and_sizes_are_not_compared_with():
    for other in (dict(program="mixed"), dict(layers=4), dict(case="batch64")):
        assert measure.native_for(line(), [line("native", **other)]) is None
    # Results that are older than the second program name none.
    assert measure.native_for(line(), [line("native", program=None)]) is not None


# --- memory in use ------------------------------------------------------------------


def test_only_what_was_used_inside_the_window_above_the_baseline_counts():
    series = sampler.Series(None)
    series.baseline, series.samples = 100, [(1.0, 900), (2.0, 400), (3.0, 500), (4.0, 800)]
    assert series.above_baseline([1.5, 3.5]) == 400
    assert series.above_baseline([5.0, 6.0]) is None
    series.baseline = None
    assert series.above_baseline([1.5, 3.5]) is None


def test_host_memory_in_use_is_what_the_kernel_could_not_give_away(tmp_path, monkeypatch):
    path = tmp_path / "meminfo"
    monkeypatch.setattr(sampler, "MEMINFO", str(path))
    assert sampler.host_used() is None
    path.write_text("MemTotal: 1000 kB\nMemFree: 100 kB\nMemAvailable: 700 kB\n")
    assert sampler.host_used() == 300 << 10
    path.write_text("MemTotal: 1000 kB\n")
    assert sampler.host_used() is None


def test_samples_are_taken_while_the_sampler_is_entered_and_not_after():
    with sampler.Sampler() as memory:
        time.sleep(6 * sampler.SAMPLE_S)
    taken = len(memory.host.samples)
    time.sleep(3 * sampler.SAMPLE_S)
    assert memory.host.baseline and 0 < taken == len(memory.host.samples)


# --- beside peers -------------------------------------------------------------------


def test_ours_is_set_beside_a_peer_only_within_its_bytes_and_only_if_right():
    native, peer = line("native"), line("flextensor_py", ms=500.0, torch_peak_bytes=int(10.9 * GIB))
    within, above = line(budget=8.9, ms=330.0), line(budget=9.2, ms=300.0)
    wrong = line(budget=8.5, ms=1.0, digest="z")
    theirs, ours = compare.pairs(judged(peer, native, above, within, wrong))[0]
    assert (theirs["mode"], ours["ms"]) == ("flextensor_py", 330.0)
    assert compare.pairs(judged(peer, native, above))[0][1] is None


def test_the_gap_that_is_closed_is_measured_from_the_peer_to_the_bound():
    theirs = dict(ms=500.0, bound_ms=300.0)
    assert compare.gap_closed(theirs, dict(ms=300.0)) == 1.0
    assert compare.gap_closed(theirs, dict(ms=360.0)) == pytest.approx(0.7)
    assert compare.gap_closed(theirs, dict(ms=600.0)) == pytest.approx(-0.5)
    assert compare.gap_closed(dict(ms=300.0, bound_ms=300.0), dict(ms=300.0)) is None


def test_a_faster_peer_is_called_so():
    lines = judged(line("flextensor_py", ms=320.0, torch_peak_bytes=10 * GIB), line("native"), line(ms=390.0))
    assert "THE PEER IS FASTER" in compare.text(lines)
    assert compare.text(judged(line("native"), line())) == ""


def test_the_bytes_of_a_peer_are_the_most_of_each_of_its_runs():
    native = [line("native"), line("native", case="batch64")]
    runs = [
        line("flextensor_py", budget=4, torch_peak_bytes=7 * GIB),
        line("flextensor_py", budget=4, case="batch64", torch_peak_bytes=int(7.5 * GIB)),
        line("flextensor_py", budget=8, torch_peak_bytes=11 * GIB),
    ]
    assert compare.bytes_of(judged(*native, *runs), "flextensor_py") == [int(5.5 * GIB), 9 * GIB]
    assert compare.bytes_of(judged(*native), "flextensor_py") == []


def test_the_kept_table_has_a_section_for_each_program_and_one_beside_peers():
    lines = judged(
        line("native"),
        line(),
        line("flextensor_py", ms=500.0, torch_peak_bytes=11 * GIB),
        line("native", program="small", case="tokens64"),
    )
    text = table.markdown(lines)
    assert (
        text.count("| run |") == 2
        and "experts of 3 MiB linears" in text
        and "| flextensor_py 8 GiB |" in text
    )
    assert "| ours is faster |" in text


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


# --- without torch, and with a program that is not ours ---------------------------


@pytest.fixture
def without_torch(tmp_path):
    """The environment of a Python whose torch cannot be imported."""
    (tmp_path / "torch.py").write_text("raise ImportError('no such luck')")
    return {"PYTHONPATH": str(tmp_path), "PATH": "/usr/bin:/bin"}


@pytest.mark.parametrize(
    "command",
    [["run.py", "--modes", "native", "--out"], ["small.py"], ["peers.py", "accelerate", "small.py"]],
)
def test_without_torch_there_is_one_clear_line_and_exit_code_2(command, without_torch, tmp_path):
    command = [*command, str(tmp_path / "out")] if command[0] == "run.py" else command
    ended = subprocess.run(
        [sys.executable, *command], cwd=BENCH, env=without_torch, capture_output=True, text=True
    )
    assert ended.returncode == 2, ended.stderr
    assert len(ended.stderr.splitlines()) == 1 and "torch cannot be imported" in ended.stderr
    assert "no such luck" in ended.stderr and "Traceback" not in ended.stdout


PROGRAM = """
import json, os
held = int(os.environ.get("FT_MAX_GPU_MEM", 0))
print(json.dumps(dict(event="built", program="llama", build="gpu", layers=4, weights_bytes=8 << 30)))
print(json.dumps(dict(event="case", case="decode1", ms=150.0 if held else 10.0, min_ms=9.0, first_ms=50.0, checked_ms=[9.0], timed_ms=[9.0], digest="d",
    agree=True, differing=[], finite=True, timed_window=[0, 1], torch_peak_bytes=9 << 30)))
if held:
    with open(os.environ["FT_REPORT"], "w") as file:
        json.dump(dict(plan=dict(streamed_bytes=1), memory=dict(weights_gpu_bytes=held)), file)
print(json.dumps(dict(event="end")))
"""
LINK = "import json; print(json.dumps(dict(event='link', link_bytes_per_s=50e9, gpu='G', gpu_bytes=1, driver='D', torch='T', cuda='C')))"


def bench(tmp_path, library, without_torch, *arguments):
    """Runs run.py with a program that stands for a measured one, where no peer can start; its exit code, output and result lines."""
    for name, text in (("measured.py", PROGRAM), ("link.py", LINK)):
        (tmp_path / name).write_text(textwrap.dedent(text))
    ended = subprocess.run(
        [sys.executable, str(BENCH / "run.py"), "--lib", str(library), "--out", str(tmp_path / "out"), "--link", sys.executable,
         str(tmp_path / "link.py"), "--program", sys.executable, str(tmp_path / "measured.py"), *arguments],
        env=without_torch, capture_output=True, text=True,
    )  # fmt: skip
    kept = (tmp_path / "out" / "llama.jsonl").read_text().splitlines()
    return ended.returncode, ended.stdout, [json.loads(text) for text in kept]


def test_a_peer_that_cannot_run_is_left_out_and_ours_still_counts(tmp_path, library, without_torch):
    code, out, lines = bench(
        tmp_path, library, without_torch, "--modes", "native,flextensor,accelerate", "--budgets", "50%"
    )
    assert code == 0, out
    assert "LEFT OUT, or not to its end: host accelerate" in out
    assert [(entry["mode"], entry["budget_bytes"]) for entry in lines] == [
        ("native", None),
        ("flextensor", 4 << 30),
    ]


def test_ours_runs_at_the_bytes_that_a_peer_held_in_an_earlier_run(tmp_path, library, without_torch):
    earlier = [
        line("native", layers=4, weights_bytes=8 * GIB, torch_peak_bytes=9 * GIB, digest="d"),
        line(
            "flextensor_py",
            budget=4,
            layers=4,
            weights_bytes=8 * GIB,
            torch_peak_bytes=int(5.75 * GIB),
            ms=170.0,
            digest="d",
        ),
    ]
    (tmp_path / "earlier.jsonl").write_text("\n".join(json.dumps(entry) for entry in earlier))
    code, out, lines = bench(
        tmp_path, library, without_torch, "--modes", "flextensor", "--budgets", "2", "--match", "flextensor_py",
        "--against", str(tmp_path / "earlier.jsonl"),
    )  # fmt: skip
    assert code == 0, out
    assert [entry["budget_bytes"] for entry in lines] == [int(4.75 * GIB), 2 * GIB]
    assert "flextensor_py 4 GiB" in out and "ours is faster" in out


def test_ours_of_an_earlier_run_stands_beside_the_peers_of_this_one(tmp_path, library, without_torch):
    common = dict(layers=4, weights_bytes=8 * GIB, digest="d")
    earlier = [
        line("native", torch_peak_bytes=9 * GIB, **common),
        line(budget=4, ms=160.0, **common),
        line("flextensor_py", budget=4, torch_peak_bytes=5 * GIB, ms=170.0, **common),
    ]
    (tmp_path / "earlier.jsonl").write_text("\n".join(json.dumps(entry) for entry in earlier))
    code, out, _ = bench(
        tmp_path,
        library,
        without_torch,
        "--modes",
        "accelerate,native",
        "--against",
        str(tmp_path / "earlier.jsonl"),
    )
    assert code == 0 and "ours is faster" in out and "160.0" in out, out


def test_a_later_line_replaces_an_earlier_one_of_the_same_run():
    lines = [line(ms=1.0), line(budget=4, ms=2.0), line(ms=3.0)]
    assert [entry["ms"] for entry in compare.newest(lines)] == [2.0, 3.0]


def test_a_peer_that_told_nothing_cannot_be_matched_and_that_is_a_failure_of_what_was_asked(
    tmp_path, library, without_torch
):
    code, out, _ = bench(
        tmp_path, library, without_torch, "--modes", "native,accelerate", "--match", "accelerate"
    )
    assert code == 1 and "no run of accelerate has told what it held" in out


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
