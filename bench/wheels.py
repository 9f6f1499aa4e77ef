"""Unpacks wheels into folders for PYTHONPATH, so that peers need no installation and meet nothing of ours; and finds what they need among the installed packages.

The Python library FlexTensor has the name of our own package: it gets a folder of its own, which only its own processes see.
"""

import importlib.metadata
import zipfile
from pathlib import Path

import packages

# Folder of each wheel's distribution name; all others share the last.
OWN_FOLDERS = {"flextensor": "flextensor_py"}
SHARED = "shared"
# Added to a folder's name: the installed packages that its wheels need, where the Python at hand does not have them (`packages.py`).
NEEDS = "_needs"


def unpack(folder: Path, into: Path) -> dict[str, Path]:
    """The folders made, by name ("flextensor_py", "shared"). Raises ValueError for a file that is no plain wheel, or where there is none."""
    found: dict[str, Path] = {}
    wheels = sorted(folder.glob("*.whl"))
    if not wheels:
        raise ValueError(f"{folder}: no wheels (*.whl) here")
    for wheel in wheels:
        name = OWN_FOLDERS.get(wheel.name.partition("-")[0].lower(), SHARED)
        try:
            with zipfile.ZipFile(wheel) as archive:
                if any(
                    ".data/purelib/" in entry or ".data/platlib/" in entry for entry in archive.namelist()
                ):
                    raise ValueError(f"{wheel.name}: has parts that only an installer can place")
                archive.extractall(into / name)
        except zipfile.BadZipFile:
            raise ValueError(f"{wheel.name}: not a wheel") from None
        found[name] = into / name
    return found


def requirements(site: Path) -> tuple[list[str], list[str]]:
    """What the wheels in an unpacked folder need, and what they are called."""
    found = list(importlib.metadata.distributions(path=[str(site)]))
    return [text for one in found for text in one.requires or ()], [one.metadata["Name"] for one in found]


def placed(into: Path, sites: dict[str, Path]) -> tuple[Path, dict[str, Path], int]:
    """A Python in memory with what programs need; the folders, with one more beside each whose wheels need what is installed; and how many packages that Python has.

    Raises one of `packages.FAILURES`.
    """
    found = packages.needed(packages.ROOTS)
    python = packages.environment(into, found)
    folders = dict(sites)
    for name, site in sites.items():
        wanted, here = requirements(site)
        if more := packages.needed(wanted, beside=[*found, *here]):
            folders[name + NEEDS] = packages.folder(into, more)
    return python, folders, len(found)


def search_path(inherited: str, sites: dict[str, Path], *, python_flextensor: bool) -> str:
    """PYTHONPATH for one process: the unpacked folders first; of what was inherited, nothing that holds a flextensor unless that one is asked for."""
    kept = [entry for entry in inherited.split(":") if entry]
    if not python_flextensor:
        kept = [entry for entry in kept if not (Path(entry) / "flextensor" / "__init__.py").exists()]
    names = [*(OWN_FOLDERS.values() if python_flextensor else ()), SHARED]
    folders = [sites[key] for name in names for key in (name, name + NEEDS) if key in sites]
    return ":".join([*map(str, folders), *kept])
