"""Runs the GPU cases natively and under the preloaded library, and compares every output bit for bit.

For each case one native process that runs it twice (which proves that the case is deterministic and gives the size of its weights), then one under a
small budget. Prints a table; writes OUT/gpu_cases.jsonl. Cases are in `cases/`, one run of one case in `program.py`.
Exit code: 0 when every case that ran passed or was skipped; else 1.
"""

import argparse
import concurrent.futures
import json
import os
import sys
import tempfile
import threading
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parents[1] / "bench"))

import child  # noqa: E402
import measure  # noqa: E402

MIB = 1 << 20
COLUMNS = (
    "case",
    "result",
    "weights",
    "budget",
    "streamed",
    "copied",
    "doubtful",
    "mispred",
    "demand",
    "ms",
    "native",
    "s",
    "reason",
)
# No case is started with less than this many seconds left.
LEAST_S = 15


def outputs(outcome: child.Outcome, run: int) -> list[dict]:
    return [line for line in outcome.events("output") if line["run"] == run]


def first_difference(expected: list[dict], given: list[dict]) -> str | None:
    """Where two runs part, in words; None when every output is the same to the bit."""
    differing = [
        index
        for index, (left, right) in enumerate(zip(expected, given, strict=False))
        if left["digest"] != right["digest"]
    ]
    if differing:
        left, right = expected[differing[0]], given[differing[0]]
        plain = (
            f", values {right['plain']} instead of {left['plain']}" if left["plain"] != right["plain"] else ""
        )
        broken = "" if right["finite"] else ", not finite"
        return (
            f"{len(differing)} of {len(expected)} outputs differ, the first is {differing[0]}{plain}{broken}"
        )
    if len(expected) != len(given):
        return f"{len(given)} outputs instead of {len(expected)}"
    return None


def ended_badly(outcome: child.Outcome) -> str | None:
    """Why a run cannot be used: how it ended and the last thing it said."""
    if outcome.failure is None and outcome.events("end"):
        return None
    said = outcome.stderr_tail(1)
    return f"{outcome.failure or 'no end'} after {len(outcome.events('output'))} outputs: {said[0].strip()[:160] if said else 'nothing on stderr'}"


def judge_native(outcome: child.Outcome) -> tuple[str, str] | None:
    """A verdict that needs no second process: skipped, broken, not deterministic; None when the case can be compared."""
    if skipped := outcome.events("skip"):
        return "SKIP", skipped[0]["reason"]
    if reason := ended_badly(outcome):
        return "BROKEN", f"native: {reason}"
    first = outputs(outcome, 0)
    if difference := first_difference(first, outputs(outcome, 1)):
        return "UNSTABLE", f"native against itself: {difference}"
    if not all(line["finite"] for line in first):
        return "BROKEN", "native: an output is not finite"
    if not first or not all(line["lively"] for line in first):
        return "BROKEN", "native: an output is all zero"
    return None


def streamed(report: dict) -> int | None:
    """Bytes that were brought in by the plan, by prefetch or on demand; None when the report tells nothing about it."""
    counts = [
        child.field(report, "plan", "streamed_bytes"),
        child.field(report, "counters", "prefetch_bytes"),
        child.field(report, "counters", "demand_loads"),
    ]
    known = [count for count in counts if isinstance(count, (int, float))]
    return max(known) if known else None


def judge(
    case: dict, native: child.Outcome, ours: child.Outcome, report: dict | None, budget_bytes: int
) -> tuple[str, str]:
    """PASS or FAIL, with everything that is wrong."""
    reasons = []
    if reason := ended_badly(ours):
        reasons.append(reason)
    expected, given = outputs(native, 0), outputs(ours, 0)
    if reasons:
        # The outputs before the end still say whether anything was wrong earlier.
        expected = expected[: len(given)]
    if difference := first_difference(expected, given):
        reasons.append(difference)
    if report is None:
        reasons.append("no run report")
    else:
        bytes_streamed = streamed(report)
        if case["streams"] and not bytes_streamed:
            reasons.append(
                "nothing was streamed" if bytes_streamed == 0 else "the report does not say what was streamed"
            )
        held = child.field(report, "memory", "weights_gpu_bytes")
        # A model that is still being learnt, a copy made late for example, has not been asked to keep a budget yet.
        learning = any(model.get("phase") != "INFERENCE" for model in report.get("models") or [])
        if case["keeps_budget"] and not learning and held is not None and held > budget_bytes:
            reasons.append(f"weights hold {held / MIB:.0f} MiB of a budget of {budget_bytes / MIB:.0f} MiB")
    return ("FAIL", "; ".join(reasons)) if reasons else ("PASS", "")


