"""Times of units, diagnostics, and strategies that are objects: with a clock of the test's own instead of the GPU's."""

import logging
import threading

import pytest
from test_api_agreement import Net, X
from test_api_manager import INFERENCE, PHASE, PROFILING, ft, on  # noqa: F401

torch = pytest.importorskip("torch")
from flextensor.offload_timing import (  # noqa: E402
    OffloadTimingCollector,
    OffloadTimingReport,
    OffloadTimingSnapshot,
    TrapTimingRecord,
    format_offload_timing_table,
    summarise,
)
from torch import nn  # noqa: E402


class Clock:
    """Marks are the milliseconds that the test says it is."""

    def __init__(self):
        self.now = 0.0
        self.capturing = False
        self.broken = False

    def mark(self):
        return [self.now]

    def milliseconds(self, start, end):
        if self.broken:
            raise RuntimeError("the stream is gone")
        return end[0] - start[0]

    def is_capturing(self):
        return self.capturing


def run(collector, clock, spent, *, learning=False):
    for label, milliseconds in spent.items():
        collector.enter(label)
        clock.now += milliseconds
        collector.leave(label)
    collector.pass_ended(learning=learning)


@pytest.fixture
def clock():
    return Clock()


@pytest.fixture
def collector(clock):
    return OffloadTimingCollector(clock, lambda: {"a": 1.5})


def test_what_is_more_than_the_profiled_time_is_waiting(collector, clock):
    for milliseconds in [2.0, 3.0, 9.0]:
        run(collector, clock, {"a": milliseconds}, learning=True)
    run(collector, clock, {"a": 5.0, "b": 1.0})
    report = collector.collect()
    assert report.passes[0].per_trap == (
        TrapTimingRecord("a", 1.5, 3.0, 2.0),
        TrapTimingRecord("b", 0.0, 1.0, 0.0),
    )


def test_check_39_collecting_drains_and_the_pending_pass_counts(collector, clock):
    assert collector.collect() is None
    for _ in range(20):
        run(collector, clock, {"a": 1.0})
    report = collector.collect()
    assert report.num_passes == 20 and [stats.label for stats in report.per_trap] == ["a"]
    assert collector.collect() is None


def test_a_reset_drops_what_was_measured_and_what_is_pending(collector, clock):
    for _ in range(3):
        run(collector, clock, {"a": 1.0})
    collector.reset()
    run(collector, clock, {"a": 7.0})
    assert collector.collect().per_trap[0].compute_max == 7.0


def test_the_store_is_a_ring(clock):
    collector = OffloadTimingCollector(clock, dict, max_passes=4)
    for milliseconds in range(10):
        run(collector, clock, {"a": float(milliseconds)})
    assert [one.total_compute_ms for one in collector.collect().passes] == [6.0, 7.0, 8.0, 9.0]


def test_every_tenth_pass_a_table_is_logged(collector, clock, caplog):
    with caplog.at_level(logging.INFO, "flextensor.diagnostics"):
        for _ in range(21):
            run(collector, clock, {"a": 1.0})
    assert caplog.text.count("Offload Timing (10 passes, averages)") == 2


def test_replays_are_published_on_request_and_once_a_generation(clock):
    collector = OffloadTimingCollector(clock, dict, replayed=True)
    assert collector.update() is False
    clock.capturing = True
    run(collector, clock, {"a": 1.0})
    clock.capturing = False
    assert collector.collect() is None
    assert collector.update(7) and collector.update(7) and collector.update(8) and collector.update()
    assert collector.collect().num_passes == 3
    clock.broken = True
    assert collector.update(9) is False and collector.collect() is None
    clock.broken = False
    assert collector.update(9) is True


def test_statistics_are_those_of_the_passes():
    passes = [OffloadTimingSnapshot((TrapTimingRecord("a", 1.0, c, w),)) for c, w in [(1, 0), (2, 0), (6, 3)]]
    report = summarise(passes)
    (stats,) = report.per_trap
    assert (stats.compute_min, stats.compute_max, stats.compute_avg, stats.compute_median) == (1, 6, 3, 2)
    assert stats.compute_std == pytest.approx((14 / 3) ** 0.5) and stats.wait_avg == 1
    assert (report.total_compute_sum, report.total_compute_avg, report.total_wait_sum) == (9, 3, 3)
    assert report.compute_budgets_by_profile_label(["a", "b"]) == {"a": 2}
    assert report.compute_budgets_by_profile_label(["a"], conservative=True) == {"a": 1}
    assert format_offload_timing_table(report).count("←") == 1
    assert OffloadTimingReport().num_passes == 0 and OffloadTimingReport().total_wait_avg == 0


@pytest.fixture
def timed(ft, clock, monkeypatch):  # noqa: F811
    from flextensor import managed_model

    monkeypatch.setattr(managed_model, "make_clock", lambda replayed: clock)
    return ft


def test_a_manager_times_its_units_in_inference_only(timed, calls):
    proxy = timed.offload(Net(), on(offload_timing="eager"))
    proxy(X)
    calls.answer(PHASE, PROFILING)
    proxy(X), proxy(X)
    assert timed.collect_offload_timing() is None
    calls.answer(PHASE, INFERENCE)
    proxy(X)
    timed.reset_offload_timing()
    for _ in range(3):
        proxy(X)
    report = timed.collect_offload_timing()
    assert report.num_passes == 3 and len(report.per_trap) == 4
    assert timed.collect_offload_timing() is None


def test_without_timing_nothing_is_collected(ft, calls):  # noqa: F811
    calls.answer(PHASE, INFERENCE)
    ft.offload(Net(), on())(X)
    assert ft.collect_offload_timing() is None and ft.update_offload_timing() is False
    ft.reset_offload_timing()


