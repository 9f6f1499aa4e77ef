"""The measured programs on the CPU, at a very small size, and how peers are called. Needs torch; a Llama needs transformers, a UNet diffusers."""

import importlib.machinery
import json
import sys
import types
from typing import ClassVar

import pytest

torch = pytest.importorskip("torch", reason="needs torch")
import peers  # noqa: E402
import program  # noqa: E402
from conftest import BENCH  # noqa: E402

# Shapes are so small that more threads only get in each other's way.
torch.set_num_threads(1)

TINY = ["--tiny", "--device", "cpu", "--layers", "2", "--forwards", "3", "--timed", "2"]
NEEDS = {"llama": "transformers", "mixed": "transformers", "unet": "diffusers"}


def run(capsys, measured, *arguments, place=None) -> dict[str, list[dict]]:
    """The lines that a program printed, by event."""
    program.main(measured, [*TINY, *arguments], place)
    lines: dict[str, list[dict]] = {}
    for text in capsys.readouterr().out.splitlines():
        found = json.loads(text)
        lines.setdefault(found["event"], []).append(found)
    return lines


def known(name: str) -> program.Program:
    if name in NEEDS:
        pytest.importorskip(NEEDS[name], reason=f"{name} needs {NEEDS[name]}")
    return peers.load(BENCH / f"{name}.py")


@pytest.mark.parametrize("name", ["llama", "diffusion", "small", "unet"])
def test_a_program_prints_a_line_for_each_case_and_each_build_has_the_same_bits(name, capsys):
    measured = known(name)
    outputs = {}
    for build in ("gpu", "cpu", "host"):
        lines = run(capsys, measured, "--build", build)
        assert lines["built"][0]["program"] == name and len(lines["end"]) == 1
        assert [case["case"] for case in lines["case"]] == list(measured.cases)
        for case in lines["case"]:
            assert case["agree"] and case["finite"] and case["differing"] == []
            assert len(case["checked_ms"]) == 3 and len(case["timed_ms"]) == 2
        outputs[build] = [case["digest"] for case in lines["case"]]
        assert [case["first_forward_s"] is not None for case in lines["case"]][:2] == [True, False]
    assert outputs["gpu"] == outputs["cpu"] == outputs["host"]


@pytest.mark.parametrize("name", ["diffusion", "small"])
def test_outputs_depend_on_every_weight_matrix(name, capsys):
    measured = known(name)
    options = program.arguments(measured, TINY)
    with torch.no_grad():
        model = measured.build(options)
        forward = measured.forward(model, options, next(iter(measured.cases)))
        right = forward()
        for weight, parameter in model.named_parameters():
            if parameter.dim() < 2 or "embed" in weight:
                continue
            kept = parameter.clone()
            parameter.neg_().add_(0.25)
            assert not torch.equal(forward(), right), weight
            parameter.copy_(kept)


def test_small_weights_are_small_and_the_diffusion_model_is_large():
    small, diffusion = known("small"), known("diffusion")
    with torch.device("meta"):
        experts = sys.modules["small"].make_model(small.layers, 1024, 1536, 64)
        denoiser = sys.modules["diffusion"].make_model(diffusion.layers, 5120, 13824, 40)
    sizes = [parameter.numel() * 2 for parameter in experts.parameters()]
    assert max(sizes) < 10 << 20 and sum(sizes) / 2**30 == pytest.approx(6, abs=0.1)
    assert sum(parameter.numel() * 2 for parameter in denoiser.parameters()) / 2**30 == pytest.approx(
        11.3, abs=0.1
    )


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_changing_work_is_hashed_step_by_step_and_is_the_same_in_each_run(cache, capsys):
    mixed = known("mixed")
    first, second = (run(capsys, mixed, "--decode-steps", "13", "--cache", cache)["case"] for _ in range(2))
    assert [case["case"] for case in first] == list(mixed.cases)
    assert [case["step_digests"] for case in first] == [case["step_digests"] for case in second]
    decode = first[1]
    assert (
        len(decode["step_digests"]) == 13 and len(decode["checked_ms"]) == 10 and len(decode["timed_ms"]) == 3
    )
    # Each decode step sees one token more than the one before.
    assert len(set(decode["step_digests"])) > 1


def test_changing_work_is_run_up_to_the_last_segment_that_is_asked_for(capsys):
    cases = run(capsys, known("mixed"), "--decode-steps", "12", "--cases", "decode200")["case"]
    assert [case["case"] for case in cases] == ["prefill4096", "decode200"]


