"""What `get_tensor_manager()` gives, single timing samples, and new plans that are asked for."""

import json

import pytest
from conftest import REPLAN_ANSWER
from test_api_agreement import Net, X, off
from test_api_manager import INFERENCE, PHASE, ft, on  # noqa: F401
from test_api_timing import Clock, clock, run, timed  # noqa: F401

torch = pytest.importorskip("torch")
from flextensor.offload_timing import OffloadTimingCollector  # noqa: E402


def saved(model):
    """A profile of a tensor manager's writing, with what the runtime adds about the GPU."""
    from flextensor import TensorManager
    from flextensor.strategy import GlobalOffloadStrategy

    manager = TensorManager("cpu", GlobalOffloadStrategy(), pinned_memory=False)
    manager.set_model(model)
    manager.initialize_warmup()
    with manager.trap("layers.0"):
        pass
    manager.initialize_profile()
    with manager.trap("layers.0"):
        pass
    manager.initialize_inference()
    return manager.export_state().to_dict()


def test_without_a_model_there_is_no_tensor_manager(ft, calls):  # noqa: F811
    assert ft.get_offload_manager().get_tensor_manager() is None
    assert ft.get_offload_manager().get_layer_label_by_idx() == []


def test_a_tensor_manager_speaks_of_the_offloaded_model_until_it_is_released(ft, calls, monkeypatch):  # noqa: F811
    model = Net()
    ft.offload(model, on())
    om = ft.get_offload_manager()
    tensors = om.get_tensor_manager()
    assert tensors.model is model and tensors.loader_type == "allocation_block_transfer"
    assert tensors.get_memory_transfer_stats() is None, "nothing was measured yet"
    with pytest.raises(RuntimeError, match="DISCOVERY"):
        tensors.get_gpu_memory_usage()
    tensors.suspend_profiling()
    assert om.is_profiling_suspended() and tensors.is_profiling_suspended()
    tensors.resume_profiling()
    with tensors.pause_profiling():
        assert tensors.is_profiling_suspended()
    assert om.get_layer_label_by_idx() == [path for path, _ in om.offload_units()] != []
    tensors.shutdown()
    assert om.model is None and om.get_tensor_manager() is None
    with pytest.raises(RuntimeError, match="released"):
        tensors.export_state()
    tensors.shutdown()


def test_its_state_is_what_the_library_saves_and_starts_another_model(ft, calls, monkeypatch):  # noqa: F811
    from flextensor import _native

    profile = saved(Net())
    points = [{"copy_bytes": 1 << 20, "gb_per_s": 50.0}, {"copy_bytes": 1 << 25, "gb_per_s": 55.0}]
    profile["flextensor"] = {"gpus": [{"idle": points}]}

    def save(folder):
        (__import__("pathlib").Path(folder) / "profile.json").write_text(json.dumps(profile))
        return 0

    monkeypatch.setattr(_native, "profile_save", save)
    monkeypatch.setattr(_native, "profile_checked", lambda name, text: text)
    calls.answer(PHASE, INFERENCE)
    ft.offload(Net(), on())
    tensors = ft.get_offload_manager().get_tensor_manager()
    state = tensors.export_state()
    assert [stat.label for stat in state.stats] == ["layers.0"] and state is not tensors.export_state()
    stats = tensors.get_memory_transfer_stats()
    assert stats == {1 << 20: pytest.approx((1 << 20) / 50e6), 1 << 25: pytest.approx((1 << 25) / 55e6)}
    ft.offload_from_state(Net(), state, on())
    assert ft.get_offload_manager().phase.name == "INFERENCE"


