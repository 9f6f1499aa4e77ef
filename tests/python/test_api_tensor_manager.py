"""TensorManager on the CPU, where everything is in place: labels, times, decisions, and what is refused. No GPU is
needed; what moves on one is tried by tests/gpu."""

import logging
import os

import pytest

torch = pytest.importorskip("torch", reason="needs the torch that tools/ci_torch.sh installs")
from flextensor import strategy  # noqa: E402
from flextensor.model_tensors import ModelDict  # noqa: E402
from layered_model import WIDTH, AllButFirst, forward, learn, manager, run, seeded  # noqa: E402
from torch import nn  # noqa: E402


@pytest.fixture
def model():
    return seeded()


def test_a_model_is_learnt_and_the_strategy_asked(model):
    way = AllButFirst()
    tm = manager(way)
    assert tm.get_memory_transfer_stats() is None
    learn(tm, model)
    ((stats, memory_stats, budget),) = way.asked
    assert [stat.label for stat in stats] == [f"layers.{at}" for at in range(4)]
    assert {tensor.name for tensor in stats[1].tensors} == {
        "layers.1.up.weight",
        "layers.1.up.bias",
        "layers.1.down.weight",
    }
    assert all(stat.duration > 0 for stat in stats) and budget is None
    assert all(tensor.load_time_ms > 0 for tensor in stats[0].tensors)
    largest = sum(tensor.size_bytes for tensor in stats[0].tensors)
    assert sorted(memory_stats, reverse=True) == [largest >> depth for depth in range(4)]
    assert tm.get_memory_transfer_stats() == memory_stats
    assert tm.model is None, "let go of"


def test_outputs_are_the_same_in_every_phase(model):
    expected = model.head(run(model))
    tm = manager()
    tm.set_model(model)
    tm.initialize_warmup()
    outputs = [forward(tm, model)]
    tm.initialize_profile()
    outputs.append(forward(tm, model))
    tm.initialize_inference()
    outputs += [forward(tm, model) for _ in range(3)]
    assert all(torch.equal(output, expected) for output in outputs)


def test_the_state_says_what_is_streamed_and_what_stays(model):
    state = learn(manager(), model).export_state()
    assert state.transfer_to_compute_map == {f"layers.{at}": f"layers.{at + 1}" for at in range(3)}
    assert state.managed_names() == {
        f"layers.{at}.{name}" for at in (1, 2, 3) for name in ("up.weight", "up.bias", "down.weight")
    }
    assert set(state.gpu_tensors_names) == {
        "embed.weight",
        "scale",
        "layers.0.up.weight",
        "layers.0.up.bias",
        "layers.0.down.weight",
    }
    assert state.release_strategy == {
        state.transfer_to_compute_map[label]: tensors for label, tensors in state.load_strategy.items()
    }
    assert state.managed_tensor_dtypes["layers.1.up.weight"] == "float32"
    assert state.managed_tensor_layouts["layers.1.up.weight"] == {
        "shape": [WIDTH, WIDTH],
        "stride": [WIDTH, 1],
    }
    assert len(state.block_sizes) == 2, "a result without blocks gets two that take turns"


def test_patterns_say_what_may_be_streamed(model):
    tm = learn(manager(include_patterns=["layers.*.weight"], exclude_patterns=["layers.2"]), model)
    managed = tm.export_state().managed_names()
    assert managed == {f"layers.{at}.{name}.weight" for at in (1, 3) for name in ("up", "down")}


def test_layers_can_be_taken_out_of_the_result(model):
    tm = learn(manager(remove_layers_operations=[{"type": "names", "values": ["layers.1"]}]), model)
    state = tm.export_state()
    assert set(state.transfer_to_compute_map.values()) == {"layers.1", "layers.3"}
    assert "layers.2.up.weight" in state.gpu_tensors_names
    assert sorted(label for labels in state.allocation_ordered.values() for label in labels) == sorted(
        state.load_strategy
    )


def test_transfers_move_into_gaps(model):
    # A label without weights that may be streamed comes between two that have some.
    tm = manager(include_patterns=["layers.0", "layers.1", "layers.3"])
    state = learn(tm, model).export_state()
    assert [len(stat.tensors) for stat in state.stats] == [3, 3, 0, 3]
    assert state.transfer_to_compute_map == {"layers.0": "layers.1", "layers.1": "layers.3"}


def test_a_kernel_that_no_operation_shows_still_uses_its_modules_weights(model):
    class Silent(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.ones(WIDTH))

        def forward(self, x):
            return x  # read by something that torch does not see

    model.layers[2] = Silent()
    found = learn(manager(), model).export_state().stats[2]
    assert [tensor.name for tensor in found.tensors] == ["layers.2.weight"]
    tm = manager(_enable_untraced_tensor_discovery=False)
    tm.set_model(model)
    tm.initialize_warmup()
    forward(tm, model)
    assert not tm.collector.get_layer_stats({})[2].tensors


