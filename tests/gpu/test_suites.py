"""The logic of the runners of small cases and of strangers' programs, tested with fake programs: needs neither torch nor a GPU."""

import json

import child
import pytest
from stand_ins import ROOT, library_in, load, program_writer

suite = load("gpu_run", ROOT / "tests" / "gpu" / "run.py")
strangers = load("strangers_run", ROOT / "tests" / "gpu" / "strangers" / "run.py")
limits = load("gpu_limits", ROOT / "tests" / "gpu" / "limits.py")
examples = load("gpu_examples", ROOT / "tests" / "gpu" / "examples.py")


@pytest.fixture
def script(tmp_path):
    return program_writer(tmp_path)


@pytest.fixture
def library(tmp_path):
    return library_in(tmp_path)


# --- the verdicts on small cases --------------------------------------------


def output(index, digest, run=0, **changes):
    return (
        dict(event="output", run=run, index=index, ms=1.0, digest=digest, plain=[], finite=True, lively=True)
        | changes
    )


def outcome(*digests, run=0, end=True, returncode=0, **changes):
    lines = [output(index, digest, run, **changes) for index, digest in enumerate(digests)]
    lines += [dict(event="end")] if end else []
    return child.Outcome(returncode, False, lines, "Traceback\nRuntimeError: boom\n", 1.0)


REPORT = {
    "plan": {"streamed_bytes": 10},
    "memory": {"weights_gpu_bytes": 50},
    "counters": {"prefetch_bytes": 100},
}


EXPECT = {"streams": True, "keeps_budget": True}


def test_equal_outputs_that_were_streamed_pass():
    assert suite.judge(EXPECT, outcome("a", "b"), outcome("a", "b"), REPORT, 60) == ("PASS", "")


@pytest.mark.parametrize(
    "ours, report, word",
    [
        (outcome("a", "x"), REPORT, "1 of 2 outputs differ, the first is 1"),
        (outcome("a"), REPORT, "1 outputs instead of 2"),
        (outcome("a", end=False, returncode=1), REPORT, "RuntimeError: boom"),
        (outcome("x", end=False, returncode=-11), REPORT, "the first is 0"),
        (outcome("a", "b"), None, "no run report"),
        (outcome("a", "b"), {"plan": {"streamed_bytes": 0}}, "nothing was streamed"),
        (outcome("a", "b"), {"version": 1}, "does not say what was streamed"),
        (outcome("a", "b"), REPORT | {"memory": {"weights_gpu_bytes": 61}}, "of a budget of"),
    ],
)
def test_each_fault_of_a_case_fails_it(ours, report, word):
    result, reason = suite.judge(EXPECT, outcome("a", "b"), ours, report, 60)
    assert result == "FAIL" and word in reason, reason


def test_a_case_may_be_excused_from_streaming_and_from_its_budget():
    report = {"plan": {"streamed_bytes": 0}, "memory": {"weights_gpu_bytes": 999}}
    assert (
        suite.judge({"streams": None, "keeps_budget": False}, outcome("a"), outcome("a"), report, 60)[0]
        == "PASS"
    )


def test_a_case_that_the_limit_of_all_cases_ended_is_no_failure_of_ours():
    ended = child.Outcome(-6, True, [output(0, "a")], "", 17.0)
    assert "the total limit" in suite.cut_short(ended, 17, {"limit_s": 60})
    assert suite.cut_short(ended, 60, {"limit_s": 60}) is None
    assert suite.cut_short(outcome("a"), 17, {"limit_s": 60}) is None


def both(first, second, **changes):
    lines = [output(index, digest, 0, **changes) for index, digest in enumerate(first)] + [
        output(index, digest, 1) for index, digest in enumerate(second)
    ]
    return child.Outcome(0, False, [*lines, dict(event="end")], "", 1.0)


def test_only_a_deterministic_lively_finite_case_is_compared():
    assert suite.judge_native(both("ab", "ab")) is None
    assert suite.judge_native(both("ab", "ax"))[0] == "UNSTABLE"
    assert suite.judge_native(both("ab", "ab", finite=False))[0] == "BROKEN"
    assert suite.judge_native(both("ab", "ab", lively=False))[0] == "BROKEN"
    assert suite.judge_native(both("", ""))[0] == "BROKEN"
    assert suite.judge_native(outcome("a", end=False, returncode=1))[0] == "BROKEN"
    assert suite.judge_native(child.Outcome(0, False, [dict(event="skip", reason="no GPU")], "", 1.0)) == (
        "SKIP",
        "no GPU",
    )


