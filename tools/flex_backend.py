"""The build backend of the Python package: maturin, with libflextensor.so built and laid beside the Python
files first.

One shared object cannot serve both uses: the preloaded one may not need an interpreter, and the extension
module cannot do without.
"""

import shutil
import subprocess
from pathlib import Path

import maturin
from maturin import *  # noqa: F403  the hooks that need nothing of ours

_ROOT = Path(__file__).resolve().parent.parent
_PACKAGE = _ROOT / "pyhook" / "python" / "flextensor"


def _lay_library() -> None:
    """Builds libflextensor.so for release and copies it into the package."""
    script = _ROOT / "tools" / "build-release.sh"
    built = _ROOT / "target" / "release" / "libflextensor.so"
    if script.exists():
        # By its interpreter: archives of the sources keep no right to execute. Its last line names the file: built for an old C library, it lies in a folder of its target.
        said = subprocess.run(
            ["bash", script], cwd=_ROOT, check=True, stdout=subprocess.PIPE, text=True
        ).stdout.split("\n")
        named = [line for line in said if line.endswith("libflextensor.so")]
        built = _ROOT / named[-1] if named else built
    else:
        subprocess.run(
            ["cargo", "build", "--release", "--package", "flextensor-interposer"], cwd=_ROOT, check=True
        )
    shutil.copy2(built, _PACKAGE / "libflextensor.so")


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    """PEP 517: the wheel, with both shared objects."""
    _lay_library()
    return maturin.build_wheel(wheel_directory, config_settings, metadata_directory)


def build_editable(wheel_directory, config_settings=None, metadata_directory=None):
    """PEP 660: an editable installation, with both shared objects in the source tree."""
    _lay_library()
    return maturin.build_editable(wheel_directory, config_settings, metadata_directory)
