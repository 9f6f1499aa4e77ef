"""`flextensor plan` and `flextensor plot`: figures and pictures for a saved profile, without a GPU or torch."""

import json
import os
import subprocess
import sys
import xml.etree.ElementTree as ET

import pytest
from conftest import PACKAGE, ROOT

CLEAN = {name: value for name, value in os.environ.items() if name not in ("LD_PRELOAD", "LD_LIBRARY_PATH")}
GIB = 1 << 30


def flextensor(*arguments):
    """Runs the command."""
    return subprocess.run(
        [sys.executable, "-m", "flextensor", *map(str, arguments)],
        env={**CLEAN, "PYTHONPATH": str(PACKAGE.parent)},
        capture_output=True,
        text=True,
        timeout=300,
    )


def written(*arguments):
    """A profile by the example's script."""
    script = ROOT / "examples" / "llama_profile.py"
    return subprocess.run(
        [sys.executable, script, *arguments], capture_output=True, text=True, check=True, timeout=60
    ).stdout


@pytest.fixture(scope="module")
def profile(tmp_path_factory):
    """A profile of four layers with two input shapes."""
    file = tmp_path_factory.mktemp("profiles") / "profile.json"
    file.write_text(written("--layers", "4", "--pass", "prefill=50", "--pass", "decode=4"))
    return file


def answer(*arguments):
    """The JSON that the command prints."""
    result = flextensor("plan", *arguments, "--json")
    assert (result.returncode, result.stderr) == (0, ""), result.stderr
    return json.loads(result.stdout)


def test_the_table_has_time_bound_ratio_peak_and_streamed_bytes(profile):
    result = flextensor(
        "plan", profile, "--gpu-mem", "2GiB", "--link", "25GB/s", "--strategy", "GreedyStrategy"
    )
    assert (result.returncode, result.stderr) == (0, "")
    assert "Llama of 4 layers: 7.35 GiB of weights in 30 pieces, 50.00 ms a pass" in result.stdout
    assert "budget 2.00 GiB, link 25.0 GB/s (as asked)" in result.stdout
    lines = result.stdout.splitlines()
    head = next(line for line in lines if line.strip().startswith("strategy"))
    assert head.split() == "strategy time time / bound peak ring streamed budget".split()
    ours = next(line for line in lines if line.strip().startswith("flextensor"))
    assert ours.split()[-1] == "kept" and "GiB" in ours
    assert any(line.strip().startswith("GreedyStrategy") for line in lines)


def test_figures_obey_the_bound_and_the_budget(profile):
    for gib in (1, 2, 4, 7):
        found = answer(profile, "--gpu-mem", f"{gib}GiB", "--link", "25GB/s", "--strategy", "flextensor")
        (ours,) = found["plans"]
        bound = max(50.0, (found["weights_bytes"] - gib * GIB) / 25e9 * 1e3)
        assert ours["bound_ms"] == pytest.approx(bound, rel=1e-3)
        assert ours["bound_ms"] * 0.999 <= ours["predicted_ms"] <= ours["bound_ms"] * 1.15
        assert ours["ratio"] == pytest.approx(ours["predicted_ms"] / ours["bound_ms"])
        assert ours["met"] and ours["peak_bytes"] <= gib * GIB
        assert found["resident_ms"] == pytest.approx(50.0) and found["budget_bytes"] == gib * GIB


def test_a_slower_link_takes_longer_in_proportion(profile):
    fast, slow = (
        answer(profile, "--gpu-mem", "1GiB", "--shape", "2", "--strategy", "flextensor", "--link", link)
        for link in ("50GB/s", "25GB/s")
    )
    assert slow["plans"][0]["predicted_ms"] / fast["plans"][0]["predicted_ms"] == pytest.approx(2.0, rel=0.02)


def test_every_strategy_has_a_row_or_a_reason_and_none_is_faster_than_ours(tmp_path):
    # One input shape: strategies serve the first only, ours serves all.
    file = tmp_path / "profile.json"
    file.write_text(written("--layers", "4", "--pass", "prefill=50"))
    found = answer(file, "--gpu-mem", "3GiB")
    rows = {row["strategy"]: row for row in found["plans"]}
    assert next(iter(rows)) == "flextensor" and {"GreedyStrategy", "NthLayerStrategy"} <= set(rows)
    ours = rows["flextensor"]
    for name, row in rows.items():
        if "declined" in row:
            assert row["declined"], name
            continue
        assert row["predicted_ms"] >= row["bound_ms"] * 0.999 or not row["met"], name
        if row["met"]:
            assert ours["predicted_ms"] <= row["predicted_ms"] * 1.002, name


def test_a_percentage_is_of_the_memory_of_the_profiled_gpu(profile):
    assert (
        answer(profile, "--gpu-mem", "2%", "--strategy", "flextensor")["budget_bytes"] == 150109880320 // 50
    )


def test_without_a_budget_everything_stays(profile):
    found = answer(profile, "--strategy", "flextensor")
    assert found["budget_bytes"] is None and found["plans"][0]["predicted_ms"] <= 50.0 * 1.011


