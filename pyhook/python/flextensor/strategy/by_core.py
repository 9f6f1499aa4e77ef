"""What all of our strategies share: parameters that core checks, and a `compute` that core answers."""

import json
import warnings
from typing import Any, ClassVar

from flextensor import _native
from flextensor.collectors import LayerStatistics
from flextensor.strategy.asking import Answer, Question
from flextensor.strategy.protocol import StrategyComputeError, StrategyResult


class CoreStrategy:
    """A strategy of core. Parameters are attributes, and may be set between two calls of `compute`; those that are not
    allowed are ValueErrors that name the parameter, what was given and what is allowed."""

    _parameters: ClassVar[tuple[str, ...]] = ()
    """Names of attributes that core knows as parameters."""

    def core_name(self) -> str:
        """What core calls it."""
        return type(self).__name__

    def core_parameters(self) -> dict[str, Any]:
        """The parameters that core takes. None stands for core's default."""
        return {name: getattr(self, name) for name in self._parameters}

    def compute(
        self,
        layer_stats: list[LayerStatistics],
        memory_stats: dict[int, float] | None = None,
        max_gpu_mem_bytes: int | None = None,
    ) -> StrategyResult:
        """What is streamed of these layers, given in the order in which they run; the same question gets the same answer.

        `memory_stats`: milliseconds of one copy to the GPU by its bytes; None: the tensors' own `load_time_ms`.
        `max_gpu_mem_bytes`: bytes of GPU memory for weights, blocks included; None: as little as costs no time.
        A budget that cannot be met gets the lowest peak there is, with a UserWarning. StrategyComputeError when the
        strategy has no answer, ValueError when layers, times or the budget are not allowed.
        """
        return self._ask(layer_stats, memory_stats, max_gpu_mem_bytes).result

    def __repr__(self) -> str:
        given = ", ".join(f"{name}={getattr(self, name)!r}" for name in self._parameters)
        return f"{type(self).__name__}({given})"

    def _set(self, **parameters: Any) -> None:
        """Sets and checks the parameters of a new strategy."""
        for name, value in parameters.items():
            setattr(self, name, value)
        _native.strategy_check(self.core_name(), json.dumps(self.core_parameters()))

    def _ask(
        self,
        layer_stats: list[LayerStatistics],
        memory_stats: dict[int, float] | None,
        max_gpu_mem_bytes: int | None,
    ) -> Answer:
        question = Question(layer_stats, memory_stats, max_gpu_mem_bytes)
        try:
            answer = question.select(self.core_name(), self.core_parameters())
        except RuntimeError as error:
            raise self._no_answer(str(error)) from None
        if not answer.estimate.valid:
            self._missed(answer, max_gpu_mem_bytes)
        return answer

    def _no_answer(self, why: str) -> Exception:
        return StrategyComputeError(why)

    def _missed(self, answer: Answer, max_gpu_mem_bytes: int | None) -> None:
        peak = answer.estimate.peak_bytes
        if max_gpu_mem_bytes is not None and peak > max_gpu_mem_bytes:
            warnings.warn(
                f"{type(self).__name__} cannot meet the budget of {max_gpu_mem_bytes} bytes: the lowest peak it finds is "
                f"{peak} bytes",
                UserWarning,
                stacklevel=4,
            )