def test_a_trap_around_several_modules_is_known_by_what_operations_use(model):
    way = AllButFirst()
    tm = manager(way)
    tm.set_model(model)

    def halves():
        with torch.no_grad():
            x = model.embed(torch.zeros(1, 3, dtype=torch.long))
            for half in (0, 1):
                with tm.trap(f"half {half}"):
                    x = model.layers[2 * half + 1](model.layers[2 * half](x))

    tm.initialize_warmup()
    halves()
    tm.initialize_profile()
    halves()
    tm.initialize_inference()
    assert [len(stat.tensors) for stat in way.asked[0][0]] == [6, 6]


def test_a_dictionary_can_be_a_model(model):
    parts = {"first": model.layers[0], "second": model.layers[1], "bias": torch.ones(3)}
    for given in (parts, ModelDict(parts)):
        tm = manager(include_patterns=["first", "second"])
        tm.set_model(given)
        for begin in (tm.initialize_warmup, tm.initialize_profile):
            begin()
            for name in ("first", "second"):
                with tm.trap(name):
                    given[name](torch.zeros(1, WIDTH))
        tm.initialize_inference()
        assert tm.export_state().managed_names() == {
            "second.up.weight",
            "second.up.bias",
            "second.down.weight",
        }
    with pytest.raises(TypeError, match="int"):
        manager().set_model(5)


def test_traps_do_not_nest_while_a_model_is_learnt(model):
    tm = manager()
    with pytest.raises(RuntimeError, match="initialize_warmup"):
        tm.trap("layers.0")
    tm.set_model(model)
    for begin in (tm.initialize_warmup, tm.initialize_profile):
        begin()
        with pytest.raises(RuntimeError, match="'b' is entered inside trap 'a'"), tm.trap("a"), tm.trap("b"):
            pass
        with tm.trap("a"):
            pass
    forward(tm, model)
    tm.initialize_inference()
    with tm.trap("a"), tm.trap("b"):
        pass


def test_an_exception_inside_a_trap_is_logged_with_where_it_was(model, caplog):
    tm = manager()
    tm.set_model(model)
    tm.initialize_warmup()
    with caplog.at_level(logging.ERROR, "flextensor"), pytest.raises(ZeroDivisionError), tm.trap("layers.1"):
        _ = 1 / 0
    assert "'layers.1'" in caplog.text and "phase discovery" in caplog.text
    assert f"pid {os.getpid()}" in caplog.text
    with tm.trap("layers.1"):
        pass
    assert tm.collector.durations() == {"layers.1": []}, "only the pass that returned counts"


def test_phases_come_in_their_order(model):
    tm = manager()
    for early in (tm.initialize_warmup, tm.initialize_profile, tm.initialize_inference):
        with pytest.raises(RuntimeError, match="set_model"):
            early()
    tm.set_model(model)
    with pytest.raises(RuntimeError, match="discovery comes first"):
        tm.initialize_profile()
    tm.initialize_warmup()
    with pytest.raises(RuntimeError, match="profiling comes first"):
        tm.initialize_inference()
    with pytest.raises(RuntimeError, match="initialize_inference"):
        tm.get_gpu_memory_usage()
    with pytest.raises(RuntimeError, match="export_state"):
        tm.export_state()
    with pytest.raises(RuntimeError, match="save_profile"):
        tm.save_profile("nowhere")


def test_suspended_passes_record_no_times(model):
    tm = manager()
    tm.set_model(model)
    tm.initialize_warmup()
    tm.suspend_profiling()
    forward(tm, model)
    assert set(tm.collector.durations()) == {f"layers.{at}" for at in range(4)}, "discovery goes on"
    tm.initialize_profile()
    with tm.pause_profiling():
        assert tm.is_profiling_suspended()
        forward(tm, model)
    forward(tm, model)
    assert not any(tm.collector.durations().values()), "one suspension is left"
    tm.resume_profiling()
    forward(tm, model)
    assert [len(samples) for samples in tm.collector.durations().values()] == [1] * 4
    tm.suspend_profiling()
    tm.clear_profiling_durations()
    assert tm.is_profiling_suspended() and not any(tm.collector.durations().values())
    tm.resume_profiling()
    with pytest.raises(RuntimeError, match="suspend_profiling"):
        tm.resume_profiling()


def test_labels_that_were_never_timed_stay_with_a_warning(model, caplog):
    tm = manager()
    tm.set_model(model)
    tm.initialize_warmup()
    forward(tm, model)
    with tm.trap("layers.9"):
        pass
    tm.initialize_profile()
    forward(tm, model)
    tm.initialize_inference()
    assert "never timed" in caplog.text and "layers.9" in caplog.text
    assert "fewer than 3 samples" in caplog.text
    assert [stat.label for stat in tm.export_state().stats] == [f"layers.{at}" for at in range(4)]


def test_diagnostics_log_the_three_tables(model, caplog):
    with caplog.at_level(logging.INFO, "flextensor.diagnostics"):
        learn(manager(enable_diagnostics=True), model)
    titles = [
        record.message.splitlines()[0] for record in caplog.records if record.name.endswith("diagnostics")
    ]
    assert titles == [
        "Memory Transfer Statistics",
        "Trap Duration Statistics",
        "Block Assignment: AllButFirst",
    ]


