"""The examples on a GPU: each prints what its first lines promise there.

    python tests/gpu/examples.py --package FOLDER      # the folder that holds the package `flextensor` with its libraries

Each runs in processes of its own, as people run it; all at the same time. Prints a line for each, appends them to OUT/examples.jsonl; exit code 1 if one failed. What they print without a GPU is
tried by tests/python/test_examples.py.
"""

import argparse
import concurrent.futures
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "bench")]
sys.path.append(str(ROOT / "tests" / "python"))

import child  # noqa: E402
from promised import runs  # noqa: E402

# Under this budget, and by `flextensor run`; the others make their own arrangements.
PRELOADED = {"offload.py": "1GiB"}
# Writes a profile of a model that nobody runs.
ELSEWHERE = {"llama_profile.py"}
# Lines of examples that promise no more on a GPU than these patterns say.
PATTERNS = {
    "offload.py": [
        "24 units, 4 forwards to learn",
        "phase PROFILING",
        "phase PROFILING",
        "phase PROFILING",
        "phase INFERENCE",
        r"ring [1-9]\d* MiB, residents \d+ MiB",
        r"(.*\n)+released: NOT_INITIALIZED, weights on cpu",
    ]
}


def is_as_promised(name: str, given: list[str], expected: list[str]) -> bool:
    if name in PATTERNS:
        return re.fullmatch("\n".join(PATTERNS[name]), "\n".join(given)) is not None
    return given == expected


def run_one(name: str, package: Path, limit_s: float) -> dict:
    """Runs an example as often as it promises something, in one folder of its own."""
    path = ROOT / "examples" / name
    promises = runs(path.read_text(), "on a GPU") or [[]]
    with tempfile.TemporaryDirectory() as folder:
        paths = os.pathsep.join([str(package), *filter(None, [os.environ.get("PYTHONPATH")])])
        extra = {"PYTHONPATH": paths, "TMPDIR": folder, "TRITON_CACHE_DIR": folder}
        environment = child.environment(None, {}, extra)
        command = [sys.executable, str(path)]
        if name in PRELOADED:
            budget = ["--max-gpu-mem", PRELOADED[name]]
            command = [sys.executable, "-m", "flextensor", "run", *budget, "--", *command]
        for expected in promises:
            try:
                done = subprocess.run(
                    command, env=environment, capture_output=True, text=True, timeout=limit_s
                )
            except subprocess.TimeoutExpired:
                return {"case": name, "result": "FAIL", "reason": f"not over after {limit_s:.0f} s"}
            given = done.stdout.splitlines()
            if done.returncode or not is_as_promised(name, given, expected):
                reason = (
                    f"exit code {done.returncode}, printed {given}, promised {expected or PATTERNS.get(name)}"
                )
                return {
                    "case": name,
                    "result": "FAIL",
                    "reason": reason,
                    "stderr": done.stderr.splitlines()[-8:],
                }
    return {"case": name, "result": "PASS", "reason": "", "runs": len(promises)}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--package", type=Path, required=True)
    parser.add_argument("--only", action="append", default=[])
    parser.add_argument("--limit", type=float, default=120, help="seconds for one process")
    parser.add_argument("--out", type=Path, default=Path(os.environ.get("OUT", ROOT / "bench" / "results")))
    options = parser.parse_args()
    every = sorted(path.name for path in (ROOT / "examples").glob("*.py") if path.name not in ELSEWHERE)
    names = options.only or every
    with concurrent.futures.ThreadPoolExecutor(len(names)) as threads:
        found = list(threads.map(lambda name: run_one(name, options.package.resolve(), options.limit), names))
    options.out.mkdir(parents=True, exist_ok=True)
    with (options.out / "examples.jsonl").open("a") as file:
        for line in found:
            file.write(json.dumps(line | {"commit": os.environ.get("FT_COMMIT", "unknown")}) + "\n")
            print(f"{line['result']:8}{line['case']} {line['reason'][:600]}", flush=True)
            for text in line.get("stderr", []):
                print(f"    {text[:240]}")
    return 1 if any(line["result"] == "FAIL" for line in found) else 0


if __name__ == "__main__":
    sys.exit(main())
