"""The command line of `run.py`: every option, its defaults for each program, and the order of runs that follows from them."""

import argparse
import dataclasses
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import child
import measure
import peers

HERE = Path(__file__).resolve().parent
OURS_AND_NATIVE = ("native", *measure.OURS)
# "all" leaves out the run that only shows that nothing happens while disabled.
ALL_MODES = ("native", "flextensor", *peers.PEERS)


@dataclasses.dataclass(frozen=True)
class Known:
    """A program of this folder: what it imports, and the budgets that make sense for it."""

    budgets: str
    imports: str = "import torch"


_LLAMA = "import torch, transformers; from transformers import LlamaForCausalLM; from transformers.models.llama import modeling_llama"
PROGRAMS = {
    "llama": Known("4,8,16,40", _LLAMA),
    "diffusion": Known("33%"),
    "mixed": Known("30%,60%", _LLAMA),
    "small": Known("33%,66%"),
    "unet": Known("33%,66%", "from diffusers import UNet2DConditionModel"),
}


@dataclasses.dataclass(frozen=True)
class Run:
    """One process to come: the budget in bytes, a share of the weights, or the bytes that the runs of a peer held."""

    build: str
    mode: str
    budget: int | float | None = None
    match: str | None = None


def command_line() -> argparse.ArgumentParser:
    """Every option with its default; what values mean is checked in `arguments`."""
    parser = argparse.ArgumentParser(
        description="Runs a program natively, under the preloaded library and under peers, and compares."
    )
    what_is_run(parser.add_argument)
    what_peers_get(parser.add_argument)
    what_comes_of_it(parser.add_argument)
    return parser


def what_is_run(add: Callable[..., Any]) -> None:
    """The program, its runs and their budgets."""
    add("--lib", type=Path, help="libflextensor.so; needed for the modes flextensor and off")
    add(
        "--program",
        nargs="+",
        default=["llama"],
        help=f"{', '.join(PROGRAMS)}; or a command that prints the same lines",
    )
    add(
        "--budgets",
        help="GiB, or a percentage of the weights, comma separated; one larger than the model shows the cost of doing nothing",
    )
    add("--builds", default="gpu", help="where the weights are made: gpu, cpu")
    add(
        "--modes",
        default="native,flextensor",
        help=f"native, flextensor, off (preloaded with FT_ENABLED=0), {', '.join(peers.PEERS)}; or all",
    )
    add(
        "--match",
        default="",
        help="run ours also at the bytes that these peers held (comma separated), in this run or in --against",
    )
    add(
        "--native-once",
        action="store_true",
        help="native for the first build only; the other builds are compared with it",
    )
    add("--layers", type=int)
    add("--forwards", type=int, default=20)
    add("--timed", type=int, default=12)
    add("--cases", help="passed to the program")
    add(
        "--program-option",
        action="append",
        default=[],
        metavar="--KEY=VALUE",
        help="one more option for the program",
    )
    add("--device", default="cuda", help="cpu tries the bench itself")
    add("--tiny", action="store_true", help="a very small shape, to try the bench itself")
    add("--quick", action="store_true", help="4 layers, one build, budgets 2 and 4: a first smoke test")
    add("--limit", type=float, default=180, help="seconds for one run")
    add(
        "--total-limit",
        type=float,
        default=560,
        help="seconds for everything; runs that do not fit are left out and said so",
    )
    add(
        "--packages-in",
        type=Path,
        metavar="FOLDER",
        help="makes a virtual environment there first (a folder in memory) with what torch, transformers, accelerate and diffusers need, for all runs alike",
    )
    add(
        "--option",
        action="append",
        default=[],
        metavar="FT_KEY=VALUE",
        help="one more option for the flextensor runs",
    )


def what_peers_get(add: Callable[..., Any]) -> None:
    """Peers are slower and larger than ours: they have packages, budgets and limits of their own."""
    add("--wheels", type=Path, help="folder with the peers' wheels, which only their own processes see")
    add(
        "--peer-budgets",
        help="as --budgets, for peers; default: those of --budgets that are smaller than the model",
    )
    add("--peer-limit", type=float, default=180, help="seconds for one run of a peer")
    add(
        "--peer-forwards",
        type=int,
        default=3,
        help="checked forwards of a peer in each case, after its preparing ones",
    )
    add(
        "--peer-loop-seconds",
        type=float,
        default=4,
        help="a peer's loop ends after this, not before two forwards",
    )


