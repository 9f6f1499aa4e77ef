"""The benchmark's runner: children, judgement, table, and all of it from end to end, tested with fake programs: needs neither torch nor a GPU."""

import json
import time

import child
import measure
import pytest
import table
from stand_ins import ROOT, library_in, load, program_writer

bench = load("bench_run", ROOT / "bench" / "run.py")


@pytest.fixture
def script(tmp_path):
    return program_writer(tmp_path)


@pytest.fixture
def library(tmp_path):
    return library_in(tmp_path)


def run(command, limit_s=20.0, preload=None, options=None):
    return child.run(command, limit_s=limit_s, env=child.environment(preload, options or {}))


# --- children ---------------------------------------------------------------


def test_json_lines_are_kept_and_other_output_is_not(script):
    outcome = run(
        script("""print("loading {x}"); print('{"event": "end", "a": 1}'); print("{broken"); print("[1]")""")
    )
    assert outcome.failure is None
    assert outcome.lines == [{"event": "end", "a": 1}]


def test_a_child_that_hangs_is_ended_and_shows_where_it_hung(script):
    began = time.monotonic()
    outcome = run(script("""
        print('{"event": "output"}', flush=True)
        def stuck_here(): time.sleep(60)
        stuck_here()
    """), limit_s=1.5)  # fmt: skip
    assert time.monotonic() - began < 20
    assert outcome.timed_out and outcome.failure.startswith("no end after")
    assert outcome.events("output"), "what it said before the hang is kept"
    assert "stuck_here" in outcome.stderr


def test_a_child_that_ignores_the_first_signal_is_killed(script):
    outcome = run(
        script(
            "import signal, faulthandler; faulthandler.disable(); signal.signal(signal.SIGABRT, signal.SIG_IGN); time.sleep(60)"
        ),
        limit_s=1.0,
    )
    assert outcome.timed_out and outcome.wall_s < 20


def test_a_crash_is_named_and_its_last_words_are_kept(script):
    outcome = run(script("print('last words', file=sys.stderr, flush=True); os.abort()"))
    assert outcome.failure == "killed by SIGABRT"
    assert "last words" in outcome.stderr
    assert run(script("sys.exit(3)")).failure == "exit code 3"


def test_a_native_child_sees_neither_the_preload_nor_options_of_the_parent(script, monkeypatch):
    monkeypatch.setenv("FT_MAX_GPU_MEM", "1GiB")
    monkeypatch.setenv("LD_PRELOAD", "")
    native = run(
        script(
            "print(json.dumps({'event': 'env', 'seen': sorted(k for k in os.environ if k.startswith('FT_') or k == 'LD_PRELOAD')}))"
        )
    )
    assert native.events("env")[0]["seen"] == []


def test_a_preloaded_child_gets_the_library_and_only_the_given_options(monkeypatch, library):
    monkeypatch.setenv("FT_COMMIT", "abc")
    env = child.environment(library, {"FT_MAX_GPU_MEM": "5"})
    assert env["LD_PRELOAD"] == str(library.resolve())
    assert [key for key in env if key.startswith("FT_")] == ["FT_MAX_GPU_MEM"]


def test_a_report_that_is_missing_or_broken_is_none(tmp_path):
    assert child.read_report(tmp_path / "none.json") is None
    (tmp_path / "bad.json").write_text("{")
    assert child.read_report(tmp_path / "bad.json") is None
    assert child.field({"plan": [{"streamed_bytes": 3}]}, "plan", "streamed_bytes") == 3
    assert child.field({"plan": None}, "plan", "streamed_bytes") is None
    assert child.field(None, "plan") is None


# --- the bound and the judgement --------------------------------------------


def test_the_bound_is_the_larger_of_compute_and_transfer():
    gib = measure.GIB
    assert measure.bound_ms(13.4, 26 * gib, None, 55e9) == 13.4
    assert measure.bound_ms(13.4, 26 * gib, 40 * gib, 55e9) == 13.4
    assert measure.bound_ms(13.4, 26 * gib, 8 * gib, 55e9) == pytest.approx(18 * gib / 55e9 * 1e3)
    assert measure.bound_ms(900.0, 26 * gib, 8 * gib, 55e9) == 900.0


@pytest.mark.parametrize("text", ["0", "-1", "inf", "nan", "x"])
def test_a_nonsense_budget_is_refused(text):
    with pytest.raises(ValueError):
        measure.parse_budget(text)


