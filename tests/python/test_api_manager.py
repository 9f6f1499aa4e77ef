"""Managers over the recording stand-in for the library: what is named, when, and what the phases do. Every tensor
counts as lying on the GPU; the stand-in's phase is set by the test."""

import ctypes
import json
import logging
import pickle
import threading

import pytest
from test_api_agreement import Net, X, off

torch = pytest.importorskip("torch")
from torch import nn  # noqa: E402

DISCOVERY, PROFILING, INFERENCE = 1, 2, 3
PHASE, REFUSE_MODELS = 1, 2


@pytest.fixture
def ft(calls, monkeypatch):
    """The package on a machine that seems to have a GPU, in DISCOVERY, with all managers forgotten afterwards."""
    import flextensor
    from flextensor import gpu_budget, managed_model, offload_manager, session

    monkeypatch.setattr(session, "cuda_is_available", lambda: True)
    monkeypatch.setattr(managed_model, "require_gpu", lambda config: True)
    monkeypatch.setattr(session, "device_of", lambda config: torch.device("cpu"))
    monkeypatch.setattr(session, "resolve_gpu_budget", lambda fraction, device: gpu_budget)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    calls.answer(PHASE, DISCOVERY)
    yield flextensor
    for manager, _ in list(offload_manager._MANAGERS.values()):
        manager.release()
    offload_manager._MANAGERS.clear()


def on(**options):
    from flextensor import OffloadConfig

    return OffloadConfig(**{"include_patterns": ["layers.*"], **options})


def test_offload_names_the_model_under_its_patterns_and_counts(ft, calls):
    ft.offload(Net(), on(discovery_iters=2, profiling_iters=3, exclude_patterns=["layers.3"]))
    told = calls.take()
    assert [call[0] for call in told][:3] == ["configure", "model_begin", "model_course"]
    assert ("model_course", 1, 2, 3, 0, 0, "none") in told
    traps = {call[3]: call[5] for call in told if call[0] == "model_owner"}
    assert (
        traps["layers.0"] == 0 and traps["layers.2"] == 2 and traps["layers.3"] == -1 and traps["embed"] == -1
    )
    flags = {call[2]: call[6] for call in told if call[0] == "model_weight"}
    assert flags["layers.0.weight"] == 1 and flags["layers.3.weight"] == 0 and flags["embed.weight"] == 0
    assert told[-1] == ("model_end", 1)


def test_the_options_that_were_set_reach_the_library_and_no_others(ft, calls):
    ft.offload(Net(), on(max_gpu_mem_fraction=0.5, gpu_device=0, profiling_iters=3))
    ((_, text),) = calls.take("configure")
    assert json.loads(text) == {"include_patterns": ["layers.*"], "max_gpu_mem_fraction": 0.5, "mode": "auto"}


@pytest.mark.parametrize(
    ("process", "sent"),
    [
        ("{}", "latency"),
        ('{"max_gpu_mem":"8GiB"}', "auto"),
        ('{"mode":"fit","origins":{"mode":"FT_MODE"}}', None),
    ],
)
def test_without_a_budget_the_interface_asks_for_latency_unless_the_process_was_told(
    ft, calls, monkeypatch, process, sent
):
    monkeypatch.setenv("FAKE_CONFIG", process)
    ft.offload(Net(), on())
    ((_, text),) = calls.take("configure")
    assert json.loads(text).get("mode") == sent


def test_a_forward_marks_a_pass_with_its_owners_and_traps(ft, calls):
    calls.answer(0, 3)
    proxy = ft.offload(Net(), on())
    calls.take()
    proxy(X)
    told = calls.names()
    assert told[0] == "pass_begin" and told[-1] == "pass_end"
    assert told.count("trap_enter") == told.count("trap_exit") == 4 and "owner_enter" in told


