"""State adoption and loading from safetensors. The meta device stands for the GPU where something has to move; no GPU is
needed."""

import json
import sys

import pytest

torch = pytest.importorskip("torch", reason="needs the torch that tools/ci_torch.sh installs")
from flextensor import load_model_from_profile, state_adoption  # noqa: E402
from flextensor.host_pinning import HostPinner, NoOpHostPinner  # noqa: E402
from flextensor.state_adoption import MemoryCapacity  # noqa: E402
from layered_model import WIDTH, Net, forward, learn, manager, seeded  # noqa: E402
from torch import nn  # noqa: E402

ELSEWHERE = torch.device("meta")
PLENTY = MemoryCapacity(1 << 40, 1 << 40)
LINEAR = 4 * WIDTH * WIDTH


@pytest.fixture
def model():
    return seeded()


@pytest.fixture
def state(model):
    """All layers but the first are streamed."""
    return learn(manager(), model).export_state()


def plan(model, state, device=ELSEWHERE, capacity=PLENTY, pins=False, pinning_copies=False):
    return state_adoption.plan(model, state, device, capacity, pins=pins, pinning_copies=pinning_copies)


def test_what_stays_goes_to_the_gpu_and_what_is_streamed_to_the_host(model, state):
    planned = plan(model, state)
    moved = {name for each in planned.migrations for name in each.names}
    assert moved == {"embed.weight", "head.weight", "scale"} | {
        f"layers.0.{name}" for name in ("up.weight", "up.bias", "down.weight")
    }
    assert {(each.source_device, each.destination_device) for each in planned.migrations} == {("cpu", "meta")}
    assert planned.peak_gpu_bytes == sum(each.nbytes for each in planned.migrations)
    assert (planned.peak_host_bytes, planned.pinning_groups) == (0, ())
    before = {name: tensor.data_ptr() for name, tensor in model.state_dict().items()}
    assert before == {name: tensor.data_ptr() for name, tensor in model.state_dict().items()}
    assert not any(tensor.is_meta for tensor in model.parameters()), "planning reads only"


def test_pinning_copies_one_storage_at_a_time_and_in_place_none(model, state):
    copied = plan(model, state, torch.device("cpu"), pins=True, pinning_copies=True)
    assert len(copied.pinning_groups) == 9 and not copied.migrations
    assert copied.peak_host_bytes == LINEAR
    assert plan(model, state, torch.device("cpu"), pins=True).peak_host_bytes == 0


def test_too_little_memory_is_said_with_figures(model, state):
    needed = plan(model, state).peak_gpu_bytes
    assert plan(model, state, capacity=MemoryCapacity(0, needed))
    with pytest.raises(RuntimeError, match=rf"{needed} bytes of GPU memory, and {needed - 1} are available"):
        plan(model, state, capacity=MemoryCapacity(0, needed - 1))
    with pytest.raises(RuntimeError, match="bytes of host memory"):
        plan(
            model,
            state,
            torch.device("cpu"),
            MemoryCapacity(LINEAR - 1, 0),
            pins=True,
            pinning_copies=True,
        )


@pytest.mark.parametrize(
    "reserves", [{"host_reserve_bytes": -1}, {"gpu_reserve_bytes": 1.5}, {"gpu_reserve_bytes": True}]
)
def test_reserves_are_bytes(model, state, reserves):
    with pytest.raises(ValueError, match=next(iter(reserves))):
        manager().plan_state_adoption(model, state, **reserves)


def test_a_reserve_is_left_free(model, state):
    host = torch.device("cpu")
    assert state_adoption.available(host, 0, 0).host_bytes > 0
    assert state_adoption.available(host, 1 << 60, 0) == MemoryCapacity(0, 0)
    with pytest.raises(RuntimeError, match="0 are available beyond the reserve"):
        plan(model, state, host, MemoryCapacity(0, 0), pins=True, pinning_copies=True)


def test_a_state_of_another_model_or_loader_is_no_plan(model, state):
    with pytest.raises(ValueError, match="no tensor"):
        manager().plan_state_adoption(Net(layers=2), state)
    with pytest.raises(ValueError, match="loader_type"):
        manager(loader_type="strategy").plan_state_adoption(model, state)


