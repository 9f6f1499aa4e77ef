"""Whether libflextensor.so is in this process and at work, asked before anything is offloaded.

A library that comes after torch's CUDA libraries can no longer take part in how they find the driver, so it is
preloaded or it is not there. How a program is started with it is left to `launch`.
"""

import torch

from flextensor import _native


def require_library() -> None:
    """Starts CUDA, and with it the library; RuntimeError that says what to do where it is not there or does not
    work."""
    try:
        _native.connect()
    except RuntimeError as error:
        raise RuntimeError(
            f"{error}. Offloading needs libflextensor.so from the program's start on: run "
            "`flextensor run python app.py`, or set LD_PRELOAD to the libflextensor.so of this package; "
            "OffloadConfig(enabled=False) runs without it"
        ) from None
    if torch.cuda.is_available():
        torch.cuda.init()
    if _native.phase() < 0:
        raise RuntimeError(
            "libflextensor.so is preloaded but switched off: FT_ENABLED is 0, its configuration was refused, or this "
            "process was forked from one that uses the GPU; its line on stderr says which"
        )
