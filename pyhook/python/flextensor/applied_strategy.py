"""A strategy object (`load_strategy`) over one model of the runtime.

Ours are told to the runtime before it plans, and it asks them itself. A strategy of the program's own is asked here, once the runtime has learnt
the model: layers, times and link come from the profile that it would save, and what was chosen is told back.
"""

import logging
import tempfile
from collections.abc import Callable, Iterable
from typing import Any

from flextensor import placement, runtime_choice, state_handler
from flextensor.collectors import LayerStatistics, TensorStatistics
from flextensor.state_handler import TensorManagerState
from flextensor.strategy.by_core import CoreStrategy
from flextensor.strategy.protocol import Strategy

_LOG = logging.getLogger("flextensor")


class AppliedStrategy:
    """What is done with a strategy at each moment of a model's life. Belongs to the model's thread."""

    def __init__(self, strategy: Strategy) -> None:
        self.strategy = strategy
        self._is_ours = isinstance(strategy, CoreStrategy)
        self._is_due = not self._is_ours

    def model_named(self, models: Iterable[int]) -> None:
        """The runtime has just been told of the model, under these ids."""
        if isinstance(self.strategy, CoreStrategy):
            runtime_choice.use(models, self.strategy)

    def forward_ended(
        self,
        models: list[int],
        weights: Iterable[str],
        save_profile: Callable[[str], None],
        budget_bytes: int | None,
    ) -> bool:
        """A forward in INFERENCE has ended; after the first one a strategy of the program's own is asked. Weights that it chose and that must stay
        are passed over by the runtime. `weights`: the model's names. `save_profile`: writes profile.json into a folder. True if it was asked; what the
        strategy raises goes to the caller, once."""
        if not self._is_due:
            return False
        self._is_due = False
        with tempfile.TemporaryDirectory(prefix="flextensor-") as folder:
            save_profile(folder)
            state = state_handler.load(folder)
        stats = layers_of(state, set(weights))
        result = placement.decide(self.strategy, stats, link_of(state), budget_bytes)
        names = sorted({tensor.name for tensors in result.strategy_map.values() for tensor in tensors})
        name = type(self.strategy).__name__
        runtime_choice.stream(models, name, names)
        _LOG.info("%s chose %d of %d weights", name, len(names), sum(len(stat.tensors) for stat in stats))
        return True


def layers_of(state: TensorManagerState, weights: set[str]) -> list[LayerStatistics]:
    """The layers of one model in a profile of the runtime. With several models in it, names there begin with `model0.` and so on."""
    models = (state.additions or {}).get("models", [])
    if len(models) <= 1:
        return state.stats
    for at in range(len(models)):
        prefix = f"model{at}."
        own = [stat for stat in state.stats if stat.tensors and stat.tensors[0].name.startswith(prefix)]
        named = {tensor.name.removeprefix(prefix) for stat in own for tensor in stat.tensors}
        if named and named <= weights:
            return [
                LayerStatistics(
                    stat.label.removeprefix(prefix),
                    [_renamed(tensor, tensor.name.removeprefix(prefix)) for tensor in stat.tensors],
                    stat.duration,
                )
                for stat in own
            ]
    raise RuntimeError("the runtime's profile has no model with these weights")


def link_of(state: TensorManagerState) -> dict[int, float]:
    """Milliseconds by bytes of one copy, as the runtime measured the link; empty where it did not."""
    for gpu in (state.additions or {}).get("gpus", []):
        points: list[dict[str, Any]] = gpu["idle"]
        return {
            point["copy_bytes"]: point["copy_bytes"] / (point["gb_per_s"] * 1e6)
            for point in points
            if point["gb_per_s"] > 0
        }
    return {}


def _renamed(tensor: TensorStatistics, name: str) -> TensorStatistics:
    return TensorStatistics(tensor.tensor_id, name, tensor.size_bytes, tensor.load_time_ms)
