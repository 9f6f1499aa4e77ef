"""Tells the runtime which weights of a model a strategy chose to stream (docs/c-api.md, `ft_model_strategy`).

Our own strategies are told by name and parameters, and the runtime asks them itself. What a strategy of the program's own chose is told as names
of weights; the runtime lays them around its ring, from a forward soon after on.
"""

import json
from collections.abc import Iterable

from flextensor import _native
from flextensor.strategy.by_core import CoreStrategy

_NOT_NOW = -1


def use(models: Iterable[int], strategy: CoreStrategy) -> None:
    """The runtime makes plans for these models by one of our strategies, with these parameters. RuntimeError when it takes none."""
    given = {name: value for name, value in strategy.core_parameters().items() if value is not None}
    _tell(models, {"name": strategy.core_name(), "parameters": given})


def stream(models: Iterable[int], strategy_name: str, weights: list[str]) -> None:
    """The runtime streams these weights, and no others; `strategy_name` is for people. RuntimeError when it takes none."""
    _tell(models, {"name": strategy_name, "weights": weights})


def _tell(models: Iterable[int], choice: dict[str, object]) -> None:
    for model in models:
        answer = _native.model_strategy(model, json.dumps(choice, separators=(",", ":")))
        if answer == _NOT_NOW:
            raise RuntimeError("libflextensor.so takes no strategy now: it is not preloaded, or switched off")
        if answer:
            raise RuntimeError(
                f"libflextensor.so does not take the strategy {choice['name']}: the log says why"
            )
