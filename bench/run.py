"""Runs the Llama natively and under the preloaded library at several budgets, and compares.

One child process for each run, same model and inputs. Appends one JSON line for each case to OUT/NAME.jsonl as soon as it is known, keeps reports and
stderr beside it, and prints a table last. Judging is in `measure.py`, child processes in `child.py`, the measured program in `llama.py`.
Exit code: 0 when every run ended, all outputs are equal and every budget is kept; else 1.
"""

import argparse
import datetime
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

import child
import measure

HERE = Path(__file__).resolve().parent
# No run is started with less than this many seconds left.
LEAST_S = 20
SAMPLE_S = 0.05
# What the measured program imports.
IMPORTS = "import torch, transformers; from transformers import LlamaForCausalLM; from transformers.models.llama import modeling_llama"


class DeviceSampler:
    """Samples the device memory in use through NVML, independently of the program and of the library. Silent where NVML is missing."""

    def __init__(self) -> None:
        self.samples: list[tuple[float, int]] = []
        self.baseline: int | None = None
        self._read = None
        self._stop = threading.Event()
        try:
            import pynvml

            pynvml.nvmlInit()
            handle = pynvml.nvmlDeviceGetHandleByIndex(0)
            self._read = lambda: int(pynvml.nvmlDeviceGetMemoryInfo(handle).used)
        except Exception:
            return

    def __enter__(self) -> "DeviceSampler":
        if self._read is not None:
            self.baseline = self._read()
            self._thread = threading.Thread(target=self._sample, daemon=True)
            self._thread.start()
        return self

    def __exit__(self, *_) -> None:
        if self._read is not None:
            self._stop.set()
            self._thread.join()

    def _sample(self) -> None:
        while not self._stop.wait(SAMPLE_S):
            self.samples.append((time.monotonic(), self._read()))


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


