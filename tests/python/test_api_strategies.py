"""Strategies as Python classes over core: results, errors and warnings, and the reference cases. Neither torch nor a GPU
is needed."""

import subprocess
import sys
import warnings

import pytest
from conftest import PACKAGE
from flextensor import strategy
from flextensor.memory_transfer_interpolator import MemoryTransferInterpolator
from flextensor.strategy import LayerStatistics, TensorStatistics

MIB, GIB = 1 << 20, 1 << 30
# 25 GiB/s, nearly: the synthetic link of the reference cases.
LINK = {size * MIB: size * 0.04 for size in (8, 64, 256)}
BUDGET_FILLS = (
    strategy.BudgetFillStrategy,
    strategy.BudgetFillGreedyStrategy,
    strategy.BudgetFillLayerDEStrategy,
    strategy.BudgetFillTensorDEStrategy,
)
OTHERS = (
    strategy.KnapsackStrategy,
    strategy.KnapsackBlockStrategy,
    strategy.AdaptiveKnapsackStrategy,
    strategy.GreedyStrategy,
    lambda: strategy.NthLayerStrategy(2),
    strategy.GlobalOffloadStrategy,
    lambda: strategy.GlobalTensorSelectionStrategy(pop_size=6, epoch=8),
    strategy.AdaptiveStrategy,
)


def layers(durations, sizes):
    """Layers that each have tensors of `sizes` bytes."""
    numbers = iter(range(len(durations) * len(sizes)))
    return [
        LayerStatistics(
            f"layers.{at}",
            [
                TensorStatistics(next(numbers), f"layers.{at}.{part}.weight", size, size / MIB * 0.04)
                for part, size in enumerate(sizes)
            ],
            duration,
        )
        for at, duration in enumerate(durations)
    ]


def eight(duration):
    """Cases A to G of the reference: eight layers of two tensors of 32 MiB."""
    return layers([duration] * 8, [32 * MIB] * 2)


CASE_H = layers([1.0, 1.5, 2.0, 2.5, 3.0, 3.5], [40 * MIB, 20 * MIB, 10 * MIB, 5 * MIB, 50 * 1024])


def score(way, stats, budget_mib=None, link=LINK):
    """What a strategy's result costs, judged from the result alone; and the result."""
    budget = None if budget_mib is None else int(budget_mib * MIB)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        result = way.compute(stats, link, budget)
    check_result(result, stats)
    interpolator = MemoryTransferInterpolator(link)
    return strategy.evaluate_strategy_result(result, stats, "it", interpolator, budget), result


def check_result(result, stats):
    """The parts of a result agree with each other and with the layers."""
    position = {layer.label: at for at, layer in enumerate(stats)}
    home = {tensor.tensor_id: layer.label for layer in stats for tensor in layer.tensors}
    data = result.block_data
    assert data is not None
    assert (
        set(result.strategy_map)
        == set(data.label_to_size_map)
        == set(data.label_to_block_id)
        == set(data.transfer_to_compute_map)
    )
    readers = list(data.transfer_to_compute_map.values())
    assert len(set(readers)) == len(readers)
    for label, tensors in result.strategy_map.items():
        reader = data.transfer_to_compute_map[label]
        assert tensors and {home[tensor.tensor_id] for tensor in tensors} == {reader}
        assert position[label] < position[reader] or position[reader] == 0
        assert data.label_to_size_map[label] == sum(tensor.size_bytes for tensor in tensors)
        assert data.block_sizes[data.label_to_block_id[label]] >= data.label_to_size_map[label]
    ordered = {block: labels for block, labels in data.allocation_ordered.items() if labels}
    assert {label: block for block, labels in ordered.items() for label in labels} == data.label_to_block_id
    assert all(labels == sorted(labels, key=position.get) for labels in ordered.values())


def no_worse(found, overhead, mib):
    """Valid, and no worse than (overhead, peak)."""
    assert found.is_valid and found.consecutive_violations == 0, found
    assert found.estimated_overhead <= overhead + 6e-4 * max(overhead, 1), found
    if found.estimated_overhead > overhead - 6e-4 * max(overhead, 1):
        assert found.peak_memory_bytes <= mib * MIB * 1.002, found


TWO_TO_FOUR = {"min_blocks": 2, "max_blocks": 4}


