"""libflextensor.so in this process and at work, asked before anything is offloaded: preloaded, or else loaded here.

What lies in GPU memory by then is left to `taking_over`; how a program is started with the library, to `launch`.
"""

import ctypes
import logging
import os
from pathlib import Path

import torch

from flextensor import _native

_LOG = logging.getLogger("flextensor")
_HINT = (
    "run `flextensor run python app.py`, or set LD_PRELOAD to the libflextensor.so of this package; "
    "OffloadConfig(enabled=False) runs without it"
)
_NO_DRIVER = -3

_came_late = False


def came_late() -> bool:
    """Whether the library was loaded here, into a program that had begun without it."""
    return _came_late


def library() -> Path:
    """The library of this package. Tests put a stand-in here."""
    from flextensor import launch

    return launch.library()


def require_library() -> None:
    """Starts CUDA, and with it the library, which is loaded if it was not preloaded. RuntimeError that says what to do
    where that is not possible."""
    global _came_late
    if not _is_loaded():
        _load()
        _came_late = True
    try:
        _native.connect()
    except RuntimeError as error:
        raise RuntimeError(f"{error}. Offloading needs libflextensor.so: {_HINT}") from None
    if torch.cuda.is_available():
        torch.cuda.init()
    if _came_late and _native.attach() == _NO_DRIVER:
        raise RuntimeError(
            f"libflextensor.so cannot serve a program that runs already, the line on stderr says why: {_HINT}"
        )
    if _native.phase() < 0:
        raise RuntimeError(
            "libflextensor.so is loaded but switched off: FT_ENABLED is 0, its configuration was refused, or this "
            "process was forked from one that uses the GPU; its line on stderr says which"
        )


def _is_loaded() -> bool:
    return hasattr(ctypes.CDLL(None), "ft_api_version")


def _load() -> None:
    """Loads the library where every lookup finds it; what it does in the process begins with `_native.attach`."""
    path = library()
    try:
        ctypes.CDLL(str(path), mode=os.RTLD_NOW | os.RTLD_GLOBAL)
    except OSError as error:
        raise RuntimeError(f"libflextensor.so cannot be loaded ({error}): {_HINT}") from None
    _LOG.warning(
        "libflextensor.so comes into this program now: CUDA graphs that were captured before must be captured again"
    )
