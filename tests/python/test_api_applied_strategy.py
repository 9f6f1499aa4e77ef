"""Strategy objects over the runtime, whose part a recording stand-in plays: what it is told, and what a strategy of the
program's own is asked. No GPU is needed; that the runtime does what it is told is tests/e2e."""

import json
import os
import subprocess
import sys

import pytest
from conftest import ROOT
from flextensor import runtime_choice, state_handler, strategy
from flextensor.applied_strategy import AppliedStrategy, layers_of, link_of

LAYERS = 4


class EveryOther:
    """Streams every other layer whole; remembers what it was asked."""

    def __init__(self):
        self.asked = []

    def compute(self, layer_stats, memory_stats=None, max_gpu_mem_bytes=None):
        self.asked.append((layer_stats, memory_stats, max_gpu_mem_bytes))
        chosen = range(2, len(layer_stats), 2)
        return strategy.StrategyResult({layer_stats[at - 1].label: layer_stats[at].tensors for at in chosen})


def labelled(additions, prefixes):
    """A whole profile around what the runtime adds: a label for each layer, as its saved files have them."""
    profile = {
        "version": 3,
        "loader_type": "allocation_block_transfer",
        "tensor_id_to_name_map": {},
        "stats": [],
        "flextensor": additions,
    }
    for key in (
        "allocation_ordered",
        "label_to_size_map",
        "block_sizes",
        "load_strategy",
        "release_strategy",
    ):
        profile[key] = {}
    profile |= {"label_to_block_id": {}, "transfer_to_compute_map": {}}
    number = 0
    for prefix, model in zip(prefixes, additions["models"], strict=True):
        for at in range(LAYERS):
            tensors = []
            for weight in model["weights"]:
                if f"s.{at}." in weight["name"]:
                    name = prefix + weight["name"]
                    profile["tensor_id_to_name_map"][str(number)] = name
                    tensors.append(
                        {
                            "tensor_id": number,
                            "name": name,
                            "size_bytes": weight["bytes"],
                            "load_time_ms": 1.0,
                        }
                    )
                    number += 1
            label = prefix + tensors[0]["name"].removeprefix(prefix).split(f".{at}.")[0] + f".{at}"
            profile["stats"].append({"label": label, "tensors": tensors, "duration": 2.0})
    return profile


@pytest.fixture(scope="module")
def additions():
    """What the runtime adds to a profile."""
    program = [sys.executable, str(ROOT / "examples" / "llama_profile.py"), "--layers", str(LAYERS)]
    text = subprocess.run(program, capture_output=True, text=True, check=True).stdout
    return json.loads(text)["flextensor"]


@pytest.fixture
def profile(additions):
    """The text of a profile as the runtime saves it."""
    return json.dumps(labelled(additions, [""]))


@pytest.fixture
def state(profile):
    return state_handler.TensorManagerState.from_dict(json.loads(profile))


def names(state):
    return set(state.tensor_id_to_name_map.values())


def saving(text):
    """What a session does to save a profile."""

    def save(folder):
        with open(os.path.join(folder, "profile.json"), "w", encoding="utf-8") as file:
            file.write(text)

    return save


def told(calls):
    """What the runtime was told, by model."""
    return {int(call[1]): json.loads(" ".join(map(str, call[2:]))) for call in calls.take("model_strategy")}


def test_one_of_ours_is_told_by_name_before_anything_is_learnt(calls):
    applied = AppliedStrategy(strategy.NthLayerStrategy(3, n_blocks=2))
    applied.model_named([4, 5])
    expected = {
        "name": "NthLayerStrategy",
        "parameters": {"nth_layer": 3, "threshold_mb": 0.1, "n_blocks": 2},
    }
    assert told(calls) == {4: expected, 5: expected}

    def never(folder):
        raise AssertionError("the runtime asks it itself")

    assert not applied.forward_ended([4], [], never, None)


def test_parameters_that_were_not_given_are_left_to_core(calls):
    way = strategy.GlobalOffloadStrategy(assignment_strategy=strategy.OptimizedRoundRobinAssignment(2, 3))
    runtime_choice.use([1], way)
    parameters = told(calls)[1]["parameters"]
    assert None not in parameters.values()
    assert (parameters["min_blocks"], parameters["max_blocks"]) == (2, 3)


def test_a_strategy_of_the_programs_own_is_asked_once_with_what_the_runtime_learnt(calls, profile, state):
    way = EveryOther()
    applied = AppliedStrategy(way)
    applied.model_named([1])
    assert not calls.take("model_strategy"), "it is asked when there is something to tell it"
    assert applied.forward_ended([1], names(state), saving(profile), 9 << 30)
    ((stats, link, budget),) = way.asked
    assert stats == state.stats and link == link_of(state) and budget == 9 << 30
    chosen = {tensor.name for at in range(2, len(stats), 2) for tensor in stats[at].tensors}
    assert chosen and told(calls) == {1: {"name": "EveryOther", "weights": sorted(chosen)}}
    assert not applied.forward_ended([1], names(state), saving(profile), 9 << 30)
    assert len(way.asked) == 1


def test_what_a_strategy_raises_goes_to_the_program_once(calls, profile, state):
    class Failing:
        def compute(self, layer_stats, memory_stats=None, max_gpu_mem_bytes=None):
            raise ZeroDivisionError

    applied = AppliedStrategy(Failing())
    with pytest.raises(ZeroDivisionError):
        applied.forward_ended([1], names(state), saving(profile), None)
    assert not applied.forward_ended([1], names(state), saving(profile), None)
    assert not calls.take("model_strategy")


def test_the_link_is_the_measured_one(state):
    link = link_of(state)
    (size, *_), (ms, *_) = zip(*sorted(link.items(), reverse=True), strict=True)
    point = next(each for each in state.additions["gpus"][0]["idle"] if each["copy_bytes"] == size)
    assert ms == pytest.approx(size / point["gb_per_s"] / 1e6)
    state.additions = None
    assert link_of(state) == {}


def test_of_several_models_the_one_with_these_weights_counts(additions, state):
    other = json.loads(json.dumps(additions["models"][0]).replace("layers.", "blocks."))
    both = {**additions, "models": [other, additions["models"][0]]}
    two = state_handler.TensorManagerState.from_dict(labelled(both, ["model0.", "model1."]))

    def told(stats):
        return [
            (stat.label, [(tensor.name, tensor.size_bytes) for tensor in stat.tensors], stat.duration)
            for stat in stats
        ]

    assert told(layers_of(two, names(state))) == told(state.stats)
    assert layers_of(two, {name.replace("layers.", "blocks.") for name in names(state)})[0].label != (
        state.stats[0].label
    )
    with pytest.raises(RuntimeError, match="no model with these weights"):
        layers_of(two, {"elsewhere"})


def test_without_the_library_nothing_can_be_told():
    program = """
from flextensor import runtime_choice
try:
    runtime_choice.stream([1], "Mine", ["weight"])
except RuntimeError as error:
    assert "not preloaded" in str(error)
else:
    raise AssertionError
"""
    environment = {key: value for key, value in os.environ.items() if key != "LD_PRELOAD"}
    environment["PYTHONPATH"] = str(ROOT / "pyhook" / "python")
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