@pytest.mark.parametrize(
    ("case", "stats", "budget", "way", "overhead", "mib"),
    [
        ("A", eight(3.0), None, strategy.KnapsackBlockStrategy(), 0, 320),
        ("A", eight(3.0), None, strategy.GlobalOffloadStrategy(**TWO_TO_FOUR), 0, 192),
        ("A", eight(3.0), None, strategy.AdaptiveStrategy(min_blocks=2), 0, 192),
        ("A", eight(3.0), None, strategy.AdaptiveStrategy(min_blocks=4), 0, 320),
        ("C", eight(0.5), None, strategy.KnapsackBlockStrategy(), 0, 512),
        ("C", eight(0.5), None, strategy.GlobalOffloadStrategy(**TWO_TO_FOUR), 0, 512),
        ("C", eight(0.5), None, strategy.AdaptiveStrategy(min_blocks=2), 0, 512),
        ("D", eight(1.0), 256, strategy.GlobalOffloadStrategy(**TWO_TO_FOUR), 1.365, 192),
        ("D", eight(1.0), 256, strategy.AdaptiveStrategy(min_blocks=2), 1.17, 256),
        ("E", eight(1.5), 384, strategy.KnapsackBlockStrategy(), 0.618, 320),
        ("E", eight(1.5), 384, strategy.GlobalOffloadStrategy(**TWO_TO_FOUR), 0, 352),
        ("E", eight(1.5), 384, strategy.BudgetFillStrategy(n_blocks=4), 0.177, 384),
        ("E", eight(1.5), 384, strategy.BudgetFillGreedyStrategy(n_blocks=4), 0.177, 384),
        ("E", eight(1.5), 384, strategy.BudgetFillLayerDEStrategy(n_blocks=4), 0.177, 384),
        ("E", eight(1.5), 384, strategy.BudgetFillTensorDEStrategy(n_blocks=4), 0.177, 384),
        ("E", eight(1.5), 384, strategy.AdaptiveStrategy(min_blocks=2), 0, 352),
        ("F", eight(1.0), 1024, strategy.KnapsackBlockStrategy(), 0, 512),
        ("F", eight(1.0), 1024, strategy.GlobalOffloadStrategy(**TWO_TO_FOUR), 0, 512),
        ("F", eight(1.0), 1024, strategy.BudgetFillStrategy(n_blocks=4), 0, 512),
        ("F", eight(1.0), 1024, strategy.AdaptiveStrategy(min_blocks=2), 0, 512),
        ("H", CASE_H, None, strategy.KnapsackBlockStrategy(), 0, 425.3),
        ("H", CASE_H, None, strategy.GlobalOffloadStrategy(**TWO_TO_FOUR), 0, 345.3),
        ("H", CASE_H, None, strategy.AdaptiveStrategy(min_blocks=2), 0, 345.3),
    ],
)
def test_check_37_a_reference_case_is_valid_and_no_worse(case, stats, budget, way, overhead, mib):
    found, result = score(way, stats, budget)
    no_worse(found, overhead, mib)
    if case in "CF":
        assert not result.strategy_map, "nothing has to be streamed, so nothing is"


@pytest.mark.parametrize(
    ("budget", "way", "mib"),
    [
        (256, strategy.KnapsackBlockStrategy(), 320),
        (256, strategy.BudgetFillStrategy(n_blocks=4), 320),
        (256, strategy.AdaptiveStrategy(min_blocks=4), 320),
        (64, strategy.KnapsackBlockStrategy(), 320),
        (64, strategy.GlobalOffloadStrategy(**TWO_TO_FOUR), 192),
        (64, strategy.BudgetFillStrategy(n_blocks=4), 320),
        (64, strategy.AdaptiveStrategy(min_blocks=2), 192),
    ],
)
def test_check_37_what_cannot_be_met_gets_a_peak_no_higher_and_a_warning(budget, way, mib):
    with pytest.warns(UserWarning, match=r"budget") as caught:
        way.compute(eight(1.0), LINK, budget * MIB)
    assert caught[0].filename == __file__
    found, _ = score(way, eight(1.0), budget)
    assert not found.is_valid
    assert found.peak_memory_bytes <= mib * MIB


