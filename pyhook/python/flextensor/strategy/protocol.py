"""What strategies are asked and what they answer.

Anything with such a `compute` is a strategy, one's own classes included; ours are in the modules beside this one.
"""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from flextensor.collectors import LayerStatistics, TensorStatistics


class StrategyComputeError(Exception):
    """A strategy has no answer to such a question: it fills a budget and there is none, or there are too few layers."""


@dataclass
class BlockStrategyData:
    """Where what is copied goes. Labels are those of the layers that copy, as in `StrategyResult.strategy_map`."""

    label_to_size_map: dict[str, int]
    """Bytes that are copied while a layer runs."""
    allocation_ordered: dict[int, list[str]]
    """By block: the layers that fill it, in order."""
    block_sizes: dict[int, int]
    """Bytes of each block."""
    label_to_block_id: dict[str, int]
    """The block that a layer fills."""
    transfer_to_compute_map: dict[str, str]
    """By the layer that copies: the layer that computes with it."""


@dataclass
class StrategyResult:
    """What is streamed: by layer, the tensors that are copied to the GPU while it runs (they belong to a later layer).
    Tensors that stand nowhere in it stay on the GPU."""

    strategy_map: dict[str, list[TensorStatistics]]
    block_data: BlockStrategyData | None = None


@runtime_checkable
class Strategy(Protocol):
    """A way to choose what is streamed."""

    def compute(
        self,
        layer_stats: list[LayerStatistics],
        memory_stats: dict[int, float] | None = None,
        max_gpu_mem_bytes: int | None = None,
    ) -> StrategyResult:
        """Chooses for these layers, in the order in which they run.

        `memory_stats`: milliseconds of one copy to the GPU by its bytes; None: the tensors' own `load_time_ms`.
        `max_gpu_mem_bytes`: bytes of GPU memory for weights, blocks included; None: as little as costs no time.
        """
        ...


__all__ = [
    "BlockStrategyData",
    "LayerStatistics",
    "Strategy",
    "StrategyComputeError",
    "StrategyResult",
    "TensorStatistics",
]
