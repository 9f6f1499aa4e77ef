"""The strategies that look at all layers at once: largest tensors first, or a search over every tensor."""

from typing import Any

from flextensor.strategy.assignment import AssignmentStrategy, parameters_of
from flextensor.strategy.by_core import CoreStrategy
from flextensor.strategy.transfer_window import TransferWindowCalculator, parameter_of


class GlobalOffloadStrategy(CoreStrategy):
    """Fills the window of every layer with its largest tensors, then looks for the best assignment of blocks.

    `min_blocks` (None: 2) to `max_blocks` (None: `n_blocks`) blocks are tried; `assignment_strategy` None is
    OptimizedRoundRobinAssignment with this range."""

    _parameters = ("n_blocks", "scale", "threshold_mb", "min_blocks", "max_blocks")

    n_blocks: int
    scale: float
    threshold_mb: float
    min_blocks: int | None
    max_blocks: int | None

    def __init__(
        self,
        n_blocks: int = 4,
        scale: float = 1.0,
        threshold_mb: float = 0.1,
        min_blocks: int | None = None,
        max_blocks: int | None = None,
        assignment_strategy: AssignmentStrategy | None = None,
    ) -> None:
        self.assignment_strategy = assignment_strategy
        self._set(
            n_blocks=n_blocks,
            scale=scale,
            threshold_mb=threshold_mb,
            min_blocks=min_blocks,
            max_blocks=max_blocks,
        )

    def core_parameters(self) -> dict[str, Any]:
        """The parameters that core takes."""
        return super().core_parameters() | parameters_of(self.assignment_strategy, self.n_blocks)


class GlobalTensorSelectionStrategy(CoreStrategy):
    """Searches over every tensor and the scale, by differential evolution (`optimizer` "DE") or annealing ("SA").

    The scale lies between `scale` and `scale_ub` (None: as much as a budget needs). `pop_size`, `epoch` and
    `max_early_stop` bound the search, `seed_ratio` is the part of it that begins near the greedy answer, `seed` None is
    a fixed one. Blocks as in GlobalOffloadStrategy; `transfer_window` None is SingleLayerWindow."""

    _parameters = (
        "scale",
        "scale_ub",
        "n_blocks",
        "min_blocks",
        "max_blocks",
        "threshold_mb",
        "pop_size",
        "epoch",
        "max_early_stop",
        "optimizer",
        "seed_ratio",
        "seed",
    )

    scale: float
    scale_ub: float | None
    n_blocks: int
    min_blocks: int | None
    max_blocks: int | None
    threshold_mb: float
    pop_size: int
    epoch: int
    max_early_stop: int
    optimizer: str
    seed_ratio: float
    seed: int | None

    def __init__(
        self,
        scale: float = 1.0,
        scale_ub: float | None = None,
        n_blocks: int = 4,
        min_blocks: int | None = None,
        max_blocks: int | None = None,
        threshold_mb: float = 0.1,
        pop_size: int = 50,
        epoch: int = 200,
        max_early_stop: int = 25,
        optimizer: str = "DE",
        seed_ratio: float = 0.25,
        seed: int | None = None,
        assignment_strategy: AssignmentStrategy | None = None,
        transfer_window: TransferWindowCalculator | None = None,
    ) -> None:
        self.assignment_strategy = assignment_strategy
        self.transfer_window = transfer_window
        self._set(
            scale=scale,
            scale_ub=scale_ub,
            n_blocks=n_blocks,
            min_blocks=min_blocks,
            max_blocks=max_blocks,
            threshold_mb=threshold_mb,
            pop_size=pop_size,
            epoch=epoch,
            max_early_stop=max_early_stop,
            optimizer=optimizer,
            seed_ratio=seed_ratio,
            seed=seed,
        )

    def core_parameters(self) -> dict[str, Any]:
        """The parameters that core takes."""
        assignment = parameters_of(self.assignment_strategy, self.n_blocks)
        return (
            super().core_parameters() | assignment | {"transfer_window": parameter_of(self.transfer_window)}
        )
