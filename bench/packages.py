"""Copies the Python packages at hand into a folder in memory, so that the time to import them says something about programs and not about a machine's disk.

Small files are copied, by several threads; large ones (libraries) are linked: the kernel keeps their pages once they have been read.
"""

import concurrent.futures
import os
import shutil
import sysconfig
from pathlib import Path

# Files from this size on are linked.
LARGE_BYTES = 4 << 20
THREADS = 16
LEFT_OUT = {"__pycache__", "include"}


def copied(into: Path, source: Path | None = None) -> Path:
    """The folder with the copies of everything that is installed beside torch (`source`: another folder), to be put on PYTHONPATH. What is there already stays."""
    source = source or Path(sysconfig.get_path("platlib"))
    target = into / "packages"
    if target.exists():
        return target
    begun = into / "packages.begun"
    shutil.rmtree(begun, ignore_errors=True)
    with concurrent.futures.ThreadPoolExecutor(THREADS) as pool:
        waiting = []
        for folder, folders, files in os.walk(source):
            folders[:] = [name for name in folders if name not in LEFT_OUT]
            here = begun / Path(folder).relative_to(source)
            here.mkdir(parents=True, exist_ok=True)
            waiting.append(pool.submit(_copy, Path(folder), here, files))
        for done in waiting:
            done.result()
    begun.rename(target)
    return target


def _copy(source: Path, target: Path, files: list[str]) -> None:
    for name in files:
        file = source / name
        if not file.exists():
            continue
        if file.stat().st_size < LARGE_BYTES:
            shutil.copyfile(file, target / name)
        else:
            (target / name).symlink_to(file.resolve())
