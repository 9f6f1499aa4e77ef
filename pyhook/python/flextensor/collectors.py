"""What was measured of a model: tensors, layers (traps), and samples of how long layers compute.

Strategies read this; measuring is `tensor_manager`'s and the runtime's.
"""

import math
import statistics
from collections.abc import Iterable
from dataclasses import dataclass, field

NANOSECONDS = 6
"""Decimals of a time in milliseconds: no more are kept, so that files and numbers are the same."""


@dataclass(frozen=True)
class TensorStatistics:
    """One tensor: its number and name, its bytes, and the milliseconds that a copy to the GPU takes by itself."""

    tensor_id: int
    name: str
    size_bytes: int
    load_time_ms: float

    def __post_init__(self) -> None:
        if self.size_bytes < 0:
            raise ValueError(f"size_bytes of tensor {self.name!r} is {self.size_bytes}: allowed is 0 or more")
        _check_ms(f"load_time_ms of tensor {self.name!r}", self.load_time_ms)


@dataclass(frozen=True)
class LayerStatistics:
    """One layer (trap) with its tensors and the milliseconds it computes with them in place."""

    label: str
    tensors: list[TensorStatistics]
    duration: float

    def __post_init__(self) -> None:
        _check_ms(f"duration of layer {self.label!r}", self.duration)


@dataclass
class LayerSamples:
    """What was seen of one layer so far: its tensors, and how long it took each time."""

    tensor_ids: dict[int, None] = field(default_factory=dict)
    durations_ms: list[float] = field(default_factory=list)


class LayerStatisticsCollector:
    """Gathers layers in the order in which they first came up. Not thread-safe: a manager belongs to one thread."""

    def __init__(self) -> None:
        self._layers: dict[str, LayerSamples] = {}

    def add_tensors(self, label: str, tensor_ids: Iterable[int]) -> None:
        """The layer uses these tensors."""
        self._layers.setdefault(label, LayerSamples()).tensor_ids.update(dict.fromkeys(tensor_ids))

    def add_duration(self, label: str, duration_ms: float) -> None:
        """The layer took so many milliseconds once."""
        _check_ms(f"duration of layer {label!r}", duration_ms)
        self._layers.setdefault(label, LayerSamples()).durations_ms.append(duration_ms)

    def clear_duration_measurements(self) -> None:
        """Forgets all durations; which layer uses which tensors is kept."""
        for samples in self._layers.values():
            samples.durations_ms.clear()

    def durations(self) -> dict[str, list[float]]:
        """Milliseconds by layer, one for each time it was measured."""
        return {label: list(samples.durations_ms) for label, samples in self._layers.items()}

    def get_layer_stats(self, tensors: dict[int, TensorStatistics]) -> list[LayerStatistics]:
        """The layers with the median of their durations (0 where nothing was measured) and those of their tensors that
        `tensors` knows by number."""
        return [
            LayerStatistics(
                label,
                [tensors[number] for number in samples.tensor_ids if number in tensors],
                round(statistics.median(samples.durations_ms), NANOSECONDS) if samples.durations_ms else 0.0,
            )
            for label, samples in self._layers.items()
        ]


def _check_ms(what: str, given: float) -> None:
    if not math.isfinite(given) or given < 0:
        raise ValueError(f"{what} is {given}: allowed are milliseconds, 0 or more")
