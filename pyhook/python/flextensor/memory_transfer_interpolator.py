"""How long a copy to the GPU of any size takes, from a few measured sizes, and back. Core works it out: between and beyond
the points along straight lines over the logarithms of both; a single point stands for its speed."""

import math

from flextensor import _native

_MOST_BYTES = 1 << 60


class MemoryTransferInterpolator:
    """Copy times by size. `memory_transfers`: milliseconds by bytes, at least one, all above 0. A larger copy that was no
    slower than a smaller one says nothing and is left out."""

    def __init__(self, memory_transfers: dict[int, float]) -> None:
        if not memory_transfers:
            raise ValueError("memory_transfers is empty: allowed is at least one size with its time")
        for nbytes, milliseconds in memory_transfers.items():
            _check_positive("a size in memory_transfers", nbytes)
            _check_positive(f"the time of {nbytes} bytes in memory_transfers", milliseconds)
        self.memory_transfers = {int(nbytes): float(ms) for nbytes, ms in memory_transfers.items()}
        self._times = _native.TransferTimes(list(self.memory_transfers.items()))

    def bytes_to_duration(self, size_bytes: float) -> float:
        """Milliseconds of one copy of so many bytes. ValueError when these are not above 0."""
        _check_positive("size_bytes", size_bytes)
        return self._times.milliseconds(min(max(round(size_bytes), 1), _MOST_BYTES))

    def duration_to_bytes(self, duration_ms: float) -> float:
        """Bytes of the largest copy that takes at most so many milliseconds. ValueError when these are not above 0."""
        _check_positive("duration_ms", duration_ms)
        return float(self._times.nbytes(float(duration_ms)))

    def get_bandwidth_mbps(self) -> float:
        """MiB a second of the largest copy that was measured."""
        largest = max(self.memory_transfers)
        return largest / (1 << 20) / (self.memory_transfers[largest] / 1e3)


def create_interpolator_from_benchmarks(memory_transfers: dict[int, float]) -> MemoryTransferInterpolator:
    """An interpolator from measured copies: milliseconds by bytes."""
    return MemoryTransferInterpolator(memory_transfers)


def _check_positive(what: str, given: float) -> None:
    if not math.isfinite(given) or given <= 0:
        raise ValueError(f"{what} is {given}: allowed is a number above 0")