@pytest.mark.parametrize(
    ("options", "error", "named"),
    [
        ({"loader_type": "shelf"}, ValueError, "allocation_block_transfer"),
        ({"profile_mode": "glance"}, ValueError, "getter"),
        ({"profile_mode": "torch_function"}, ValueError, "'strategy'"),
        ({"_direct_mode": False}, ValueError, "_direct_mode"),
        ({"_use_trace_tensor": True}, ValueError, "_use_trace_tensor"),
        ({"_offload_timing": "eager"}, ValueError, "_offload_timing"),
        ({"_piecewise_prefetch": "maybe"}, ValueError, "_piecewise_prefetch"),
        ({"blocks": 1}, ValueError, "blocks"),
        ({"max_gpu_mem_fraction": 1.01}, ValueError, "max_gpu_mem_fraction"),
        ({"max_gpu_mem_fraction": 0}, ValueError, "max_gpu_mem_fraction"),
        ({"pinned_memory": True}, RuntimeError, "pinned_memory=False"),
        ({"pinned_memory_mode": "elsewhere"}, ValueError, "host_register"),
        ({"remove_layers_operations": [{"type": "all"}]}, ValueError, "'all'"),
        ({"use_shm": True}, NotImplementedError, "use_shm"),
        ({"way": object()}, TypeError, "compute"),
    ],
)
def test_arguments_that_are_not_allowed_are_refused(options, error, named):
    with pytest.raises(error, match=named):
        manager(**options)


def test_torch_function_goes_with_the_strategy_loader(model):
    tm = learn(manager(loader_type="strategy", profile_mode="torch_function"), model)
    assert tm.export_state().loader_type == "strategy"


def test_a_strategy_that_answers_nonsense_is_named(model):
    class Nonsense:
        def compute(self, layer_stats, memory_stats=None, max_gpu_mem_bytes=None):
            return {"layers.0": []}

    with pytest.raises(TypeError, match=r"Nonsense.compute returned dict"):
        learn(manager(Nonsense()), model)


def test_a_budget_is_a_part_of_a_gpu(model):
    with pytest.raises(RuntimeError, match="device_gpu is cpu"):
        learn(manager(max_gpu_mem_fraction=0.5, profile_mode="getter"), model)


def test_view_needs_the_largest_label_and_what_labels_share(model, monkeypatch):
    tm = manager(max_gpu_mem_fraction=0.5)
    tm.set_model(model)
    tm.initialize_warmup()
    forward(tm, model)
    one = 4 * (2 * WIDTH * WIDTH + WIDTH)
    assert tm.view_buffer_bytes() == one
    with tm.trap("layers.0"):
        model.layers[1].up(torch.zeros(1, WIDTH))
    up = 4 * (WIDTH * WIDTH + WIDTH)
    assert tm.view_buffer_bytes() == one + up
    monkeypatch.setattr(tm, "_budget", lambda: one + up - 1)
    with pytest.raises(ValueError, match="getter"):
        tm.initialize_profile()
    monkeypatch.setattr(tm, "_budget", lambda: one + up)
    tm.initialize_profile()


def test_measured_tensors_count_where_a_copy_s_time_is_needed(model):
    way = AllButFirst()
    tm = manager(way)
    tm.set_model(model)
    with tm.benchmark_context(iterations=2) as mode:
        model.to(torch.bfloat16)
    results = mode.get_results()
    (expected,) = (
        found.load_time_ms
        for number, found in results["tensor_statistics_map"].items()
        if results["tensors_map"][number].data_ptr() == model.layers[1].up.weight.data_ptr()
    )
    tm.initialize_warmup()
    forward(tm, model)
    tm.initialize_profile()
    forward(tm, model)
    tm.initialize_inference()
    found = {tensor.name: tensor for tensor in way.asked[0][0][1].tensors}
    assert found["layers.1.up.weight"].load_time_ms == round(expected, 6)
    tm.release_memory()
    assert not tm.tensors_map


def test_shutdown_ends_and_may_be_repeated(model):
    tm = learn(manager(), model)
    tm.shutdown()
    tm.shutdown()
    with pytest.raises(RuntimeError, match="export_state"):
        tm.export_state()
    learn(tm, model)


def test_other_times_lead_to_another_decision(model):
    class Longest:
        """Streams the layer behind the one that computes longest."""

        def compute(self, layer_stats, memory_stats=None, max_gpu_mem_bytes=None):
            at = max(range(len(layer_stats) - 1), key=lambda at: layer_stats[at].duration)
            return strategy.StrategyResult({layer_stats[at].label: layer_stats[at + 1].tensors})

    tm = manager(Longest())
    assert not tm.replan_from_compiled_durations({"layers.1": 1e6}, model)
    learn(tm, model)
    for at in (1, 2):
        assert tm.replan_from_compiled_durations({f"layers.{at}": 1e6 * at}, model)
        assert tm.export_state().transfer_to_compute_map == {f"layers.{at}": f"layers.{at + 1}"}
