"""Runs programs that nobody here wrote (vLLM, transformers, diffusers), natively and under the preloaded library, and compares tokens and pixels bit for bit.

Each runs in one native process twice (which proves that it is deterministic), then once under a budget of two fifths of its weights. Prints a table; writes OUT/strangers.jsonl. A program is SKIPped
where its library is not installed. How processes are run and judged is `../run.py`'s; what a program does is in its own file.
Exit code: 0 when every program that ran passed; a skipped one is a failure where `--only` names it, or where none ran; else 1.
"""

import argparse
import concurrent.futures
import importlib.util
import json
import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def of_cases():
    """The runner of the GPU cases, which has this one's name."""
    spec = importlib.util.spec_from_file_location("run_of_cases", HERE.parent / "run.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


cases = of_cases()
child = cases.child

# name: script and arguments, one line, seconds that one process may take, whether it must have the GPU for itself.
PROGRAMS = {
    "generate": (["generate.py"], "transformers: from_pretrained and generate", 120, False),
    "pipeline": (["pipeline.py"], "diffusers: a Flux pipeline from a folder", 120, False),
    # vLLM measures free memory while it starts, and takes it ill when others give some back meanwhile.
    "vllm": (["serve_vllm.py"], "vLLM: the engine in a process of its own", 180, True),
    "vllm_inline": (["serve_vllm.py", "--inline"], "vLLM: the engine in the program's process", 180, True),
}


class Strangers(cases.Suite):
    """All programs of one invocation."""

    results_name = "strangers.jsonl"

    def __init__(self, options: argparse.Namespace) -> None:
        super().__init__(options)
        self.reports = options.out / "strangers.reports.jsonl"
        self.log = options.out / "strangers.log"
        for path in (self.reports, self.log):
            path.write_text("")

    def describe(self) -> list[dict]:
        return [
            {
                "name": name,
                "says": says,
                "budget": self.options.budget / 100,
                "streams": True,
                "keeps_budget": True,
                "preload": True,
                "limit_s": limit_s,
                "alone": alone,
            }
            for name, (_, says, limit_s, alone) in PROGRAMS.items()
            if not self.options.only or name in self.options.only
        ]

    def command(self, name: str, *arguments: str) -> list[str]:
        script, *own = PROGRAMS[name][0]
        return [sys.executable, str(self.options.programs / script), *own, *arguments, *self.options.passed]

    def keep(self, name: str, native: child.Outcome, ours: child.Outcome | None, report: dict | None) -> None:
        """Everything that a process said: a program of others is not easily asked again."""
        with self.print_lock, self.log.open("a") as log, self.reports.open("a") as reports:
            for kind, outcome in (("native", native), ("ours", ours)):
                if outcome is not None:
                    how = outcome.failure or "ended well"
                    log.write(f"=== {name}, {kind}: {how}, {outcome.wall_s:.1f} s\n{outcome.stderr}\n")
            if report is not None:
                reports.write(json.dumps({"case": name, "report": report}) + "\n")

    def compare(self, case: dict) -> dict:
        """As with other cases; but a stranger's budget holds also where some model of it is never learnt."""
        line = super().compare(case)
        held = child.field(line, "memory", "weights_gpu_bytes")
        if line["result"] == "PASS" and (held is None or held > line["budget_bytes"]):
            line |= {
                "result": "FAIL",
                "reason": f"weights hold {held} bytes of a budget of {line['budget_bytes']}",
            }
        return line

    def run_all(self) -> list[dict]:
        """Those that share the GPU first, side by side; then the others, one after the other."""
        described = self.describe()
        with concurrent.futures.ThreadPoolExecutor(self.options.jobs) as pool:
            lines = list(pool.map(self.run_case, [case for case in described if not case["alone"]]))
        return lines + [self.run_case(case) for case in described if case["alone"]]

    def finish(self, lines: list[dict]) -> int:
        code = super().finish(lines)
        skipped = {line["case"] for line in lines if line["result"] == "SKIP"}
        return 1 if skipped and (len(skipped) == len(lines) or skipped & set(self.options.only)) else code


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lib", type=Path, required=True, help="libflextensor.so, with its hook beside it")
    parser.add_argument(
        "--only", action="append", default=[], metavar="NAME[,NAME]", help=f"of {', '.join(PROGRAMS)}"
    )
    parser.add_argument("--budget", type=float, default=40, help="percent of a program's weights")
    parser.add_argument("--jobs", type=int, default=2, help="programs at a time, where they share the GPU")
    parser.add_argument("--total-limit", type=float, default=560, help="seconds for everything")
    parser.add_argument(
        "--option", action="append", default=[], metavar="FT_KEY=VALUE", help="for the preloaded runs"
    )
    parser.add_argument("--stderr-lines", type=int, default=8, help="printed for a program that failed")
    parser.add_argument(
        "--out", type=Path, default=Path(os.environ.get("OUT", HERE.parents[2] / "bench" / "results"))
    )
    parser.add_argument("--passed", action="append", default=[], help="one more argument for each program")
    parser.add_argument("--programs", type=Path, default=HERE, help=argparse.SUPPRESS)
    options = cases.checked(parser, parser.parse_args(argv))
    if unknown := [name for name in options.only if name not in PROGRAMS]:
        parser.error(f"--only {unknown[0]}: allowed are {', '.join(PROGRAMS)}")
    if not 0 < options.budget <= 100:
        parser.error(f"--budget {options.budget}: allowed is more than 0, at most 100")
    return options


def main(argv: list[str] | None = None) -> int:
    suite = Strangers(arguments(argv))
    return suite.finish(suite.run_all())


if __name__ == "__main__":
    sys.exit(main())