@pytest.mark.parametrize(
    ("ms", "budget_gib", "overhead", "gib"),
    [
        (0.5, 96, 14.4, 94.7),
        (0.5, 64, 29.7, 63.9),
        (0.5, 40, 40.3, 39.8),
        (20.0, None, 0, 43.1),
        (20.0, 64, 0, 43.1),
        (20.0, 20, 0.27, 19.7),
        (40.0, 64, 0, 8.0),
    ],
)
def test_check_37_eighty_layers_of_seventy_billion_parameters(ms, budget_gib, overhead, gib):
    stats = layers([ms] * 80, [size * MIB for size in (128, 16, 16, 128, 448, 448, 448)])
    link = {MIB: 1 / 57.6, GIB: 1024 / 57.6}
    budget = None if budget_gib is None else budget_gib * 1024
    found, _ = score(strategy.AdaptiveStrategy(), stats, budget, link)
    no_worse(found, overhead, gib * 1024)


@pytest.mark.parametrize("fill", BUDGET_FILLS)
def test_check_37_budget_fill_without_a_budget_or_layers_has_no_answer(fill):
    with pytest.raises(strategy.StrategyComputeError, match="none is set"):
        fill().compute(eight(3.0), LINK)
    with pytest.raises(strategy.StrategyComputeError, match="two layers"):
        fill().compute(eight(3.0)[:1], LINK, 256 * MIB)


def test_check_35_strict_assignment_takes_one_block_after_the_other():
    strict = strategy.StrictRoundRobinAssignment()
    assert strict.compute([5] * 8, 4) == [0, 1, 2, 3, 0, 1, 2, 3]
    assert strict.compute([1, 2, 3, 4, 5], 2) == [0, 1, 0, 1, 0]
    assert strict.compute([1, 0, 3, 4, 5], 4) == [0, 1, 2, 3, 0], "a layer of no bytes has its turn"
    assert strict.compute([], 4) == []


def test_check_35_optimized_assignment_prefers_few_bytes_and_long_rests():
    optimized = strategy.OptimizedRoundRobinAssignment(2, 4)
    assert optimized.compute([10] * 8, 4) == [0, 1] * 4
    assert optimized.compute([10, 10, 1], 4) == [0, 1, 0]
    assert strategy.OptimizedRoundRobinAssignment(3, 4).compute([10] * 6, 4) == [0, 1, 2, 0, 1, 2]
    assert strategy.OptimizedRoundRobinAssignment(3, 4).compute([10] * 6, 2) == [0, 1] * 3
    assert optimized.compute([10, 10], 1) == [0, 0]
    for weight, blocks in ((0.0, 2), (1.0, 4)):
        taken = strategy.OptimizedRoundRobinAssignment(2, 4, weight).compute([10] * 8, 4)
        assert len(set(taken)) == blocks, "all for the bytes, or all for the rests"


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: strategy.KnapsackStrategy(scale=0), "scale"),
        (lambda: strategy.KnapsackBlockStrategy(scale=-1.0), "scale"),
        (lambda: strategy.GreedyStrategy(n_blocks=1), "n_blocks"),
        (lambda: strategy.GlobalOffloadStrategy(min_blocks=5), "min_blocks"),
        (lambda: strategy.GlobalOffloadStrategy(n_blocks=1), "n_blocks"),
        (lambda: strategy.GlobalTensorSelectionStrategy(optimizer="XX"), "optimizer"),
        (lambda: strategy.GlobalTensorSelectionStrategy(scale=2.0, scale_ub=1.0), "scale_ub"),
        (lambda: strategy.AdaptiveStrategy(min_blocks=9), "min_blocks"),
        (lambda: strategy.AdaptiveStrategy(loader_type="shelf"), "loader_type"),
        (lambda: strategy.BudgetFillStrategy(n_blocks=1), "n_blocks"),
        (lambda: strategy.NthLayerStrategy(0), "nth_layer"),
        (lambda: strategy.OptimizedRoundRobinAssignment(5, 2), "max_blocks"),
        (lambda: strategy.OptimizedRoundRobinAssignment(1, 2), "min_blocks"),
        (lambda: strategy.OptimizedRoundRobinAssignment(2, 4, 3.0), "distribution_weight"),
        (lambda: strategy.StrictRoundRobinAssignment().compute([1], 0), "n_blocks"),
        (lambda: TensorStatistics(1, "w", -1, 0.0), "size_bytes"),
        (lambda: LayerStatistics("a", [], float("nan")), "duration"),
        (lambda: strategy.GreedyStrategy().compute(eight(1.0), LINK, -1), "max_gpu_mem_bytes"),
        (lambda: strategy.GreedyStrategy().compute(eight(1.0) * 2, LINK), "label"),
    ],
)
def test_what_is_not_allowed_is_a_value_error_that_names_it(make, named):
    with pytest.raises(ValueError, match=named):
        make()


