"""The BudgetFill family: a hard budget is met with the fewest streamed bytes, and of those with the least waiting.
The first layer stays. Without a budget, or with fewer than two layers, `compute` raises StrategyComputeError."""

from typing import Any

from flextensor.collectors import LayerStatistics
from flextensor.strategy.assignment import AssignmentStrategy, parameters_of
from flextensor.strategy.by_core import CoreStrategy
from flextensor.strategy.protocol import StrategyResult

_BLOCKS = ("n_blocks", "threshold_mb", "scale")
_SEARCH = ("pop_size", "epoch", "max_early_stop", "seed")


class _BudgetFill(CoreStrategy):
    """What the family shares: `n_blocks` 0 takes 2 to 4 blocks, whichever streams least."""

    n_blocks: int
    threshold_mb: float
    scale: float
    assignment_strategy: AssignmentStrategy | None

    def core_parameters(self) -> dict[str, Any]:
        """The parameters that core takes."""
        return super().core_parameters() | parameters_of(self.assignment_strategy, self.n_blocks)


class BudgetFillGreedyStrategy(_BudgetFill):
    """A prefix of a ranking of tensors (hidden ones first, larger ones first), without what is superfluous.
    `assignment_strategy` None is StrictRoundRobinAssignment."""

    _parameters = _BLOCKS

    def __init__(
        self,
        n_blocks: int = 0,
        *,
        threshold_mb: float = 1.0,
        scale: float = 1.0,
        assignment_strategy: AssignmentStrategy | None = None,
    ) -> None:
        self.assignment_strategy = assignment_strategy
        self._set(n_blocks=n_blocks, threshold_mb=threshold_mb, scale=scale)


class _SearchedFill(_BudgetFill):
    """What those share that search; their defaults differ."""

    _parameters = _BLOCKS + _SEARCH

    pop_size: int
    epoch: int
    max_early_stop: int
    seed: int | None


class BudgetFillLayerDEStrategy(_SearchedFill):
    """The same by a search over the part of each layer. `seed` None is a fixed one."""

    def __init__(
        self,
        n_blocks: int = 0,
        *,
        threshold_mb: float = 1.0,
        scale: float = 1.0,
        assignment_strategy: AssignmentStrategy | None = None,
        pop_size: int = 20,
        epoch: int = 60,
        max_early_stop: int = 20,
        seed: int | None = None,
    ) -> None:
        self.assignment_strategy = assignment_strategy
        self._set(
            n_blocks=n_blocks,
            threshold_mb=threshold_mb,
            scale=scale,
            pop_size=pop_size,
            epoch=epoch,
            max_early_stop=max_early_stop,
            seed=seed,
        )


class BudgetFillTensorDEStrategy(_SearchedFill):
    """The same by a search over every tensor; few tensors exhaustively. `seed` None is a fixed one."""

    def __init__(
        self,
        n_blocks: int = 0,
        *,
        threshold_mb: float = 1.0,
        scale: float = 1.0,
        assignment_strategy: AssignmentStrategy | None = None,
        pop_size: int = 30,
        epoch: int = 80,
        max_early_stop: int = 25,
        seed: int | None = None,
    ) -> None:
        self.assignment_strategy = assignment_strategy
        self._set(
            n_blocks=n_blocks,
            threshold_mb=threshold_mb,
            scale=scale,
            pop_size=pop_size,
            epoch=epoch,
            max_early_stop=max_early_stop,
            seed=seed,
        )


class BudgetFillStrategy(_SearchedFill):
    """The best of the three; the two searches can be left out."""

    _parameters = (*_BLOCKS, "enable_layer_de", "enable_tensor_de", *_SEARCH)

    enable_layer_de: bool
    enable_tensor_de: bool

    def __init__(
        self,
        n_blocks: int = 0,
        *,
        threshold_mb: float = 1.0,
        scale: float = 1.0,
        assignment_strategy: AssignmentStrategy | None = None,
        enable_layer_de: bool = True,
        enable_tensor_de: bool = True,
        pop_size: int = 20,
        epoch: int = 60,
        max_early_stop: int = 20,
        seed: int | None = None,
    ) -> None:
        self.assignment_strategy = assignment_strategy
        self._solver: str | None = None
        self._set(
            n_blocks=n_blocks,
            threshold_mb=threshold_mb,
            scale=scale,
            enable_layer_de=enable_layer_de,
            enable_tensor_de=enable_tensor_de,
            pop_size=pop_size,
            epoch=epoch,
            max_early_stop=max_early_stop,
            seed=seed,
        )

    @property
    def selected_solver_name(self) -> str | None:
        """The solver whose answer the last `compute` took: BudgetFillGreedy, BudgetFillLayerDE or BudgetFillTensorDE;
        None before."""
        return self._solver

    def compute(
        self,
        layer_stats: list[LayerStatistics],
        memory_stats: dict[int, float] | None = None,
        max_gpu_mem_bytes: int | None = None,
    ) -> StrategyResult:
        """As every strategy's; remembers which solver won."""
        self._solver = None
        answer = self._ask(layer_stats, memory_stats, max_gpu_mem_bytes)
        self._solver = answer.solver.removesuffix("Strategy")
        return answer.result
