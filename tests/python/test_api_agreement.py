"""What any package of this interface does, on a machine without a GPU: these tests pass against ours and against
FlexTensor 0.5.0 (Python). They use nothing of ours but the documented names; where the two differ on purpose,
docs/decisions.md says so and test_api_manager.py holds ours.
"""

import contextlib
import copy
import logging
import threading

import pytest

torch = pytest.importorskip("torch", reason="needs the torch that tools/ci_torch.sh installs")
import flextensor as ft  # noqa: E402
from flextensor.offload_manager import OffloadPhase  # noqa: E402
from torch import nn  # noqa: E402


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(8, 4)
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(4))
        self.head = nn.LayerNorm(4)
        self.register_buffer("scale", torch.full((1,), 2.0))

    def forward(self, x):
        x = self.embed(x)
        for layer in self.layers:
            x = layer(x)
        return self.head(x) * self.scale


X = torch.tensor([[1, 2, 3]])


@pytest.fixture
def manager(request):
    """A manager's name that no other test has."""
    return request.node.nodeid


def off(**options):
    return ft.OffloadConfig(enabled=False, **options)


def names(pairs):
    return [name for name, _ in pairs]


@pytest.mark.parametrize(
    "options",
    [
        {"num_blocks": 2},
        {"num_blocks": 1},
        {"min_blocks": 5},
        {"max_gpu_mem_fraction": 0.0},
        {"max_gpu_mem_fraction": 1.01},
        {"transfer_budget_scale": 0.0},
        {"gpu_device": -1},
        {"discovery_iters": -1},
        {"shm_wait_timeout": -1.0},
        {"profile_mode": "torch_function"},
        {"profile_mode": "no_such_mode"},
        {"pinned_memory_mode": "no_such_mode"},
        {"offload_timing": "eager", "transfer_mode": "strategy"},
        {"external_compile": True, "transfer_mode": "strategy"},
        {"shm_enabled": True},
        {"shm_enabled": True, "shm_namespace": "  "},
        {"include_patterns": ["a", ""]},
        {"include_patterns": ["class:"]},
        {"exclude_patterns": ["klass:A"]},
        {"warmup_iters": 3},
        {"release_tensors": True},
        {"load_strategy": 3},
    ],
)
def test_checks_2_to_8_a_configuration_that_cannot_be_is_a_value_error(options):
    with pytest.raises(ValueError):
        ft.OffloadConfig(**options)


def test_checks_2_to_6_a_configuration_that_can_be_is_taken():
    assert ft.OffloadConfig(num_blocks=2, min_blocks=2).min_blocks == 2
    assert ft.OffloadConfig(max_gpu_mem_fraction=1.0, profiling_iters=0).max_gpu_mem_fraction == 1.0
    assert ft.OffloadConfig(profile_mode="torch_function", transfer_mode="strategy").num_blocks == 4
    assert ft.OffloadConfig(shm_enabled=True, shm_namespace="run").shm_namespace == "run"
    assert ft.OffloadConfig(include_patterns=[" layers.* "]).include_patterns == ["layers.*"]


def test_check_16_phases_advance_by_forwards(manager):
    model = Net().eval()
    expected = model(X)
    proxy = ft.offload(model, off(discovery_iters=2, profiling_iters=3), name=manager)
    seen = []
    for _ in range(5):
        assert torch.equal(proxy(X), expected)
        seen.append(ft.get_offload_manager(manager).phase.name)
    assert seen == ["DISCOVERY", "PROFILING", "PROFILING", "PROFILING", "INFERENCE"]
    proxy(X)
    assert ft.get_offload_manager(manager).phase is OffloadPhase.INFERENCE


@pytest.mark.parametrize(("iterations", "forwards"), [((0, 0), 2), ((1, 10), 11), ((2, 3), 5)])
def test_check_17_forwards_before_inference(manager, iterations, forwards):
    config = off(discovery_iters=iterations[0], profiling_iters=iterations[1])
    ft.init(config, name=manager)
    om = ft.get_offload_manager(manager)
    assert om.iters_before_inference == forwards and om.phase is OffloadPhase.NOT_INITIALIZED
    ft.offload(Net(), config, name=manager)
    assert om.iters_before_inference == forwards and om.phase is OffloadPhase.DISCOVERY


