"""Ways to give blocks of GPU memory to the layers that stream; core does the work."""

import json
from typing import Protocol, runtime_checkable

from flextensor import _native


@runtime_checkable
class AssignmentStrategy(Protocol):
    """A way to give blocks to layers. Strategies take the two below; both can be used by themselves."""

    def compute(self, layer_sizes: list[int], n_blocks: int) -> list[int]:
        """The block (0 to `n_blocks` - 1) of each layer; `layer_sizes` are bytes, in the order in which layers run."""
        ...


class StrictRoundRobinAssignment:
    """One block after the other: layer i takes block i % n_blocks."""

    def compute(self, layer_sizes: list[int], n_blocks: int) -> list[int]:
        """The block of each layer. ValueError when `n_blocks` is below 1."""
        _check_blocks(n_blocks)
        return _assign({"StrictRoundRobin": {"blocks": n_blocks}}, layer_sizes)

    def __repr__(self) -> str:
        return "StrictRoundRobinAssignment()"


class OptimizedRoundRobinAssignment:
    """Tries every number of blocks from `min_blocks` to `max_blocks`: few bytes in blocks and long times before a block is
    used again win. `distribution_weight` is what the times count, from 0 to 1; the bytes count the rest."""

    def __init__(self, min_blocks: int = 3, max_blocks: int = 4, distribution_weight: float = 0.5) -> None:
        if min_blocks < 2:
            raise ValueError(f"min_blocks is {min_blocks}: allowed is 2 or more")
        if max_blocks < min_blocks:
            raise ValueError(
                f"max_blocks is {max_blocks}: allowed is at least min_blocks, which is {min_blocks}"
            )
        if not 0 <= distribution_weight <= 1:
            raise ValueError(f"distribution_weight is {distribution_weight}: allowed is a number from 0 to 1")
        self.min_blocks = min_blocks
        self.max_blocks = max_blocks
        self.distribution_weight = distribution_weight

    def compute(self, layer_sizes: list[int], n_blocks: int) -> list[int]:
        """The block of each layer, of `n_blocks` at most. ValueError when that is below 1."""
        _check_blocks(n_blocks)
        if n_blocks == 1:
            return [0] * len(layer_sizes)
        most = min(self.max_blocks, n_blocks)
        chosen = {
            "least": min(self.min_blocks, most),
            "most": most,
            "distribution_weight": float(self.distribution_weight),
        }
        return _assign({"OptimizedRoundRobin": chosen}, layer_sizes)

    def __repr__(self) -> str:
        return (
            f"OptimizedRoundRobinAssignment(min_blocks={self.min_blocks}, max_blocks={self.max_blocks}, "
            f"distribution_weight={self.distribution_weight})"
        )


def parameters_of(assignment: AssignmentStrategy | None, n_blocks: int) -> dict[str, object]:
    """The parameters of core's strategies that stand for an assignment; nothing for None. TypeError for one's own
    classes: core tries thousands of assignments while it searches, and calls nobody for them."""
    if assignment is None:
        return {}
    if isinstance(assignment, StrictRoundRobinAssignment):
        return {"assignment_strategy": "StrictRoundRobinAssignment"}
    if isinstance(assignment, OptimizedRoundRobinAssignment):
        most = min(assignment.max_blocks, n_blocks or assignment.max_blocks)
        return {
            "assignment_strategy": "OptimizedRoundRobinAssignment",
            "min_blocks": min(assignment.min_blocks, most),
            "max_blocks": most,
            "distribution_weight": float(assignment.distribution_weight),
        }
    raise TypeError(
        f"assignment_strategy is {assignment!r}: allowed are StrictRoundRobinAssignment and OptimizedRoundRobinAssignment"
    )


def _check_blocks(n_blocks: int) -> None:
    if n_blocks < 1:
        raise ValueError(f"n_blocks is {n_blocks}: allowed is 1 or more")


def _assign(assignment: dict[str, object], layer_sizes: list[int]) -> list[int]:
    return _native.assign_blocks(json.dumps(assignment), list(layer_sizes))
