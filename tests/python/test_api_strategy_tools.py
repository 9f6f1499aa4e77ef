"""What stands beside strategies: the interpolator, the block planner, operations on results, windows, tables. Neither torch
nor a GPU is needed."""

import logging

import pytest
from flextensor import diagnostics, strategy
from flextensor.collectors import LayerStatisticsCollector
from flextensor.memory_block_planner import MemoryBlockPlanner
from flextensor.memory_transfer_interpolator import (
    MemoryTransferInterpolator,
    create_interpolator_from_benchmarks,
)
from flextensor.strategy import LayerStatistics, TensorStatistics
from flextensor.strategy_operations import (
    create_allocation_ordered,
    find_transfers_for_preload,
    operations_to_csv_string,
    rearrange_transfers,
    remap_strategy,
    remove_layers_compound,
    strategy_has_transfer_gaps,
)
from test_api_strategies import LINK, MIB, eight


def planner(*sizes):
    return MemoryBlockPlanner({f"l{at}": size for at, size in enumerate(sizes)})


def test_times_between_and_beyond_the_points_follow_straight_lines_over_logarithms():
    times = create_interpolator_from_benchmarks({MIB: 2.0, 4 * MIB: 4.0})
    assert times.bytes_to_duration(2 * MIB) == pytest.approx(8**0.5)
    assert times.bytes_to_duration(16 * MIB) == pytest.approx(8.0)
    assert times.duration_to_bytes(8.0) == 16 * MIB
    assert times.duration_to_bytes(1.0) == MIB / 4
    assert times.get_bandwidth_mbps() == 1000.0


@pytest.mark.parametrize("wrong", [{}, {MIB: 0.0}, {0: 1.0}, {MIB: float("inf")}])
def test_points_that_say_nothing_are_refused(wrong):
    with pytest.raises(ValueError, match="memory_transfers"):
        MemoryTransferInterpolator(wrong)


@pytest.mark.parametrize("given", [0, -1, float("nan")])
def test_only_sizes_and_times_above_zero_have_an_answer(given):
    times = MemoryTransferInterpolator({MIB: 1.0})
    with pytest.raises(ValueError, match="size_bytes"):
        times.bytes_to_duration(given)
    with pytest.raises(ValueError, match="duration_ms"):
        times.duration_to_bytes(given)


def test_layers_that_follow_each_other_need_two_blocks():
    assert [planner(*[5] * n).find_minimum_blocks_sequential() for n in range(4)] == [0, 1, 2, 2]
    assert planner().find_minimum_blocks() == (0, {})
    assert planner(5, 6, 7).find_minimum_blocks() == (2, {0: ["l0", "l2"], 1: ["l1"]})
    assert planner(5, 6, 7).optimize_block_distribution(3) == {0: ["l0"], 1: ["l1"], 2: ["l2"]}
    assert planner(5).optimize_block_distribution(3) == {0: ["l0"]}
    with pytest.raises(ValueError, match="at least 2"):
        planner(5, 6).optimize_block_distribution(1)


def test_the_layers_of_a_block_together_keep_its_capacity():
    five = planner(10, 10, 1, 3, 9)
    assert five.allocate_blocks(3) == {0: ["l0", "l2", "l4"], 1: ["l1", "l3"], 2: []}
    assert five.find_minimum_blocks(12) == (4, {0: ["l0", "l2"], 1: ["l1"], 2: ["l3"], 3: ["l4"]})
    with pytest.raises(ValueError, match="5 layers do not go into 3 blocks of 12 bytes"):
        five.allocate_blocks(3, 12)
    with pytest.raises(ValueError, match="larger than block_capacity"):
        planner(10, 20).find_minimum_blocks(12)


def test_a_block_is_as_large_as_its_largest_layer():
    assert planner(10, 20, 30).find_minimum_block_sizes({0: ["l0", "l2"], 1: ["l1"], 2: []}) == {
        0: 30,
        1: 20,
        2: 0,
    }
    with pytest.raises(KeyError):
        planner(10).find_minimum_block_sizes({0: ["stranger"]})