def test_skipping_discovery_begins_with_profiling_where_there_are_units(manager):
    ft.offload(Net(), off(skip_discovery=True), name=manager)
    om = ft.get_offload_manager(manager)
    assert (om.phase, om.skip_discovery_honored, om.iters_before_inference) == (
        OffloadPhase.PROFILING,
        True,
        10,
    )
    with pytest.raises(RuntimeError):
        ft.offload_block("a", manager)
    none = manager + " without units"
    ft.offload(Net(), off(skip_discovery=True, include_patterns=["nope"]), name=none)
    om = ft.get_offload_manager(none)
    assert (om.phase, om.skip_discovery_honored) == (OffloadPhase.DISCOVERY, False)
    with ft.offload_block("a", none):
        pass


def test_compiling_is_counted_before_inference(manager):
    ft.offload(Net(), off(), name=manager, compile_fn=lambda unit: unit)
    om = ft.get_offload_manager(manager)
    assert om.iters_before_inference == 14 and om.compiled_offload_active and not om.external_compile_active
    seeds = manager + " by the program"
    ft.offload(Net(), off(external_compile=True), name=seeds)
    assert ft.get_offload_manager(seeds).iters_before_inference == 4
    assert ft.get_offload_manager(seeds).external_compile_active


def test_check_18_the_proxy_is_the_model(manager):
    model = Net()
    proxy = ft.offload(model, off(), name=manager)
    assert isinstance(proxy, Net) and isinstance(proxy, nn.Module) and proxy.__class__ is Net
    assert list(proxy.state_dict()) == list(model.state_dict())
    assert [n for n, _ in proxy.named_modules()] == [n for n, _ in model.named_modules()]
    assert proxy.train() is model and model.training and not proxy.eval().training
    proxy.note = 3
    assert model.note == 3
    del proxy.note
    assert not hasattr(model, "note")
    assert type(copy.deepcopy(proxy)) is Net and type(copy.copy(proxy)) is Net
    assert proxy == model and hash(proxy) == hash(model)

    class Parent(nn.Module):
        def __init__(self):
            super().__init__()
            self.child = proxy

        def forward(self, x):
            return self.child(x)

    parent = Parent()
    assert "child.embed.weight" in parent.state_dict() and torch.equal(parent(X), model(X))


def test_check_19_memory_usage_is_known_in_inference_only(manager):
    proxy = ft.offload(Net(), off(profiling_iters=1), name=manager)
    with pytest.raises(RuntimeError, match=r"(?i)discovery"):
        ft.get_gpu_memory_usage(manager)
    proxy(X), proxy(X)
    usage = ft.get_gpu_memory_usage(manager)
    assert (usage.blocks_bytes, usage.unmapped_tensors_bytes, usage.total_bytes) == (0, 0, 0)
    assert (usage.blocks_mb, usage.unmapped_tensors_mb, usage.total_mb) == (0, 0, 0)


def test_check_20_a_manager_belongs_to_one_thread(manager):
    om = ft.get_offload_manager(manager)
    assert ft.get_offload_manager(manager) is om
    raised = []

    def elsewhere():
        try:
            ft.get_offload_manager(manager)
        except RuntimeError as error:
            raised.append(str(error))
        ft.get_offload_manager(manager + " of a thread")

    thread = threading.Thread(target=elsewhere)
    thread.start()
    thread.join()
    assert len(raised) == 1 and "thread" in raised[0]
    with pytest.raises(RuntimeError, match="belongs to thread"):
        ft.get_offload_manager(manager + " of a thread")


def test_check_21_a_compiled_model_is_refused(manager):
    with pytest.raises(RuntimeError, match="compile"):
        ft.offload(torch.compile(Net()), off(), name=manager)


def test_check_22_what_offload_took_once_only_warns(manager):
    ft.offload(Net(), off(), name=manager)
    with pytest.warns(UserWarning, match="max_gpu_mem_fraction, num_blocks"):
        ft.set_config(off(num_blocks=6, max_gpu_mem_fraction=0.5), name=manager)
    with pytest.raises(RuntimeError, match="skip_discovery"):
        ft.set_config(off(skip_discovery=True), name=manager)