def test_parameters_reach_core_and_may_be_set_later():
    every_other = strategy.NthLayerStrategy(nth_layer=2)
    assert set(every_other.compute(eight(1.0), LINK).block_data.transfer_to_compute_map.values()) == {
        "layers.2",
        "layers.4",
        "layers.6",
    }
    every_other.nth_layer = 4
    assert set(every_other.compute(eight(1.0), LINK).block_data.transfer_to_compute_map.values()) == {
        "layers.4"
    }
    assert repr(every_other) == "NthLayerStrategy(nth_layer=4, threshold_mb=0.1, n_blocks=4)"
    assert not strategy.KnapsackStrategy(threshold_mb=33).compute(eight(3.0), LINK).strategy_map
    assert strategy.KnapsackStrategy(threshold_mb=32).compute(eight(3.0), LINK).strategy_map


def test_an_assignment_object_decides_the_blocks():
    def blocks(way):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)
            return len(way.compute(eight(3.0), LINK, 448 * MIB).block_data.block_sizes)

    strict, three = strategy.StrictRoundRobinAssignment(), strategy.OptimizedRoundRobinAssignment(3, 3)
    assert blocks(strategy.GlobalOffloadStrategy()) == 2
    assert blocks(strategy.GlobalOffloadStrategy(assignment_strategy=strict)) == 4
    assert blocks(strategy.GlobalOffloadStrategy(assignment_strategy=three)) == 3
    assert blocks(strategy.BudgetFillGreedyStrategy(assignment_strategy=three)) == 3
    with pytest.raises(TypeError, match="assignment_strategy"):
        strategy.GlobalOffloadStrategy(assignment_strategy=object())
    with pytest.raises(TypeError, match="transfer_window"):
        strategy.GlobalTensorSelectionStrategy(transfer_window=object())
    window = strategy.GapAwareWindow()
    assert score(
        strategy.GlobalTensorSelectionStrategy(pop_size=6, epoch=8, transfer_window=window), eight(3.0)
    )[0].is_valid


