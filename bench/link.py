"""Measures the host-to-device link and names the machine; prints one JSON line.

256 MiB copies from pinned memory, timed by CUDA events, median of the steady ones. Run in a process of its own, so that the driver script never
holds a CUDA context.
"""

import itertools
import json
import statistics

COPY_BYTES = 256 << 20
COPIES = 24
WARM_UP = 4


def driver_version() -> str | None:
    """The driver's version from NVML, or None where it is not installed."""
    try:
        import pynvml

        pynvml.nvmlInit()
        version = pynvml.nvmlSystemGetDriverVersion()
    except Exception:
        return None
    return version.decode() if isinstance(version, bytes) else version


def main() -> None:
    import torch

    host = torch.empty(COPY_BYTES, dtype=torch.uint8, pin_memory=True)
    host.fill_(1)
    device = torch.empty(COPY_BYTES, dtype=torch.uint8, device="cuda")
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(COPIES + 1)]
    marks[0].record()
    for mark in marks[1:]:
        device.copy_(host, non_blocking=True)
        mark.record()
    torch.cuda.synchronize()
    times = [before.elapsed_time(after) for before, after in itertools.pairwise(marks)][WARM_UP:]
    properties = torch.cuda.get_device_properties(0)
    print(
        json.dumps(
            {
                "event": "link",
                "link_bytes_per_s": COPY_BYTES / (statistics.median(times) / 1e3),
                "gpu": properties.name,
                "gpu_bytes": properties.total_memory,
                "driver": driver_version(),
                "torch": torch.__version__,
                "cuda": torch.version.cuda,
            }
        ),
        flush=True,
    )


if __name__ == "__main__":
    main()