def test_check_23_release_is_harmless_before_and_after(manager):
    ft.release(manager)
    model = Net().eval()
    before = {name: value.clone() for name, value in model.state_dict().items()}
    expected = model(X)
    proxy = ft.offload(model, off(profiling_iters=1), name=manager)
    for _ in range(3):
        proxy(X)
    ft.release(manager)
    ft.release(manager)
    om = ft.get_offload_manager(manager)
    assert om.phase is OffloadPhase.NOT_INITIALIZED and om.model is None
    assert torch.equal(model(X), expected)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    with pytest.raises(RuntimeError):
        proxy(X)
    with pytest.raises(RuntimeError, match=r"(?i)not_initialized"):
        ft.get_gpu_memory_usage(manager)


def test_check_24_what_needs_a_model_is_refused_before_offload(manager):
    for call in [
        lambda: ft.offload_block("a", manager),
        lambda: ft.save_profile("/nonexistent", manager),
        lambda: ft.suspend_profiling(manager),
        lambda: ft.resume_profiling(manager),
        lambda: ft.clear_profiling_durations(manager),
    ]:
        with pytest.raises(RuntimeError):
            call()
    assert ft.offload_units(manager) == () and ft.resident_units(manager) == ()
    assert ft.collect_offload_timing(manager) is None and ft.update_offload_timing(manager) is False
    ft.update_state(manager)
    status = ft.get_offload_manager(manager).strategy_replan_status
    assert (status.state, status.can_request, status.applied) == ("idle", False, None)


LAYERS = [f"layers.{index}" for index in range(4)]


@pytest.mark.parametrize(
    ("include", "exclude", "units", "residents"),
    [
        (["*"], [], ["embed", "layers", "head"], []),
        (["layers.*"], [], LAYERS, ["embed", "head"]),
        (["layers.*"], ["layers.0"], LAYERS[1:], ["embed", "layers.0", "head"]),
        (["class:Linear"], [], LAYERS, ["embed", "head"]),
        (["class:torch.nn.*.Linear"], [], LAYERS, ["embed", "head"]),
        (["layers.*.weight"], [], LAYERS, ["embed", "head"]),
        (["nope"], [], [], ["embed", *LAYERS, "head"]),
        (["*"], ["*"], [], ["embed", *LAYERS, "head"]),
        (["*.weight"], [], ["embed", *LAYERS, "head"], []),
    ],
)
def test_check_25_patterns_select_units_and_the_rest_is_resident(manager, include, exclude, units, residents):
    model = Net()
    ft.offload(model, off(include_patterns=include, exclude_patterns=exclude), name=manager)
    assert names(ft.offload_units(manager)) == units
    assert names(ft.resident_units(manager)) == residents
    assert all(module is model.get_submodule(name) for name, module in ft.offload_units(manager))


def test_what_a_unit_holds_is_resident_nowhere_else(manager):
    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(nn.Sequential(nn.Linear(4, 4), nn.ReLU()) for _ in range(2))
            self.twice = nn.Sequential(self.layers[0], nn.Tanh())
            self.once = nn.Linear(4, 4)

        def forward(self, x):
            return self.once(self.twice(x))

    ft.offload(Shared(), off(include_patterns=["layers.*"]), name=manager)
    assert names(ft.offload_units(manager)) == ["layers.0", "layers.1"]
    assert names(ft.resident_units(manager)) == ["twice.1", "once"]


def test_patterns_that_match_nothing_are_said(manager, caplog):
    with caplog.at_level(logging.WARNING):
        ft.offload(Net(), off(include_patterns=["nope"]), name=manager)
    assert "nope" in caplog.text
    with caplog.at_level(logging.WARNING):
        ft.offload(Net(), off(exclude_patterns=["*"]), name=manager + " all out")
    assert "exclude_patterns" in caplog.text


def test_check_27_switched_off_profiling_control_does_nothing(manager):
    proxy = ft.offload(Net(), off(profiling_iters=2), name=manager)
    om = ft.get_offload_manager(manager)
    ft.resume_profiling(manager)
    ft.suspend_profiling(manager)
    ft.clear_profiling_durations(manager)
    with ft.pause_profiling(manager):
        for _ in range(om.iters_before_inference):
            proxy(X)
    assert om.phase is OffloadPhase.INFERENCE


