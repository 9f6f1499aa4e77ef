"""Brings a TensorManager's model to the GPU and names it to the runtime."""

from typing import Any

import torch
from torch import nn

# The runtime counts passes by itself, and makes its own plan after so many of each kind; the manager's decision follows.
_PASSES = 1


def begin(
    model: nn.Module,
    device: torch.device,
    include: list[str],
    exclude: list[str],
    fraction: float | None,
    profile_folder: str | None,
) -> Any:
    """The session of the model (`flextensor.session`). RuntimeError when libflextensor.so cannot be had."""
    from flextensor.config import OffloadConfig
    from flextensor.phases import Settings
    from flextensor.session import Session

    config = OffloadConfig(
        include_patterns=include,
        exclude_patterns=exclude,
        gpu_device=device.index or 0,
        max_gpu_mem_fraction=fraction,
    )
    return Session(model, config, Settings(_PASSES, _PASSES), profile_folder)
