"""The benchmark's own logic: the order of runs, budgets, memory in use, the comparison at equal bytes. Needs neither torch nor a GPU."""

import time
from pathlib import Path

import compare
import measure
import options
import peers
import pytest
import sampler
import table
from bench_stand_ins import GIB, line


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


def test_a_later_line_replaces_an_earlier_one_of_the_same_run():
    lines = [line(ms=1.0), line(budget=4, ms=2.0), line(ms=3.0)]
    assert [entry["ms"] for entry in compare.newest(lines)] == [2.0, 3.0]
