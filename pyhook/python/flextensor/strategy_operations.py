"""What can be done to a strategy's result: layers taken out of it (ablation), transfers moved into gaps, gaps found.

`remove_layers_operations` of TensorManager are dictionaries for `remove_layers_compound`.
"""

from collections.abc import Callable
from typing import Any

from flextensor import _native
from flextensor.collectors import LayerStatistics, TensorStatistics

StrategyMap = dict[str, list[TensorStatistics]]


def remove_layers_compound(
    strategy_map: StrategyMap, layer_stats: list[LayerStatistics], operations: list[dict[str, Any]]
) -> StrategyMap:
    """A strategy map without the layers that `operations` name, one after the other; what then stands nowhere stays on the
    GPU. Layers that are not in the map are passed over.

    `type` of an operation is one of

    - `single`: the layer at position `n` (default 1, counted from 0) of `layer_stats`;
    - `names`, `indices`: the labels, or positions, in `values`;
    - `every_nth`: every `step`th (default `n`) from `offset` (default 0) on;
    - `range`: `n` from `offset` on; `first_n`, `last_n`: `n` at either end;
    - `largest`, `smallest`: the `n` with the most, or fewest, tensors;
    - `by_duration`, `by_size`: the `n` that compute longest, or whose transfers are largest; with `order` "asc" the
      shortest or smallest.

    ValueError for another type, `n` or `step` below 1, a negative `offset`, or `values` of another kind.
    """
    left = dict(strategy_map)
    for operation in operations:
        for label in _named_by(operation, left, layer_stats):
            left.pop(label, None)
    return left


def operations_to_csv_string(operations: list[dict[str, Any]]) -> str:
    """Operations in one line: `every_nth:n=2:offset=1;names:values=a,b`."""
    texts = []
    for operation in operations:
        parts = [str(operation.get("type", "single"))]
        for key in ("n", "offset", "step", "values", "order"):
            if key in operation:
                value = operation[key]
                text = ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
                parts.append(f"{key}={text}")
        texts.append(":".join(parts))
    return ";".join(texts)


def _named_by(
    operation: dict[str, Any], strategy_map: StrategyMap, layer_stats: list[LayerStatistics]
) -> list[str]:
    kind = operation.get("type", "single")
    n, offset = operation.get("n", 1), operation.get("offset", 0)
    step = operation.get("step", n)
    _at_least(1, "n", n)
    _at_least(1, "step", step)
    _at_least(0, "offset", offset)
    ascending = operation.get("order", "desc") == "asc"
    labels = [layer.label for layer in layer_stats]
    by_position: dict[str, slice] = {
        "single": slice(n, n + 1),
        "every_nth": slice(offset, None, step),
        "range": slice(offset, offset + n),
        "first_n": slice(n),
        "last_n": slice(max(len(labels) - n, 0), None),
    }
    if kind in by_position:
        return labels[by_position[kind]]
    durations = {layer.label: layer.duration for layer in layer_stats}
    measures: dict[str, tuple[Callable[[str], float], bool]] = {
        "largest": (lambda label: len(strategy_map[label]), False),
        "smallest": (lambda label: len(strategy_map[label]), True),
        "by_duration": (lambda label: durations.get(label, 0.0), ascending),
        "by_size": (lambda label: sum(t.size_bytes for t in strategy_map[label]), ascending),
    }
    if kind in measures:
        measure, least_first = measures[kind]
        # Of equal ones the earlier one goes first, in either order.
        ordered = sorted(strategy_map, key=lambda label: measure(label) * (1 if least_first else -1))
        return ordered[:n]
    values = operation.get("values")
    if kind == "names":
        if not isinstance(values, list | tuple) or not all(isinstance(value, str) for value in values):
            raise ValueError(f"operation names has values {values!r}: allowed is a list of labels")
        return list(values)
    if kind == "indices":
        if not isinstance(values, list | tuple) or not all(isinstance(value, int) for value in values):
            raise ValueError(f"operation indices has values {values!r}: allowed is a list of positions")
        return [labels[value] for value in values if 0 <= value < len(labels)]
    allowed = [*by_position, "names", "indices", *measures]
    raise ValueError(f"operation type {kind!r} does not exist: allowed are {', '.join(allowed)}")