def test_a_plan_is_carried_out_storage_by_storage(model, state):
    values = {name: value.clone() for name, value in model.state_dict().items()}
    weight = model.embed.weight
    state_adoption.execute(model, plan(model, state), NoOpHostPinner())
    assert model.embed.weight is weight is model.head.weight, "the same objects, still tied"
    assert weight.is_meta and model.scale.is_meta and model.layers[0].up.bias.is_meta
    for name, value in model.layers[1].state_dict().items():
        assert torch.equal(value, values[f"layers.1.{name}"])


def test_pinning_replaces_what_is_streamed_and_keeps_views_together(model, state):
    both = torch.arange(2.0 * WIDTH * WIDTH).reshape(2 * WIDTH, WIDTH)
    model.layers[1].up.weight = nn.Parameter(both[:WIDTH])
    model.layers[1].down.weight = nn.Parameter(both[WIDTH:])

    class Copying(HostPinner):
        def pin(self, tensor):
            return tensor.clone()

    planned = plan(model, state, torch.device("cpu"), pins=True, pinning_copies=True)
    assert ("layers.1.up.weight", "layers.1.down.weight") in planned.pinning_groups
    address = model.layers[1].up.weight.data_ptr()
    state_adoption.execute(model, planned, Copying())
    layer = model.layers[1]
    assert layer.up.weight.data_ptr() != address
    assert layer.down.weight.data_ptr() == layer.up.weight.data_ptr() + LINEAR
    assert torch.equal(layer.up.weight, both[:WIDTH]) and torch.equal(layer.down.weight, both[WIDTH:])


def test_a_step_that_fails_names_what_is_done_and_what_is_not(model, state):
    class Exhausted(HostPinner):
        left = 2

        def pin(self, tensor):
            if not self.left:
                raise RuntimeError("no memory can be locked")
            self.left -= 1
            return tensor

    planned = plan(model, state, torch.device("cpu"), pins=True)
    first, second, third, *_ = (", ".join(group) for group in planned.pinning_groups)
    with pytest.raises(RuntimeError) as failed:
        state_adoption.execute(model, planned, Exhausted())
    text = str(failed.value)
    assert f"current: pinning of {third}: no memory can be locked" in text
    assert f"completed: pinning of {first}; pinning of {second}." in text


def test_a_model_that_changed_since_is_not_touched(model, state):
    planned = plan(model, state)
    model.layers[0].up.weight = nn.Parameter(torch.zeros(WIDTH, WIDTH))
    with pytest.raises(ValueError, match=r"layers\.0\.up\.weight have moved"):
        state_adoption.execute(model, planned, NoOpHostPinner())
    assert not any(tensor.is_meta for tensor in model.parameters())


def test_an_adopted_state_leads_to_inference(model, state):
    tm = manager()
    with pytest.raises(RuntimeError, match="execute_state_adoption"):
        tm.restore_adopted_state(model, state)
    tm.execute_state_adoption(model, tm.plan_state_adoption(model, state, host_reserve_bytes=0))
    with pytest.raises(RuntimeError, match="execute_state_adoption"):
        tm.restore_adopted_state(Net(), state)
    tm.restore_adopted_state(model, state)
    tm.initialize_warmup()
    tm.initialize_profile()
    tm.initialize_inference()
    assert tm.export_state() == state


@pytest.fixture
def saved(model, tmp_path):
    """A folder with a profile, and a file with the model's weights."""
    safetensors = pytest.importorskip("safetensors.torch", reason="needs the package safetensors")
    learn(manager(), model).save_profile(tmp_path)
    weights = {name: value for name, value in model.state_dict().items() if name != "head.weight"}
    safetensors.save_file(weights, tmp_path / "model.safetensors")
    return tmp_path


def loaded(folder, **options):
    tm = manager()
    options = {"safetensor_path": str(folder / "model.safetensors"), **options}
    return tm, load_model_from_profile(tm, str(folder), Net, **options)