class Counting(program.Program):
    """Forwards that count themselves; from the third call on they say so in their output, if asked to."""

    name = "counting"
    cases: ClassVar[dict] = {"only": None, "again": None}

    def __init__(self, drifts: bool = False):
        self.calls, self.drifts = 0, drifts

    def build(self, options):
        return torch.nn.Linear(2, 2)

    def forward(self, model, options, case):
        def forward():
            self.calls += 1
            return torch.full((2,), float(self.drifts and self.calls > 2))

        return forward


def test_an_output_that_changes_between_forwards_is_found(capsys):
    case = run(capsys, Counting(drifts=True))["case"][0]
    assert case["agree"] is False and case["differing"] == [2, 3]


def test_preparing_forwards_are_added_to_the_first_case_only(capsys):
    lines = run(capsys, Counting(), place=lambda model, options: (model, 5))
    assert [len(case["checked_ms"]) for case in lines["case"]] == [8, 3] and lines["built"][0]["passes"] == 5


def test_a_limit_of_seconds_ends_loops_but_neither_preparing_forwards_nor_the_first_two(capsys):
    lines = run(
        capsys,
        Counting(),
        "--forwards",
        "50",
        "--timed",
        "50",
        "--loop-seconds",
        "1e-9",
        place=lambda m, o: (m, 4),
    )
    assert [(len(case["checked_ms"]), len(case["timed_ms"])) for case in lines["case"]] == [(6, 2), (2, 2)]


@pytest.mark.parametrize(
    "checked, steady",
    [
        ([200, 100, 101, 99], 1),
        # Passes that only learn run faster than what they learn for.
        ([20, 20, 20, 100, 100], 3),
        ([100, 100, 100, 300], None),
        ([100] * 7 + [300], 0),
        ([20, 20], None),
    ],
)
def test_forwards_are_steady_when_all_later_ones_stay_near_the_timed_median(checked, steady):
    assert program.first_steady([float(ms) for ms in checked], 100.0) == steady


# --- peers ------------------------------------------------------------------------


@pytest.fixture
def stand_in(monkeypatch):
    """A package that stands for a peer's and records how it is called."""

    def make(name: str, **functions):
        module = types.ModuleType(name)
        module.__path__, module.__spec__ = [], importlib.machinery.ModuleSpec(name, None)
        for key, value in functions.items():
            setattr(module, key, value)
        monkeypatch.setitem(sys.modules, name, module)
        return module

    return make


def test_flextensor_is_given_the_blocks_and_its_budget_as_a_fraction_of_the_gpu(stand_in, monkeypatch):
    total = types.SimpleNamespace(total_memory=1000)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: total)
    seen = {}
    # Other tests of this process may have loaded ours.
    monkeypatch.delitem(sys.modules, "flextensor._native", raising=False)
    stand_in(
        "flextensor",
        OffloadConfig=lambda **given: seen.update(given) or "config",
        offload=lambda model, config: ("proxy", model, config),
        get_offload_manager=lambda: types.SimpleNamespace(iters_before_inference=6),
    )
    placed, passes = peers.flextensor_py("model", None, 250, ("Block",))
    assert (placed, passes) == (("proxy", "model", "config"), 6)
    assert seen["max_gpu_mem_fraction"] == 0.25 and seen["include_patterns"] == ["class:Block"]


def test_our_own_package_is_not_taken_for_the_peer_of_its_name(stand_in, monkeypatch, capsys):
    stand_in("flextensor")
    monkeypatch.setattr(
        peers.importlib.util, "find_spec", lambda name: "found" if name == "flextensor._native" else None
    )
    with pytest.raises(SystemExit) as end:
        peers.flextensor_py("model", None, 1, ())
    assert end.value.code == program.MISSING and "is ours" in capsys.readouterr().err


def test_group_offload_gets_the_module_that_holds_the_blocks(stand_in):
    measured = known("small")
    options = program.arguments(measured, [*TINY, "--build", "host"])
    seen = {}
    stand_in("diffusers")
    stand_in(
        "diffusers.hooks", apply_group_offloading=lambda module, **given: seen.update(given, module=module)
    )
    with torch.no_grad():
        model = torch.nn.ModuleDict({"inner": measured.build(options), "head": torch.nn.Linear(2, 2)})
    placed, _ = peers.diffusers_group(model, options, None, measured.blocks)
    assert seen["module"] is model["inner"] and placed is model
    assert (seen["offload_type"], seen["num_blocks_per_group"], seen["use_stream"]) == (
        "block_level",
        1,
        False,
    )