def test_a_budget_that_cannot_be_met_is_answered_with_the_smallest_that_can(profile):
    result = flextensor("plan", profile, "--gpu-mem", "64MiB", "--strategy", "flextensor")
    assert result.returncode == 0
    assert "missed" in result.stdout and "a budget of 64 MiB cannot be met: the smallest" in result.stdout


def test_latency_mode_takes_less_memory_for_next_to_no_time(tmp_path):
    file = tmp_path / "profile.json"
    # Long computing, as in diffusion: copies hide behind it.
    file.write_text(written("--layers", "8", "--pass", "step=3000"))
    found = answer(file, "--latency", "--strategy", "flextensor")
    (ours,) = found["plans"]
    assert ours["predicted_ms"] <= 3000 * 1.0101
    assert ours["peak_bytes"] <= found["weights_bytes"] * 0.33


def test_one_plan_serves_all_shapes_and_says_what_each_takes(profile):
    found = answer(profile, "--gpu-mem", "3GiB", "--strategy", "flextensor")
    first, second = found["shapes"]
    assert first["predicted_ms"] == found["plans"][0]["predicted_ms"] != second["predicted_ms"]
    for shape in (first, second):
        assert shape["bound_ms"] * 0.999 <= shape["predicted_ms"] <= shape["bound_ms"] * 1.15
    assert found["plans"][0]["bound_ms"] <= found["limit_ms"] <= found["plans"][0]["predicted_ms"] * 1.001


def test_an_input_shape_is_chosen_by_its_place(profile):
    first, second = (
        answer(profile, "--gpu-mem", "4GiB", "--shape", n, "--strategy", "flextensor") for n in (1, 2)
    )
    assert (first["resident_ms"], second["resident_ms"]) == (pytest.approx(50.0), pytest.approx(4.0))
    assert [shape["chosen"] for shape in second["shapes"]] == [False, True]
    text = flextensor("plan", profile, "--gpu-mem", "4GiB", "--strategy", "flextensor").stdout
    assert "input shapes" in text and "4.00 ms" in text


def test_a_folder_stands_for_the_profile_in_it(profile):
    assert answer(profile.parent, "--strategy", "flextensor")["units"] == 30


def test_pictures_are_svg_files(profile, tmp_path):
    sweep, steady = tmp_path / "sweep.svg", tmp_path / "steady.svg"
    found = answer(
        profile, "--gpu-mem", "3GiB", "--strategy", "GreedyStrategy", "--svg", sweep, "--timeline", steady
    )
    for file in (sweep, steady):
        assert ET.parse(file).getroot().tag == "{http://www.w3.org/2000/svg}svg"
    texts = sweep.read_text()
    assert all(
        words in texts for words in ("flextensor", "GreedyStrategy", "bound", "everything resident", "3 GiB")
    )
    assert "copies" in steady.read_text() and "budget 3 GiB" in steady.read_text()
    names = [line["strategy"] for line in found["sweep"]]
    assert names == ["flextensor", "GreedyStrategy"]
    points = found["sweep"][0]["points"]
    assert 3 * GIB in [point["budget_bytes"] for point in points]
    assert points[-1]["predicted_ms"] == pytest.approx(50.0)


@pytest.mark.parametrize(
    "arguments, words",
    [
        (("--gpu-mem", "lots"), ("gpu memory `lots`", "8GiB")),
        (("--gpu-mem", "0"), ("gpu memory `0`", "above 0")),
        (("--gpu-mem", "8G"), ("gpu memory `8G`",)),
        (("--link", "25"), ("link `25`", "25GB/s")),
        (("--link", "0GB/s"), ("link `0GB/s`",)),
        (("--strategy", "Fastest"), ("strategy `Fastest`", "GreedyStrategy")),
        (("--strategy", "NthLayerStrategy:every=2"), ("`every`", "nth_layer")),
        (("--shape", "3"), ("input shape 3", "1 to 2")),
        (("--shape", "0"), ("input shape 0",)),
        (("--shape", "-1"), ("--shape", "'-1' is not allowed", "whole number")),
        (("--device", "99999999999"), ("--device", "'99999999999' is not allowed")),
        (("--device", "7"), ("gpu 7", "allowed are 0")),
        (("--gpu-men", "8GiB"), ("unknown option --gpu-men", "did you mean --gpu-mem?")),
        (("--svg",), ("--svg",)),
    ],
)
def test_a_wrong_question_is_refused_with_what_is_allowed(profile, arguments, words):
    result = flextensor("plan", profile, *arguments)
    assert (result.returncode, result.stdout) == (2, ""), result.stderr
    assert all(word in result.stderr for word in words), result.stderr
    assert "Traceback" not in result.stderr


