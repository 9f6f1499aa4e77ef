"""From what a TensorManager measured to what it keeps: the strategy is asked, layers are taken out again, transfers move into gaps, and
the result becomes a state. Nothing is moved here.
"""

import logging
import warnings
from dataclasses import replace
from typing import Any

from flextensor.collectors import LayerStatistics, TensorStatistics
from flextensor.model_tensors import Model, storage_of, tensors_of
from flextensor.state_handler import TensorManagerState
from flextensor.strategy.asking import Question
from flextensor.strategy.protocol import BlockStrategyData, Strategy, StrategyResult
from flextensor.strategy_operations import (
    create_allocation_ordered,
    rearrange_transfers,
    remap_strategy,
    remove_layers_compound,
    strategy_has_transfer_gaps,
)

_LOG = logging.getLogger("flextensor")
# Fewer samples, or more variation between them, and a plan stands on sand.
_FEWEST_SAMPLES = 3
_MOST_VARIATION = 0.25


def decide(
    strategy: Strategy,
    layer_stats: list[LayerStatistics],
    memory_stats: dict[int, float],
    budget_bytes: int | None,
    *,
    operations: list[dict[str, Any]] | None = None,
    rearrange: bool = False,
    gap: int = 1,
) -> StrategyResult:
    """Asks the strategy, and checks what it says against the layers: ValueError for layers or tensors that there are not.

    `operations` take layers out (`remove_layers_compound`). Transfers are rearranged on request, and by themselves where
    layers have no weights."""
    result = strategy.compute(layer_stats, memory_stats, budget_bytes)
    if not isinstance(result, StrategyResult):
        raise TypeError(
            f"{type(strategy).__name__}.compute returned {type(result).__name__}: allowed is StrategyResult"
        )
    judged = Question(layer_stats, memory_stats, budget_bytes).judge(result)
    if not judged.estimate.valid and budget_bytes is not None:
        warnings.warn(
            f"{type(strategy).__name__} takes {judged.estimate.peak_bytes} bytes of GPU memory, the budget is {budget_bytes}",
            UserWarning,
            stacklevel=3,
        )
    if result.block_data is None or not result.block_data.label_to_block_id:
        result = judged.result
    if operations:
        result = _without(result, layer_stats, operations)
    has_gap = any(not layer.tensors for layer in layer_stats)
    if (rearrange or has_gap) and strategy_has_transfer_gaps(result.strategy_map, layer_stats):
        result = _rearranged(result, layer_stats, gap)
    return result


def _without(
    result: StrategyResult, layer_stats: list[LayerStatistics], operations: list[dict[str, Any]]
) -> StrategyResult:
    kept = remove_layers_compound(result.strategy_map, layer_stats, operations)
    data = result.block_data
    assert data is not None
    sizes = {label: size for label, size in data.label_to_size_map.items() if label in kept}
    of = {label: block for label, block in data.label_to_block_id.items() if label in kept}
    blocks = BlockStrategyData(
        sizes,
        create_allocation_ordered(of, layer_stats),
        {
            block: max(sizes[label] for label in of if of[label] == block)
            for block in sorted(set(of.values()))
        },
        of,
        {label: reader for label, reader in data.transfer_to_compute_map.items() if label in kept},
    )
    return StrategyResult(kept, blocks)


def _rearranged(result: StrategyResult, layer_stats: list[LayerStatistics], gap: int) -> StrategyResult:
    data = result.block_data
    assert data is not None
    readers, blocks, renamed = rearrange_transfers(
        data.transfer_to_compute_map, data.label_to_block_id, layer_stats, gap
    )
    moved = replace(
        data,
        label_to_size_map={renamed[label]: size for label, size in data.label_to_size_map.items()},
        allocation_ordered=create_allocation_ordered(blocks, layer_stats),
        label_to_block_id=blocks,
        transfer_to_compute_map=readers,
    )
    return StrategyResult(remap_strategy(result.strategy_map, renamed), moved)


def state_of(
    model: Model,
    numbers: dict[str, int],
    loader_type: str,
    layer_stats: list[LayerStatistics],
    result: StrategyResult,
) -> TensorManagerState:
    """The state for a model whose tensors have these numbers by name."""
    data = result.block_data or BlockStrategyData({}, {}, {}, {}, {})
    released: dict[str, list[TensorStatistics]] = {
        data.transfer_to_compute_map[label]: list(tensors) for label, tensors in result.strategy_map.items()
    }
    seen: set[int] = set()
    views = []
    for each in tensors_of(model):
        address = storage_of(each.tensor)
        if address and address in seen and each.name in numbers:
            views.append(each.name)
        seen.add(address)
    state = TensorManagerState(
        loader_type=loader_type,
        tensor_id_to_name_map={number: name for name, number in numbers.items()},
        allocation_ordered=data.allocation_ordered,
        label_to_size_map=data.label_to_size_map,
        block_sizes=data.block_sizes,
        load_strategy=result.strategy_map,
        release_strategy=released,
        label_to_block_id=data.label_to_block_id,
        stats=layer_stats,
        transfer_to_compute_map=data.transfer_to_compute_map,
        view_tensors_ids=[numbers[name] for name in views],
        view_tensors_names=views,
    )
    managed = state.managed_names()
    state.gpu_tensors_names = [name for name in numbers if name not in managed]
    state.describe_managed(model)
    return state


def report_quality(durations_ms: dict[str, list[float]], untimed: list[str]) -> None:
    """Warns of labels that were never timed (they stay on the GPU), of few samples, and of samples that vary."""
    from flextensor.diagnostics import LayerDurationStatistics

    if untimed:
        _LOG.warning(
            "%d labels were never timed, and their tensors stay on the GPU: %s",
            len(untimed),
            ", ".join(untimed),
        )
    found = [LayerDurationStatistics.of(label, samples) for label, samples in durations_ms.items() if samples]
    few = [each.label for each in found if each.count < _FEWEST_SAMPLES]
    varying = [each.label for each in found if each.coefficient_of_variation > _MOST_VARIATION]
    if few:
        _LOG.warning(
            "%d labels have fewer than %d samples, the first is %s: more profiling passes make better plans",
            len(few),
            _FEWEST_SAMPLES,
            few[0],
        )
    if varying:
        _LOG.warning(
            "the times of %d labels vary by more than %.0f %%, the first is %s",
            len(varying),
            _MOST_VARIATION * 100,
            varying[0],
        )
