"""Transfer, compute and wait times of each unit in each pass, in INFERENCE (`offload_timing`): the records, the
collector and the table.

What is measured is the time from a unit's entry to its return, with CUDA events. Its compute time is the median of
the same in PROFILING, where weights are in place; the rest is waiting. Transfer is what the plan copies for the
unit, at the speed of the link. Entering and leaving is told by `unit_marks`.
"""

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

_LOG = logging.getLogger("flextensor.diagnostics")

OFFLOAD_TIMING_LOG_EVERY = 10
"""Passes between two tables in the log."""
OFFLOAD_TIMING_MEASURE_MAX_PASSES = 1024
"""Passes that are kept until they are collected; of more, the oldest are dropped."""

_SHOWN_WAIT_MS = 0.01


@dataclass
class TrapTimingRecord:
    """One unit in one pass; milliseconds."""

    label: str
    transfer_ms: float = 0.0
    compute_ms: float = 0.0
    wait_ms: float = 0.0


@dataclass
class OffloadTimingSnapshot:
    """One pass, in order of use."""

    per_trap: Sequence[TrapTimingRecord] = ()

    @property
    def total_compute_ms(self) -> float:
        """Sum over the units."""
        return sum(record.compute_ms for record in self.per_trap)

    @property
    def total_transfer_ms(self) -> float:
        """Sum over the units."""
        return sum(record.transfer_ms for record in self.per_trap)

    @property
    def total_wait_ms(self) -> float:
        """Sum over the units."""
        return sum(record.wait_ms for record in self.per_trap)


@dataclass
class TrapTimingStats:
    """One unit over several passes; milliseconds. `std` is that of the passes themselves (divided by their number)."""

    label: str
    compute_min: float = 0.0
    compute_max: float = 0.0
    compute_avg: float = 0.0
    compute_median: float = 0.0
    compute_std: float = 0.0
    transfer_min: float = 0.0
    transfer_max: float = 0.0
    transfer_avg: float = 0.0
    transfer_median: float = 0.0
    transfer_std: float = 0.0
    wait_min: float = 0.0
    wait_max: float = 0.0
    wait_avg: float = 0.0
    wait_median: float = 0.0
    wait_std: float = 0.0

    def compute_budget_ms(self, *, conservative: bool = False) -> float:
        """Milliseconds in which a copy can hide behind this unit: its median compute time, or with `conservative`
        the least one."""
        return self.compute_min if conservative else self.compute_median


@dataclass
class OffloadTimingReport:
    """Several passes: statistics of each unit, and the passes themselves."""

    per_trap: Sequence[TrapTimingStats] = ()
    passes: Sequence[OffloadTimingSnapshot] = field(default_factory=tuple)

    @property
    def num_passes(self) -> int:
        """Number of passes."""
        return len(self.passes)

    @property
    def total_compute_sum(self) -> float:
        """Milliseconds over all passes."""
        return sum(one.total_compute_ms for one in self.passes)

    @property
    def total_transfer_sum(self) -> float:
        """Milliseconds over all passes."""
        return sum(one.total_transfer_ms for one in self.passes)

    @property
    def total_wait_sum(self) -> float:
        """Milliseconds over all passes."""
        return sum(one.total_wait_ms for one in self.passes)

    @property
    def total_compute_avg(self) -> float:
        """Milliseconds a pass."""
        return self.total_compute_sum / max(self.num_passes, 1)

    @property
    def total_transfer_avg(self) -> float:
        """Milliseconds a pass."""
        return self.total_transfer_sum / max(self.num_passes, 1)

    @property
    def total_wait_avg(self) -> float:
        """Milliseconds a pass."""
        return self.total_wait_sum / max(self.num_passes, 1)

    def compute_budgets_by_profile_label(
        self, labels: Sequence[str], *, conservative: bool = False
    ) -> dict[str, float]:
        """The compute budgets, in milliseconds, of those of `labels` that were measured."""
        known = {stats.label: stats for stats in self.per_trap}
        return {
            label: known[label].compute_budget_ms(conservative=conservative)
            for label in labels
            if label in known
        }


def _median(times: Sequence[float]) -> float:
    import statistics

    return statistics.median(times)


def summarise(passes: Sequence[OffloadTimingSnapshot]) -> OffloadTimingReport:
    """The report of some passes; units in the order in which they first appear."""
    records: dict[str, list[TrapTimingRecord]] = {}
    for one in passes:
        for record in one.per_trap:
            records.setdefault(record.label, []).append(record)
    return OffloadTimingReport(tuple(_stats(label, of) for label, of in records.items()), tuple(passes))