def broken_profiles(good):
    """Texts that are no profile, by what is wrong with them."""
    parsed = json.loads(good)
    yield "", "no JSON object"
    yield good[: len(good) // 2], "no JSON object"
    yield "[]", "no JSON object"
    yield "{}", "no key `version`"
    yield json.dumps({**parsed, "version": 2}), "version 2"
    yield json.dumps({**parsed, "version": 4}), "version 4"
    yield json.dumps({**parsed, "stats": 7}), "expected a sequence"
    empty = json.loads(good)
    empty["flextensor"]["models"] = []
    yield json.dumps(empty), "broken.json` has no weight"
    times = json.loads(good)
    times["flextensor"]["models"][0]["passes"][0]["uses"][3]["ms"] = -1
    yield json.dumps(times), "milliseconds, 0 or more"
    foreign = {key: value for key, value in parsed.items() if key != "flextensor"}
    yield json.dumps(foreign), "nothing to plan"


def test_a_file_that_is_no_profile_is_named_with_what_is_wrong(profile, tmp_path):
    for text, words in broken_profiles(profile.read_text()):
        file = tmp_path / "broken.json"
        file.write_text(text)
        result = flextensor("plan", file)
        assert (result.returncode, result.stdout) == (1, ""), words
        assert words in result.stderr and "Traceback" not in result.stderr, (words, result.stderr)


def test_a_file_that_cannot_be_read_or_written_is_named(profile, tmp_path):
    absent = flextensor("plan", tmp_path / "absent.json")
    assert absent.returncode == 1 and "cannot read profile" in absent.stderr
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe\x00")
    odd = flextensor("plan", tmp_path / "bytes.json")
    assert odd.returncode == 1 and "it is no text" in odd.stderr
    nowhere = flextensor("plan", profile, "--strategy", "flextensor", "--svg", tmp_path / "no" / "where.svg")
    assert nowhere.returncode == 1 and "cannot write" in nowhere.stderr


def test_a_profile_of_labels_only_is_planned_too(tmp_path):
    tensors = [
        [
            {
                "tensor_id": 2 * layer + at,
                "name": f"layers.{layer}.{at}",
                "size_bytes": 64 << 20,
                "load_time_ms": 2.5,
            }
            for at in (0, 1)
        ]
        for layer in range(8)
    ]
    labels = [f"layers.{layer}" for layer in range(8)]
    maps = "allocation_ordered label_to_size_map block_sizes load_strategy release_strategy label_to_block_id transfer_to_compute_map"
    file = tmp_path / "profile.json"
    file.write_text(
        json.dumps(
            {
                "version": 3,
                "loader_type": "allocation_block_transfer",
                "tensor_id_to_name_map": {str(t["tensor_id"]): t["name"] for layer in tensors for t in layer},
                **{key: {} for key in maps.split()},
                "stats": [
                    {"label": label, "tensors": layer, "duration": 3.0}
                    for label, layer in zip(labels, tensors, strict=True)
                ],
            }
        )
    )
    found = answer(file, "--gpu-mem", "512MiB", "--link", "25GB/s", "--strategy", "flextensor")
    assert found["weights_bytes"] == GIB and found["resident_ms"] == pytest.approx(24.0)
    assert found["plans"][0]["met"]
    percent = flextensor("plan", file, "--gpu-mem", "50%")
    assert percent.returncode == 2 and "`50%`" in percent.stderr and "memory of its GPU" in percent.stderr


def test_the_plan_of_the_measured_llama_says_what_was_measured(tmp_path):
    file = tmp_path / "llama.json"
    file.write_text(written())
    (ours,) = answer(file, "--gpu-mem", "8GiB", "--strategy", "flextensor")["plans"]
    # bench/results: 374.7 to 382.0 ms.
    assert ours["predicted_ms"] == pytest.approx(378.0, rel=0.05)


def test_results_of_the_benchmark_are_drawn_for_each_case(tmp_path):
    results = ROOT / "bench" / "results" / "2026-11-29" / "llama-8GiB.jsonl"
    picture = tmp_path / "results.svg"
    result = flextensor("plot", results, "--svg", picture)
    assert (result.returncode, result.stderr) == (0, "")
    text = picture.read_text()
    assert all(words in text for words in ("prefill4096", "decode1", "flextensor", "bound", "native"))
    one = flextensor("plot", results, "--svg", picture, "--case", "decode1")
    assert one.returncode == 0 and "prefill4096" not in picture.read_text()


def test_results_that_are_none_are_named(tmp_path):
    file = tmp_path / "results.jsonl"
    picture = tmp_path / "picture.svg"
    for text, words, code in (
        ("{", "line 1 of", 1),
        ('{"case": "a", "mode": "flextensor", "ms": 1, "weights_gpu_bytes": 5}\n[]', "line 2 of", 1),
        ("", "nothing to draw", 1),
    ):
        file.write_text(text)
        result = flextensor("plot", file, "--svg", picture)
        assert result.returncode == code and words in result.stderr, result.stderr
    file.write_text('{"case": "a", "mode": "flextensor", "ms": 1, "weights_gpu_bytes": 5}')
    other = flextensor("plot", file, "--svg", picture, "--case", "b")
    assert other.returncode == 2 and "case `b`" in other.stderr and "cases here: a" in other.stderr
    assert not picture.exists()
    assert flextensor("plot", file).returncode == 2
    assert flextensor("plot", tmp_path / "absent", "--svg", picture).returncode == 1
