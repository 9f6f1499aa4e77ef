"""The `flextensor` command: reads the command line and hands over to `launch`, `doctor`, `rendering` or `plan`.

Exit codes: `run` gives those of the program that it becomes; 2 = command line or configuration, 3 = the
library cannot be preloaded, 126 and 127 = the program cannot be executed or found. `doctor`: 0 all well, 1
something is missing. `report`, `plan`, `plot`: 0, or 1 for a file that cannot be used.
"""

import argparse
import difflib
import os
import sys
from collections.abc import Iterable, Sequence
from typing import Any

from flextensor import __version__


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs the command; `arguments` default to those of the process."""
    try:
        code = _command(arguments)
        sys.stdout.flush()
        return code
    except BrokenPipeError:
        # The reader (head, less) has seen enough; what is left in the buffer must not raise again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def _command(arguments: Sequence[str] | None) -> int:
    arguments = list(sys.argv[1:] if arguments is None else arguments)
    parser, commands = _parser()
    if arguments and not arguments[0].startswith("-") and arguments[0] not in commands:
        parser.error(f"unknown command {arguments[0]!r}{_meant(arguments[0], commands)}")
    given, unknown = parser.parse_known_args(arguments)
    command = commands[given.command]
    if unknown:
        options = [option for action in command._actions for option in action.option_strings]
        what = "option" if unknown[0].startswith("-") else "argument"
        command.error(f"unknown {what} {unknown[0]}{_meant(unknown[0].split('=')[0], options)}")
    if given.command == "run":
        from flextensor import launch

        program = given.program[1:] if given.program[:1] == ["--"] else given.program
        if not program:
            command.error("no program given: flextensor run [options] -- python app.py")
        return launch.run(program, _variables(given), dict(os.environ))
    if given.command == "doctor":
        from flextensor import doctor

        return doctor.main()
    if given.command == "report":
        from flextensor import rendering

        return rendering.main(given.file)
    from flextensor import plan

    return plan.main(given) if given.command == "plan" else plan.plot(given)


def _meant(given: str, known: Iterable[str]) -> str:
    """A suggestion, if one of `known` is near."""
    near = difflib.get_close_matches(given, list(known), n=1)
    return f"; did you mean {near[0]}?" if near else ""


def _parser() -> tuple[argparse.ArgumentParser, dict[str, argparse.ArgumentParser]]:
    """The parser, and that of each command by its name."""
    parser = argparse.ArgumentParser(
        prog="flextensor",
        description="Runs PyTorch programs whose weights do not fit the GPU memory budget.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"flextensor {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    _add_run(commands)
    commands.add_parser("doctor", help="say what this machine offers and what is missing", allow_abbrev=False)
    report = commands.add_parser("report", help="show a run report (FT_REPORT) as text", allow_abbrev=False)
    report.add_argument("file", metavar="FILE", help="the JSON file that a run wrote")
    _add_plan(commands)
    _add_plot(commands)
    return parser, dict(commands.choices)


def _add_run(commands: Any) -> None:
    run = commands.add_parser(
        "run",
        help="run a program under a budget",
        usage="flextensor run [options] -- PROGRAM [ARGUMENT ...]",
        description="Starts PROGRAM with libflextensor.so preloaded. An option stands for the environment variable named beside it and wins over it.",
        allow_abbrev=False,
    )
    run.add_argument(
        "--config",
        metavar="FILE",
        dest="FT_CONFIG_FILE",
        help="configuration file: TOML, INI, JSON or YAML [FT_CONFIG_FILE]",
    )
    for key, variable, default, allowed, doc, limit in _options():
        text = f"{doc} [{variable}; {allowed}; default {default or 'none'}]"
        if limit:
            text = f"{limit} {text}"
        run.add_argument(
            f"--{key.replace('_', '-')}", metavar="VALUE", dest=variable, help=text.replace("%", "%%")
        )
    run.add_argument("program", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)


def _add_plan(commands: Any) -> None:
    plan = commands.add_parser(
        "plan",
        help="what-if: times and memory of a saved profile under any budget and link, without a GPU",
        description="Plans for a saved profile and compares our plan with those of the strategies. docs/plan.md says what the figures mean.",
        allow_abbrev=False,
    )
    plan.add_argument("profile", metavar="PROFILE", help="a profile.json, or the folder that holds it")
    plan.add_argument(
        "--gpu-mem",
        metavar="SIZE",
        help="GPU memory that weights may take, as 24GiB or 60%% (of the GPU's memory); default: what the saved plan was made for",
    )
    plan.add_argument(
        "--link", metavar="SPEED", help="speed of the link, as 25GB/s; default: the profile's own link"
    )
    plan.add_argument(
        "--strategy",
        metavar="NAME",
        action="append",
        help="compare with this strategy only, and draw it too; may be given several times; default: all are compared, none is drawn",
    )
    plan.add_argument(
        "--device", metavar="N", type=_number, help="the GPU, by its number in the profile's run"
    )
    plan.add_argument(
        "--shape", metavar="N", type=_number, help="the input shape, by its place in the profile, from 1"
    )
    plan.add_argument(
        "--latency",
        action="store_true",
        help="our plan takes as little GPU memory as costs at most 1%% of time, instead of all of the budget",
    )
    plan.add_argument("--json", action="store_true", help="print JSON instead of a table")
    plan.add_argument("--svg", metavar="FILE", help="write a picture of times against budgets")
    plan.add_argument(
        "--timeline", metavar="FILE", help="write a picture (SVG) of copies and computing in one steady pass"
    )


def _number(text: str) -> int:
    """A number of a GPU or a shape."""
    if not text.isascii() or not text.isdecimal() or int(text) > 1_000_000:
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed: a whole number from 0 to 1000000 is")
    return int(text)


def _add_plot(commands: Any) -> None:
    plot = commands.add_parser(
        "plot",
        help="draw results of the benchmark: times against GPU memory, with the bound",
        allow_abbrev=False,
    )
    plot.add_argument(
        "results", metavar="RESULTS", nargs="+", help="files of results: JSON, one object a line"
    )
    plot.add_argument("--svg", metavar="FILE", required=True, help="the picture to write")
    plot.add_argument("--case", metavar="NAME", help="draw this case only")


def _options() -> list[tuple[str, str, str | None, str, str, str | None]]:
    """The option table; empty, with a line, when the native module cannot be loaded: help must work
    anyway."""
    try:
        from flextensor import _native
    except ImportError as error:
        print(f"flextensor: the native module cannot be loaded: {error}", file=sys.stderr)
        return []
    return _native.option_table()


def _variables(given: argparse.Namespace) -> dict[str, str]:
    """The environment variables that the options stand for."""
    return {
        name: value for name, value in vars(given).items() if name.startswith("FT_") and value is not None
    }
