"""What a result costs, for comparing several."""

import itertools
import math
from dataclasses import dataclass

from flextensor.collectors import LayerStatistics
from flextensor.memory_transfer_interpolator import MemoryTransferInterpolator
from flextensor.strategy.asking import Estimate, Question
from flextensor.strategy.protocol import StrategyResult


@dataclass
class StrategyScore:
    """What one result costs."""

    strategy_name: str
    peak_memory_bytes: int
    """Bytes of GPU memory: what stays, and the blocks."""
    estimated_overhead: float
    """Time that layers wait for copies, over the time that they compute: 0.05 is 5 %."""
    consecutive_violations: int
    """Pairs of layers that stream one after the other into the same block."""
    is_valid: bool
    """Whether the budget is kept, and no block is written while it is read."""

    @classmethod
    def of(cls, name: str, estimate: Estimate, violations: int) -> "StrategyScore":
        """From core's estimate."""
        return cls(name, estimate.peak_bytes, estimate.overhead, violations, estimate.valid)


def evaluate_strategy_result(
    result: StrategyResult,
    layer_stats: list[LayerStatistics],
    strategy_name: str,
    interpolator: MemoryTransferInterpolator | None = None,
    max_gpu_mem_bytes: int | None = None,
) -> StrategyScore:
    """Scores a result of any strategy by the rules of ours.

    `interpolator` tells how long copies take; without one nothing is known of waiting, and the overhead is 0.
    `max_gpu_mem_bytes` is the budget. ValueError when the result names layers or tensors that are not in `layer_stats`.
    """
    link = interpolator.memory_transfers if interpolator is not None else None
    estimate = Question(layer_stats, link, max_gpu_mem_bytes).judge(result).estimate
    score = StrategyScore.of(strategy_name, estimate, _violations(result, layer_stats))
    if interpolator is None:
        score.estimated_overhead = 0.0
    return score


def _violations(result: StrategyResult, layer_stats: list[LayerStatistics]) -> int:
    data = result.block_data
    if data is None:
        return 0
    position = {layer.label: at for at, layer in enumerate(layer_stats)}

    def turn(label: str) -> float:
        return position.get(data.transfer_to_compute_map.get(label, label), math.inf)

    order = sorted(data.label_to_block_id, key=turn)
    blocks = [data.label_to_block_id[label] for label in order]
    return sum(1 for one, other in itertools.pairwise(blocks) if one == other)
