"""Plans blocks by hand: layers that run one after the other never share a block. Core does the searching; what strategies
use is in `strategy.assignment`."""

import json
from collections.abc import Mapping

from flextensor import _native


class MemoryBlockPlanner:
    """Plans blocks for layers of these sizes (bytes by label), in the order in which they run."""

    def __init__(self, layer_sizes: Mapping[str, int]) -> None:
        negative = [label for label, size in layer_sizes.items() if size < 0]
        if negative:
            raise ValueError(
                f"the size of layer {negative[0]!r} is {layer_sizes[negative[0]]}: allowed is 0 or more"
            )
        self.layer_sizes = dict(layer_sizes)

    def find_minimum_blocks_sequential(self) -> int:
        """The fewest blocks: 2, or as many as there are layers."""
        return min(len(self.layer_sizes), 2)

    def optimize_block_distribution(self, num_blocks: int) -> dict[int, list[str]]:
        """Labels by block, as evenly as possible over `num_blocks` blocks at most. ValueError when these are too few."""
        if num_blocks < self.find_minimum_blocks_sequential():
            raise ValueError(f"num_blocks is {num_blocks}: layers that follow each other need at least 2")
        assignment = json.dumps({"FewestLabels": {"blocks": max(num_blocks, 1)}})
        taken = _native.assign_blocks(assignment, list(self.layer_sizes.values()))
        return self._labels(taken, min(num_blocks, max(len(taken), 1)))

    def allocate_blocks(self, num_blocks: int, block_capacity: int | None = None) -> dict[int, list[str]]:
        """Labels by block, the lowest blocks first. The layers of a block together take at most `block_capacity` bytes; None:
        any number. ValueError when that is not possible, or no way was found in many steps."""
        taken = _native.allocate_blocks(
            list(self.layer_sizes.values()), max(num_blocks, 0), self._capacity(block_capacity)
        )
        if taken is None:
            limit = "" if block_capacity is None else f" of {block_capacity} bytes each"
            raise ValueError(f"{len(self.layer_sizes)} layers do not go into {num_blocks} blocks{limit}")
        return self._labels(taken, num_blocks)

    def find_minimum_blocks(self, block_capacity: int | None = None) -> tuple[int, dict[int, list[str]]]:
        """The fewest blocks of this capacity, and the labels of each. ValueError when a layer alone is larger."""
        capacity = self._capacity(block_capacity)
        for blocks in range(self.find_minimum_blocks_sequential(), len(self.layer_sizes) + 1):
            taken = _native.allocate_blocks(list(self.layer_sizes.values()), blocks, capacity)
            if taken is not None:
                return blocks, self._labels(taken, blocks)
        raise ValueError(f"a layer is larger than block_capacity, which is {block_capacity} bytes")

    def find_minimum_block_sizes(self, allocation: dict[int, list[str]]) -> dict[int, int]:
        """Bytes that each block needs when its layers replace each other: the size of its largest. KeyError for a label that
        this planner does not know."""
        return {
            block: max((self.layer_sizes[label] for label in labels), default=0)
            for block, labels in allocation.items()
        }

    @staticmethod
    def _capacity(given: int | None) -> int | None:
        if given is not None and given < 0:
            raise ValueError(f"block_capacity is {given}: allowed is 0 or more, or None")
        return given

    def _labels(self, taken: list[int], blocks: int) -> dict[int, list[str]]:
        allocation: dict[int, list[str]] = {block: [] for block in range(blocks)}
        for label, block in zip(self.layer_sizes, taken, strict=True):
            allocation[block].append(label)
        return allocation