FAKE_CASES = """
cases = dict(good=1, wrong=1, hangs=1, absent=1, slow=1, late=1)
if "--list" in sys.argv:
    for name in cases:
        print(json.dumps(dict(event="case", name=name, budget=0.5, streams=True, keeps_budget=True, limit_s=2 if name == "hangs" else 30, slow=name == "slow", because="", says="", preload=name != "late")))
    sys.exit()
name, ours = sys.argv[1], "FT_MAX_GPU_MEM" in os.environ
how = "LD_PRELOAD" in os.environ, "GPU_CASES_LIBRARY" in os.environ
assert how == ((ours, False) if name != "late" else (False, ours)), how
if name == "absent":
    print(json.dumps(dict(event="skip", reason="no such kernel"))); sys.exit()
for run in range(1 if ours else 2):
    for index in range(3):
        digest = "x" if ours and name == "wrong" and index == 2 else str(index)
        print(json.dumps(dict(event="output", run=run, index=index, ms=1.0, digest=digest, plain=[], finite=True, lively=True)), flush=True)
    print(json.dumps(dict(event="run", run=run, outputs=3, weights_bytes=1000)))
if ours and name == "hangs": time.sleep(60)
if ours: print(json.dumps(dict(event="report", report=dict(plan=dict(streamed_bytes=5), memory=dict(weights_gpu_bytes=int(os.environ["FT_MAX_GPU_MEM"]))))))
print(json.dumps(dict(event="end")))
"""


def test_the_suite_runs_all_quick_cases_and_says_what_went_wrong(
    script, library, tmp_path, capsys, monkeypatch
):
    # The fake's limit is below what the runner would start a case with.
    monkeypatch.setattr(suite, "LEAST_S", 1)
    code = suite.main(
        ["--lib", str(library), "--out", str(tmp_path / "out"), "--program", *script(FAKE_CASES)]
    )
    lines = {
        entry["case"]: entry
        for entry in map(json.loads, (tmp_path / "out" / "gpu_cases.jsonl").read_text().splitlines())
    }
    assert code == 1
    assert {name: entry["result"] for name, entry in lines.items()} == {
        "good": "PASS",
        "wrong": "FAIL",
        "hangs": "FAIL",
        "absent": "SKIP",
        "late": "PASS",
    }
    assert lines["good"]["budget_bytes"] == 500
    assert "the first is 2" in lines["wrong"]["reason"] and "no end after" in lines["hangs"]["reason"]
    assert capsys.readouterr().out.rstrip().endswith("2 FAIL, 1 SKIP, 2 PASS")


def test_chosen_cases_run_alone_and_an_unknown_one_is_refused(script, library, tmp_path):
    common = ["--lib", str(library), "--out", str(tmp_path / "out")]
    assert suite.main([*common, "--only", "good,slow", "--program", *script(FAKE_CASES)]) == 0
    assert len((tmp_path / "out" / "gpu_cases.jsonl").read_text().splitlines()) == 2
    with pytest.raises(SystemExit, match="unknown case nonsense"):
        suite.main([*common, "--only", "nonsense", "--program", *script(FAKE_CASES)])


# --- programs that nobody here wrote -----------------------------------------


FAKE_STRANGER = """
import json, os, sys
ours, kind = "FT_MAX_GPU_MEM" in os.environ, {kind!r}
print("said aside", file=sys.stderr)
if kind == "absent":
    print(json.dumps(dict(event="skip", reason="not installed"))); sys.exit()
assert ours or sys.argv[-2:] == ["--repeat", "2"]
for run in range(1 if ours else 2):
    for index in range(2):
        digest = "x" if ours and kind == "wrong" else str(index)
        print(json.dumps(dict(event="output", run=run, index=index, ms=1.0, digest=digest, plain=[1], finite=True, lively=True)))
    print(json.dumps(dict(event="run", run=run, outputs=2, weights_bytes=1000)))
held = int(os.environ.get("FT_MAX_GPU_MEM", 0)) + (kind == "large")
if ours: print(json.dumps(dict(event="report", report=dict(plan=dict(streamed_bytes=5), models=[dict(phase="DISCOVERY")], memory=dict(weights_gpu_bytes=held)))))
print(json.dumps(dict(event="end")))
"""


@pytest.fixture
def run_strangers(library, tmp_path):
    """Runs fakes in the strangers' place (by script: ok, wrong, large, absent); returns the exit code and the lines by name."""

    def run_fakes(*arguments, **kinds):
        for program in ("generate", "pipeline", "serve_vllm"):
            (tmp_path / f"{program}.py").write_text(FAKE_STRANGER.format(kind=kinds.get(program, "ok")))
        out = tmp_path / "out"
        common = ["--lib", str(library), "--out", str(out), "--programs", str(tmp_path)]
        code = strangers.main([*common, *arguments])
        lines = map(json.loads, (out / "strangers.jsonl").read_text().splitlines())
        return code, {line["case"]: line for line in lines}

    return run_fakes


