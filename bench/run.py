"""Runs a program natively, under the preloaded library at several budgets and under other libraries, and compares.

One child process for each run, same model and inputs. Appends one JSON line for each case to OUT/NAME.jsonl as soon as it is known, keeps reports and
stderr beside it, and prints tables last. Options and the order of runs are in `options.py`, judging in `measure.py` and `compare.py`, child processes in
`child.py`, the measured programs in files of their own.
Exit code: 0 when every run of ours ended, all its outputs are equal and every budget is kept, whatever peers did; 2 where something needed is missing; else 1.
"""

import datetime
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import child
import compare
import measure
import packages
import peers
import program
import sampler
import wheels
from options import Run, arguments, planned

HERE = Path(__file__).resolve().parent
# No run is started with less than this many seconds left.
LEAST_S = 20


def read_lines(path: Path) -> list[dict]:
    """The JSON lines of a results file."""
    return [json.loads(text) for text in path.read_text().splitlines() if text.strip()]


def commit() -> str:
    """The commit under test: FT_COMMIT where there is no git checkout."""
    given = os.environ.get("FT_COMMIT")
    if given:
        return given
    try:
        return subprocess.run(
            ["git", "rev-parse", "--short=12", "HEAD"], cwd=HERE, text=True, capture_output=True, check=True
        ).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return "unknown"