def command_line() -> argparse.ArgumentParser:
    """Every option with its default; what values mean is checked in `arguments`."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lib", type=Path, help="libflextensor.so; needed for every mode but native")
    parser.add_argument(
        "--budgets",
        default="4,8,16,40",
        help="GiB, comma separated; one larger than the model shows the cost of doing nothing",
    )
    parser.add_argument("--builds", default="gpu,cpu", help="where the weights are made: gpu, cpu")
    parser.add_argument(
        "--modes", default="native,flextensor", help="native, flextensor, off (preloaded with FT_ENABLED=0)"
    )
    parser.add_argument(
        "--native-once",
        action="store_true",
        help="run native for the first build only; the other builds are compared with it",
    )
    parser.add_argument("--layers", type=int, default=16)
    parser.add_argument("--forwards", type=int, default=20)
    parser.add_argument("--timed", type=int, default=12)
    parser.add_argument("--cases", help="passed to llama.py")
    parser.add_argument(
        "--quick", action="store_true", help="4 layers, one build, budgets 2 and 4: a first smoke test"
    )
    parser.add_argument("--limit", type=float, default=180, help="seconds for one run")
    parser.add_argument(
        "--total-limit",
        type=float,
        default=560,
        help="seconds for everything; runs that do not fit are left out and said so",
    )
    parser.add_argument(
        "--option",
        action="append",
        default=[],
        metavar="FT_KEY=VALUE",
        help="one more option for the flextensor runs",
    )
    parser.add_argument(
        "--against", type=Path, help="results of an earlier run whose native lines these are compared with"
    )
    parser.add_argument(
        "--shared-gpu",
        action="store_true",
        help="other runs share the GPU: outputs count, times and GPU memory do not",
    )
    parser.add_argument("--name", default="llama")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", HERE / "results")))
    parser.add_argument(
        "--program", nargs="+", default=[sys.executable, str(HERE / "llama.py")], help=argparse.SUPPRESS
    )
    parser.add_argument(
        "--link", nargs="+", default=[sys.executable, str(HERE / "link.py")], help=argparse.SUPPRESS
    )
    return parser


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """The checked options: lists are split, budgets are bytes. Exits with one line for a value that is not allowed."""
    parser = command_line()
    options = parser.parse_args(argv)
    if options.quick:
        options.layers, options.budgets, options.builds = 4, "2,4", "gpu"
    try:
        options.budgets = [measure.parse_budget(text) for text in options.budgets.split(",") if text.strip()]
    except ValueError as error:
        parser.error(str(error))
    options.builds = [name.strip() for name in options.builds.split(",") if name.strip()]
    options.modes = [name.strip() for name in options.modes.split(",") if name.strip()]
    if unknown := set(options.builds) - {"gpu", "cpu"}:
        parser.error(f"unknown build {sorted(unknown)[0]}; allowed: gpu, cpu")
    if unknown := set(options.modes) - {"native", "flextensor", "off"}:
        parser.error(f"unknown mode {sorted(unknown)[0]}; allowed: native, flextensor, off")
    if options.modes != ["native"] and (options.lib is None or not options.lib.is_file()):
        parser.error(f"--lib {options.lib}: not a file; needed for every mode but native")
    for text in options.option:
        if not text.startswith("FT_") or "=" not in text:
            parser.error(f"--option {text}: allowed is FT_KEY=VALUE")
    return options


def planned(options: argparse.Namespace) -> list[tuple[str, measure.Mode]]:
    """All runs in order, native first, so that later ones can be judged at once."""
    runs = []
    for index, build in enumerate(options.builds):
        if "native" in options.modes and not (index and options.native_once):
            runs.append((build, measure.Mode("native")))
        if "off" in options.modes:
            runs.append((build, measure.Mode("off")))
        if "flextensor" in options.modes:
            runs.extend((build, measure.Mode("flextensor", budget)) for budget in options.budgets)
    return runs


class Bench:
    """The state of one benchmark: what is known so far, and where it is written."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.began = time.monotonic()
        options.out.mkdir(parents=True, exist_ok=True)
        self.results = options.out / f"{options.name}.jsonl"
        self.log = options.out / f"{options.name}.log"
        self.reports = options.out / f"{options.name}.reports.jsonl"
        for path in (self.results, self.log, self.reports):
            path.write_text("")
        self.lines: list[dict] = []
        self.failures: list[str] = []
        self.machine: dict = {}
        self.natives = (
            [line for line in read_lines(options.against) if line.get("mode") == "native"]
            if options.against
            else []
        )

    def left_s(self) -> float:
        return self.options.total_limit - (time.monotonic() - self.began)

    def note(self, text: str) -> None:
        print(text, flush=True)
        with self.log.open("a") as file:
            file.write(text + "\n")

    def warm_imports(self) -> None:
        """Fills the byte-code cache and the page cache, so that no run pays for being the first on this machine."""
        child.run([sys.executable, "-c", IMPORTS], limit_s=120, env=child.environment(None, {}))

    def measure_link(self) -> None:
        outcome = child.run(self.options.link, limit_s=60, env=child.environment(None, {}))
        found = outcome.events("link")
        if not found:
            self.failures.append("link")
            self.note(f"link: {outcome.failure or 'no result'}\n  " + "\n  ".join(outcome.stderr_tail()))
            return
        self.machine = {key: value for key, value in found[0].items() if key != "event"}
        self.note(
            f"{self.machine['gpu']}, driver {self.machine['driver']}, torch {self.machine['torch']}, link {self.machine['link_bytes_per_s'] / 1e9:.1f} GB/s"
        )

    def run_one(self, build: str, mode: measure.Mode) -> None:
        """Runs one child and writes its lines."""
        options = self.options
        name = f"{build} {mode.label}"
        limit = min(options.limit, self.left_s())
        if limit < LEAST_S:
            self.failures.append(name)
            self.note(f"{name}: not run, the total limit is used up")
            return
        command = [
            *options.program,
            "--build",
            build,
            "--layers",
            str(options.layers),
            "--forwards",
            str(options.forwards),
            "--timed",
            str(options.timed),
        ]
        if options.cases:
            command += ["--cases", options.cases]
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "report.json"
            settings = {
                "off": {"FT_ENABLED": "0"},
                "flextensor": {"FT_MAX_GPU_MEM": str(mode.budget_bytes), "FT_REPORT": str(path)},
            }.get(mode.name, {})
            if mode.name == "flextensor":
                settings.update(text.split("=", 1) for text in options.option)
            env = child.environment(None if mode.name == "native" else options.lib, settings)
            with DeviceSampler() as sampler:
                outcome = child.run(command, limit_s=limit, env=env)
            if options.shared_gpu:
                sampler.samples = []
            report = child.read_report(path) if mode.name == "flextensor" else None
        if mode.name == "flextensor":
            with self.reports.open("a") as file:
                file.write(
                    json.dumps({"build": build, "budget_bytes": mode.budget_bytes, "report": report}) + "\n"
                )
        self.keep(mode, outcome, measure.case_lines(mode, outcome, report, sampler.samples, sampler.baseline))
        cases = " ".join(f"{case['case']} {case['ms']:.1f}" for case in outcome.events("case"))
        self.note(f"{name}: {outcome.failure or 'done'} in {outcome.wall_s:.0f} s; {cases}")
        said = [line for line in outcome.stderr_tail(60) if "flextensor" in line.lower()][-12:]
        if outcome.failure or not outcome.events("end"):
            self.failures.append(name)
            said = outcome.stderr_tail()
        for line in said:
            self.note(f"  {line[:300]}")

    def keep(self, mode: measure.Mode, outcome: child.Outcome, lines: list[dict]) -> None:
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
        judged = measure.judge(line, [*self.natives, *self.lines], self.machine.get("link_bytes_per_s"))
        if self.options.shared_gpu:
            judged.update(ratio=None, weights_device_bytes=None, misses=[])
        return judged

    def finish(self) -> int:
        """Prints the table; returns the exit code."""
        judged = [self.judged(line) for line in self.lines]
        self.note("\n" + measure.text_table(measure.COLUMNS, [measure.row(line) for line in judged]))
        for name in self.failures:
            self.note(f"FAILED: {name}")
        return 1 if self.failures or not judged or any(line["problems"] for line in judged) else 0


def main(argv: list[str] | None = None) -> int:
    bench = Bench(arguments(argv))
    if not bench.options.against:
        bench.warm_imports()
    bench.measure_link()
    for build, mode in planned(bench.options):
        bench.run_one(build, mode)
    return bench.finish()


if __name__ == "__main__":
    sys.exit(main())