class EveryUnit:
    """A strategy of the program's own: everything is streamed."""

    def __init__(self):
        self.asked = 0

    def compute(self, layer_stats, memory_stats=None, max_gpu_mem_bytes=None):
        from flextensor import strategy

        self.asked += 1
        return strategy.StrategyResult({stat.label: stat.tensors for stat in layer_stats})


def test_a_strategy_object_of_ours_is_told_when_the_model_is_named(ft, calls):  # noqa: F811
    from flextensor import GreedyStrategy

    ft.offload(Net(), on(load_strategy=GreedyStrategy(scale=2.0)))
    ((_, model, *text),) = calls.take("model_strategy")
    assert model == 1 and "GreedyStrategy" in " ".join(map(str, text))


def test_a_strategy_of_the_programs_own_is_asked_once_in_inference(ft, calls, monkeypatch):  # noqa: F811
    from flextensor import session
    from test_api_manager import profile

    mine = EveryUnit()
    proxy = ft.offload(Net(), on(load_strategy=mine))

    def save(self, folder):
        from pathlib import Path

        (Path(folder) / "profile.json").write_text(profile(["layers.0.weight"]))

    monkeypatch.setattr(session.Session, "save_profile", save)
    proxy(X)
    calls.answer(PHASE, INFERENCE)
    proxy(X)
    assert mine.asked == 0
    for _ in range(3):
        proxy(X)
    assert mine.asked == 1 and len(calls.take("model_strategy")) == 1


def test_diagnostics_log_three_tables_once_and_leave_no_hooks(timed, calls, caplog, monkeypatch):
    from flextensor import session
    from test_api_manager import profile

    def save(self, folder):
        from pathlib import Path

        (Path(folder) / "profile.json").write_text(profile(["layers.0.weight"]))

    monkeypatch.setattr(session.Session, "save_profile", save)
    model = Net()
    calls.answer(PHASE, PROFILING)
    proxy = timed.offload(model, on(enable_diagnostics=True, skip_discovery=True))
    with caplog.at_level(logging.INFO, "flextensor.diagnostics"):
        proxy(X)
        calls.answer(PHASE, INFERENCE)
        proxy(X)
    assert (
        "layers.0" in caplog.text and len([r for r in caplog.records if r.name.endswith("diagnostics")]) == 3
    )
    assert timed.collect_offload_timing() is None and "_compiled_call_impl" not in vars(model.layers[0])


def test_threads_measure_passes_of_their_own(collector, clock):
    entered, left = threading.Event(), threading.Event()

    def other():
        collector.enter("a")
        entered.set()
        assert left.wait(60)
        collector.leave("a")
        collector.pass_ended(learning=False)

    thread = threading.Thread(target=other)
    thread.start()
    assert entered.wait(60)
    clock.now += 5.0
    run(collector, clock, {"a": 1.0})
    left.set()
    thread.join()
    assert [one.total_compute_ms for one in collector.collect().passes] == [1.0, 6.0]


def test_a_reset_drops_what_other_threads_have_open(collector, clock):
    collector.enter("a")
    thread = threading.Thread(target=collector.reset)
    thread.start()
    thread.join()
    collector.leave("a")
    collector.pass_ended(learning=False)
    assert collector.collect() is None


def test_two_that_collect_at_once_get_each_pass_once(clock):
    """The clock stops the first one in the middle of reading; the second one must wait for it."""
    reading, go_on = threading.Event(), threading.Event()
    read = clock.milliseconds

    def slow(start, end):
        reading.set()
        assert go_on.wait(60)
        return read(start, end)

    collector = OffloadTimingCollector(clock, dict)
    run(collector, clock, {"a": 1.0})
    clock.milliseconds = slow
    reports = []
    first = threading.Thread(target=lambda: reports.append(collector.collect()))
    first.start()
    assert reading.wait(60)
    assert not collector._lock.acquire(blocking=False), "who reads holds the lock"
    go_on.set()
    first.join()
    assert reports[0].num_passes == 1 and collector.collect() is None


class Ticking(nn.Module):
    """A unit that takes as long as the test says."""

    def __init__(self, clock):
        super().__init__()
        self.clock, self.takes = clock, 1.0

    def forward(self, x):
        self.clock.now += self.takes
        return x


def test_suspended_forwards_and_cleared_times_are_no_measure_of_computing(timed, calls, clock):
    model = Net()
    unit = model.layers[0] = Ticking(clock)
    calls.answer(PHASE, PROFILING)
    proxy = timed.offload(model, on(offload_timing="eager"))

    def forwards(takes):
        unit.takes = takes
        for _ in range(3):
            proxy(X)

    def computes():
        profiled = timed.get_offload_manager()._managed.timing.profiled()
        return profiled.get("layers.0", [])

    with timed.pause_profiling():
        forwards(50.0)
    assert computes() == []
    forwards(7.0)
    timed.clear_profiling_durations()
    assert computes() == []
    forwards(2.0)
    assert computes() == [2.0] * 3
    calls.answer(PHASE, INFERENCE)
    proxy(X)
    timed.reset_offload_timing()
    timed.clear_profiling_durations()
    forwards(5.0)
    (first,) = [one for one in timed.collect_offload_timing().per_trap if one.label == "layers.0"]
    assert (first.compute_median, first.wait_median) == (2.0, 3.0)


def test_a_unit_that_fails_is_said_with_the_number_of_the_forward(ft, calls, caplog):  # noqa: F811
    model = Net()
    proxy = ft.offload(model, on())
    proxy(X), proxy(X)
    with caplog.at_level(logging.ERROR), pytest.raises(RuntimeError):
        model.layers[0].weight.data = torch.zeros(1, 1)
        proxy(X)
    assert "forward 3" in caplog.text
