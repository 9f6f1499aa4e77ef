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
# Headers that no program reads: many small files. Those of triton are read, by the compiler that it calls.
UNREAD_HEADERS = ("torch/include", "nvidia/*/include")


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
            inside = Path(folder).relative_to(source)
            folders[:] = [name for name in folders if not _is_left_out(inside / name)]
            here = begun / inside
            here.mkdir(parents=True, exist_ok=True)
            waiting.append(pool.submit(_copy, Path(folder), here, files))
        for done in waiting:
            done.result()
    begun.rename(target)
    return target


def _is_left_out(folder: Path) -> bool:
    return folder.name == "__pycache__" or any(folder.match(pattern) for pattern in UNREAD_HEADERS)


def _copy(source: Path, target: Path, files: list[str]) -> None:
    for name in files:
        file = source / name
        if not file.exists():
            continue
        if file.stat().st_size < LARGE_BYTES:
            shutil.copyfile(file, target / name)
        else:
            (target / name).symlink_to(file.resolve())
