"""flextensor: runs PyTorch programs whose weights do not fit the GPU memory budget.

The program itself needs nothing from here: it is started by `flextensor run`. This module answers
questions about the running process; arriving in an unchanged program is left to `hook`, the command line
to `cli`. Importing it loads neither torch nor the native module.
"""

import json as _json
from typing import Any

__version__ = "0.1.0"
__all__ = ["__version__", "is_active", "phase", "report"]

_PHASES = {0: "NOT_INITIALIZED", 1: "DISCOVERY", 2: "PROFILING", 3: "INFERENCE"}


def phase() -> str | None:
    """The phase that this process is in, or None when libflextensor.so is not preloaded or switched off."""
    from flextensor import _native

    return _PHASES.get(_native.phase())


def is_active() -> bool:
    """Whether libflextensor.so is preloaded into this process and not switched off."""
    return phase() is not None


def report() -> dict[str, Any]:
    """The run report as it stands now (docs/report.md); empty before the program's first use of CUDA.
    RuntimeError when libflextensor.so is not preloaded."""
    from flextensor import _native

    return _json.loads(_native.report_json() or "{}")
