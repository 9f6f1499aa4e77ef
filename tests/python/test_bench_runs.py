"""The benchmark's runs from end to end, with a program that stands for a measured one, where no torch can be imported."""

import json
import subprocess
import sys
import textwrap

import pytest
from bench_stand_ins import GIB, LINK, line
from conftest import BENCH


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


def test_a_peer_that_told_nothing_cannot_be_matched_and_that_is_a_failure_of_what_was_asked(
    tmp_path, library, without_torch
):
    code, out, _ = bench(
        tmp_path, library, without_torch, "--modes", "native,accelerate", "--match", "accelerate"
    )
    assert code == 1 and "no run of accelerate has told what it held" in out
