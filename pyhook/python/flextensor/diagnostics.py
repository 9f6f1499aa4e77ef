"""Tables for people about what was measured and decided; logged by `enable_diagnostics` under `flextensor.diagnostics`.

Each function gives a table as one text, without a line end. Numbers come from the caller; nothing is measured here.
"""

import logging
import statistics
from dataclasses import dataclass

from flextensor.collectors import LayerStatistics
from flextensor.rendering import milliseconds, size, table
from flextensor.strategy.protocol import BlockStrategyData, StrategyResult

NOTICE = 25
"""The level of the block table: above INFO, below WARNING."""
LOG = logging.getLogger("flextensor.diagnostics")


@dataclass(frozen=True)
class LayerDurationStatistics:
    """How long one layer took, in milliseconds, over `count` measurements."""

    label: str
    min_ms: float
    max_ms: float
    median_ms: float
    avg_ms: float
    std_ms: float
    count: int

    @property
    def coefficient_of_variation(self) -> float:
        """The standard deviation as a part of the average; 0 where that is 0."""
        return self.std_ms / self.avg_ms if self.avg_ms else 0.0

    @classmethod
    def of(cls, label: str, durations_ms: list[float]) -> "LayerDurationStatistics":
        """Of these samples; all 0 where there are none."""
        if not durations_ms:
            return cls(label, 0.0, 0.0, 0.0, 0.0, 0.0, 0)
        return cls(
            label,
            min(durations_ms),
            max(durations_ms),
            statistics.median(durations_ms),
            statistics.fmean(durations_ms),
            statistics.stdev(durations_ms) if len(durations_ms) > 1 else 0.0,
            len(durations_ms),
        )


def format_memory_transfer_table(memory_stats: dict[int, float]) -> str:
    """Time and speed by size of one copy: `memory_stats` are milliseconds by bytes."""
    rows = [
        (size(nbytes), milliseconds(ms), f"{nbytes / ms / 1e6:.2f} GB/s" if ms else "-")
        for nbytes, ms in sorted(memory_stats.items())
    ]
    return _titled("Memory Transfer Statistics", ("size", "time", "bandwidth"), rows)


def format_layer_duration_table(durations_ms: dict[str, list[float]]) -> str:
    """Every trap with the spread of its measured milliseconds, those without any measurement included."""
    rows: list[tuple[object, ...]] = []
    for label, samples in durations_ms.items():
        found = LayerDurationStatistics.of(label, samples)
        if not found.count:
            rows.append((label, 0, "-", "-", "-", "-", "-", "-"))
            continue
        times = (found.min_ms, found.max_ms, found.median_ms, found.avg_ms, found.std_ms)
        variation = f"{found.coefficient_of_variation:.1%}"
        rows.append((label, found.count, *(f"{ms:.3f} ms" for ms in times), variation))
    head = ("trap", "samples", "min", "max", "median", "avg", "std", "variation")
    return _titled("Trap Duration Statistics", head, rows)


def format_block_table(
    layer_stats: list[LayerStatistics],
    strategy_map: dict,
    block_data: BlockStrategyData | None,
    strategy_name: str = "",
) -> str:
    """Every layer with its bytes, what of them is streamed, what it copies for which layer, and the blocks it reads and
    fills; then the blocks."""
    data = block_data or BlockStrategyData({}, {}, {}, {}, {})
    reader_of = data.transfer_to_compute_map
    copied_by = {reader: label for label, reader in reader_of.items()}
    nbytes = {label: sum(t.size_bytes for t in tensors) for label, tensors in strategy_map.items()}
    rows = []
    for layer in layer_stats:
        whole = sum(tensor.size_bytes for tensor in layer.tensors)
        by = copied_by.get(layer.label)
        copied = nbytes.get(layer.label, 0)
        rows.append(
            (
                layer.label,
                size(whole),
                size(nbytes.get(by, 0)) if by is not None else "-",
                data.label_to_block_id.get(by, "-") if by is not None else "-",
                size(copied) if copied else "-",
                reader_of.get(layer.label, "-") if copied else "-",
                data.label_to_block_id.get(layer.label, "-"),
                milliseconds(layer.duration),
            )
        )
    head = ("layer", "size", "streamed", "from block", "copies", "for", "into block", "compute")
    text = _titled(f"Block Assignment: {strategy_name}" if strategy_name else "Block Assignment", head, rows)
    blocks = [
        f"  block {block}: {size(data.block_sizes[block])}, filled by {', '.join(labels)}"
        for block, labels in sorted(data.allocation_ordered.items())
    ]
    streamed = sum(nbytes.values())
    return "\n".join(
        [text, *blocks, f"  streamed {size(streamed)} a pass, blocks {size(sum(data.block_sizes.values()))}"]
    )


def log_tables(
    layer_stats: list[LayerStatistics],
    memory_stats: dict[int, float],
    durations_ms: dict[str, list[float]],
    result: StrategyResult,
    strategy_name: str,
) -> None:
    """Logs all three: the measurements at INFO, the block table at NOTICE."""
    LOG.info("%s", format_memory_transfer_table(memory_stats))
    LOG.info("%s", format_layer_duration_table(durations_ms))
    LOG.log(
        NOTICE,
        "%s",
        format_block_table(layer_stats, result.strategy_map, result.block_data, strategy_name),
    )


def _titled(title: str, head: tuple[str, ...], rows: list[tuple]) -> str:
    return "\n".join([title, *table(head, rows)])
