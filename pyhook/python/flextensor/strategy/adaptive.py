"""AdaptiveStrategy: asks several strategies and takes the best answer."""

import warnings
from typing import ClassVar

from flextensor.collectors import LayerStatistics
from flextensor.strategy.asking import Answer, Estimate
from flextensor.strategy.by_core import CoreStrategy
from flextensor.strategy.knapsack import BLOCK_LOADER_TYPES
from flextensor.strategy.protocol import StrategyResult
from flextensor.strategy.score import StrategyScore

_SHORT = {
    "KnapsackStrategy": ("Knapsack",),
    "KnapsackBlockStrategy": ("KnapsackBlock",),
    "GlobalOffloadStrategy": ("GlobalOffload(Optimized)", "GlobalOffload(Strict)"),
    "GlobalTensorSelectionStrategy": ("TensorSelection(DE)", "TensorSelection(SA)"),
}


class AdaptiveStrategy(CoreStrategy):
    """The best of KnapsackBlock, GlobalOffload with either assignment, BudgetFill where there is a budget, and two searches
    over tensors with `extra_optimization`; without blocks (`loader_type` "strategy") of Knapsack alone. Made into a plan
    for the runtime, it has our own planner as one more candidate. This is what `load_strategy=None` compares with."""

    BLOCK_LOADER_TYPES: ClassVar[frozenset[str]] = BLOCK_LOADER_TYPES
    _parameters = (
        "scale",
        "loader_type",
        "cyclic",
        "group_size",
        "threshold_mb",
        "min_blocks",
        "n_blocks",
        "extra_optimization",
    )

    scale: float
    loader_type: str
    cyclic: bool
    group_size: int
    threshold_mb: float
    min_blocks: int
    n_blocks: int
    extra_optimization: bool

    def __init__(
        self,
        scale: float = 1.0,
        loader_type: str = "allocation_block_transfer",
        cyclic: bool = False,
        group_size: int = 1,
        threshold_mb: float = 0.1,
        min_blocks: int = 2,
        n_blocks: int = 4,
        extra_optimization: bool = False,
    ) -> None:
        self._selected: str | None = None
        self._scores: list[StrategyScore] = []
        self._set(
            scale=scale,
            loader_type=loader_type,
            cyclic=cyclic,
            group_size=group_size,
            threshold_mb=threshold_mb,
            min_blocks=min_blocks,
            n_blocks=n_blocks,
            extra_optimization=extra_optimization,
        )

    @property
    def selected_strategy_name(self) -> str:
        """The candidate whose answer the last `compute` took. RuntimeError before."""
        if self._selected is None:
            raise RuntimeError("selected_strategy_name is not known before compute() was called")
        return self._selected

    @property
    def all_scores(self) -> list[StrategyScore]:
        """What the answers of all candidates cost, in the order in which they were asked; empty before `compute`."""
        return list(self._scores)

    def compute(
        self,
        layer_stats: list[LayerStatistics],
        memory_stats: dict[int, float] | None = None,
        max_gpu_mem_bytes: int | None = None,
    ) -> StrategyResult:
        """As every strategy's; remembers what all candidates cost. RuntimeError when none has an answer."""
        self._selected, self._scores = None, []
        return self._ask(layer_stats, memory_stats, max_gpu_mem_bytes).result

    def _ask(
        self,
        layer_stats: list[LayerStatistics],
        memory_stats: dict[int, float] | None,
        max_gpu_mem_bytes: int | None,
    ) -> Answer:
        answer = super()._ask(layer_stats, memory_stats, max_gpu_mem_bytes)
        seen: dict[str, int] = {}
        names = []
        for solver, _ in answer.candidates:
            shorts = _SHORT.get(solver, ("BudgetFill",))
            names.append(shorts[min(seen.get(solver, 0), len(shorts) - 1)])
            seen[solver] = seen.get(solver, 0) + 1
        self._scores = [
            StrategyScore.of(name, estimate, _clashes(estimate, max_gpu_mem_bytes))
            for name, (_, estimate) in zip(names, answer.candidates, strict=True)
        ]
        won = (answer.solver, answer.estimate)
        self._selected = names[answer.candidates.index(won)]
        return answer

    def _no_answer(self, why: str) -> Exception:
        return RuntimeError(why)

    def _missed(self, answer: Answer, max_gpu_mem_bytes: int | None) -> None:
        estimate = answer.estimate
        budget = "none" if max_gpu_mem_bytes is None else f"{max_gpu_mem_bytes} bytes"
        warnings.warn(
            f"AdaptiveStrategy: the best of all answers ({answer.solver}) is not valid: its peak is {estimate.peak_bytes} "
            f"bytes, the budget {budget}",
            UserWarning,
            stacklevel=5,
        )


def _clashes(estimate: Estimate, budget: int | None) -> int:
    """What core says of a candidate that keeps its budget and is not valid all the same: layers clash in a block."""
    return int(not estimate.valid and (budget is None or estimate.peak_bytes <= budget))
