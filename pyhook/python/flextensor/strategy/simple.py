"""The two strategies that only count: whole layers, whenever time has added up, or every so many."""

from flextensor.strategy.by_core import CoreStrategy


class GreedyStrategy(CoreStrategy):
    """Streams a whole layer whenever the compute time that has added up, times `scale`, hides its copy."""

    _parameters = ("threshold_mb", "n_blocks", "scale")

    threshold_mb: float
    n_blocks: int
    scale: float

    def __init__(self, threshold_mb: float = 0.1, n_blocks: int = 4, scale: float = 1.0) -> None:
        self._set(threshold_mb=threshold_mb, n_blocks=n_blocks, scale=scale)


class NthLayerStrategy(CoreStrategy):
    """Streams every `nth_layer`th layer whole, whatever it costs; a budget is not looked at. The first layer stays."""

    _parameters = ("nth_layer", "threshold_mb", "n_blocks")

    nth_layer: int
    threshold_mb: float
    n_blocks: int

    def __init__(self, nth_layer: int, threshold_mb: float = 0.1, n_blocks: int = 4) -> None:
        self._set(nth_layer=nth_layer, threshold_mb=threshold_mb, n_blocks=n_blocks)
