"""Samples the memory in use while a child runs: on the GPU through NVML, in the host from the kernel. Independent of the program and of every library.

What a sample means is left to `measure.py`.
"""

import threading
import time

SAMPLE_S = 0.05
MEMINFO = "/proc/meminfo"


def host_used() -> int | None:
    """Bytes of host memory that nobody can have without swapping: of all processes, pinned memory of drivers included, the page cache not. None where the kernel does not say."""
    values = {}
    try:
        with open(MEMINFO) as file:
            for line in file:
                key, _, value = line.partition(":")
                if key in ("MemTotal", "MemAvailable"):
                    values[key] = int(value.split()[0]) * 1024
    except OSError:
        return None
    return values["MemTotal"] - values["MemAvailable"] if len(values) == 2 else None


def nvml_reader():
    """A function that reads the used bytes of the first GPU, or None where NVML or a GPU is missing."""
    try:
        import pynvml

        pynvml.nvmlInit()
        handle = pynvml.nvmlDeviceGetHandleByIndex(0)
        pynvml.nvmlDeviceGetMemoryInfo(handle)
    except Exception:
        return None
    return lambda: int(pynvml.nvmlDeviceGetMemoryInfo(handle).used)


class Series:
    """One memory over time: what was in use before, and (monotonic seconds, bytes) after."""

    def __init__(self, read) -> None:
        self.read = read
        self.baseline: int | None = None
        self.samples: list[tuple[float, int]] = []

    def take(self) -> None:
        used = self.read() if self.read is not None else None
        if used is not None:
            self.samples.append((time.monotonic(), used))

    def above_baseline(self, window: list[float]) -> int | None:
        """The largest use inside a window, less what was in use before the child began. None without samples there."""
        inside = [used for at, used in self.samples if window[0] <= at <= window[1]]
        return max(inside) - self.baseline if inside and self.baseline is not None else None


class Sampler:
    """Samples both memories in a thread while it is entered."""

    def __init__(self) -> None:
        self.device, self.host = Series(nvml_reader()), Series(host_used)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)

    def __enter__(self) -> "Sampler":
        for series in (self.device, self.host):
            series.baseline = series.read() if series.read is not None else None
        self._thread.start()
        return self

    def __exit__(self, *_) -> None:
        self._stop.set()
        self._thread.join()

    def _sample(self) -> None:
        while not self._stop.wait(SAMPLE_S):
            self.device.take()
            self.host.take()
