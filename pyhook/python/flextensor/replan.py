"""Measuring again after the program was compiled: how far that has come, and whether the plan changed.

Once compilers have warmed up the runtime is asked to observe a forward, to time it, and to make the plan that follows; how it does that is its
own matter. Here forwards are counted.
"""

from dataclasses import dataclass
from typing import Literal

WARM_FORWARDS = 3
"""Forwards in which compilers warm up; they are neither timed nor counted."""


@dataclass(frozen=True)
class StrategyReplanStatus:
    """Where a replan stands; looking at it changes nothing.

    `state`: idle (never requested), in_progress, done, failed. `can_request`: a request would be taken now.
    `applied`: whether the last one led to a new plan; None before any has ended.
    """

    state: Literal["idle", "in_progress", "done", "failed"]
    can_request: bool
    applied: bool | None


class Replan:
    """One request at a time."""

    def __init__(self) -> None:
        self.state: Literal["idle", "in_progress", "done", "failed"] = "idle"
        self.applied: bool | None = None
        self.manual = False
        self._warm = 0
        self._left = 0
        self._plans = 0

    def request(self, forwards: int, plans: int, *, manual: bool) -> int:
        """Begins; `plans` = plans put in force so far. Returns the forwards to drive."""
        self.state, self._left, self._plans, self.manual = "in_progress", forwards, plans, manual
        self._warm = 0 if manual else WARM_FORWARDS
        return forwards

    @property
    def is_in_progress(self) -> bool:
        """Whether forwards are being counted."""
        return self.state == "in_progress"

    def warmed_up(self) -> bool:
        """One of the forwards has ended; true once, when the next one is to be observed."""
        self._warm -= 1
        return self._warm == 0

    def forward_ended(self) -> bool:
        """One of the forwards has ended; true if it was the last one."""
        self._left -= 1
        return self._left <= 0

    def finish(self, plans: int | None) -> None:
        """All forwards have been driven; `plans` = plans put in force so far, None = it cannot be known."""
        self.state = "failed" if plans is None else "done"
        self.applied = None if plans is None else plans > self._plans
