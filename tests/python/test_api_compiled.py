"""Compiled units, and replans after a program compiled them."""

import logging
import threading

import pytest
from test_api_agreement import Net, X
from test_api_manager import INFERENCE, PHASE, PROFILING, ft, on  # noqa: F401
from test_api_timing import Clock, clock, timed  # noqa: F401

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402


class Compiled(nn.Module):
    def __init__(self, unit):
        super().__init__()
        self.unit = unit

    def forward(self, x):
        return self.unit(x)


def test_compile_fn_gets_each_unit_when_profiling_begins(ft, calls):  # noqa: F811
    model, seen = Net(), []
    originals = list(model.layers)
    calls.answer(0, 3)

    def compile_fn(unit):
        seen.append(unit)
        return Compiled(unit)

    proxy = ft.offload(model, on(), compile_fn=compile_fn)
    om = ft.get_offload_manager()
    assert calls.take("model_course")[0][2:5] == (1, 10, 3) and om.iters_before_inference == 14
    expected = proxy(X)
    assert seen == [] and om.compiled_offload_active and not om.compiled_profile_active
    calls.answer(PHASE, PROFILING)
    proxy(X)
    assert seen == originals and om.compiled_profile_active
    assert [type(unit) for _, unit in ft.offload_units()] == [Compiled] * 4
    assert [name for name, _ in ft.resident_units()] == ["embed", "head"]
    calls.take()
    assert torch.equal(proxy(X), expected)
    assert {call[2] for call in calls.take("trap_enter")} == set(), "no hook stands in a compiled unit"
    ft.release()
    assert list(model.layers) == originals


def test_a_unit_for_which_compile_fn_fails_stays_eager(ft, calls, caplog):  # noqa: F811
    def compile_fn(unit):
        if unit is model.layers[1]:
            raise ValueError("not this one")
        return "no module" if unit is model.layers[2] else Compiled(unit)

    model = Net()
    calls.answer(PHASE, PROFILING)
    with caplog.at_level(logging.WARNING):
        proxy = ft.offload(model, on(skip_discovery=True), compile_fn=compile_fn)
    proxy(X)
    assert [type(unit) for _, unit in ft.offload_units()] == [Compiled, nn.Linear, nn.Linear, Compiled]
    assert "layers.1" in caplog.text and "not this one" in caplog.text and "layers.2" in caplog.text


def test_with_getters_units_are_compiled_when_the_plan_is_in_force(ft, calls):  # noqa: F811
    seen = []
    proxy = ft.offload(Net(), on(profile_mode="getter"), compile_fn=lambda unit: seen.append(unit) or unit)
    assert ft.get_offload_manager().eager_profiling_iters == 3
    calls.answer(PHASE, PROFILING)
    proxy(X)
    assert seen == []
    calls.answer(PHASE, INFERENCE)
    proxy(X)
    assert len(seen) == 4


def test_a_replan_counts_forwards_and_says_whether_the_plan_changed(ft, calls, monkeypatch):  # noqa: F811
    proxy = ft.offload(Net(), on(external_compile=True, profiling_iters=2))
    om = ft.get_offload_manager()
    assert om.external_compile_active and om.iters_before_inference == 4
    assert not om.strategy_replan_status.can_request and ft.request_strategy_replan() == 0
    calls.answer(PHASE, INFERENCE)
    proxy(X)
    assert om.strategy_replan_status.can_request
    monkeypatch.setenv("FAKE_REPORT", '{"counters": {"replans": 1}}')
    assert ft.request_strategy_replan() == 5
    assert om.compiled_replan_active and om.strategy_replan_status.state == "in_progress"
    assert ft.request_strategy_replan() == 0
    for _ in range(4):
        proxy(X)
    assert om.strategy_replan_status.state == "in_progress"
    monkeypatch.setenv("FAKE_REPORT", '{"counters": {"replans": 2}}')
    proxy(X)
    status = om.strategy_replan_status
    assert (status.state, status.can_request, status.applied) == ("done", True, True)


def test_a_replan_of_replays_needs_their_times(ft, timed, calls):  # noqa: F811
    calls.answer(PHASE, INFERENCE)
    ft.offload(Net(), on(external_compile=True))
    assert ft.request_strategy_replan(manual_update_state=True) == 0
    ft.offload(Net(), on(external_compile=True, profiling_iters=2, offload_timing="cuda_graph"))
    assert Clock().mark() and ft.request_strategy_replan(manual_update_state=True) == 2
    ft.update_state()
    assert ft.get_offload_manager().compiled_replan_active, "without a replay nothing is counted"


def test_limits_of_recompilation_are_raised_and_never_lowered():
    import torch._dynamo.config as limits
    from flextensor.compiled_offload import bump_dynamo_limits_for_compiled_offload

    before = limits.recompile_limit
    try:
        bump_dynamo_limits_for_compiled_offload(40)
        assert limits.recompile_limit >= 96 and limits.accumulated_recompile_limit >= 96
        bump_dynamo_limits_for_compiled_offload(1)
        assert limits.recompile_limit >= 96
    finally:
        limits.recompile_limit = before


def test_a_model_that_was_compiled_whole_is_warned_of_when_its_phase_changes(ft, calls):  # noqa: F811
    model = Net()
    proxy = ft.offload(model, on())
    whole = torch.compile(proxy)
    calls.answer(PHASE, PROFILING)
    with pytest.warns(RuntimeWarning, match="torch.compile as a whole"):
        model(X)
    del whole


def test_a_replan_is_not_asked_for_where_nothing_can_follow(timed, calls, caplog):  # noqa: F811
    calls.answer(PHASE, INFERENCE)
    timed.offload(Net(), on(external_compile=True, replan="off"))
    assert timed.request_strategy_replan() == 0 and "replan is off" in caplog.text
    timed.offload(Net(), on(offload_timing="cuda_graph"), compile_fn=Compiled)
    assert timed.request_strategy_replan(manual_update_state=True) == 0 and "compile_fn" in caplog.text
    assert timed.request_strategy_replan() > 0


def test_looking_at_the_phase_waits_for_the_forward_that_changes_it(ft, calls):  # noqa: F811
    compiled, looked = [], threading.Event()

    def compile_fn(unit):
        if not compiled:
            thread.start()
            assert not looked.wait(0.2), "the phase was read while units were being compiled"
        compiled.append(unit)
        return unit

    def look():
        assert om.phase.name == "PROFILING"
        looked.set()

    thread = threading.Thread(target=look)
    proxy = ft.offload(Net(), on(), compile_fn=compile_fn)
    om = ft.get_offload_manager()
    calls.answer(PHASE, PROFILING)
    proxy(X)
    thread.join()
    assert len(compiled) == 4 and looked.is_set()