def line(mode="flextensor", budget=8, digest="a", **changes) -> dict:
    gib = measure.GIB
    values = dict(
        case="decode1", build="gpu", layers=16, mode=mode, budget_bytes=None if mode == "native" else int(budget * gib), weights_bytes=26 * gib,
        weights_gpu_bytes=26 * gib if mode == "native" else int(7.9 * gib), streamed_bytes=0 if mode == "native" else 18 * gib, device_bytes=28 * gib if mode == "native" else 10 * gib,
        host_bytes=None, first_steady_s=None, ring_bytes=None, ms=13.0 if mode == "native" else 400.0, digest=digest, agree=True, differing=[], finite=True,
    )  # fmt: skip
    return values | changes


def test_a_good_line_has_no_problems():
    native = line("native")
    judged = measure.judge(line(), [native], 55e9)
    assert judged["equal"] is True and judged["problems"] == []
    assert judged["ratio"] == pytest.approx(400.0 / (18 * measure.GIB / 55e9 * 1e3), rel=1e-3)
    assert judged["weights_device_bytes"] == 8 * measure.GIB
    assert len(measure.row(judged)) == len(measure.COLUMNS)


@pytest.mark.parametrize(
    "changes, word",
    [
        (dict(digest="b"), "differs from native"),
        (dict(agree=False, differing=[3]), "forwards [3] differ"),
        (dict(finite=False), "not finite"),
        (dict(weights_gpu_bytes=9 * measure.GIB), "exceed the budget"),
        (dict(weights_gpu_bytes=None), "no weights_gpu_bytes"),
        (dict(streamed_bytes=0), "nothing streamed"),
    ],
)
def test_each_fault_of_a_run_is_a_problem(changes, word):
    judged = measure.judge(line(**changes), [line("native")], 55e9)
    assert any(word in problem for problem in judged["problems"]), judged["problems"]
    assert judged["equal"] is (not {"digest", "agree"} & set(changes))


def test_missed_targets_are_shown_but_make_no_run_wrong():
    native = line("native")
    bound = 18 * measure.GIB / 55e9 * 1e3
    assert measure.judge(line(ms=bound * 1.03), [native], 55e9)["misses"] == []
    assert measure.judge(line(ms=bound * 1.05), [native], 55e9)["misses"] == ["slower than 1.04 x bound"]
    assert measure.judge(line(budget=40, ms=13.2), [native], 55e9)["misses"] == ["slower than 1.01 x bound"]
    late = measure.judge(line(ms=bound, first_steady_s=15.5), [native], 55e9)
    assert len(late["misses"]) == 1 and late["problems"] == [] and late["misses"][0] in measure.row(late)[-1]
    assert measure.judge(line(ms=bound, first_steady_s=15.5, build="cpu"), [native], 55e9)["misses"] == []


def test_a_run_without_a_native_one_is_not_called_equal():
    judged = measure.judge(line(), [line("native", case="batch64")], 55e9)
    assert judged["equal"] is None and judged["problems"]


def test_a_cpu_build_is_compared_with_its_own_native_run_if_there_is_one():
    natives = [line("native", build="gpu", digest="g"), line("native", build="cpu", digest="c")]
    assert measure.native_for(line(build="cpu"), natives)["digest"] == "c"
    assert measure.native_for(line(build="cpu"), natives[:1])["digest"] == "g"


# --- the driver from end to end, with a fake program ------------------------


FAKE_LLAMA = """
arguments = sys.argv[1:]
build = arguments[arguments.index("--build") + 1]
budget = int(os.environ.get("FT_MAX_GPU_MEM", 0))
print(json.dumps(dict(event="built", build=build, layers=4, weights_bytes=8 << 30)))
if budget == 2 << 30:
    print("flextensor: cannot go on", file=sys.stderr, flush=True)
    os.abort()
for name in ("decode1", "batch64"):
    wrong = budget == 3 << 30 and name == "batch64"
    print(json.dumps(dict(event="case", case=name, ms=10.0 if not budget else 120.0, min_ms=9.0, first_ms=50.0, checked_ms=[9.0], timed_ms=[9.0], digest="wrong" if wrong else "right",
        agree=True, differing=[], finite=True, first_steady_s=4.5, timed_window=[0, 1], rss_bytes=1)))
if budget:
    with open(os.environ["FT_REPORT"], "w") as file:
        json.dump(dict(plan=dict(streamed_bytes=(8 << 30) - budget), memory=dict(weights_gpu_bytes=budget - 1, ring_bytes=5, host_bytes=7), counters={}), file)
print(json.dumps(dict(event="end")))
"""