def test_each_pass_is_told_also_where_an_unchanged_program_would_have_nothing_to_tell(ft, calls):
    proxy = ft.offload(Net(), on())
    calls.take()
    ctypes.CDLL(None).fake_quiet(1)
    for _ in range(32):
        proxy(X)
    assert [name for name in calls.names() if name.startswith("pass")] == ["pass_begin", "pass_end"] * 32


def test_the_unchanged_programs_hook_does_not_take_the_model_a_second_time(ft, calls):
    from conftest import arrive

    arrive()
    model = Net()
    proxy = ft.offload(model, on())
    calls.take()
    for _ in range(5):
        proxy(X)
        model(X)
    assert calls.take("model_begin", "model_drop") == []


def test_a_model_that_the_hook_had_taken_is_named_anew(ft, calls):
    from conftest import arrive

    arrive()
    model = Net()
    model(X)
    assert len(calls.take("model_begin")) == 1
    ft.offload(model, on())
    told = calls.take("model_begin", "model_drop", "model_end")
    assert [call[0] for call in told] == ["model_drop", "model_begin", "model_end"]


def test_phases_are_those_of_the_library(ft, calls):
    proxy = ft.offload(Net(), on(profiling_iters=1))
    om = ft.get_offload_manager()
    assert om.phase.name == "DISCOVERY"
    for phase, name in [(DISCOVERY, "DISCOVERY"), (PROFILING, "PROFILING"), (INFERENCE, "INFERENCE")]:
        calls.answer(PHASE, phase)
        proxy(X)
        assert om.phase.name == name
    calls.answer(PHASE, DISCOVERY)
    assert om.phase.name == "INFERENCE"


def test_check_27_suspending_reaches_the_library_and_is_counted(ft, calls):
    ft.offload(Net(), on())
    om = ft.get_offload_manager()
    calls.take()
    with ft.pause_profiling():
        with ft.pause_profiling():
            pass
        assert om.is_profiling_suspended()
    assert not om.is_profiling_suspended()
    ft.clear_profiling_durations()
    assert [call[2] for call in calls.take("model_profiling")] == [0, 0, 1, 1, 2]
    with pytest.raises(RuntimeError, match="not suspended"):
        ft.resume_profiling()
    assert calls.take("model_profiling") == []


def test_check_27_without_a_gpu_suspension_freezes_profiling_and_not_discovery():
    from flextensor.phases import Counted, OffloadPhase, Settings

    phases = Counted(Settings(1, 2))
    phases.suspend()
    phases.suspend()
    phases.forward_ended()
    assert phases.phase is OffloadPhase.PROFILING
    phases.forward_ended()
    phases.resume()
    phases.forward_ended()
    assert phases.iterations == 0
    phases.resume()
    phases.forward_ended()
    phases.clear()
    assert phases.iterations == 1
    phases.forward_ended()
    assert phases.phase is OffloadPhase.INFERENCE
    with pytest.raises(RuntimeError):
        phases.resume()


def test_without_a_gpu_and_without_pinning_the_model_runs_where_it_is(calls, caplog):
    import flextensor as ft

    with caplog.at_level(logging.WARNING):
        proxy = ft.offload(Net(), on(pinned_memory=False, profiling_iters=1), name="cpu")
    assert "nothing is offloaded" in caplog.text and calls.take("model_begin") == []
    proxy(X)
    assert ft.get_offload_manager("cpu").phase.name == "PROFILING"
    ft.release("cpu")


def test_blocks_inside_units_and_blocks_are_refused_while_the_model_is_learnt(ft, calls):
    model = Net()
    ft.offload(model, on())
    with ft.offload_block("outer"):
        with pytest.raises(RuntimeError, match="'inner' begins inside 'outer'"), ft.offload_block("inner"):
            pass
        with pytest.raises(RuntimeError, match=r"'layers\.0' begins inside 'outer'"):
            model.layers[0](torch.zeros(1, 4))
    model(X)
    calls.answer(PHASE, INFERENCE)
    model(X)
    with ft.offload_block("outer"), ft.offload_block("inner"):
        model.layers[0](torch.zeros(1, 4))


