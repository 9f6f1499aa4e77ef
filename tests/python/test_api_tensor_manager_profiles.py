"""TensorManager's states and profiles on the CPU: what starts from one, and which are refused."""

import json
import os

import pytest

torch = pytest.importorskip("torch", reason="needs the torch that tools/ci_torch.sh installs")
from flextensor.state_handler import TensorManagerState  # noqa: E402
from layered_model import WIDTH, AllButFirst, Net, forward, learn, manager, run, seeded  # noqa: E402
from torch import nn  # noqa: E402


@pytest.fixture
def model():
    return seeded()


def test_a_profile_leads_straight_to_inference(model, tmp_path):
    before = learn(manager(), model)
    before.save_profile(tmp_path / "new")
    assert os.listdir(tmp_path / "new") == ["profile.json"]
    torch.manual_seed(1)
    other = Net()
    way = AllButFirst()
    tm = manager(way)
    state = tm.load_state(tmp_path / "new")
    assert state == before.export_state()
    tm.load_profile(tmp_path / "new", other)
    assert tm.state_restored_from_profile
    with pytest.raises(RuntimeError, match="initialize_warmup"):
        tm.initialize_inference()
    assert tm.initialize_warmup() is other
    assert tm.initialize_profile() is other
    assert tm.initialize_inference() is other
    assert not way.asked, "nothing is decided anew"
    assert tm.export_state() == state
    assert torch.equal(forward(tm, other), other.head(run(other)))


def test_exported_states_share_nothing(model):
    tm = learn(manager(), model)
    state = tm.export_state()
    state.load_strategy.clear()
    state.stats[0].tensors.clear()
    assert tm.export_state().load_strategy and tm.export_state().stats[0].tensors


def changed(state, **changes):
    return TensorManagerState.from_dict({**json.loads(json.dumps(state.to_dict())), **changes}, "changed")


def test_check_32_a_profile_that_does_not_fit_is_refused(model, tmp_path):
    tm = learn(manager(), model)
    state = tm.export_state()
    for version in (2, 4):
        with pytest.raises(ValueError, match=f"version {version}; only version 3"):
            changed(state, version=version)
    with pytest.raises(ValueError, match="block_sizes"):
        changed(state, block_sizes={"0": 1, "1": 1})
    with pytest.raises(ValueError, match=r"no tensor 'layers\.3\.up\.weight'"):
        manager().restore_state(Net(layers=3), state)
    wide = Net()
    wide.layers[1].up.weight = nn.Parameter(torch.zeros(WIDTH, 2 * WIDTH))
    with pytest.raises(ValueError, match="bytes"):
        manager().restore_state(wide, state)
    tall = Net()
    tall.layers[1].up.weight = nn.Parameter(torch.zeros(2 * WIDTH, WIDTH // 2))
    with pytest.raises(ValueError, match="shape"):
        manager().restore_state(tall, state)
    typed = Net()
    typed.layers[1].up.weight = nn.Parameter(
        torch.zeros(WIDTH, WIDTH, dtype=torch.int32), requires_grad=False
    )
    with pytest.raises(ValueError, match="int32"):
        manager().restore_state(typed, state)
    with pytest.raises(ValueError, match="loader_type"):
        manager(loader_type="raw_block_transfer").restore_state(Net(), state)
    with pytest.raises(FileNotFoundError, match=r"profile\.json"):
        tm.load_state(tmp_path)
    (tmp_path / "profile.json").write_text("{")
    with pytest.raises(ValueError, match="no JSON"):
        tm.load_state(tmp_path)