def _stats(label: str, records: list[TrapTimingRecord]) -> TrapTimingStats:
    # Takes longer to import than all of this package; most programs measure no times.
    import statistics

    made: dict[str, float] = {}
    for kind in ("compute", "transfer", "wait"):
        times = [getattr(record, f"{kind}_ms") for record in records]
        made |= {
            f"{kind}_min": min(times),
            f"{kind}_max": max(times),
            f"{kind}_avg": statistics.fmean(times),
            f"{kind}_median": statistics.median(times),
            f"{kind}_std": statistics.pstdev(times),
        }
    return TrapTimingStats(label, **made)


def format_offload_timing_table(data: OffloadTimingSnapshot | OffloadTimingReport) -> str:
    """A table of one pass, or of the averages of several; an arrow marks waits above 0.01 ms."""
    if isinstance(data, OffloadTimingReport):
        title = f"Offload Timing ({data.num_passes} passes, averages)"
        rows = [(one.label, one.compute_avg, one.transfer_avg, one.wait_avg) for one in data.per_trap]
    else:
        title = "Offload Timing (single pass)"
        rows = [(one.label, one.compute_ms, one.transfer_ms, one.wait_ms) for one in data.per_trap]
    total = ("Total", *(sum(row[column] for row in rows) for column in (1, 2, 3)))
    width = max(len("Trap"), *(len(row[0]) for row in [*rows, total]))
    head = f"{'Trap':<{width}}  {'Compute (ms)':>12}  {'Transfer (ms)':>13}  {'Wait (ms)':>9}"

    def line(row: tuple[str, float, float, float]) -> str:
        return f"{row[0]:<{width}}  {row[1]:>12.3f}  {row[2]:>13.3f}  {row[3]:>9.3f}"

    marked = [f"{line(row)}  ←" if row[3] > _SHOWN_WAIT_MS else line(row) for row in rows]
    thick, thin = "=" * len(head), "-" * len(head)
    return "\n".join([title, thick, head, thin, *marked, thin, line(total), thick])


class CudaClock:
    """Marks on the current stream. `external`: the marks stand in captured graphs and are set anew by each replay."""

    def __init__(self, *, external: bool = False) -> None:
        self._external = external
        if external:
            try:
                self.new()
            except TypeError as error:
                import torch

                raise RuntimeError(
                    f"offload_timing='cuda_graph' needs torch 2.8 or newer, this is {torch.__version__}: its events "
                    "cannot be external"
                ) from error

    def new(self) -> Any:
        """A mark that was not set yet."""
        import torch

        return torch.cuda.Event(enable_timing=True, **({"external": True} if self._external else {}))

    def mark(self) -> Any:
        """A mark set now."""
        event = self.new()
        event.record()
        return event

    def milliseconds(self, start: Any, end: Any) -> float:
        """The time between two marks; waits for the later one."""
        end.synchronize()
        return start.elapsed_time(end)

    def is_capturing(self) -> bool:
        """Whether the current stream is being captured."""
        import torch

        return torch.cuda.is_current_stream_capturing()


class _Marks(threading.local):
    """What a thread has measured of its pass; `resets` = of the collector, when it began."""

    def __init__(self) -> None:
        self.resets = 0
        self.starts: dict[str, Any] = {}
        self.done: list[tuple[str, Any, Any]] = []


