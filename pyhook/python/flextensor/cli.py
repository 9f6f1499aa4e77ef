"""The `flextensor` command: reads the command line and hands over to `launch`, `doctor` or `rendering`.

Exit codes: `run` gives those of the program that it becomes; 2 = command line or configuration, 3 = the
library cannot be preloaded, 126 and 127 = the program cannot be executed or found. `doctor`: 0 all well, 1
something is missing. `report`: 0, or 1 for a file that is no report.
"""

import argparse
import os
import sys
from collections.abc import Sequence

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
    parser, run_parser = _parser()
    given = parser.parse_args(arguments)
    if given.command == "run":
        from flextensor import launch

        command = given.program[1:] if given.program[:1] == ["--"] else given.program
        if not command:
            run_parser.error("no program given: flextensor run [options] -- python app.py")
        return launch.run(command, _variables(given), dict(os.environ))
    if given.command == "doctor":
        from flextensor import doctor

        return doctor.main()
    from flextensor import rendering

    return rendering.main(given.file)


def _parser() -> tuple[argparse.ArgumentParser, argparse.ArgumentParser]:
    parser = argparse.ArgumentParser(
        prog="flextensor",
        description="Runs PyTorch programs whose weights do not fit the GPU memory budget.",
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"flextensor {__version__}")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
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
    for key, variable, default, allowed, doc in _options():
        text = f"{doc} [{variable}; {allowed}; default {default or 'none'}]"
        run.add_argument(
            f"--{key.replace('_', '-')}", metavar="VALUE", dest=variable, help=text.replace("%", "%%")
        )
    run.add_argument("program", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    commands.add_parser("doctor", help="say what this machine offers and what is missing", allow_abbrev=False)
    report = commands.add_parser("report", help="show a run report (FT_REPORT) as text", allow_abbrev=False)
    report.add_argument("file", metavar="FILE", help="the JSON file that a run wrote")
    return parser, run


def _options() -> list[tuple[str, str, str | None, str, str]]:
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
