"""Strategies: ways to choose what is streamed, over core's (docs/strategies.md). One's own are classes with such a
`compute` as `Strategy` describes."""

from flextensor.strategy.adaptive import AdaptiveStrategy
from flextensor.strategy.assignment import (
    AssignmentStrategy,
    OptimizedRoundRobinAssignment,
    StrictRoundRobinAssignment,
)
from flextensor.strategy.budget_fill import (
    BudgetFillGreedyStrategy,
    BudgetFillLayerDEStrategy,
    BudgetFillStrategy,
    BudgetFillTensorDEStrategy,
)
from flextensor.strategy.global_strategy import GlobalOffloadStrategy, GlobalTensorSelectionStrategy
from flextensor.strategy.knapsack import AdaptiveKnapsackStrategy, KnapsackBlockStrategy, KnapsackStrategy
from flextensor.strategy.protocol import (
    BlockStrategyData,
    LayerStatistics,
    Strategy,
    StrategyComputeError,
    StrategyResult,
    TensorStatistics,
)
from flextensor.strategy.score import StrategyScore, evaluate_strategy_result
from flextensor.strategy.simple import GreedyStrategy, NthLayerStrategy
from flextensor.strategy.transfer_window import GapAwareWindow, SingleLayerWindow, TransferWindowCalculator
from flextensor.strategy_operations import strategy_has_transfer_gaps

__all__ = [
    "AdaptiveKnapsackStrategy",
    "AdaptiveStrategy",
    "AssignmentStrategy",
    "BlockStrategyData",
    "BudgetFillGreedyStrategy",
    "BudgetFillLayerDEStrategy",
    "BudgetFillStrategy",
    "BudgetFillTensorDEStrategy",
    "GapAwareWindow",
    "GlobalOffloadStrategy",
    "GlobalTensorSelectionStrategy",
    "GreedyStrategy",
    "KnapsackBlockStrategy",
    "KnapsackStrategy",
    "LayerStatistics",
    "NthLayerStrategy",
    "OptimizedRoundRobinAssignment",
    "SingleLayerWindow",
    "Strategy",
    "StrategyComputeError",
    "StrategyResult",
    "StrategyScore",
    "StrictRoundRobinAssignment",
    "TensorStatistics",
    "TransferWindowCalculator",
    "evaluate_strategy_result",
    "strategy_has_transfer_gaps",
]
