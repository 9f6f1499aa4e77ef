"""Traps: the stretches of a pass that `TensorManager.trap` names. What is recorded of them, the manager decides.

| while | a trap |
| --- | --- |
| discovery | notes which of the model's tensors operations use |
| profiling | measures how long it takes |
| inference | only says what went wrong inside it |
"""

import logging
import os
import time
from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_flatten

_LOG = logging.getLogger("flextensor")


class UsedTensors(TorchFunctionMode):
    """Notes the tensors that operations are given, of those that `number_of` knows."""

    def __init__(self, number_of: dict[int, int]) -> None:
        super().__init__()
        self._number_of = number_of
        self.used: dict[int, None] = {}

    def __torch_function__(
        self, func: Callable, types: Any, args: tuple = (), kwargs: dict | None = None
    ) -> Any:
        for value in tree_flatten((args, kwargs or {}))[0]:
            if isinstance(value, torch.Tensor) and (number := self._number_of.get(id(value))) is not None:
                self.used[number] = None
        return func(*args, **(kwargs or {}))


class Trap:
    """One named stretch. `describe` says where the program stands, for the log."""

    def __init__(self, label: str, describe: Callable[[], str]) -> None:
        self.label = label
        self.describe = describe

    def __enter__(self) -> "Trap":
        self._enter()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        self._exit(kind is None)
        if error is not None and isinstance(error, Exception):
            _LOG.error(
                "trap %r: %r was raised inside; %s, pid %d", self.label, error, self.describe(), os.getpid()
            )

    def _enter(self) -> None:
        """Begins."""

    def _exit(self, returned: bool) -> None:
        """Ends; `returned`: without an exception."""


class Discovering(Trap):
    """Notes which tensors are used."""

    def __init__(
        self,
        label: str,
        describe: Callable[[], str],
        number_of: dict[int, int],
        record: Callable[[str, list[int]], None],
    ) -> None:
        super().__init__(label, describe)
        self._mode = UsedTensors(number_of)
        self._record = record

    def _enter(self) -> None:
        self._mode.__enter__()

    def _exit(self, returned: bool) -> None:
        self._mode.__exit__(None, None, None)
        if returned:
            self._record(self.label, list(self._mode.used))


class Timed(Trap):
    """Measures its milliseconds: by CUDA events on a GPU, by the clock elsewhere."""

    def __init__(
        self,
        label: str,
        describe: Callable[[], str],
        device: torch.device,
        record: Callable[[str, float], None],
    ) -> None:
        super().__init__(label, describe)
        self._device = device
        self._record = record
        self._begun: Any = None

    def _enter(self) -> None:
        if self._device.type == "cuda":
            self._begun = torch.cuda.Event(enable_timing=True)
            self._begun.record(torch.cuda.current_stream(self._device))
        else:
            self._begun = time.perf_counter()

    def _exit(self, returned: bool) -> None:
        if not returned:
            return
        if self._device.type == "cuda":
            end = torch.cuda.Event(enable_timing=True)
            end.record(torch.cuda.current_stream(self._device))
            end.synchronize()
            self._record(self.label, self._begun.elapsed_time(end))
        else:
            self._record(self.label, (time.perf_counter() - self._begun) * 1e3)


class Learner(Protocol):
    """Who wants to know that a trap is open."""

    def begin_trap(self, label: str) -> None:
        """Entered; may refuse by an exception."""

    def end_trap(self) -> None:
        """Left."""


class Guarded(Trap):
    """A trap that somebody knows to be open."""

    def __init__(self, learner: Learner, inner: Trap) -> None:
        super().__init__(inner.label, inner.describe)
        self._learner = learner
        self._inner = inner

    def _enter(self) -> None:
        self._learner.begin_trap(self.label)
        try:
            self._inner._enter()
        except BaseException:
            self._learner.end_trap()
            raise

    def _exit(self, returned: bool) -> None:
        self._learner.end_trap()
        self._inner._exit(returned)
