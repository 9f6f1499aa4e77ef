"""The GPU memory that weights may have: a fraction of the GPU's total, no more than is free.

Asked once when a model is offloaded, to say so early; the library keeps the budget itself.
"""

import logging
from typing import Any

_LOG = logging.getLogger("flextensor")

MIN_GPU_BUDGET_BYTES = 256 << 20
"""With less free GPU memory than this, in bytes, nothing is offloaded."""


def resolve_gpu_budget(
    max_gpu_mem_fraction: float | None,
    device_gpu: Any,
    *,
    min_gpu_budget_bytes: int = MIN_GPU_BUDGET_BYTES,
    logger: logging.Logger | None = None,
) -> int | None:
    """The budget in bytes: the fraction (above 0, at most 1) of the memory of `device_gpu`, capped at what is free
    or idle in torch's cache; None without a fraction.

    A cap is said as a WARNING. RuntimeError if less than `min_gpu_budget_bytes` are free; ValueError for a
    fraction that is not allowed.
    """
    if max_gpu_mem_fraction is None:
        return None
    if not 0 < max_gpu_mem_fraction <= 1:
        raise ValueError(
            f"max_gpu_mem_fraction = {max_gpu_mem_fraction} is not allowed; allowed: a number, above 0 and at most 1"
        )
    import torch

    device = torch.device("cuda", device_gpu) if isinstance(device_gpu, int) else torch.device(device_gpu)
    free, total = torch.cuda.mem_get_info(device)
    idle = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return capped(
        int(total * max_gpu_mem_fraction),
        free + max(idle, 0),
        min_gpu_budget_bytes,
        str(device),
        logger or _LOG,
    )


def capped(wanted: int, available: int, least: int, device: str, logger: logging.Logger) -> int:
    """`wanted` bytes, or what is available of them; RuntimeError below `least`."""
    if available < least:
        raise RuntimeError(
            f"{available / 2**20:.0f} MiB of GPU memory are free on {device}, and offloading needs at least "
            f"{least / 2**20:.0f} MiB: free memory there, or choose another gpu_device"
        )
    if available < wanted:
        logger.warning(
            "the budget of %.0f MiB on %s is capped at the %.0f MiB that are free",
            wanted / 2**20,
            device,
            available / 2**20,
        )
    return min(wanted, available)