def test_a_model_without_such_blocks_is_refused():
    with pytest.raises(ValueError, match="no list of Block in Linear"):
        peers.holder_of(torch.nn.Linear(1, 1), ("Block",))


@pytest.mark.parametrize("name", ["accelerate", "diffusers_group"])
def test_a_peer_that_is_installed_gives_the_native_outputs(name, capsys):
    package = pytest.importorskip(peers.PEERS[name].package, reason="the peer is not installed")
    assert package
    measured = known("small")
    native = run(capsys, measured)

    def place(model, options):
        return peers.PEERS[name].place(model, options, None, measured.blocks)

    placed = run(capsys, measured, "--build", "host", place=place)
    assert [case["digest"] for case in placed["case"]] == [case["digest"] for case in native["case"]]


def test_a_budget_is_given_to_the_peers_that_take_one_and_only_to_them(capsys):
    for arguments in (["flextensor_py", "small.py"], ["accelerate", "--budget-bytes", "1", "small.py"]):
        with pytest.raises(SystemExit) as end:
            peers.main(arguments)
        assert end.value.code == 2
    said = capsys.readouterr().err
    assert "flextensor_py needs --budget-bytes" in said and "accelerate takes no --budget-bytes" in said


def test_processes_that_take_turns_are_compared_slice_by_slice(tmp_path, capfd):
    import turns

    arguments = ["--program", "small", "--tiny", "--device", "cpu", "--seconds", "0.1", "--forwards", "2"]
    assert turns.main([*arguments, "--program-option=--layers=1", "--out", str(tmp_path)]) == 0
    (line,) = [json.loads(text) for text in (tmp_path / "turns.jsonl").read_text().splitlines()]
    assert line["mode"] == "native again" and line["equal"] and line["slices"] >= 2
    assert "outputs equal" in capfd.readouterr().out


def test_a_speed_that_changes_between_slices_is_not_taken_for_a_difference():
    import turns

    # The processor is half as fast in the second half of the slices.
    native = [[10.0, 10.2, 9.8]] * 5 + [[20.0, 20.4, 19.6]] * 5
    ours = [[ms * 1.01 for ms in one] for one in native]
    (found,) = turns.compare({"native": native, "flextensor": ours})
    assert found["ratio"] == 1.01 and found["quartiles"] == [1.01, 1.01] and found["slices"] == 10


def test_who_takes_turns_is_what_was_asked_for():
    import turns

    def players(*arguments):
        return turns.modes(turns.command_line().parse_args(arguments))

    assert players() == ["native", "native again"]
    assert players("--no-again", "--lib", "l.so") == ["native", "flextensor"]
    options = ["FT_LOAD_STRATEGY=GreedyStrategy", "LIB=other.so FT_RING_BYTES=1GiB"]
    given = [part for text in options for part in ("--option", text)]
    varied = players("--lib", "l.so", *given, "--peer", "accelerate")
    modes = [f"flextensor, {text}" for text in options]
    assert varied == ["native", "native again", "accelerate", "flextensor", *modes]


def test_each_varied_process_has_its_own_options_and_is_compared_with_all_others():
    import turns

    parser = turns.command_line()
    assert turns.varied(parser, "LIB=other.so FT_RING_BYTES=1GiB") == {
        "LIB": "other.so",
        "FT_RING_BYTES": "1GiB",
    }
    slices = {mode: [[1.0]] for mode in ("native", "flextensor", "flextensor, FT_A=1", "flextensor, FT_A=2")}
    pairs = {(found["mode"], found["against"]) for found in turns.compare(slices)}
    assert {("flextensor, FT_A=1", "flextensor"), ("flextensor, FT_A=2", "native")} <= pairs


def test_an_option_that_is_none_ends_turns_with_one_line(capsys):
    import turns

    with pytest.raises(SystemExit) as end:
        turns.main(["--option", "MAX_GPU_MEM=1GiB"])
    assert end.value.code == 2
    assert "--option MAX_GPU_MEM=1GiB: allowed is FT_KEY=VALUE" in capsys.readouterr().err