def _at_least(least: int, name: str, given: Any) -> None:
    if not isinstance(given, int) or given < least:
        raise ValueError(f"{name} of an operation is {given!r}: allowed is a whole number from {least} on")


def strategy_has_transfer_gaps(strategy_map: StrategyMap, layer_stats: list[LayerStatistics]) -> bool:
    """Whether a layer copies nothing although it could: all but the last layer can copy for the next one. Transfers can
    then be rearranged. False where nothing is streamed."""
    copying = {label for label, tensors in strategy_map.items() if tensors}
    return bool(copying) and any(layer.label not in copying for layer in layer_stats[:-1])


def rearrange_transfers(
    transfer_to_compute_map: dict[str, str],
    label_to_block_id: dict[str, int],
    layer_stats: list[LayerStatistics],
    min_compute_transfer_gap: int = 1,
) -> tuple[dict[str, str], dict[str, int], dict[str, str]]:
    """Starts transfers earlier, in layers that copy nothing, and never into a block less than `min_compute_transfer_gap`
    layers after the one that read it last.

    Gives the new `transfer_to_compute_map`, the new `label_to_block_id`, and the new label of every old one. ValueError
    when a label is not in `layer_stats` or has no block, or the gap is below 1.
    """
    if min_compute_transfer_gap < 1:
        raise ValueError(f"min_compute_transfer_gap is {min_compute_transfer_gap}: allowed is 1 or more")
    labels = [layer.label for layer in layer_stats]
    position = {label: at for at, label in enumerate(labels)}
    for label in (*transfer_to_compute_map, *transfer_to_compute_map.values()):
        if label not in position:
            raise ValueError(
                f"transfer_to_compute_map names the layer {label!r}, which layer_stats does not have"
            )
    for label in transfer_to_compute_map:
        if label not in label_to_block_id:
            raise ValueError(f"label_to_block_id gives no block to {label!r}")
    transfers = [
        (position[label], position[reader], label_to_block_id[label])
        for label, reader in transfer_to_compute_map.items()
    ]
    starts = _native.rearrange_transfers(transfers, min_compute_transfer_gap)
    renamed = {label: labels[start] for label, start in zip(transfer_to_compute_map, starts, strict=True)}
    order = sorted(renamed, key=lambda label: position[renamed[label]])
    return (
        {renamed[label]: transfer_to_compute_map[label] for label in order},
        {renamed[label]: label_to_block_id[label] for label in order},
        renamed,
    )


def remap_strategy(strategy_map: StrategyMap | None, key_remap: dict[str, str]) -> StrategyMap:
    """A strategy map under other labels; those that `key_remap` does not name stay as they are."""
    return {key_remap.get(label, label): tensors for label, tensors in (strategy_map or {}).items()}


def create_allocation_ordered(
    label_to_block_id: dict[str, int], layer_stats: list[LayerStatistics]
) -> dict[int, list[str]]:
    """By block: the layers that fill it, in the order in which they run."""
    blocks: dict[int, list[str]] = {block: [] for block in sorted(set(label_to_block_id.values()))}
    for layer in layer_stats:
        if layer.label in label_to_block_id:
            blocks[label_to_block_id[layer.label]].append(layer.label)
    return blocks


def find_transfers_for_preload(
    transfer_to_compute_map: dict[str, str], layer_stats: list[LayerStatistics]
) -> dict[str, str]:
    """The transfers that start after the layer that reads them has run: they are for the next pass, and the first pass
    needs them before it begins."""
    position = {layer.label: at for at, layer in enumerate(layer_stats)}
    return {
        label: reader
        for label, reader in transfer_to_compute_map.items()
        if position[label] >= position[reader]
    }