def removed(operation):
    stats = [
        LayerStatistics(layer.label, layer.tensors, float(ms))
        for layer, ms in zip(eight(1.0), [3, 1, 4, 1, 5, 9, 2, 6], strict=True)
    ]
    before = strategy.GlobalOffloadStrategy().compute(stats, {MIB: 0.001}).strategy_map
    after = remove_layers_compound(before, stats, [operation])
    assert all(before[label] == tensors for label, tensors in after.items())
    return [int(label.removeprefix("layers.")) for label in before if label not in after]


@pytest.mark.parametrize(
    ("operation", "layers"),
    [
        ({"type": "single"}, [1]),
        ({"type": "single", "n": 3}, [3]),
        ({}, [1]),
        ({"type": "names", "values": ["layers.1", "stranger"]}, [1]),
        ({"type": "indices", "values": [0, 3, 99, -1]}, [0, 3]),
        ({"type": "every_nth", "n": 2}, [0, 2, 4, 6]),
        ({"type": "every_nth", "step": 3, "offset": 1}, [1, 4]),
        ({"type": "range", "n": 2, "offset": 3}, [3, 4]),
        ({"type": "first_n", "n": 2}, [0, 1]),
        ({"type": "last_n", "n": 2}, [6]),
        ({"type": "largest", "n": 2}, [0, 1]),
        ({"type": "smallest", "n": 2}, [0, 1]),
        ({"type": "by_duration", "n": 2}, [4, 5]),
        ({"type": "by_duration", "n": 2, "order": "asc"}, [1, 3]),
        ({"type": "by_size", "n": 2}, [0, 1]),
        ({"type": "by_size", "n": 1, "order": "asc"}, [0]),
    ],
)
def test_an_operation_takes_the_layers_that_it_names_out_of_a_result(operation, layers):
    assert removed(operation) == layers


def test_operations_measure_tensors_and_bytes():
    def tensor(number, size):
        return TensorStatistics(number, str(number), size, 0.0)

    result = {"a": [tensor(1, 9)], "b": [tensor(2, 1), tensor(3, 1)], "c": [tensor(4, 5)]}
    left = [
        set(remove_layers_compound(result, [], [{"type": kind, **more}]))
        for kind, more in [
            ("largest", {}),
            ("smallest", {}),
            ("by_size", {}),
            ("by_size", {"order": "asc"}),
        ]
    ]
    assert left == [{"a", "c"}, {"b", "c"}, {"b", "c"}, {"a", "c"}]


@pytest.mark.parametrize(
    ("operation", "named"),
    [
        ({"type": "everything"}, "everything"),
        ({"type": "first_n", "n": 0}, "n of an operation"),
        ({"type": "every_nth", "step": 0}, "step"),
        ({"type": "range", "offset": -1}, "offset"),
        ({"type": "names"}, "values"),
        ({"type": "indices", "values": ["a"]}, "values"),
    ],
)
def test_an_operation_that_is_not_allowed_says_what_is(operation, named):
    with pytest.raises(ValueError, match=named):
        removed(operation)


def test_operations_fit_in_one_line():
    operations = [{"type": "every_nth", "n": 2, "offset": 1}, {"type": "names", "values": ["a", "b"]}]
    assert operations_to_csv_string(operations) == "every_nth:n=2:offset=1;names:values=a,b"


def test_a_layer_that_could_copy_and_does_not_is_a_gap():
    stats = eight(3.0)
    whole = strategy.GlobalOffloadStrategy().compute(stats, LINK).strategy_map
    assert not strategy_has_transfer_gaps(whole, stats)
    assert not strategy_has_transfer_gaps({}, stats)
    assert strategy_has_transfer_gaps(remove_layers_compound(whole, stats, [{"type": "single"}]), stats)
    assert strategy.strategy_has_transfer_gaps is strategy_has_transfer_gaps