def what_comes_of_it(add: Callable[..., Any]) -> None:
    """What runs are compared with, and where results go."""
    add(
        "--against",
        type=Path,
        help="results of an earlier run whose native and peer lines these are compared with",
    )
    add(
        "--shared-gpu",
        action="store_true",
        help="other runs share the GPU: outputs count, times and GPU memory do not",
    )
    add("--name", help="of the result files; default: the program's")
    add("--out", type=Path, default=Path(os.environ.get("OUT", HERE / "results")))
    add("--link", nargs="+", help=argparse.SUPPRESS)


def listed(text: str | None) -> list[str]:
    return [part.strip() for part in (text or "").split(",") if part.strip()]


def arguments(argv: list[str] | None = None) -> argparse.Namespace:
    """The checked options: lists are split, budgets are bytes or shares. Exits with one line for a value that is not allowed."""
    parser = command_line()
    options = parser.parse_args(argv)
    if options.quick:
        options.layers, options.budgets, options.builds = 4, "2,4", "gpu"
    known = PROGRAMS.get(options.program[0]) if len(options.program) == 1 else None
    if len(options.program) == 1 and known is None:
        parser.error(f"unknown program {options.program[0]}; allowed: {', '.join(PROGRAMS)}, or a command")
    options.name = options.name or (options.program[0] if known else "llama")
    options.imports = known.imports if known else None
    options.known = options.program[0] if known else None
    if known:
        options.program = [sys.executable, str(HERE / f"{options.program[0]}.py")]
    options.link = options.link or [sys.executable, str(HERE / "link.py"), "--device", options.device]
    given = known.budgets if known and options.budgets is None else options.budgets
    try:
        options.budgets = [measure.parse_budget(text) for text in listed(given)]
        options.peer_budgets = [measure.parse_budget(text) for text in listed(options.peer_budgets)] or None
    except ValueError as error:
        parser.error(str(error))
    options.builds = listed(options.builds)
    options.modes = list(ALL_MODES) if options.modes.strip() == "all" else listed(options.modes)
    options.match = listed(options.match)
    for what, values, allowed in (
        ("build", options.builds, ("gpu", "cpu")),
        ("mode", options.modes, (*OURS_AND_NATIVE, *peers.PEERS)),
        ("peer", options.match, tuple(peers.PEERS)),
    ):
        if unknown := [value for value in values if value not in allowed]:
            parser.error(f"unknown {what} {unknown[0]}; allowed: {', '.join(allowed)}")
    needs_library = bool(set(options.modes) & set(measure.OURS)) or bool(options.match)
    if needs_library and (options.lib is None or not options.lib.is_file()):
        parser.error(f"--lib {options.lib}: not a file; needed for the modes flextensor and off")
    if options.wheels is not None and not options.wheels.is_dir():
        parser.error(f"--wheels {options.wheels}: not a folder")
    options.settings = child.settings(parser, options.option)
    return options


def peer_runs(options: argparse.Namespace, name: str) -> list[Run]:
    """A peer makes its weights in host memory, whatever the build of ours."""
    if not peers.PEERS[name].budgeted:
        return [Run("host", name)]
    return [Run("host", name, budget) for budget in options.peer_budgets or options.budgets]


def planned(options: argparse.Namespace) -> list[Run]:
    """All runs in order: native first, so that later ones can be judged at once; peers that ours is matched with before ours; the other peers, the slowest, last."""
    asked = [name for name in peers.PEERS if name in options.modes]
    early = [name for name in asked if name in options.match]
    runs = []
    for index, build in enumerate(options.builds):
        if "native" in options.modes and not (index and options.native_once):
            runs.append(Run(build, "native"))
        if "off" in options.modes:
            runs.append(Run(build, "off"))
        if index == 0:
            runs.extend(run for name in early for run in peer_runs(options, name))
        runs.extend(Run(build, "flextensor", match=name) for name in options.match)
        if "flextensor" in options.modes:
            runs.extend(Run(build, "flextensor", budget) for budget in options.budgets)
    return runs + [run for name in asked if name not in early for run in peer_runs(options, name)]