def test_adaptive_tells_what_every_candidate_cost():
    adaptive = strategy.AdaptiveStrategy()
    with pytest.raises(RuntimeError, match="compute"):
        _ = adaptive.selected_strategy_name
    assert adaptive.all_scores == []
    adaptive.compute(eight(3.0), LINK)
    names = ["KnapsackBlock", "GlobalOffload(Optimized)", "GlobalOffload(Strict)"]
    assert [each.strategy_name for each in adaptive.all_scores] == names
    assert adaptive.selected_strategy_name == "GlobalOffload(Optimized)"
    assert [each.peak_memory_bytes // MIB for each in adaptive.all_scores] == [320, 192, 320]
    adaptive.compute(eight(1.0), LINK, 256 * MIB)
    assert [each.strategy_name for each in adaptive.all_scores] == [*names, "BudgetFill"]
    assert adaptive.selected_strategy_name == "BudgetFill"
    assert strategy.AdaptiveStrategy(loader_type="strategy")._ask(eight(3.0), LINK, None).candidates[0][
        0
    ] == ("KnapsackStrategy")


def test_budget_fill_tells_which_solver_won():
    fill = strategy.BudgetFillStrategy(n_blocks=2)
    assert fill.selected_solver_name is None
    fill.compute(eight(1.0), LINK, 256 * MIB)
    assert fill.selected_solver_name in ("BudgetFillGreedy", "BudgetFillLayerDE", "BudgetFillTensorDE")


@pytest.mark.parametrize("make", [*OTHERS, *BUDGET_FILLS])
def test_the_same_question_gets_the_same_answer_and_a_valid_one(make):
    stats = layers([0.7, 1.1, 0.4, 2.0, 1.3, 0.9], [24 * MIB, 8 * MIB, 3 * MIB])
    one, other = (score(make(), stats, 170) for _ in range(2))
    assert one == other


@pytest.mark.parametrize("make", OTHERS)
def test_no_layers_have_an_empty_answer(make):
    assert make().compute([], LINK).strategy_map == {}


def test_a_knapsack_that_wraps_copies_the_first_layer_during_the_last():
    stats = eight(3.0)
    data = strategy.KnapsackStrategy().compute(stats, LINK).block_data
    assert data.transfer_to_compute_map["layers.7"] == "layers.0"
    straight = strategy.KnapsackStrategy(cyclic=False).compute(stats, LINK).block_data
    assert "layers.0" not in straight.transfer_to_compute_map.values()


def test_a_tensor_of_two_layers_stays_and_counts_once():
    stats = eight(3.0)
    shared = stats[1].tensors[0]
    stats[5] = LayerStatistics("layers.5", [*stats[5].tensors, shared], 3.0)
    found, result = score(strategy.GlobalOffloadStrategy(), stats)
    assert shared not in [tensor for tensors in result.strategy_map.values() for tensor in tensors]
    assert found.peak_memory_bytes == 192 * MIB + 32 * MIB


def test_copies_begin_earlier_where_layers_have_no_weights():
    stats = [
        LayerStatistics(each.label, [] if at in (3, 4) else each.tensors, 3.0)
        for at, each in enumerate(eight(3.0))
    ]
    _, result = score(strategy.GlobalOffloadStrategy(), stats)
    assert result.block_data.transfer_to_compute_map["layers.3"] == "layers.6", "into the gap"


def test_a_layer_copies_for_one_other_layer_at_most():
    # Behind two layers without weights, several copies could begin at once.
    stats = [
        LayerStatistics(each.label, [] if at in (1, 2) else each.tensors, 9.0)
        for at, each in enumerate(eight(9.0))
    ]
    _, result = score(strategy.GlobalOffloadStrategy(n_blocks=4, min_blocks=4), stats)
    readers = result.block_data.transfer_to_compute_map
    assert list(readers.values()) == [f"layers.{at}" for at in range(3, 8)]
    assert list(readers)[:3] == ["layers.0", "layers.1", "layers.2"]


def test_without_transfer_times_those_of_the_tensors_count():
    stats = eight(3.0)
    told = strategy.KnapsackStrategy().compute(stats, LINK)
    assert strategy.KnapsackStrategy().compute(stats) == told
    assert strategy.KnapsackStrategy().compute(stats, {}) == told


def test_anything_that_computes_is_a_strategy():
    class Mine:
        def compute(self, layer_stats, memory_stats=None, max_gpu_mem_bytes=None):
            return strategy.StrategyResult({"layers.0": layer_stats[1].tensors})

    assert isinstance(Mine(), strategy.Strategy)
    assert isinstance(strategy.GreedyStrategy(), strategy.Strategy)
    assert not isinstance(3, strategy.Strategy)
    stats = eight(3.0)
    found = strategy.evaluate_strategy_result(
        Mine().compute(stats), stats, "mine", MemoryTransferInterpolator(LINK)
    )
    assert found == strategy.StrategyScore("mine", 512 * MIB, 0.0, 0, True)


def test_a_result_of_others_is_judged_by_the_same_rules():
    stats = eight(1.0)
    result = strategy.GlobalOffloadStrategy().compute(stats, {MIB: 0.001})
    link = MemoryTransferInterpolator(LINK)
    assert strategy.evaluate_strategy_result(result, stats, "slow link", link).estimated_overhead > 1
    assert strategy.evaluate_strategy_result(result, stats, "no link").estimated_overhead == 0
    data = result.block_data
    data.label_to_block_id = dict.fromkeys(data.label_to_block_id, 0)
    clash = strategy.evaluate_strategy_result(result, stats, "one block", link)
    assert (clash.is_valid, clash.consecutive_violations) == (False, 6)
    with pytest.raises(ValueError, match="'nowhere'"):
        strategy.evaluate_strategy_result(strategy.StrategyResult({"nowhere": []}), stats, "it")
    stranger = strategy.StrategyResult({"layers.0": [TensorStatistics(99, "stranger", 5, 0.1)]})
    with pytest.raises(ValueError, match="'stranger'"):
        strategy.evaluate_strategy_result(stranger, stats, "it")


def test_strategies_are_names_of_the_package_that_load_when_asked_for():
    program = """
import sys, flextensor
assert not [name for name in sys.modules if name.startswith(("flextensor.", "torch"))], sys.modules.keys()
from flextensor import BudgetFillStrategy, Strategy
assert isinstance(BudgetFillStrategy(), Strategy) and "torch" not in sys.modules
assert "AdaptiveStrategy" in dir(flextensor)
try:
    flextensor.NoSuchStrategy
except AttributeError as error:
    assert "NoSuchStrategy" in str(error)
else:
    raise AssertionError
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=PACKAGE.parent, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
