"""`flextensor run`: becomes the program, with libflextensor.so preloaded, after everything that can be
known before has been checked."""

import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

BAD_CONFIGURATION = 2
NOT_PRELOADABLE = 3
NOT_EXECUTABLE = 126
NOT_FOUND = 127

LIBRARY_NAME = "libflextensor.so"
# What a preloaded child is asked: the answer is the interface version, or nothing.
_PROBE = (
    "import ctypes; f = getattr(ctypes.CDLL(None), 'ft_api_version', None); print(f() if f else 'absent')"
)
_PROBE_SECONDS = 60


class CannotPreload(Exception):
    """The library cannot be preloaded; the text says why and what to do."""


def library() -> Path:
    """The libflextensor.so of this package."""
    return Path(__file__).resolve().parent / LIBRARY_NAME


def run(command: list[str], options: dict[str, str], environment: dict[str, str]) -> int:
    """Replaces this process by `command`; returns only when that was not possible."""
    environment = {**environment, **options}
    try:
        from flextensor import _native

        for warning in json.loads(_native.check_configuration(environment)).get("warnings", []):
            _say(f"warning: {warning}")
    except (ImportError, ValueError) as error:
        _say(str(error))
        return BAD_CONFIGURATION
    program = shutil.which(command[0], path=environment.get("PATH"))
    if program is None:
        return _not_runnable(command[0])
    try:
        environment = preloaded(environment)
        check_program(program)
        check_preload(environment)
    except CannotPreload as error:
        _say(str(error))
        return NOT_PRELOADABLE
    try:
        os.execve(program, command, environment)
    except OSError as error:
        _say(f"cannot execute {program}: {error.strerror}")
        return NOT_EXECUTABLE


def preloaded(environment: dict[str, str]) -> dict[str, str]:
    """The environment with the library of this package in LD_PRELOAD."""
    return {**environment, "LD_PRELOAD": preload_value(library(), environment.get("LD_PRELOAD", ""))}


def preload_value(path: Path, existing: str) -> str:
    """LD_PRELOAD with the library in front of what is there already."""
    if not path.is_file():
        raise CannotPreload(
            f"{path} is missing: this installation of flextensor is incomplete, install the wheel again"
        )
    if any(character in str(path) for character in " :\t\n"):
        raise CannotPreload(
            f"the path {str(path)!r} has a space or a colon, which the dynamic linker takes for the end of a name: install flextensor in another folder"
        )
    others = [name for name in existing.replace(":", " ").split() if name != str(path)]
    return ":".join([str(path), *others])


def check_program(program: str) -> None:
    """Refuses a program for which the dynamic linker ignores preloads."""
    mode = os.stat(program).st_mode
    if mode & (stat.S_ISUID | stat.S_ISGID) and os.geteuid() != 0:
        raise CannotPreload(
            f"{program} runs with the rights of another user, so the dynamic linker ignores preloads for it"
        )
    if _is_static(program):
        _say(
            f"warning: {program} is linked statically: it is not managed itself, only dynamically linked programs that it starts are"
        )


def ask_child(question: str, environment: dict[str, str], seconds: float) -> subprocess.CompletedProcess[str]:
    """Runs Python text in a small child of its own; CannotPreload if it takes longer than `seconds`."""
    try:
        return subprocess.run(
            [sys.executable, "-I", "-S", "-c", question],
            env=environment,
            capture_output=True,
            text=True,
            timeout=seconds,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise CannotPreload(
            f"a child with {LIBRARY_NAME} preloaded did not end within {seconds} s"
        ) from error


def check_preload(environment: dict[str, str]) -> None:
    """Starts a small child with the preload and asks it whether the library is there."""
    from flextensor import _native

    result = ask_child(_PROBE, environment, _PROBE_SECONDS)
    said = result.stderr.strip().splitlines()
    if result.returncode != 0:
        raise CannotPreload(
            f"a child with {LIBRARY_NAME} preloaded failed ({_end(result.returncode)}): {said[-1] if said else 'it said nothing'}"
        )
    answer = result.stdout.strip()
    if answer == "absent":
        raise CannotPreload(
            f"the dynamic linker did not preload {library()}: {said[-1] if said else 'it gave no reason'}"
        )
    if answer != str(_native.API_VERSION):
        raise CannotPreload(
            f"{library()} speaks interface version {answer}, this package {_native.API_VERSION}: install flextensor again"
        )


def _is_static(program: str) -> bool:
    """Whether an executable is an ELF file without a dynamic linker named in it (64 bit, little endian)."""
    try:
        with open(program, "rb") as file:
            head = file.read(64)
            if len(head) < 64 or head[:6] != b"\x7fELF\x02\x01":
                return False
            offset, size, count = (
                int.from_bytes(head[at : at + length], "little") for at, length in ((32, 8), (54, 2), (56, 2))
            )
            file.seek(offset)
            table = file.read(size * count)
    except OSError:
        return False
    interpreter = 3
    return all(
        int.from_bytes(table[at : at + 4], "little") != interpreter for at in range(0, len(table), size or 1)
    )


def _not_runnable(name: str) -> int:
    if os.path.sep in name and os.path.exists(name):
        _say(f"cannot execute {name}: it is not an executable file")
        return NOT_EXECUTABLE
    _say(f"cannot find the program {name!r}")
    return NOT_FOUND


def _end(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"signal {-code}"


def _say(text: str) -> None:
    print(f"flextensor: {text}", file=sys.stderr, flush=True)
