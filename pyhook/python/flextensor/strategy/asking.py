"""Layers into a question to core, and core's selection into a result.

Nothing is chosen here: core selects (`_native.strategy_select`), and judges what others selected (`_native.strategy_judge`).
"""

import json
import math
from dataclasses import dataclass
from typing import Any

from flextensor import _native
from flextensor.collectors import LayerStatistics, TensorStatistics
from flextensor.strategy.protocol import BlockStrategyData, StrategyResult


@dataclass(frozen=True)
class Estimate:
    """What a selection costs (docs/strategies.md)."""

    valid: bool
    overhead: float
    peak_bytes: int
    streamed_bytes: int

    @classmethod
    def read(cls, given: dict[str, Any]) -> "Estimate":
        """From core's JSON, in which an endless overhead is null."""
        overhead = math.inf if given["overhead"] is None else given["overhead"]
        return cls(given["valid"], overhead, given["peak_bytes"], given["streamed_bytes"])


@dataclass(frozen=True)
class Answer:
    """What core answers."""

    result: StrategyResult
    estimate: Estimate
    solver: str
    candidates: list[tuple[str, Estimate]]


class Question:
    """Layers, a link and a budget, as core reads them. A tensor of several layers stays on the GPU, and counts once."""

    def __init__(
        self,
        layer_stats: list[LayerStatistics],
        memory_stats: dict[int, float] | None = None,
        max_gpu_mem_bytes: int | None = None,
    ) -> None:
        if max_gpu_mem_bytes is not None and max_gpu_mem_bytes < 0:
            raise ValueError(f"max_gpu_mem_bytes is {max_gpu_mem_bytes}: allowed is 0 or more, or None")
        self.layers = list(layer_stats)
        self.positions = {layer.label: at for at, layer in enumerate(self.layers)}
        if len(self.positions) != len(self.layers):
            raise ValueError("layer_stats has a label twice: every layer needs its own")
        users: dict[int, set[int]] = {}
        for at, layer in enumerate(self.layers):
            for tensor in layer.tensors:
                users.setdefault(tensor.tensor_id, set()).add(at)
        self.shared = {
            tensor.tensor_id: tensor.size_bytes
            for layer in self.layers
            for tensor in layer.tensors
            if len(users[tensor.tensor_id]) > 1
        }
        self.own: list[list[TensorStatistics]] = [
            list({t.tensor_id: t for t in layer.tensors if t.tensor_id not in self.shared}.values())
            for layer in self.layers
        ]
        numbers = iter(range(sum(map(len, self.own))))
        self.text = json.dumps(
            {
                "layers": [
                    {
                        "label": layer.label,
                        "tensors": [
                            {"unit": next(numbers), "name": tensor.name, "bytes": tensor.size_bytes}
                            for tensor in own
                        ],
                        "duration_ms": float(layer.duration),
                    }
                    for layer, own in zip(self.layers, self.own, strict=True)
                ],
                "fixed_bytes": sum(self.shared.values()),
                "budget": max_gpu_mem_bytes,
                "link": [
                    [int(nbytes), float(ms)]
                    for nbytes, ms in sorted((memory_stats or transfers_of(self.layers)).items())
                ],
            }
        )

    def select(self, strategy: str, parameters: dict[str, Any]) -> Answer:
        """Asks core's strategy of this name. RuntimeError when it has no answer."""
        return self._answer(_native.strategy_select(strategy, json.dumps(parameters), self.text))

    def judge(self, result: StrategyResult) -> Answer:
        """What a result costs that anybody made. Without block data two blocks take turns. ValueError when it names layers
        or tensors that there are not."""
        streamed: list[list[int]] = [[] for _ in self.layers]
        starts: list[int | None] = [None] * len(self.layers)
        copied_by: dict[int, str] = {}
        home = {
            tensor.tensor_id: (at, position)
            for at, own in enumerate(self.own)
            for position, tensor in enumerate(own)
        }
        for label, tensors in result.strategy_map.items():
            if label not in self.positions:
                raise ValueError(f"strategy_map names the layer {label!r}, which layer_stats does not have")
            for tensor in tensors:
                if tensor.tensor_id in self.shared:  # stays: another layer may read it at any time
                    continue
                if tensor.tensor_id not in home:
                    raise ValueError(
                        f"strategy_map[{label!r}] streams {tensor.name!r} (tensor {tensor.tensor_id}), "
                        "which layer_stats does not have"
                    )
                at, position = home[tensor.tensor_id]
                streamed[at].append(position)
                start, known = self.positions[label], starts[at]
                # Of several the last one before the layer counts: its copy is complete only then.
                if known is None or (start < at, start) > (known < at, known):
                    starts[at], copied_by[at] = start, label
        sizes = [
            sum(own[position].size_bytes for position in chosen)
            for own, chosen in zip(self.own, streamed, strict=True)
        ]
        given = {"streamed": streamed, "blocks": _blocks(result, sizes, copied_by), "starts": starts}
        return self._answer(_native.strategy_judge(self.text, json.dumps(given)))

    def _answer(self, text: str) -> Answer:
        selection = json.loads(text)
        candidates = [(each["solver"], Estimate.read(each["estimate"])) for each in selection["candidates"]]
        estimate = Estimate.read(selection["estimate"])
        return Answer(self._result(selection), estimate, selection["solver"], candidates)

    def _result(self, selection: dict[str, Any]) -> StrategyResult:
        """A layer copies for one other layer at most: where several copies begin with one layer, the later ones move to
        the layers after it, still before they are read."""
        strategy_map: dict[str, list[TensorStatistics]] = {}
        blocks = BlockStrategyData({}, {}, {}, {}, {})
        transfers: list[tuple[int, int]] = []
        first_free = 0
        for at, chosen in enumerate(selection["streamed"]):
            if not chosen:
                continue
            start = selection["starts"][at]
            if (
                at == 0 or start is None or start >= at
            ):  # during the pass before, whose last layer copies for nobody else
                transfers.append((len(self.layers) - 1, at))
                continue
            start = max(start, first_free)
            first_free = start + 1
            transfers.append((start, at))
        for start, at in sorted(transfers):
            label, reader = self.layers[start].label, self.layers[at].label
            tensors = [self.own[at][position] for position in selection["streamed"][at]]
            block = selection["blocks"]["of_layer"][at]
            strategy_map[label] = tensors
            blocks.label_to_size_map[label] = sum(tensor.size_bytes for tensor in tensors)
            blocks.transfer_to_compute_map[label] = reader
            blocks.label_to_block_id[label] = block
            blocks.allocation_ordered.setdefault(block, []).append(label)
        blocks.block_sizes = dict(enumerate(selection["blocks"]["bytes"]))
        return StrategyResult(strategy_map, blocks)


