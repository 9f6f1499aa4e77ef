"""Measures the host-to-device link and names the machine; prints one JSON line.

256 MiB copies from pinned memory, timed by CUDA events, median of the steady ones. Run in a process of its own, so that the driver script never
holds a CUDA context. `--device cpu` copies within host memory instead, to try the bench without a GPU.
"""

import argparse
import itertools
import json
import statistics
import sys
import time

import program

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


def gpu_link() -> dict:
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
    return {
        "link_bytes_per_s": COPY_BYTES / (statistics.median(times) / 1e3),
        "gpu": properties.name,
        "gpu_bytes": properties.total_memory,
        "driver": driver_version(),
    }


def host_copy() -> dict:
    import torch

    source = torch.ones(COPY_BYTES >> 3, dtype=torch.uint8)
    target = torch.empty_like(source)
    times = []
    for _ in range(5):
        began = time.perf_counter()
        target.copy_(source)
        times.append(time.perf_counter() - began)
    return {
        "link_bytes_per_s": source.numel() / statistics.median(times),
        "gpu": "no GPU",
        "gpu_bytes": None,
        "driver": None,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    options = parser.parse_args()
    program.demand(("torch",))
    import torch

    if options.device == "cuda" and not torch.cuda.is_available():
        print("bench: torch sees no GPU (--device cpu --tiny tries the bench without one)", file=sys.stderr)
        sys.exit(program.MISSING)
    found = gpu_link() if options.device == "cuda" else host_copy()
    print(
        json.dumps({"event": "link", **found, "torch": torch.__version__, "cuda": torch.version.cuda}),
        flush=True,
    )


if __name__ == "__main__":
    main()
