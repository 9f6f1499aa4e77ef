"""Marks at the units of a managed model: they notice units inside units, take times, and say what was going on when a
unit failed. They stand (`around`) while a model is learnt, and longer only where times are wanted.

Copied or pickled with a model, they do nothing there.
"""

import contextlib
import functools
import logging
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

from torch import nn

from flextensor import around, compiling, naming
from flextensor.offload_timing import OffloadTimingCollector
from flextensor.units import Named

_LOG = logging.getLogger("flextensor")


class Mark:
    """A forward hook that calls `work` and returns nothing. A copy of it is inert."""

    __slots__ = ("_work",)

    def __init__(self, work: Callable[..., None]) -> None:
        self._work = work

    def __call__(self, *arguments: Any) -> None:
        self._work(*arguments)

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (contextlib.nullcontext(), "__exit__")


class _Inside(threading.local):
    """The labels that a thread is inside of, outermost first."""

    def __init__(self) -> None:
        self.labels: list[str] = []
        self.handled: list[BaseException | None] = []


class UnitMarks:
    """The hooks of one model's units, and the labels that each thread is inside of."""

    def __init__(self, describe: Callable[[], str], timing: OffloadTimingCollector | None) -> None:
        """`describe` says where the model stands, for the line about a unit that failed."""
        self._describe = describe
        self._timing = timing
        self._inside = _Inside()
        self._handles: dict[str, list[Any]] = {}
        # While true, nesting is refused: a nested unit's weights and times would count twice.
        self.learning = True

    def put_on(self, units: Named) -> None:
        """Hooks every unit that stands hooks."""
        for label, unit in units:
            self.take_off(label)
            if naming.is_compiled(unit) or naming.refuses_hooks(unit):
                continue
            if around.can_stand_around(unit):
                enter, leave = functools.partial(self.enter, label), functools.partial(self._left, label)
                self._handles[label] = [around.stand_around(unit, enter, leave)]
                continue
            self._handles[label] = [
                unit.register_forward_pre_hook(self._enter_mark(label), prepend=True),
                unit.register_forward_hook(self._leave_mark(label), always_call=True),
            ]

    def take_off(self, label: str) -> None:
        """Takes one unit's hooks away."""
        for handle in self._handles.pop(label, ()):
            handle.remove()

    def take_all_off(self) -> None:
        """Takes all hooks away."""
        for label in list(self._handles):
            self.take_off(label)

    def start_over(self) -> None:
        """This thread is inside of nothing: an interrupt may have left something behind."""
        self._inside.labels.clear()
        self._inside.handled.clear()

    def enter(self, label: str) -> None:
        """A unit or block begins; RuntimeError inside another one while the model is learnt."""
        inside = self._inside
        if self.learning and inside.labels:
            raise RuntimeError(
                f"offload block {label!r} begins inside {inside.labels[-1]!r}: blocks cannot be nested while the "
                "model is in DISCOVERY or PROFILING"
            )
        inside.labels.append(label)
        inside.handled.append(sys.exc_info()[1])
        if self._timing is not None:
            self._timing.enter(label)

    def leave(self, label: str) -> None:
        """A unit or block has returned, also by an exception, which is being handled now."""
        inside = self._inside
        if label in inside.labels:
            at = len(inside.labels) - 1 - inside.labels[::-1].index(label)
            raised = sys.exc_info()[1]
            self._left(label, raised if raised is not inside.handled[at] else None)

    def _left(self, label: str, raised: BaseException | None) -> None:
        inside = self._inside
        if label not in inside.labels:
            return
        while inside.labels:
            inside.handled.pop()
            if inside.labels.pop() == label:
                break
        if raised is not None:
            _LOG.error("%r in unit %s of %s, process %d", raised, label, self._describe(), os.getpid())
        elif self._timing is not None:
            self._timing.leave(label)

    def _enter_mark(self, label: str) -> Mark:
        return Mark(lambda *_: self.enter(label))

    def _leave_mark(self, label: str) -> Mark:
        return Mark(lambda *_: self.leave(label))


compiling.exempt(sys.modules[__name__], Mark, UnitMarks)


def hook_root(model: nn.Module, before: Callable[[], None], after: Callable[[], None]) -> list[Any]:
    """Calls `before` and `after` around every forward of `model`; `after` only where it returned."""
    return [
        model.register_forward_pre_hook(Mark(lambda *_: before()), prepend=True),
        model.register_forward_hook(Mark(lambda *_: after())),
    ]