def test_check_33_a_read_only_profile_is_not_saved_and_switched_off_nothing_is_read(manager, tmp_path):
    ft.offload(Net(), off(profile_read_only=True), name=manager)
    with pytest.raises(ValueError):
        ft.save_profile(str(tmp_path), manager)
    writable = manager + " writable"
    ft.offload(Net(), off(), name=writable)
    with pytest.raises(ValueError):
        ft.save_profile(name=writable)
    ft.save_profile(str(tmp_path / "none"), writable)
    assert not (tmp_path / "none").exists()
    ft.offload_from_profile(Net(), str(tmp_path / "missing"), off(), name=manager + " from")
    assert ft.get_offload_manager(manager + " from").phase is OffloadPhase.DISCOVERY


def test_pinned_memory_needs_a_gpu(manager):
    with pytest.raises(RuntimeError, match="pinned_memory"):
        ft.offload(Net(), ft.OffloadConfig(), name=manager)


def test_a_replan_that_cannot_be_is_ignored(manager):
    ft.offload(Net(), off(), name=manager)
    assert ft.request_strategy_replan(manager) == 0
    assert ft.request_strategy_replan(manager, manual_update_state=True) == 0


def test_update_state_advances_by_hand(manager):
    ft.offload(Net(), off(discovery_iters=1, profiling_iters=2), name=manager)
    seen = []
    for _ in range(3):
        ft.update_state(manager)
        seen.append(ft.get_offload_manager(manager).phase.value)
    assert seen == ["profiling", "profiling", "inference"]


def test_timing_records_add_up_and_the_table_marks_waits():
    from flextensor.offload_timing import OffloadTimingSnapshot, TrapTimingRecord

    snapshot = OffloadTimingSnapshot(
        [TrapTimingRecord("layers.0", 1.0, 2.0, 0.0), TrapTimingRecord("layers.1", 1.5, 2.0, 0.5)]
    )
    assert (snapshot.total_transfer_ms, snapshot.total_compute_ms, snapshot.total_wait_ms) == (2.5, 4.0, 0.5)
    lines = ft.format_offload_timing_table(snapshot).splitlines()
    assert [line.startswith("layers") and "←" in line for line in lines].count(True) == 1
    assert lines[-2].split() == ["Total", "4.000", "2.500", "0.500"]


def test_a_model_can_be_offloaded_again_after_release(manager):
    model = Net()
    with contextlib.ExitStack() as stack:
        stack.callback(ft.release, manager)
        ft.offload(model, off(), name=manager)
        ft.release(manager)
        proxy = ft.offload(model, off(), name=manager)
        proxy(X)
        assert ft.get_offload_manager(manager).phase is OffloadPhase.PROFILING


def test_errors_of_shared_sessions_say_whose_they_are():
    assert issubclass(ft.ShmCoordinatorError, RuntimeError)
    failed, died = ft.ShmCreatorFailedError("run", "no memory"), ft.ShmCreatorDiedError("run", 7)
    assert isinstance(failed, ft.ShmCoordinatorError) and "no memory" in str(failed)
    assert isinstance(died, ft.ShmCoordinatorError) and died.creator_identity == 7


def test_every_documented_name_is_there():
    documented = """
        DEFAULT_MANAGER_NAME OffloadConfig OffloadManager GPUMemoryUsage StrategyReplanStatus OffloadTimingReport
        OffloadTimingSnapshot TensorManager Strategy BenchmarkReplace PreloadToDevice
        TensorBenchmarkMode PinnedMemoryMode init offload set_config save_profile load_profile offload_from_profile
        offload_from_state offload_block release get_gpu_memory_usage reset_offload_timing collect_offload_timing
        update_offload_timing offload_units resident_units request_strategy_replan update_state
        clear_profiling_durations suspend_profiling resume_profiling pause_profiling get_offload_manager load_config
        load_config_from_file load_config_from_env load_model_from_profile format_offload_timing_table
    """
    assert [name for name in documented.split() if not hasattr(ft, name)] == []