def test_a_model_comes_straight_from_its_file(model, saved):
    tm, other = loaded(saved)
    assert not other.training and other.head.weight is other.embed.weight
    for name, value in model.state_dict().items():
        assert torch.equal(other.state_dict()[name], value)
    assert all(isinstance(parameter, nn.Parameter) for parameter in other.parameters())
    tm.initialize_warmup()
    tm.initialize_profile()
    assert tm.initialize_inference() is other
    assert torch.equal(forward(tm, other), forward(tm, model))


def test_no_tensor_is_read_twice_and_none_before_the_last_is_placed(saved, monkeypatch):
    import safetensors

    read = []
    opened = safetensors.safe_open

    class Watching:
        def __init__(self, *arguments, **options):
            self._file = opened(*arguments, **options)

        def __enter__(self):
            self._inner = self._file.__enter__()
            return self

        def __exit__(self, *error):
            return self._file.__exit__(*error)

        def keys(self):
            return self._inner.keys()

        def get_tensor(self, name):
            read.append(name)
            return self._inner.get_tensor(name)

    monkeypatch.setattr(safetensors, "safe_open", Watching)
    _, other = loaded(saved)
    assert sorted(read) == sorted(set(other.state_dict()) - {"head.weight"})


def test_parameters_are_never_made_in_full(saved):
    made = []

    class Counting(Net):
        def __init__(self):
            super().__init__()
            made.extend(tensor.device.type for tensor in self.parameters())
            made.append(self.scale.device.type)

    load_model_from_profile(manager(), str(saved), Counting, (), str(saved / "model.safetensors"))
    assert made.pop() == "cpu" and set(made) == {"meta"}
    assert nn.Module.register_parameter.__name__ == "register_parameter", "put back"


def test_an_index_and_a_folder_name_several_files(model, saved):
    import safetensors.torch

    weights = model.state_dict()
    parts = {"one.safetensors": ["embed.weight"], "two.safetensors": [n for n in weights if n[0] in "ls"]}
    (saved / "model.safetensors").unlink()
    for file, names in parts.items():
        safetensors.torch.save_file({name: weights[name] for name in names}, saved / file)
    index = saved / "model.safetensors.index.json"
    weight_map = {name: file for file, names in parts.items() for name in names}
    index.write_text(json.dumps({"weight_map": weight_map}))
    for path in (index, saved):
        _, other = loaded(saved, safetensor_path=str(path))
        assert torch.equal(other.layers[3].down.weight, weights["layers.3.down.weight"])
    (saved / "two.safetensors").unlink()
    with pytest.raises(FileNotFoundError, match=r"names two\.safetensors"):
        loaded(saved, safetensor_path=str(index))


def test_what_a_file_lacks_cannot_be_computed_with(model, saved, caplog):
    import safetensors.torch

    weights = {n: v for n, v in model.state_dict().items() if n not in ("head.weight", "layers.2.up.bias")}
    safetensors.torch.save_file(weights, saved / "model.safetensors")
    _, other = loaded(saved)
    assert other.layers[2].up.bias.is_meta and "layers.2.up.bias" in caplog.text
    with pytest.raises(KeyError, match=r"layers\.2\.up\.bias"):
        loaded(saved, strict=True)
    safetensors.torch.save_file({**weights, "layers.2.up.bias": torch.zeros(3)}, saved / "model.safetensors")
    with pytest.raises(ValueError, match=r"shape \[3\] in the file"):
        loaded(saved)


def test_what_is_missing_to_load_is_said(saved, tmp_path, monkeypatch):
    with pytest.raises(ValueError, match="safetensor_path is required"):
        loaded(saved, safetensor_path=None)
    with pytest.raises(FileNotFoundError, match="no file"):
        loaded(saved, safetensor_path=str(tmp_path / "none.safetensors"))
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(FileNotFoundError, match="no \\.safetensors file"):
        loaded(saved, safetensor_path=str(empty))
    with pytest.raises(FileNotFoundError, match="no profile"):
        load_model_from_profile(manager(), str(empty), Net, (), str(saved / "model.safetensors"))
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(ImportError, match="pip install safetensors"):
        loaded(saved)