def _blocks(result: StrategyResult, sizes: list[int], copied_by: dict[int, str]) -> dict[str, Any]:
    """Core's blocks: of each layer, and their bytes."""
    data = result.block_data
    if data is None or not data.label_to_block_id:
        streaming = [at for at, size in enumerate(sizes) if size]
        taken = _native.assign_blocks('{"StrictRoundRobin": {"blocks": 2}}', [sizes[at] for at in streaming])
        of_layer = dict(zip(streaming, taken, strict=True))
        bytes_of = [
            max((sizes[at] for at in streaming if of_layer[at] == block), default=0) for block in (0, 1)
        ]
        return {"of_layer": [of_layer.get(at) for at in range(len(sizes))], "bytes": bytes_of}
    missing = sorted(label for label in copied_by.values() if label not in data.label_to_block_id)
    if missing:
        raise ValueError(f"label_to_block_id gives no block to {missing[0]!r}, which strategy_map streams by")
    numbers = {block: number for number, block in enumerate(sorted(data.block_sizes))}
    unknown = sorted(block for block in data.label_to_block_id.values() if block not in numbers)
    if unknown:
        raise ValueError(f"label_to_block_id names block {unknown[0]}: allowed are {sorted(numbers)}")
    return {
        "of_layer": [
            numbers[data.label_to_block_id[copied_by[at]]] if at in copied_by else None
            for at in range(len(sizes))
        ],
        "bytes": [data.block_sizes[block] for block in sorted(data.block_sizes)],
    }


def transfers_of(layer_stats: list[LayerStatistics]) -> dict[int, float]:
    """Milliseconds by bytes of one copy, as the tensors' own load times tell; of equal sizes the shortest."""
    times: dict[int, float] = {}
    for layer in layer_stats:
        for tensor in layer.tensors:
            if tensor.size_bytes and tensor.load_time_ms:
                known = times.get(tensor.size_bytes, math.inf)
                times[tensor.size_bytes] = min(known, tensor.load_time_ms)
    return times