def test_a_pass_of_manual_blocks_ends_with_update_state(ft, calls):
    model = Net()
    ft.offload(model, on())
    calls.take()
    for _ in range(2):
        with ft.offload_block("a"):
            x = model.embed(X)
        with ft.offload_block("b"):
            model.head(x)
        ft.update_state()
    assert [name for name in calls.names() if name.startswith("pass")] == ["pass_begin", "pass_end"] * 2


def test_a_unit_that_fails_is_said_and_its_error_is_the_programs(ft, calls, caplog):
    class Failing(nn.Module):
        def forward(self, x):
            raise KeyError("mine")

    model = Net()
    model.layers[2] = Failing()
    proxy = ft.offload(model, on())
    with caplog.at_level(logging.ERROR), pytest.raises(KeyError, match="mine"):
        proxy(X)
    assert "layers.2" in caplog.text and "phase DISCOVERY" in caplog.text
    model.layers[2] = nn.Identity()
    proxy(X)


def test_marks_of_units_go_with_the_learning(ft, calls):
    model = Net()
    proxy = ft.offload(model, on())
    assert all(layer._compiled_call_impl for layer in model.layers)
    calls.answer(PHASE, INFERENCE)
    proxy(X)
    assert not any("_compiled_call_impl" in vars(layer) for layer in model.layers)


def test_check_23_release_gives_back_forwards_weights_and_names(ft, calls):
    model = Net().eval()
    expected = model(X)
    addresses = [tensor.data_ptr() for tensor in model.state_dict().values()]
    proxy = ft.offload(model, on())
    proxy(X)
    ft.release()
    assert calls.take("model_drop") == [("model_drop", 1)]
    calls.take()
    assert torch.equal(model(X), expected) and calls.take() == []
    assert [tensor.data_ptr() for tensor in model.state_dict().values()] == addresses
    assert not any((*part._forward_hooks, *part._forward_pre_hooks) for part in model.modules())
    assert not any("_compiled_call_impl" in vars(part) for part in model.modules())


def test_release_without_preserving_leaves_the_model_unusable(ft, calls):
    model = Net()
    ft.offload(model, on())
    ft.release(preserve_model=False)
    with pytest.raises(RuntimeError, match="preserve_model=False"):
        model(X)
    assert sum(parameter.numel() for parameter in model.parameters()) == 0


def test_named_managers_have_models_of_their_own(ft, calls):
    first, second = Net(), Net()
    ft.offload(first, on(), name="a")
    ft.offload(second, on(include_patterns=["head"]), name="b")
    assert [name for name, _ in ft.offload_units("b")] == ["head"] and len(ft.offload_units("a")) == 4
    ft.release("a")
    assert ft.get_offload_manager("b").model is second and ft.get_offload_manager("a").model is None
    assert calls.take("model_drop") == [("model_drop", 1)]


def test_another_model_releases_the_one_before(ft, calls):
    first = ft.offload(Net(), on())
    second = ft.offload(Net(), on())
    assert [call[0] for call in calls.take("model_begin", "model_drop")] == [
        "model_begin",
        "model_drop",
        "model_begin",
    ]
    second(X)
    with pytest.raises(RuntimeError, match="not offloaded any more"):
        first(X)


def test_offloading_a_proxy_offloads_its_model(ft, calls):
    model = Net()
    proxy = ft.offload(ft.offload(model, on()), on())
    assert ft.get_offload_manager().model is model
    proxy(X)


