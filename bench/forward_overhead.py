"""What a forward of an offloaded model pays in Python, on a machine without a GPU: the hooks and marks alone, since the recording
stand-in for the library (tests/python/fake_interposer.c) does nothing.

    tools/test_python.sh --co -q tests/python/test_api_names.py        # builds the stand-in and makes the environment, once
    V=${FT_TEST_VENV:-$HOME/.cache/flextensor/torch-2.11.0-py311}
    LD_LIBRARY_PATH=$V/stubs LD_PRELOAD=$PWD/target/fake_interposer.so PYTHONPATH=pyhook/python $V/bin/python bench/forward_overhead.py

Prints, for INFERENCE, for learning and with `offload_timing`, and for an unchanged program in INFERENCE while weights are streamed and while nothing has to be told, microseconds of a forward without traps and of each trap: the line through models of
few and of many units. Each figure is the least processor time of several rounds in which both models take turns.
"""

import argparse
import ctypes
import json
import time

import torch
from torch import nn

# Answers of the stand-in: which events are wanted, the phase, and whether calls are recorded.
WANTS, PHASE, SILENT = 0, 1, 7
DISCOVERY, PROFILING, INFERENCE = 1, 2, 3
OWNERS_AND_TRAPS = 3
FEW, MANY = 1, 81


class Unit(nn.Module):
    """A unit that does nothing, with a weight of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(4), requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


class Model(nn.Module):
    """Units in a row."""

    def __init__(self, units: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Unit() for _ in range(units))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class NoClock:
    """Times that cost nothing: events are the GPU's."""

    def mark(self) -> float:
        return 0.0

    def milliseconds(self, start: float, end: float) -> float:
        return 0.0

    def is_capturing(self) -> bool:
        return False


def stand_in() -> ctypes.CDLL:
    library = ctypes.CDLL(None)
    if not hasattr(library, "fake_set"):
        raise SystemExit("the stand-in is not preloaded: the first lines of this file say how to start it")
    return library


def pretend_gpu() -> None:
    """Tensors of the CPU count as the GPU's from here on."""
    from flextensor import managed_model, naming, session

    naming.on_gpu = lambda tensor: True
    session.cuda_is_available = lambda: True
    session.device_of = lambda config: torch.device("cpu")
    managed_model.make_clock = lambda replayed: NoClock()
    torch.cuda.empty_cache = lambda: None


def forward_us(plain: nn.Module, managed: nn.Module, rounds: int, forwards: int) -> float:
    """Microseconds that a forward of `managed` takes longer."""
    x = torch.zeros(1)
    least = {}
    for _ in range(rounds):
        for which, model in (("plain", plain), ("managed", managed)):
            began = time.process_time()
            for _ in range(forwards):
                model(x)
            took = (time.process_time() - began) / forwards * 1e6
            least[which] = min(took, least.get(which, took))
    return least["managed"] - least["plain"]


def measure(library: ctypes.CDLL, case: str, rounds: int, forwards: int) -> dict[str, float | str]:
    """One row: a forward without traps, and a trap."""
    import flextensor as ft

    library.fake_set(SILENT, ctypes.c_long(1))
    taken = {}
    for units in (FEW, MANY):
        timing = "eager" if case == "timed" else "off"
        config = ft.OffloadConfig(include_patterns=["layers.*"], offload_timing=timing)
        library.fake_set(PHASE, ctypes.c_long(DISCOVERY))
        library.fake_set(WANTS, ctypes.c_long(OWNERS_AND_TRAPS))
        model = ft.offload(Model(units), config)
        model(torch.zeros(1))
        library.fake_set(PHASE, ctypes.c_long(PROFILING if case == "learning" else INFERENCE))
        library.fake_set(WANTS, ctypes.c_long(OWNERS_AND_TRAPS if case == "learning" else 0))
        for _ in range(3):
            model(torch.zeros(1))
        taken[units] = forward_us(Model(units), model, rounds, forwards)
        ft.release()
    trap = (taken[MANY] - taken[FEW]) / (MANY - FEW)
    return {"case": case, "forward_us": round(taken[FEW] - FEW * trap, 1), "trap_us": round(trap, 2)}


def measure_unchanged(
    library: ctypes.CDLL, quiet: bool, rounds: int, forwards: int
) -> dict[str, float | str]:
    """The same row for a program that knows nothing of us."""
    from flextensor import hook

    library.fake_set(SILENT, ctypes.c_long(1))
    library.fake_set(PHASE, ctypes.c_long(INFERENCE))
    library.fake_set(WANTS, ctypes.c_long(0))
    taken = {}
    for units in (FEW, MANY):
        hook.arrive()
        model = Model(units)
        # Until the search has ended.
        for _ in range(5):
            model(torch.zeros(1))
        library.fake_quiet(int(quiet))
        taken[units] = forward_us(Model(units), model, rounds, forwards)
        library.fake_quiet(0)
    trap = (taken[MANY] - taken[FEW]) / (MANY - FEW)
    case = "unchanged, quiet" if quiet else "unchanged"
    return {"case": case, "forward_us": round(taken[FEW] - FEW * trap, 1), "trap_us": round(trap, 2)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--forwards", type=int, default=300, help="in each round")
    options = parser.parse_args()
    library = stand_in()
    pretend_gpu()
    with torch.no_grad():
        for case in ("inference", "learning", "timed"):
            print(json.dumps(measure(library, case, options.rounds, options.forwards)))
        for quiet in (False, True):
            print(json.dumps(measure_unchanged(library, quiet, options.rounds, options.forwards)))


if __name__ == "__main__":
    main()