class Bench:
    """The state of one benchmark: what is known so far, and where it is written."""

    def __init__(self, options) -> None:
        self.options = options
        self.began = time.monotonic()
        options.out.mkdir(parents=True, exist_ok=True)
        self.results = options.out / f"{options.name}.jsonl"
        self.log = options.out / f"{options.name}.log"
        self.reports = options.out / f"{options.name}.reports.jsonl"
        self.earlier = self.earlier_lines()
        for path in (self.results, self.log, self.reports):
            path.write_text("")
        self.lines: list[dict] = []
        self.failures: list[str] = []
        self.left_out: list[str] = []
        self.machine: dict = {}
        self.warmed: set[str] = set()
        # Removed when the bench ends, however it does.
        self.scratch = tempfile.TemporaryDirectory(prefix="flextensor-bench-")
        self.folder = Path(self.scratch.name)
        self.sites = wheels.unpack(options.wheels, self.folder) if options.wheels else {}
        self.python = sys.executable
        if options.packages_in:
            self.place_packages(options.packages_in)

    def earlier_lines(self) -> list[dict]:
        """The lines of --against that are of the same program."""
        lines = read_lines(self.options.against) if self.options.against else []
        known = self.options.known
        return [line for line in lines if "case" in line and known in (None, measure.program_of(line))]

    def left_s(self) -> float:
        return self.options.total_limit - (time.monotonic() - self.began)

    def note(self, text: str) -> None:
        print(text, flush=True)
        with self.log.open("a") as file:
            file.write(text + "\n")

    def environment(self, mode: str, settings: dict[str, str] | None = None) -> dict[str, str]:
        """The child's environment: the library only for ours, the Python package of the same name only for the peer that it is."""
        extra = peers.variables(mode, self.sites)
        preload = self.options.lib if mode in measure.OURS else None
        return child.environment(preload, settings or {}, extra, compiled=self.python != sys.executable)

    def place_packages(self, into: Path) -> None:
        """Gives all children a Python in memory with what they need; where that cannot be, the installed packages stay, and one line says so."""
        try:
            python, sites, count = wheels.placed(into, self.sites)
        except packages.FAILURES as error:
            self.note(f"packages in {into}: {error}; those that are installed are used")
            return
        before = (self.python, self.sites)
        self.python, self.sites = str(python), sites
        needed = self.options.imports or "import torch"
        tried = child.run([self.python, "-c", needed], limit_s=120, env=self.environment("native"))
        if tried.failure:
            self.python, self.sites = before
            reason = " ".join(tried.stderr_tail(1)) or tried.failure
            self.note(f"packages in {into}: {reason}; those that are installed are used")
            return
        self.warmed.add("native")
        self.note(f"packages in {into}: {count}")

    def with_python(self, command: list[str]) -> list[str]:
        """The command with the children's Python in the place of this one."""
        return [self.python if command[0] == sys.executable else command[0], *command[1:]]

    def warm_imports(self, mode: str) -> None:
        """Fills the byte-code cache and the page cache, so that no run pays for being the first on this machine."""
        needed = self.options.imports if mode == "native" else peers.PEERS[mode].imports
        if needed and mode not in self.warmed:
            self.warmed.add(mode)
            child.run([self.python, "-c", needed], limit_s=120, env=self.environment(mode))

    def measure_link(self) -> int:
        """Names the machine and measures its link; returns 0, or the exit code of a machine on which nothing can run."""
        link = self.with_python(self.options.link)
        outcome = child.run(link, limit_s=90, env=self.environment("native"))
        found = outcome.events("link")
        if not found:
            if outcome.returncode == program.MISSING:
                print("\n".join(outcome.stderr_tail(1)), file=sys.stderr)
                return program.MISSING
            self.failures.append("link")
            self.note(f"link: {outcome.failure or 'no result'}\n  " + "\n  ".join(outcome.stderr_tail()))
            return 0
        self.machine = {key: value for key, value in found[0].items() if key != "event"}
        self.note(
            f"{self.machine['gpu']}, driver {self.machine['driver']}, torch {self.machine['torch']}, link {self.machine['link_bytes_per_s'] / 1e9:.1f} GB/s"
        )
        return 0

    def weights_bytes(self) -> int | None:
        return next(
            (line["weights_bytes"] for line in [*self.lines, *self.earlier] if line.get("weights_bytes")),
            None,
        )

    def modes_of(self, run: Run) -> list[measure.Mode]:
        """The run with its budget in bytes: one mode, or one for each run of the peer whose bytes it is to have."""
        if run.match:
            judged = [*self.earlier_judged(), *(self.judged(line) for line in self.lines)]
            held = compare.bytes_of(compare.newest(judged), run.match)
            if not held:
                raise ValueError(f"no run of {run.match} has told what it held")
            return [measure.Mode(run.mode, size) for size in held]
        return [measure.Mode(run.mode, measure.budget_bytes(run.budget, self.weights_bytes()))]

    def run(self, run: Run) -> None:
        """Runs the children of one planned run."""
        try:
            modes = self.modes_of(run)
        except ValueError as error:
            self.leave_out(f"{run.build} {run.mode}", f"not run: {error}", run.mode)
            return
        for mode in modes:
            weights = self.weights_bytes()
            if (
                mode.is_peer
                and mode.budget_bytes
                and weights
                and mode.budget_bytes >= weights
                and self.options.peer_budgets is None
            ):
                continue
            self.run_one(run.build, mode)

    def leave_out(self, name: str, reason: str, mode: str) -> None:
        """Says what was not run; only what is missing of ours, or of native, makes the whole a failure."""
        self.note(f"{name}: {reason}")
        (self.left_out if measure.Mode(mode).is_peer else self.failures).append(name)

    def command(self, build: str, mode: measure.Mode) -> list[str]:
        """The child's command line."""
        options = self.options
        given = [("--layers", options.layers), ("--timed", options.timed), ("--cases", options.cases)]
        given += [("--device", options.device)] if options.device != "cuda" else []
        if mode.is_peer:
            head = [self.python, str(HERE / "peers.py"), mode.name]
            head += ["--budget-bytes", str(mode.budget_bytes)] if mode.budget_bytes else []
            head.append(options.program[-1])
            given += [("--forwards", options.peer_forwards), ("--loop-seconds", options.peer_loop_seconds)]
        else:
            head = [*self.with_python(options.program), "--build", build]
            given += [("--forwards", options.forwards)]
        rest = [text for key, value in given if value is not None for text in (key, str(value))]
        return [*head, *rest, *(["--tiny"] if options.tiny else []), *options.program_option]

    def run_one(self, build: str, mode: measure.Mode) -> None:
        """Runs one child and writes its lines."""
        options = self.options
        name = f"{build} {mode.label}"
        if mode.is_peer and self.left_s() >= LEAST_S:
            self.warm_imports(mode.name)
        limit = min(options.peer_limit if mode.is_peer else options.limit, self.left_s())
        if limit < LEAST_S:
            self.leave_out(name, "not run, the total limit is used up", mode.name)
            return
        streams = mode.name == "flextensor"
        path = self.folder / "report.json"
        path.unlink(missing_ok=True)
        settings = {
            "off": {"FT_ENABLED": "0"},
            "flextensor": {"FT_MAX_GPU_MEM": str(mode.budget_bytes), "FT_REPORT": str(path)},
        }.get(mode.name, {})
        if streams:
            settings.update(options.settings)
        with sampler.Sampler() as memory:
            outcome = child.run(
                self.command(build, mode), limit_s=limit, env=self.environment(mode.name, settings)
            )
        report = child.read_report(path) if streams else None
        if streams:
            with self.reports.open("a") as file:
                file.write(
                    json.dumps({"build": build, "budget_bytes": mode.budget_bytes, "report": report}) + "\n"
                )
        device, host = (None, None) if options.shared_gpu else (memory.device, memory.host)
        self.keep(outcome, measure.case_lines(mode, outcome, report, device, host))
        cases = " ".join(f"{case['case']} {case['ms']:.1f}" for case in outcome.events("case"))
        self.note(f"{name}: {outcome.failure or 'done'} in {outcome.wall_s:.0f} s; {cases}")
        said = (
            [line for line in outcome.stderr_tail(60) if "flextensor" in line.lower()][-12:]
            if not mode.is_peer
            else []
        )
        if outcome.failure or not outcome.events("end"):
            (self.left_out if mode.is_peer else self.failures).append(name)
            said = outcome.stderr_tail(1 if outcome.returncode == program.MISSING else child.STDERR_LINES)
        for line in said:
            self.note(f"  {line[:300]}")

    def keep(self, outcome: child.Outcome, lines: list[dict]) -> None:
        """Judges the new lines and appends them, with the machine and the time, to the results."""
        self.lines.extend(lines)
        stamp = {
            "shared_gpu": self.options.shared_gpu,
            "commit": commit(),
            "date": datetime.date.today().isoformat(),
            "run_wall_s": round(outcome.wall_s, 1),
            "run_failure": outcome.failure,
        }
        with self.results.open("a") as file:
            for line in lines:
                file.write(json.dumps({**self.judged(line), **self.machine, **stamp}) + "\n")

    def judged(self, line: dict) -> dict:
        # A native run of this machine goes before one of an earlier day.
        judged = measure.judge(line, [*self.lines, *self.earlier], self.machine.get("link_bytes_per_s"))
        if self.options.shared_gpu:
            judged.update(ratio=None, weights_device_bytes=None, misses=[])
        return judged

    def earlier_judged(self) -> list[dict]:
        return [self.judged(line) for line in self.earlier]

    def finish(self) -> int:
        """Prints the tables; returns the exit code."""
        judged = [self.judged(line) for line in self.lines]
        if beside := compare.text(compare.newest([*self.earlier_judged(), *judged])):
            self.note(f"\n{beside}")
        self.note("\n" + measure.text_table(measure.COLUMNS, [measure.row(line) for line in judged]))
        for name in self.left_out:
            self.note(f"LEFT OUT, or not to its end: {name}")
        for name in self.failures:
            self.note(f"FAILED: {name}")
        ours = [line for line in judged if not measure.Mode(line["mode"]).is_peer]
        return 1 if self.failures or not judged or any(line["problems"] for line in ours) else 0


def main(argv: list[str] | None = None) -> int:
    options = arguments(argv)
    try:
        bench = Bench(options)
    except (OSError, ValueError) as error:
        print(f"bench: {error}", file=sys.stderr)
        return program.MISSING
    if not options.against:
        bench.warm_imports("native")
    if missing := bench.measure_link():
        return missing
    for run in planned(options):
        bench.run(run)
    return bench.finish()


if __name__ == "__main__":
    sys.exit(main())