class OffloadTimingCollector:
    """Times of passes: measured between `enter` and `leave` of each unit, read when the next pass begins or when they
    are asked for, kept until they are collected."""

    def __init__(
        self,
        clock: Any,
        transfers: Callable[[], dict[str, float]],
        *,
        replayed: bool = False,
        log_every: int = OFFLOAD_TIMING_LOG_EVERY,
        max_passes: int = OFFLOAD_TIMING_MEASURE_MAX_PASSES,
    ) -> None:
        """`transfers` gives the milliseconds that the plan copies for each unit, asked once; `replayed` = passes are
        replays of captured graphs, published by `update`."""
        self._clock = clock
        self._transfers = transfers
        self._transfer_ms: dict[str, float] | None = None
        self._replayed = replayed
        self._log_every = log_every
        self._baselines: dict[str, list[float]] = {}
        # Guards all but the marks of a pass, which belong to the thread that it runs on.
        self._lock = threading.RLock()
        self._marks = _Marks()
        self._resets = 0
        self._pending: list[tuple[str, Any, Any]] = []
        self._learning = True
        self._captured: list[tuple[str, Any, Any]] = []
        self._generation = -1
        self._passes: deque[OffloadTimingSnapshot] = deque(maxlen=max_passes)
        self._window: deque[OffloadTimingSnapshot] = deque(maxlen=max(log_every, 1))
        self._published = 0
        # None: every pass counts. Else only those that are published while this is true.
        self._sampling: bool | None = None

    def enter(self, label: str) -> None:
        """A unit's forward begins."""
        self._mine().starts[label] = self._clock.mark()

    def leave(self, label: str) -> None:
        """A unit's forward has returned."""
        mine = self._mine()
        start = mine.starts.pop(label, None)
        if start is not None:
            mine.done.append((label, start, self._clock.mark()))

    def pass_ended(self, *, learning: bool) -> None:
        """The root's forward has returned; `learning` = its times are those of compute alone."""
        done = self._mine().done
        self.drop_pass()
        with self._lock:
            self._flush()
            if not done:
                return
            if self._replayed and self._clock.is_capturing():
                self._captured = done
                return
            self._pending, self._learning = done, learning

    def drop_pass(self) -> None:
        """This thread's pass is not to be kept."""
        mine = self._mine()
        mine.done, mine.starts = [], {}

    def _mine(self) -> "_Marks":
        """The marks of this thread; none that are older than the last reset."""
        mine = self._marks
        if mine.resets != self._resets:
            mine.resets, mine.done, mine.starts = self._resets, [], {}
        return mine

    def _flush(self) -> None:
        """Reads the pass that was measured last; under the lock."""
        pending, self._pending = self._pending, []
        if not pending:
            return
        if self._learning:
            for label, start, end in pending:
                self._baselines.setdefault(label, []).append(self._clock.milliseconds(start, end))
        else:
            self._publish(pending)

    def profiled(self) -> dict[str, list[float]]:
        """Milliseconds of each unit in each pass of PROFILING."""
        with self._lock:
            self._flush()
            return {label: list(spent) for label, spent in self._baselines.items()}

    def forget_profiled(self) -> None:
        """Forgets the times of PROFILING."""
        with self._lock:
            if self._learning:
                self.drop_pending()
            self._baselines.clear()

    def drop_pending(self) -> None:
        """Forgets passes that were not read yet, on all threads."""
        with self._lock:
            self._pending = []
            self._resets += 1

    def update(self, replay_generation: int = -1) -> bool:
        """Publishes the replay that ended last; the same generation (0 or more) only once. False if there is none,
        or its times cannot be read."""
        with self._lock:
            if not self._captured:
                return False
            if replay_generation >= 0 and replay_generation == self._generation:
                return True
            try:
                self._publish(self._captured)
            except RuntimeError as error:
                _LOG.warning("the times of a replay could not be read: %s", error)
                return False
            self._generation = replay_generation
            return True

    def reset(self) -> None:
        """Begins a new window."""
        with self._lock:
            self.drop_pending()
            self._passes.clear()
            self._window.clear()

    def sample(self, counts: bool) -> None:
        """Whether passes count from here on. What was measured before counts as it did."""
        with self._lock:
            self._flush()
            self._sampling = counts

    def finish_sample(self, replay_generation: int | None) -> bool:
        """Publishes the last pass, or the last replay, and lets none after it count. False if there is none, or no sample was begun."""
        with self._lock:
            before, counts = self._published, self._sampling is not False
            if replay_generation is None:
                self._flush()
                kept = self._published > before
            else:
                kept = self.update(replay_generation)
            self._sampling = False
            return kept and counts

    def cancel_sample(self) -> None:
        """Drops the last pass, and lets none after it count."""
        with self._lock:
            self.drop_pending()
            self._sampling = False

    def collect(self) -> OffloadTimingReport | None:
        """The passes since the last `reset` or `collect`; None if there are none."""
        with self._lock:
            self._flush()
            passes = list(self._passes)
            self._passes.clear()
        return summarise(passes) if passes else None

    def _publish(self, measured: list[tuple[str, Any, Any]]) -> None:
        if self._transfer_ms is None:
            self._transfer_ms = self._transfers()
        records = []
        for label, start, end in measured:
            spent = self._clock.milliseconds(start, end)
            known = self._baselines.get(label)
            compute = min(spent, _median(known)) if known else spent
            records.append(
                TrapTimingRecord(label, self._transfer_ms.get(label, 0.0), compute, spent - compute)
            )
        snapshot = OffloadTimingSnapshot(tuple(records))
        if self._sampling is not False:
            self._passes.append(snapshot)
        self._window.append(snapshot)
        self._published += 1
        if self._log_every and self._published % self._log_every == 0:
            _LOG.info("%s", format_offload_timing_table(summarise(list(self._window))))