def test_strangers_are_compared_and_what_they_said_is_kept(run_strangers, tmp_path):
    code, lines = run_strangers()
    assert code == 0
    assert {line["result"] for line in lines.values()} == {"PASS"} and len(lines) == 4
    assert lines["vllm"]["budget_bytes"] == 400
    log = (tmp_path / "out" / "strangers.log").read_text()
    assert log.count("said aside") == 8 and "=== vllm_inline, ours: ended well" in log
    assert (tmp_path / "out" / "strangers.reports.jsonl").read_text().count("weights_gpu_bytes") == 4


def test_a_stranger_with_other_outputs_or_too_many_bytes_fails(run_strangers):
    code, lines = run_strangers("--only", "generate,pipeline", generate="wrong", pipeline="large")
    assert code == 1
    assert lines["generate"]["result"] == "FAIL" and "2 of 2 outputs differ" in lines["generate"]["reason"]
    assert lines["pipeline"]["result"] == "FAIL" and "401 bytes" in lines["pipeline"]["reason"]


def test_a_stranger_that_is_not_installed_fails_only_where_it_was_asked_for(run_strangers):
    assert run_strangers(serve_vllm="absent")[0] == 0
    assert run_strangers("--only", "vllm,generate", serve_vllm="absent")[0] == 1
    assert run_strangers(generate="absent", pipeline="absent", serve_vllm="absent")[0] == 1
    with pytest.raises(SystemExit):
        run_strangers("--only", "tokens")


# --- the verdicts on a limit -------------------------------------------------


def stages(name, **changes):
    """What a part says of its stages where all is well, with some of it changed: STAGE_KEY=value."""
    after = {"larger_than_the_limit": ("twenty", "fifty")}.get(
        name, ("without", "grown", "gone", "fifty_later")
    )
    kept = {"twenty", "fifty", "grown"}
    found = {
        stage: dict(
            streamed=int(stage in kept) << 30, host=1 << 30, told_free=1 << 30, told_total=limits.LIMIT
        )
        for stage in after
    }
    for key, value in changes.items():
        stage, _, field = key.partition("__")
        if value is None:
            del found[stage]
        else:
            found[stage][field] = value
    return found


@pytest.mark.parametrize("name", ["larger_than_the_limit", "a_cache_that_grows_and_goes"])
def test_a_limit_that_was_held_is_found_right(name):
    assert limits.judge_stages(name, stages(name)) == []


@pytest.mark.parametrize(
    ("name", "change", "said"),
    [
        ("larger_than_the_limit", {"twenty__streamed": 0}, "nothing was streamed"),
        ("larger_than_the_limit", {"fifty__host": 2 << 30}, "host memory grew by 1024 MiB"),
        ("larger_than_the_limit", {"fifty__told_free": 0}, "GPU memory grew by 1024 MiB"),
        ("larger_than_the_limit", {"fifty__told_total": 8 << 30}, "was told of 8192 MiB"),
        ("larger_than_the_limit", {"fifty": None}, "not all stages"),
        (
            "a_cache_that_grows_and_goes",
            {"without__streamed": 5},
            "5 bytes were streamed while everything fitted",
        ),
        ("a_cache_that_grows_and_goes", {"grown__streamed": 0}, "nothing gave way"),
        ("a_cache_that_grows_and_goes", {"fifty_later__streamed": 7}, "7 bytes are still streamed"),
    ],
)
def test_a_limit_that_was_not_held_is_said(name, change, said):
    assert any(said in wrong for wrong in limits.judge_stages(name, stages(name, **change)))


# --- what examples promise ---------------------------------------------------


def test_every_example_promises_something_on_a_gpu():
    for path in (ROOT / "examples").glob("*.py"):
        if path.name not in examples.ELSEWHERE:
            assert examples.runs(path.read_text(), "on a GPU") or path.name in examples.PATTERNS, path.name


def test_an_example_that_promises_two_runs_has_two():
    text = (ROOT / "examples" / "profile_reuse.py").read_text()
    first, second = examples.runs(text, "on a GPU")
    assert first[-1] == "saved" and second[-1] == "the same answer: True"


def test_the_offloading_example_is_held_to_its_pattern():
    head = ["24 units, 4 forwards to learn", *["phase PROFILING"] * 3, "phase INFERENCE"]
    tail = ["released: NOT_INITIALIZED, weights on cpu"]
    good = [*head, "ring 128 MiB, residents 800 MiB", "bytes   to the GPU", "1 MiB   0.02 ms", *tail]
    assert examples.is_as_promised("offload.py", good, [])
    assert not examples.is_as_promised(
        "offload.py", [*head, "ring 0 MiB, residents 0 MiB", "no times", *tail], []
    )
    assert not examples.is_as_promised("offload.py", good[:-1], [])
