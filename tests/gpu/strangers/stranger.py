"""What the strangers' programs share: their command line, the loop over runs, and the JSON lines that `run.py` reads.

The programs are what somebody else would write: a model folder, a library's own loader, a library's own loop. Model folders are `checkpoint.py`'s, the
form of the lines is `../telling.py`'s, and whether a library is preloaded is the environment's business.
"""

import argparse
import importlib
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from telling import describe, own_report, say

__all__ = ["arguments", "finish", "missing", "own_report", "run_all", "say"]


def arguments(says: str, argv: list[str] | None = None, **switches: str) -> argparse.Namespace:
    """The options of a stranger; `switches` are its own flags with their help."""
    parser = argparse.ArgumentParser(description=says.splitlines()[0])
    parser.add_argument("--repeat", type=int, default=1, help="runs with the same model")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--tiny", action="store_true", help="a very small shape, to try the script itself")
    for name, text in switches.items():
        parser.add_argument(f"--{name}", action="store_true", help=text)
    options = parser.parse_args(argv)
    if options.repeat < 1:
        parser.error(f"--repeat {options.repeat}: allowed is 1 or more")
    return options


def missing(device: str, *modules: str) -> bool:
    """True, with a "skip" line, where a module or the GPU is not there."""
    for name in modules:
        try:
            importlib.import_module(name)
        except ImportError as error:
            say("skip", reason=f"{name} cannot be imported: {error}")
            return True
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        say("skip", reason="torch sees no GPU")
        return True
    return False


def run_all(outputs: Callable[[], Iterator], repeat: int, weights_bytes: int) -> None:
    """Runs the program's work `repeat` times and prints a line for each output; an output has reached the host when it is yielded."""
    for run in range(repeat):
        index, began = 0, time.perf_counter()
        for output in outputs():
            ms = (time.perf_counter() - began) * 1e3
            say("output", run=run, index=index, ms=round(ms, 3), **describe(output))
            index, began = index + 1, time.perf_counter()
        say("run", run=run, outputs=index, weights_bytes=weights_bytes)


def finish(report: dict | None) -> None:
    """The last lines; `report` is that of the process which holds the weights, read while they are alive."""
    if report is not None:
        say("report", report=report)
    say("end")