def test_switched_off_a_tensor_manager_does_nothing(ft):  # noqa: F811
    ft.offload(Net(), off())
    tensors = ft.get_offload_manager().get_tensor_manager()
    tensors.suspend_profiling(), tensors.resume_profiling(), tensors.resume_profiling()
    assert not tensors.is_profiling_suspended() and tensors.get_gpu_memory_usage().total_bytes == 0
    assert tensors.get_memory_transfer_stats() is None and tensors.collect_offload_timing() is None
    with tensors.trap("anything"), tensors.pause_profiling():
        pass
    tensors.shutdown()
    assert ft.get_offload_manager().model is not None


def test_only_chosen_passes_count_once_samples_are_taken(clock):  # noqa: F811
    collector = OffloadTimingCollector(clock, dict)
    run(collector, clock, {"a": 1.0})
    collector.reset()
    collector.sample(False)
    run(collector, clock, {"a": 2.0})
    collector.sample(True)
    run(collector, clock, {"a": 3.0})
    assert collector.finish_sample(None) is True
    run(collector, clock, {"a": 4.0})
    collector.sample(True)
    run(collector, clock, {"a": 5.0})
    collector.cancel_sample()
    run(collector, clock, {"a": 6.0})
    report = collector.collect()
    assert report.num_passes == 1 and report.per_trap[0].compute_max == 3.0
    assert collector.finish_sample(None) is False and collector.collect() is None, "no sample was begun"


def test_a_sample_of_a_replay_is_kept_once_a_generation(clock):  # noqa: F811
    collector = OffloadTimingCollector(clock, dict, replayed=True)
    clock.capturing = True
    run(collector, clock, {"a": 1.0})
    clock.capturing = False
    collector.sample(False)
    assert collector.update(1) and collector.collect() is None
    collector.sample(True)
    assert collector.finish_sample(2) and collector.collect().num_passes == 1


def test_a_manager_samples_its_units(timed, calls):  # noqa: F811
    calls.answer(PHASE, INFERENCE)
    proxy = timed.offload(Net(), on(offload_timing="eager"))
    om = timed.get_offload_manager()
    om.reset_offload_timing_sampling()
    proxy(X)
    om.begin_offload_timing_sample()
    proxy(X)
    assert om.finish_offload_timing_sample(replay_generation=None) is True
    proxy(X)
    om.begin_offload_timing_sample()
    proxy(X)
    om.cancel_offload_timing_sample()
    assert om.collect_offload_timing().num_passes == 1


def test_without_timing_there_is_nothing_to_sample(ft, calls):  # noqa: F811
    ft.offload(Net(), on())
    om = ft.get_offload_manager()
    om.reset_offload_timing_sampling(), om.begin_offload_timing_sample(), om.cancel_offload_timing_sample()
    assert om.finish_offload_timing_sample(replay_generation=None) is False


@pytest.mark.parametrize("answer", [0, -1])
def test_a_replan_asks_the_library_for_a_plan_after_the_warm_up(ft, calls, monkeypatch, answer):  # noqa: F811
    monkeypatch.setenv("FAKE_REPORT", '{"counters": {"replans": 0}}')
    calls.answer(REPLAN_ANSWER, answer)
    calls.answer(PHASE, INFERENCE)
    proxy = ft.offload(Net(), on(external_compile=True, profiling_iters=2))
    calls.take()
    assert ft.request_strategy_replan() == 5
    for _ in range(2):
        proxy(X)
    assert calls.take("model_replan") == []
    proxy(X)
    assert len(calls.take("model_replan")) == 1, "after three forwards, once"
    proxy(X), proxy(X)
    assert calls.take("model_replan") == [] and ft.get_offload_manager().strategy_replan_status.state == "done"


def test_a_replan_of_replays_asks_for_nothing(timed, calls):  # noqa: F811
    calls.answer(PHASE, INFERENCE)
    clock = Clock()
    timed.offload(Net(), on(external_compile=True, profiling_iters=2, offload_timing="cuda_graph"))
    assert clock.mark() and timed.request_strategy_replan(manual_update_state=True) == 2
    timed.update_state()
    assert calls.take("model_replan") == []
