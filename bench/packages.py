"""Makes a virtual environment in memory with the packages that a program needs and nothing else, so that the time to import them says something about
programs: not about a machine's disk, and not about what else is installed (transformers imports scikit-learn, scipy and pandas where it finds them).

Small files are copied by several threads and compiled once; large ones (libraries) are linked: the kernel keeps their pages once they have been read.
"""

import concurrent.futures
import contextlib
import fnmatch
import hashlib
import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution
from pathlib import Path

# What the measured programs and the peers import; what is not installed is left out.
ROOTS = ("torch", "transformers", "accelerate", "diffusers", "numpy", "nvidia-ml-py")
# Files from this size on are linked.
LARGE_BYTES = 4 << 20
THREADS = 16
# Files that one thread copies at a time.
CHUNK = 200
# Headers that no program reads: many small files. Those of triton are read, by the compiler that it calls.
UNREAD = ("torch/include/*", "nvidia/*/include/*", "*/__pycache__/*", "__pycache__/*")
# What may go wrong while packages are placed, said by whoever reads requirements, makes folders or runs the compiler.
FAILURES = (OSError, ImportError, ValueError, RuntimeError, subprocess.SubprocessError)


def needed(
    roots: Iterable[str], search: list[str] | None = None, beside: Iterable[str] = ()
) -> dict[str, Distribution]:
    """The installed distributions that these requirements come to, by name; `search`: the folders to look in, else those of this process.

    Extras are followed where a requirement asks for them. What is not installed, and what is named in `beside`, is left out.
    """
    requirement_of = _requirement_type()
    found: dict[str, Distribution] = {}
    left_out = {_normal(name) for name in beside}
    waiting = [(requirement_of(root), "") for root in roots]
    seen = set()
    while waiting:
        requirement, extra = waiting.pop()
        name = _normal(requirement.name)
        if name in left_out or (
            requirement.marker is not None and not requirement.marker.evaluate({"extra": extra})
        ):
            continue
        if name not in found:
            installed = _installed(name, search)
            if installed is None:
                left_out.add(name)
                continue
            found[name] = installed
        for wanted in {"", *requirement.extras}:
            if (name, wanted) not in seen:
                seen.add((name, wanted))
                waiting.extend((requirement_of(text), wanted) for text in found[name].requires or ())
    return found


def environment(into: Path, distributions: dict[str, Distribution]) -> Path:
    """The Python of a virtual environment with these packages, below `into`. One that is there already is taken as it is."""

    def fill(folder: Path, later: Path) -> None:
        # Some systems leave it out of Python.
        import venv

        venv.create(folder, with_pip=False, symlinks=True)
        _fill(folder, folder / _SITE, later / _SITE, distributions)

    return _kept(into / f"environment-{_digest(distributions)}", fill) / "bin" / "python"


def folder(into: Path, distributions: dict[str, Distribution]) -> Path:
    """A folder with these packages for PYTHONPATH, below `into`. One that is there already is taken as it is."""
    return _kept(
        into / f"packages-{_digest(distributions)}",
        lambda folder, later: _fill(folder, folder, later, distributions),
    )


_SITE = Path("lib", f"python{sysconfig.get_python_version()}", "site-packages")


def _requirement_type():
    """The class that parses a requirement; pip has it where nothing else does. Raises ImportError where there is neither."""
    try:
        from packaging.requirements import Requirement
    except ImportError:
        from pip._vendor.packaging.requirements import Requirement
    return Requirement


def _normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def _installed(name: str, search: list[str] | None) -> Distribution | None:
    where = {} if search is None else {"path": search}
    return next(iter(importlib.metadata.distributions(name=name, **where)), None)


def _digest(distributions: dict[str, Distribution]) -> str:
    lines = [sys.version, sys.executable]
    lines += sorted(
        f"{name}=={found.version} {found.locate_file('')}" for name, found in distributions.items()
    )
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()[:8]


def _kept(target: Path, fill) -> Path:
    """`target`, made by `fill` under another name first, so that it is whole or not there. `fill` gets both names."""
    if target.exists():
        return target
    begun = target.with_name(f"{target.name}.{os.getpid()}")
    shutil.rmtree(begun, ignore_errors=True)
    begun.mkdir(parents=True)
    try:
        fill(begun, target)
        # Another process may have been faster.
        with contextlib.suppress(OSError):
            begun.rename(target)
        if not target.exists():
            raise OSError(f"{target}: could not be made")
    finally:
        shutil.rmtree(begun, ignore_errors=True)
    return target


def _fill(root: Path, site: Path, later: Path, distributions: dict[str, Distribution]) -> None:
    """Copies the packages into `site` and compiles them, as if they stood in `later`."""
    pairs = [
        (source, site / inside)
        for found in distributions.values()
        for source, inside in _files(found)
        if not any(fnmatch.fnmatch(str(inside), pattern) for pattern in UNREAD)
    ]
    for parent in {target.parent for _, target in pairs}:
        parent.mkdir(parents=True, exist_ok=True)
    with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
        chunks = [pairs[at : at + CHUNK] for at in range(0, len(pairs), CHUNK)]
        for done in [pool.submit(_copy, chunk) for chunk in chunks]:
            done.result()
    # Templates and the like do not compile: the exit code says nothing.
    subprocess.run(
        [sys.executable, "-m", "compileall", "-qq", "-j", str(THREADS), "-s", str(site), "-p", str(later), str(site)],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, check=False,
        env={key: value for key, value in os.environ.items() if key != "PYTHONPYCACHEPREFIX"},
    )  # fmt: skip


def _files(distribution: Distribution) -> Iterator[tuple[Path, Path]]:
    """The files of an installed package as (where it lies, its path in site-packages)."""
    listed = distribution.files
    if not listed:
        yield from _files_unlisted(distribution)
        return
    for entry in listed:
        # Commands and data lie outside.
        if ".." not in entry.parts and not entry.is_absolute():
            yield Path(distribution.locate_file(entry)), Path(entry)


def _files_unlisted(distribution: Distribution) -> Iterator[tuple[Path, Path]]:
    """The same where the system's own package manager installed it, which keeps the list elsewhere."""
    base = Path(distribution.locate_file(""))
    # Only the metadata tell which of a folder's packages are meant.
    name = distribution.metadata["Name"]
    modules = (distribution.read_text("top_level.txt") or name.replace("-", "_")).split()
    wanted = [base / module for module in modules] + [base / f"{module}.py" for module in modules]
    wanted += [base / f"{module}.abi3.so" for module in modules]
    stem = _normal(name).replace("-", "[-_.]")
    wanted += [
        entry
        for entry in base.iterdir()
        if re.fullmatch(rf"{stem}-.*\.(dist|egg)-info", entry.name, re.IGNORECASE)
    ]
    for entry in wanted:
        files = (
            [Path(where, name) for where, _, names in os.walk(entry) for name in names]
            if entry.is_dir()
            else [entry]
        )
        yield from ((file, file.relative_to(base)) for file in files)


def _copy(pairs: list[tuple[Path, Path]]) -> None:
    for source, target in pairs:
        # A list may name what was removed since, and two packages may have a file in common.
        if not source.is_file() or target.is_symlink():
            continue
        if source.stat().st_size < LARGE_BYTES:
            shutil.copy(source, target)
        else:
            with contextlib.suppress(FileExistsError):
                target.symlink_to(source.resolve())