def cut_short(outcome: child.Outcome, limit_s: float, case: dict) -> str | None:
    """Why a run says nothing: the limit of all cases ended it before its own."""
    if outcome.timed_out and limit_s < case["limit_s"]:
        return f"ended after {limit_s:.0f} s, the total limit is used up"
    return None


def median_ms(lines: list[dict]) -> float | None:
    """Of the second half: forwards after the plan, with their share of the case's other work."""
    times = sorted(line["ms"] for line in lines[len(lines) // 2 :])
    return times[len(times) // 2] if times else None


class Suite:
    """All cases of one invocation."""

    results_name = "gpu_cases.jsonl"

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.began = time.monotonic()
        self.print_lock = threading.Lock()
        self.cache = tempfile.TemporaryDirectory(prefix="gpu-cases-")
        options.out.mkdir(parents=True, exist_ok=True)
        self.results = options.out / self.results_name
        self.results.write_text("")

    def left_s(self) -> float:
        return self.options.total_limit - (time.monotonic() - self.began)

    def environment(
        self,
        library: Path | None,
        settings: dict[str, str],
        *,
        preload: bool = True,
        more: dict[str, str] | None = None,
    ) -> dict[str, str]:
        """That of a run under `library`, or with its path for a program that loads it itself (`preload=False`);
        with the variables `more`, which a case brings along."""
        extra = {
            **(more or {}),
            "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
            "GPU_CASES_CACHE": self.cache.name,
            # Both runs of a compiled case use the same generated kernels.
            "TORCHINDUCTOR_CACHE_DIR": str(Path(self.cache.name) / "inductor"),
            "TRITON_CACHE_DIR": str(Path(self.cache.name) / "triton"),
        }
        if library is not None and not preload:
            extra |= {"GPU_CASES_LIBRARY": str(library.resolve()), **settings}
        return child.environment(library if preload else None, settings, extra)

    def command(self, *arguments: str) -> list[str]:
        return [*self.options.program, *arguments]

    def describe(self) -> list[dict]:
        """The cases to run, the longest first."""
        outcome = child.run(self.command("--list"), limit_s=60, env=self.environment(None, {}))
        found = outcome.events("case")
        if outcome.failure or not found:
            raise SystemExit(
                "cannot list the cases: "
                + "\n".join([outcome.failure or "none found", *outcome.stderr_tail()])
            )
        only = self.options.only
        if unknown := set(only) - {case["name"] for case in found}:
            raise SystemExit(
                f"unknown case {sorted(unknown)[0]}; allowed: {', '.join(case['name'] for case in found)}"
            )
        chosen = [
            case
            for case in found
            if (case["name"] in only if only else self.options.slow or not case["slow"])
        ]
        return sorted(chosen, key=lambda case: -case["limit_s"])

    def run_case(self, case: dict) -> dict:
        """Runs one case and writes its line."""
        began = time.monotonic()
        try:
            line = self.compare(case)
        except Exception as error:  # one case must never take the others with it
            line = {
                "case": case["name"],
                "result": "BROKEN",
                "reason": f"runner: {type(error).__name__}: {error}",
            }
        line["wall_s"] = round(time.monotonic() - began, 1)
        with self.print_lock:
            with self.results.open("a") as file:
                file.write(json.dumps(line) + "\n")
            print(f"{line['result']:8} {line['case']} ({line['wall_s']} s) {line['reason']}", flush=True)
            if line["result"] in ("FAIL", "BROKEN"):
                for text in line.get("stderr", [])[-self.options.stderr_lines :]:
                    print(f"    {text[:240]}", flush=True)
        return line

    def keep(self, name: str, native: child.Outcome, ours: child.Outcome | None, report: dict | None) -> None:
        """What else is written of a case: nothing here."""

    def compare(self, case: dict) -> dict:
        name, more = case["name"], case.get("environment")
        limit = min(case["limit_s"], self.left_s())
        if limit < LEAST_S:
            return {"case": name, "result": "LEFT", "reason": "not run, the total limit is used up"}
        native = child.run(
            self.command(name, "--repeat", "2"), limit_s=limit, env=self.environment(None, {}, more=more)
        )
        if cut := cut_short(native, limit, case):
            return {"case": name, "result": "LEFT", "reason": cut}
        if verdict := judge_native(native):
            self.keep(name, native, None, None)
            return {"case": name, "result": verdict[0], "reason": verdict[1], "stderr": native.stderr_tail()}
        weights = native.events("run")[0]["weights_bytes"]
        budget = int(weights * case["budget"])
        limit = min(case["limit_s"], max(LEAST_S, self.left_s()))
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "report.json"
            settings = {"FT_MAX_GPU_MEM": str(budget), "FT_REPORT": str(path), **self.options.settings}
            preload = case["preload"]
            environment = self.environment(self.options.lib, settings, preload=preload, more=more)
            ours = child.run(self.command(name), limit_s=limit, env=environment)
            kept = child.read_report(path)
        # What the process said while its models were alive, rather than what was left at its exit.
        live = ours.events("report")
        report = live[0]["report"] if live else kept
        self.keep(name, native, ours, report)
        # Whatever was told until then is judged all the same.
        given = outputs(ours, 0)
        cut = cut_short(ours, limit, case)
        if cut and first_difference(outputs(native, 0)[: len(given)], given) is None:
            return {"case": name, "result": "LEFT", "reason": cut, "stderr": ours.stderr_tail()}
        result, reason = judge(case, native, ours, report, budget)
        return {
            "case": name,
            "result": result,
            "reason": reason,
            "says": case["says"],
            "weights_bytes": weights,
            "budget_bytes": budget,
            "outputs": len(outputs(native, 0)),
            "ms": median_ms(outputs(ours, 0)),
            "native_ms": median_ms(outputs(native, 1)),
            "streamed_bytes": child.field(report, "plan", "streamed_bytes"),
            "counters": child.field(report, "counters"),
            "memory": child.field(report, "memory"),
            "phase": child.field(report, "phase"),
            "notes": child.field(report, "plan", "notes"),
            "stderr": ours.stderr_tail(),
        }

    def finish(self, lines: list[dict]) -> int:
        """Prints the table; returns the exit code."""
        order = {
            name: index for index, name in enumerate(("FAIL", "BROKEN", "UNSTABLE", "LEFT", "SKIP", "PASS"))
        }
        lines = sorted(lines, key=lambda line: (order[line["result"]], line["case"]))
        print("\n" + measure.text_table(COLUMNS, [cells(line) for line in lines]))
        counts = {name: sum(line["result"] == name for line in lines) for name in order}
        print(", ".join(f"{count} {name}" for name, count in counts.items() if count))
        return 0 if lines and all(line["result"] in ("PASS", "SKIP") for line in lines) else 1


def cells(line: dict) -> list[str]:
    """One row of the table; sizes in MiB."""

    def mib(value) -> str:
        return "-" if value is None else f"{value / MIB:.0f}"

    def counter(key: str) -> str:
        value = child.field(line, "counters", key)
        return "-" if value is None else str(value)

    return [
        line["case"],
        line["result"],
        mib(line.get("weights_bytes")),
        mib(line.get("budget_bytes")),
        mib(line.get("streamed_bytes")),
        mib(child.field(line, "counters", "prefetch_bytes")),
        counter("doubtful"),
        counter("mispredictions"),
        counter("demand_loads"),
        measure.number(line.get("ms"), 2),
        measure.number(line.get("native_ms"), 2),
        measure.number(line.get("wall_s"), 0),
        line["reason"][:150],
    ]


def checked(parser: argparse.ArgumentParser, options: argparse.Namespace) -> argparse.Namespace:
    """The options that every runner has, taken apart; exits with one line for a value that is not allowed."""
    options.only = [name.strip() for text in options.only for name in text.split(",") if name.strip()]
    if not options.lib.is_file():
        parser.error(f"--lib {options.lib}: not a file")
    if options.jobs < 1:
        parser.error(f"--jobs {options.jobs}: allowed is 1 or more")
    options.settings = child.settings(parser, options.option)
    return options


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lib", type=Path, required=True, help="libflextensor.so")
    parser.add_argument(
        "--only", action="append", default=[], metavar="NAME[,NAME]", help="these cases, slow ones included"
    )
    parser.add_argument("--slow", action="store_true", help="also the cases that compile")
    parser.add_argument("--jobs", type=int, default=3, help="cases at a time")
    parser.add_argument(
        "--total-limit",
        type=float,
        default=560,
        help="seconds for everything; cases that do not fit are left out and said so",
    )
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="FT_KEY=VALUE",
        help="one more option for the preloaded runs",
    )
    parser.add_argument("--stderr-lines", type=int, default=6, help="printed for a case that failed")
    parser.add_argument(
        "--out", type=Path, default=Path(os.environ.get("OUT", HERE.parents[1] / "bench" / "results"))
    )
    parser.add_argument(
        "--program", nargs="+", default=[sys.executable, str(HERE / "program.py")], help=argparse.SUPPRESS
    )
    return checked(parser, parser.parse_args(argv))


def main(argv: list[str] | None = None) -> int:
    suite = Suite(arguments(argv))
    cases = suite.describe()
    with concurrent.futures.ThreadPoolExecutor(suite.options.jobs) as pool:
        lines = list(pool.map(suite.run_case, cases))
    return suite.finish(lines)


if __name__ == "__main__":
    sys.exit(main())