FAKE_LINK = """print(json.dumps(dict(event="link", link_bytes_per_s=50e9, gpu="G", gpu_bytes=1, driver="D", torch="T", cuda="C")))"""


def run_bench(script, library, tmp_path, budgets, **options):
    extra = [text for key, value in options.items() for text in (f"--{key.replace('_', '-')}", value)]
    fake = ["--program", *script(FAKE_LLAMA, "llama.py"), "--link", *script(FAKE_LINK, "link.py")]
    code = bench.main(
        [
            "--lib",
            str(library),
            "--budgets",
            budgets,
            "--builds",
            "gpu",
            "--out",
            str(tmp_path / "out"),
            *extra,
            *fake,
        ]
    )
    return code, [json.loads(text) for text in (tmp_path / "out" / "llama.jsonl").read_text().splitlines()]


def test_the_driver_writes_one_judged_line_for_each_case(script, library, tmp_path, capsys):
    code, lines = run_bench(script, library, tmp_path, "4")
    assert code == 0
    assert [(entry["mode"], entry["case"], entry["equal"]) for entry in lines] == [
        ("native", "decode1", True), ("native", "batch64", True), ("flextensor", "decode1", True), ("flextensor", "batch64", True)]  # fmt: skip
    last = lines[-1]
    assert last["bound_ms"] == pytest.approx((4 << 30) / 50e9 * 1e3, rel=1e-3)
    wanted = "case mode budget_bytes weights_gpu_bytes streamed_bytes ms bound_ms native_ms equal host_bytes first_steady_s gpu driver torch commit"
    assert set(wanted.split()) <= set(last)
    assert capsys.readouterr().out.rstrip().splitlines()[-1].startswith("gpu    batch64  flextensor 4 GiB")


def test_a_wrong_output_makes_the_driver_fail(script, library, tmp_path):
    code, lines = run_bench(script, library, tmp_path, "3")
    assert code == 1
    assert [entry["equal"] for entry in lines if entry["mode"] == "flextensor"] == [True, False]


def test_a_crashed_run_is_reported_and_the_next_one_still_runs(script, library, tmp_path, capsys):
    code, lines = run_bench(script, library, tmp_path, "2,4")
    out = capsys.readouterr().out
    assert code == 1
    assert "killed by SIGABRT" in out and "cannot go on" in out and "FAILED: gpu flextensor 2 GiB" in out
    assert sum(entry["budget_bytes"] == 4 << 30 for entry in lines) == 2


def test_runs_that_do_not_fit_the_total_limit_are_named(script, library, tmp_path, capsys):
    code, lines = run_bench(script, library, tmp_path, "4", total_limit="5")
    assert code == 1 and lines == []
    assert "not run, the total limit is used up" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments",
    [
        ["--budgets", "x"],
        ["--builds", "tpu"],
        ["--modes", "magic"],
        ["--lib", "/nowhere.so"],
        [],
        ["--option", "A=1"],
    ],
)
def test_bad_arguments_are_refused(arguments, library):
    given = arguments if "--lib" in arguments or not arguments else ["--lib", str(library), *arguments]
    with pytest.raises(SystemExit) as end:
        bench.arguments(given)
    assert end.value.code == 2


# --- the table --------------------------------------------------------------


def test_the_table_shows_every_run_and_marks_a_wrong_one(script, library, tmp_path, capsys):
    run_bench(script, library, tmp_path, "3,4")
    capsys.readouterr()
    assert table.main([str(tmp_path / "out" / "llama.jsonl")]) == 0
    text = capsys.readouterr().out
    rows = {cells.split("|")[1].strip(): cells for cells in text.splitlines() if cells.startswith("|")}
    assert {"native", "flextensor 3 GiB", "flextensor 4 GiB"} <= set(rows)
    assert "**no**" in rows["flextensor 3 GiB"] and "| yes |" in rows["flextensor 4 GiB"]
    assert text.startswith("G, driver D, torch T, link 50.0 GB/s")


def test_a_broken_result_file_is_named_with_its_line(tmp_path, capsys):
    path = tmp_path / "x.jsonl"
    path.write_text("{}\nnonsense\n")
    assert table.main([str(path)]) == 1
    assert f"{path}:2" in capsys.readouterr().err
