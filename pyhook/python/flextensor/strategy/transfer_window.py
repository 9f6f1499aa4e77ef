"""When the copy for a layer may begin: in the layer before it, or earlier where nothing else is copied. Core does the work."""

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from flextensor import _native


@runtime_checkable
class TransferWindowCalculator(Protocol):
    """The compute time behind which the copy for a layer may hide."""

    def compute_window(
        self, layer_idx: int, layer_offload_sizes: Sequence[int], layer_durations: Sequence[float]
    ) -> float:
        """Milliseconds for layer `layer_idx`, when layers stream so many bytes and compute for so many milliseconds."""
        ...


class SingleLayerWindow:
    """The layer before; nothing for the first layer."""

    def compute_window(
        self, layer_idx: int, layer_offload_sizes: Sequence[int], layer_durations: Sequence[float]
    ) -> float:
        """Milliseconds for layer `layer_idx`. IndexError when there is no such layer."""
        return _window("SingleLayer", layer_idx, layer_offload_sizes, layer_durations)


class GapAwareWindow:
    """All layers back to the last one that streams: layers without weights in between count as well."""

    def compute_window(
        self, layer_idx: int, layer_offload_sizes: Sequence[int], layer_durations: Sequence[float]
    ) -> float:
        """Milliseconds for layer `layer_idx`. IndexError when there is no such layer."""
        return _window("GapAware", layer_idx, layer_offload_sizes, layer_durations)


def parameter_of(window: TransferWindowCalculator | None) -> str | None:
    """The parameter of core's strategies that stands for a window. TypeError for one's own classes."""
    if window is None or isinstance(window, SingleLayerWindow | GapAwareWindow):
        return None if window is None else type(window).__name__
    raise TypeError(f"transfer_window is {window!r}: allowed are SingleLayerWindow and GapAwareWindow")


def _window(name: str, layer: int, sizes: Sequence[int], durations: Sequence[float]) -> float:
    if len(sizes) != len(durations):
        raise ValueError(f"{len(sizes)} sizes and {len(durations)} durations: every layer needs both")
    if not 0 <= layer < len(sizes):
        raise IndexError(f"layer {layer} does not exist: there are {len(sizes)}")
    return _native.window_ms(name, layer, [int(size) for size in sizes], [float(each) for each in durations])
