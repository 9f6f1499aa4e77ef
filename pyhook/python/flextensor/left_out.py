"""Processes that were meant to run with flextensor and run without it: a framework started its workers in an
environment that lost LD_PRELOAD, so nothing of ours is in them that could say so.

Found from outside, in /proc: they use the GPU driver, the library is not loaded, and one of their ancestors has
it or their environment has options of ours. What to do about it is said by `flextensor doctor`.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from flextensor import launch

_DRIVER = "libcuda.so"


@dataclass(frozen=True)
class LeftOut:
    """A process without the library, and the LD_PRELOAD that it was started with (empty: none)."""

    process: int
    name: str
    preload: str


def processes(options: frozenset[str], root: Path = Path("/proc")) -> list[LeftOut]:
    """All that are left out, as far as this user may look. `options`: names of variables that mean us."""
    return [
        LeftOut(process, _text(root / str(process) / "comm").strip(), environment.get("LD_PRELOAD", ""))
        for process in _numbers(root)
        if _lacks_us(root, process)
        for environment in [_environment(root, process)]
        if options & environment.keys() or any(_has_us(root, above) for above in _ancestors(root, process))
    ]


def _numbers(root: Path) -> list[int]:
    return sorted(int(folder.name) for folder in root.iterdir() if folder.name.isdecimal())


def _text(path: Path) -> str:
    """Empty for what has gone, or is another user's."""
    try:
        return path.read_text(errors="replace")
    except OSError:
        return ""


def _libraries(root: Path, process: int) -> set[str]:
    """Names of the files that the process has mapped, without folders."""
    lines = (line.split(maxsplit=5) for line in _text(root / str(process) / "maps").splitlines())
    return {Path(fields[5]).name for fields in lines if len(fields) == 6}


def _has_us(root: Path, process: int) -> bool:
    return launch.LIBRARY_NAME in _libraries(root, process)


def _lacks_us(root: Path, process: int) -> bool:
    loaded = _libraries(root, process)
    return any(name.startswith(_DRIVER) for name in loaded) and launch.LIBRARY_NAME not in loaded


def _environment(root: Path, process: int) -> dict[str, str]:
    """The environment that the process was started with."""
    entries = _text(root / str(process) / "environ").split("\0")
    return dict(entry.split("=", 1) for entry in entries if "=" in entry)


def _ancestors(root: Path, process: int) -> Iterator[int]:
    while True:
        # The name in parentheses may hold anything.
        fields = _text(root / str(process) / "stat").rpartition(")")[2].split()
        if len(fields) < 2 or int(fields[1]) < 1:
            return
        process = int(fields[1])
        yield process
