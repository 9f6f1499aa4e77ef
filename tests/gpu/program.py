"""Runs one GPU case in this process and prints what it gave, one JSON line for each output.

`program.py --list` describes all cases; `program.py NAME` runs one. Nothing here switches the library on or off: that is the environment's business.
At the end the run report is read from the process itself, if a library that keeps one is present: models are still alive then.
"""

import argparse
import gc
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import cases  # noqa: F401
import lab as room
import torch
from telling import describe, own_report, say


def run_once(case: room.Case, run: int, seed: int, device: str) -> room.Lab:
    """Runs the case to its end; returns its lab, with the models still alive."""
    lab = room.Lab(seed, device)
    outputs = case.body(lab)
    index, weights = 0, 0
    while True:
        began = time.perf_counter()
        try:
            output = next(outputs)
        except StopIteration:
            break
        lab.synchronize()
        ms = (time.perf_counter() - began) * 1e3
        weights = max(weights, lab.weights_bytes())
        say("output", run=run, index=index, ms=round(ms, 3), **describe(output))
        index += 1
    say("run", run=run, outputs=index, weights_bytes=weights)
    return lab


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", nargs="?")
    parser.add_argument("--list", action="store_true")
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--seed", type=int, default=20)
    parser.add_argument("--device", default="cuda")
    options = parser.parse_args()
    if options.list:
        for case in room.CASES.values():
            say("case", **case.describe())
        return
    if options.name not in room.CASES:
        parser.error(f"unknown case {options.name}; allowed: {', '.join(sorted(room.CASES))}")
    case = room.CASES[options.name]
    room.settle()
    try:
        for run in range(options.repeat):
            # The last run's models stay alive until the report was read; earlier ones make room.
            lab = None
            gc.collect()
            if options.device == "cuda":
                torch.cuda.empty_cache()
            lab = run_once(case, run, options.seed, options.device)  # noqa: F841
    except room.Skip as reason:
        say("skip", reason=str(reason))
        return
    report = own_report()
    if report is not None:
        say("report", report=report)
    say("end")


if __name__ == "__main__":
    main()
