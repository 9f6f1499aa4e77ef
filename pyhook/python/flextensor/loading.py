"""libflextensor.so in this process and at work, asked before anything is offloaded: preloaded, or else loaded here.

What lies in GPU memory by then is left to `taking_over`; how a program is started with the library, to `launch`.
"""

import ctypes
import json
import logging
import os
import threading
from pathlib import Path

import torch

from flextensor import _native

_LOG = logging.getLogger("flextensor")
_HINT = (
    "run `flextensor run python app.py`, or set LD_PRELOAD to the libflextensor.so of this package; "
    "OffloadConfig(enabled=False) runs without it"
)
_NOT_STARTED = -3

_came_late = False
_said_not_counted = False
# One thread loads the library; others find it loaded.
_LOADING = threading.Lock()


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
    with _LOADING:
        if not _is_loaded():
            _load()
            _came_late = True
    try:
        _native.connect()
    except RuntimeError as error:
        raise RuntimeError(f"{error}. Offloading needs libflextensor.so: {_HINT}") from None
    if torch.cuda.is_available():
        torch.cuda.init()
    # Where it was preloaded, only to learn why it is not at work.
    started = _native.attach() if _came_late or _native.phase() < 0 else 0
    if started == _NOT_STARTED:
        raise RuntimeError(f"libflextensor.so could not start, its line on stderr says why: {_HINT}")
    if started < 0 or _native.phase() < 0:
        raise RuntimeError(
            "libflextensor.so is loaded but switched off: FT_ENABLED is 0, its configuration was refused, or this "
            "process was forked from one that uses the GPU; its line on stderr says which"
        )


def warn_of_what_is_not_counted() -> None:
    """Says once that `gpu_limit`, where one is set, leaves out what the process had before the library came."""
    global _said_not_counted
    if not _came_late or _said_not_counted:
        return
    limit = json.loads(_native.config_json() or "{}").get("gpu_limit")
    if limit is not None:
        _said_not_counted = True
        _LOG.warning(
            "gpu_limit is %s, but GPU memory that this process held before libflextensor.so came is not counted: preload "
            "the library to have all of it counted",
            limit,
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