def test_forwards_may_run_on_any_thread(ft, calls):
    proxy = ft.offload(Net(), on())
    outputs = []
    threads = [threading.Thread(target=lambda: outputs.append(proxy(X))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(outputs) == 4 and all(torch.equal(outputs[0], other) for other in outputs)


def test_copies_and_pickles_are_models_that_nobody_manages(ft, calls):
    import copy

    proxy = ft.offload(Net(), on())
    calls.take()
    loaded = pickle.loads(pickle.dumps(proxy))
    for made in [loaded, copy.deepcopy(proxy)]:
        assert type(made) is Net and torch.equal(made(X), proxy(X))
    assert {call[1] for call in calls.take("pass_begin")} == {1}
    assert len(calls.take("model_begin")) == 0


def test_a_library_that_takes_no_model_is_an_error(ft, calls):
    calls.answer(REFUSE_MODELS, 1)
    with pytest.raises(RuntimeError, match="takes no weights of Net"):
        ft.offload(Net(), on())
    assert ft.get_offload_manager().model is None


def test_shared_memory_is_refused_until_sessions_exist(ft, calls):
    with pytest.raises(RuntimeError, match="shm_enabled"):
        ft.offload(Net(), on(shm_enabled=True, shm_namespace="run"))


def test_options_without_effect_are_said_at_offload(ft, calls, caplog):
    with caplog.at_level(logging.WARNING):
        ft.offload(Net(), on(piecewise_prefetch="error", transfer_mode="raw_block_transfer"))
    assert "piecewise_prefetch" in caplog.text and "transfer_mode" not in caplog.text


def test_what_is_no_module_is_refused(ft, calls):
    for thing in ["model", {"a": Net()}]:
        with pytest.raises(TypeError, match=r"torch\.nn\.Module"):
            ft.offload(thing, on())


def test_skipping_discovery_is_told(ft, calls):
    calls.answer(PHASE, PROFILING)
    ft.offload(Net(), on(skip_discovery=True))
    assert calls.take("model_course") == [("model_course", 1, 1, 10, 0, 1, "none")]
    assert ft.get_offload_manager().phase.name == "PROFILING"
    with pytest.raises(RuntimeError, match="DISCOVERY"):
        ft.offload_block("a")


def test_check_19_memory_usage_is_the_ring_and_the_models_own_residents(ft, calls, monkeypatch):
    report = {
        "models": [{"id": 1, "device": 0, "fixed_bytes": 5}, {"id": 2, "device": 0, "fixed_bytes": 7}],
        "plans": [{"device": 0, "ring_bytes": 100}, {"device": 1, "ring_bytes": 900}],
        "placements": [
            {"models": [1], "bytes": 50, "streamed_bytes": 20},
            {"models": [2], "bytes": 70, "streamed_bytes": 0},
            {"models": [1, 2], "bytes": 10, "streamed_bytes": 10},
        ],
    }
    monkeypatch.setenv("FAKE_REPORT", json.dumps(report))
    proxy = ft.offload(Net(), on())
    with pytest.raises(RuntimeError, match="DISCOVERY"):
        ft.get_gpu_memory_usage()
    calls.answer(PHASE, INFERENCE)
    proxy(X)
    usage = ft.get_gpu_memory_usage()
    assert (usage.blocks_bytes, usage.unmapped_tensors_bytes, usage.total_bytes) == (100, 35, 135)


def test_check_31_profiles_are_saved_where_they_are_asked_for_and_start_a_model(ft, calls, tmp_path):
    proxy = ft.offload(Net(), on())
    with pytest.raises(RuntimeError, match="DISCOVERY"):
        ft.save_profile(tmp_path)
    calls.answer(PHASE, INFERENCE)
    proxy(X)
    ft.save_profile(tmp_path)
    assert calls.take("profile_save") == [("profile_save", str(tmp_path))]
    (tmp_path / "profile.json").write_text(profile(["layers.0.weight"]))
    ft.release()
    calls.take()
    ft.offload_from_profile(Net(), tmp_path, on())
    assert calls.take("model_course")[0][-1] == str(tmp_path)
    assert ft.get_offload_manager().phase.name == "INFERENCE"


def test_a_profile_can_be_loaded_before_any_offload(ft, calls, tmp_path):
    (tmp_path / "profile.json").write_text(profile(["layers.0.weight"]))
    calls.answer(PHASE, INFERENCE)
    om = ft.get_offload_manager()
    om.set_config(on(profile_storage_dir=tmp_path))
    model = Net()
    with pytest.raises(RuntimeError, match="no model"):
        om.load_profile()
    om.load_profile(model=model)
    calls.take()
    model(X)
    assert calls.names()[0] == "pass_begin" and om.phase.name == "INFERENCE"


def profile(names, version=3):
    tensors = [
        {"tensor_id": i, "name": name, "size_bytes": 64, "load_time_ms": 0.1} for i, name in enumerate(names)
    ]
    return json.dumps(
        {
            "version": version, "loader_type": "allocation_block_transfer",
            "tensor_id_to_name_map": {str(i): name for i, name in enumerate(names)},
            "allocation_ordered": {}, "label_to_size_map": {}, "block_sizes": {}, "load_strategy": {},
            "release_strategy": {}, "label_to_block_id": {},
            "stats": [{"label": "layers.0", "tensors": tensors, "duration": 1.0}], "transfer_to_compute_map": {},
        }
    )  # fmt: skip


@pytest.mark.parametrize("version", [2, 4])
def test_check_32_profiles_that_do_not_fit_are_value_errors(ft, calls, tmp_path, version):
    (tmp_path / "profile.json").write_text(profile([], version))
    with pytest.raises(ValueError, match="version"):
        ft.offload_from_profile(Net(), tmp_path, on())
    (tmp_path / "profile.json").write_text(profile(["layers.9.weight"]))
    with pytest.raises(ValueError, match=r"no tensor layers\.9\.weight"):
        ft.offload_from_profile(Net(), tmp_path, on())
    assert calls.take("model_begin") == []


def test_a_profile_of_several_models_is_of_each_of_them(ft, calls, tmp_path, monkeypatch):
    from flextensor import _native

    (tmp_path / "profile.json").write_text(profile([]))
    saved = {"tensor_id_to_name_map": {"0": "model0.other.weight", "1": "model1.head.weight"}}
    answer = {**saved, "flextensor": {"models": [{}, {}]}}
    monkeypatch.setattr(_native, "profile_checked", lambda file, text: json.dumps(answer))
    ft.offload_from_profile(Net(), tmp_path, on())
    answer["tensor_id_to_name_map"] = {"0": "model0.other.weight", "1": "model1.another.weight"}
    with pytest.raises(ValueError, match="another model"):
        ft.offload_from_profile(Net(), tmp_path, on())


def test_check_33_a_missing_profile_is_said(ft, calls, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"profile\.json"):
        ft.offload_from_profile(Net(), tmp_path / "missing", on())
    ft.set_config(on())
    with pytest.raises(ValueError, match="folder"):
        ft.load_profile(model=Net())


def test_a_state_in_memory_starts_a_model(ft, calls):
    calls.answer(PHASE, INFERENCE)
    ft.offload_from_state(Net(), json.loads(profile(["embed.weight"])), on())
    assert (
        calls.take("model_course")[0][-1].startswith("/")
        and ft.get_offload_manager().phase.name == "INFERENCE"
    )
    with pytest.raises(TypeError, match="mapping"):
        ft.offload_from_state(Net(), 3, on())


def test_instrumentation_is_dumped_when_the_plan_comes_into_force(ft, calls, tmp_path):
    proxy = ft.offload(Net(), on(enable_instrumentation=True, instrumentation_output_dir=tmp_path))
    assert not list(tmp_path.iterdir())
    calls.answer(PHASE, INFERENCE)
    proxy(X)
    (file,) = tmp_path.rglob("components.*.json")
    assert {"version", "components", "host", "report"} <= json.loads(file.read_text()).keys()


def test_switched_off_nothing_is_named(ft, calls):
    proxy = ft.offload(Net(), off())
    proxy(X)
    assert calls.take("model_begin", "pass_begin") == []
