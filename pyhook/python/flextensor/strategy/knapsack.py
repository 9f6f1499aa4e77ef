"""The knapsack family: during each layer, as many bytes of the next one are copied as its compute time hides."""

from typing import ClassVar

from flextensor.strategy.by_core import CoreStrategy

BLOCK_LOADER_TYPES = frozenset({"allocation_block_transfer", "raw_block_transfer"})
"""Ways to carry weights that have blocks."""


class KnapsackStrategy(CoreStrategy):
    """Fills the window of every layer exactly; with `cyclic` the last layer copies for the first one.

    `scale` (above 0) multiplies the time granted to copies; `group_size` layers are filled together; tensors below
    `threshold_mb` MiB stay; `n_blocks` (2 or more) is the number of blocks."""

    _parameters = ("scale", "cyclic", "group_size", "threshold_mb", "n_blocks")

    scale: float
    cyclic: bool
    group_size: int
    threshold_mb: float
    n_blocks: int

    def __init__(
        self,
        scale: float = 1.0,
        cyclic: bool = True,
        group_size: int = 1,
        threshold_mb: float = 0.1,
        n_blocks: int = 4,
    ) -> None:
        self._set(
            scale=scale, cyclic=cyclic, group_size=group_size, threshold_mb=threshold_mb, n_blocks=n_blocks
        )


class KnapsackBlockStrategy(CoreStrategy):
    """As KnapsackStrategy, but the first layer stays."""

    _parameters = ("scale", "group_size", "threshold_mb", "n_blocks")

    scale: float
    group_size: int
    threshold_mb: float
    n_blocks: int

    def __init__(
        self, scale: float = 1.0, group_size: int = 1, threshold_mb: float = 0.1, n_blocks: int = 4
    ) -> None:
        self._set(scale=scale, group_size=group_size, threshold_mb=threshold_mb, n_blocks=n_blocks)


class AdaptiveKnapsackStrategy(CoreStrategy):
    """The best of several scales and numbers of blocks. With a `loader_type` that has blocks the first layer stays."""

    BLOCK_LOADER_TYPES: ClassVar[frozenset[str]] = BLOCK_LOADER_TYPES
    _parameters = ("scale", "loader_type", "cyclic", "group_size", "threshold_mb")

    scale: float
    loader_type: str
    cyclic: bool
    group_size: int
    threshold_mb: float

    def __init__(
        self,
        scale: float = 1.0,
        loader_type: str = "strategy",
        cyclic: bool = True,
        group_size: int = 1,
        threshold_mb: float = 0.1,
    ) -> None:
        self._set(
            scale=scale,
            loader_type=loader_type,
            cyclic=cyclic,
            group_size=group_size,
            threshold_mb=threshold_mb,
        )