def test_transfers_move_into_gaps_but_not_into_a_block_that_is_read():
    stats = eight(3.0)
    readers = {"layers.0": 1, "layers.1": 2, "layers.2": 5, "layers.5": 6, "layers.6": 7}
    transfers = {label: f"layers.{reader}" for label, reader in readers.items()}
    blocks = {"layers.0": 0, "layers.1": 1, "layers.2": 0, "layers.5": 1, "layers.6": 0}
    moved, moved_blocks, renamed = rearrange_transfers(transfers, blocks, stats)
    assert moved == {**{k: v for k, v in transfers.items() if k != "layers.5"}, "layers.3": "layers.6"}
    assert moved_blocks["layers.3"] == 1
    assert renamed["layers.5"] == "layers.3" and renamed["layers.6"] == "layers.6"
    assert "layers.4" in rearrange_transfers(transfers, blocks, stats, 2)[0]
    with pytest.raises(ValueError, match="min_compute_transfer_gap"):
        rearrange_transfers(transfers, blocks, stats, 0)
    with pytest.raises(ValueError, match="gives no block"):
        rearrange_transfers(transfers, {}, stats)


def test_results_can_be_relabelled_and_ordered_by_block():
    stats = eight(3.0)
    data = strategy.KnapsackStrategy().compute(stats, LINK).block_data
    assert find_transfers_for_preload(data.transfer_to_compute_map, stats) == {"layers.7": "layers.0"}
    assert create_allocation_ordered(data.label_to_block_id, stats) == dict(
        sorted(data.allocation_ordered.items())
    )
    assert remap_strategy({"a": [], "b": []}, {"a": "c"}) == {"c": [], "b": []}
    assert remap_strategy(None, {}) == {}


def test_windows_span_what_they_say():
    sizes, durations = [0, 1, 0, 0, 1], [1.0, 2.0, 4.0, 8.0, 16.0]
    single, aware = strategy.SingleLayerWindow(), strategy.GapAwareWindow()
    assert [single.compute_window(at, sizes, durations) for at in range(5)] == [0, 1, 2, 4, 8]
    assert [aware.compute_window(at, sizes, durations) for at in range(5)] == [0, 1, 2, 6, 14]
    with pytest.raises(IndexError):
        aware.compute_window(5, sizes, durations)
    with pytest.raises(ValueError, match="every layer needs both"):
        aware.compute_window(0, sizes, [])


def test_samples_become_layers_with_medians():
    collector = LayerStatisticsCollector()
    collector.add_tensors("b", [2])
    collector.add_tensors("a", [1, 3])
    for ms in (5.0, 1.0, 2.0):
        collector.add_duration("a", ms)
    known = {number: TensorStatistics(number, str(number), 8, 0.1) for number in (1, 2)}
    assert collector.get_layer_stats(known) == [
        LayerStatistics("b", [known[2]], 0.0),
        LayerStatistics("a", [known[1]], 2.0),
    ]
    collector.clear_duration_measurements()
    assert collector.durations() == {"b": [], "a": []}


def test_the_tables_say_what_was_measured_and_decided(caplog):
    stats = eight(3.0)
    result = strategy.GlobalOffloadStrategy().compute(stats, LINK)
    with caplog.at_level(logging.INFO, "flextensor.diagnostics"):
        diagnostics.log_tables(stats, LINK, {"layers.0": [3.0, 5.0], "layers.1": []}, result, "Mine")
    transfers, durations, blocks = caplog.records
    assert [record.levelno for record in caplog.records] == [logging.INFO, logging.INFO, diagnostics.NOTICE]
    assert "64.00 MiB" in transfers.message and "26.21 GB/s" in transfers.message
    first, second = durations.message.splitlines()[-2:]
    assert all(
        text in first for text in ("layers.0", "3.000 ms", "5.000 ms", "4.000 ms", "1.414 ms", "35.4%")
    )
    assert "layers.1" in second and "0" in second
    assert blocks.message.startswith("Block Assignment: Mine")
    assert "block 1: 64.00 MiB, filled by layers.1, layers.3, layers.5" in blocks.message
    assert "streamed 448.00 MiB a pass, blocks 128.00 MiB" in blocks.message
