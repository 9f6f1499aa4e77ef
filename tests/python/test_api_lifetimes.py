"""One offload after another, offloads that fail, and the way back: what the next one finds, and what is left."""

import json

import pytest
from test_api_agreement import Net, X
from test_api_manager import INFERENCE, PHASE, ft, on, profile  # noqa: F401

torch = pytest.importorskip("torch", reason="needs the torch that tools/ci_torch.sh installs")
from torch import nn  # noqa: E402

# A device that is the CPU and yet another than "cpu": what goes there is copied.
ELSEWHERE = torch.device("cpu", 0)


@pytest.fixture
def saved(tmp_path):
    (tmp_path / "profile.json").write_text(profile(["layers.0.weight"]))
    return tmp_path


@pytest.fixture
def fresh(monkeypatch):
    """No option of the process was overridden so far."""
    from flextensor import session

    monkeypatch.setattr(session, "_BEFORE", {})


@pytest.mark.parametrize("passes_proxy", [False, True])
def test_a_profile_loaded_later_leaves_the_proxy_that_the_program_holds(ft, calls, saved, passes_proxy):  # noqa: F811
    proxy = ft.offload(Net(), on())
    om = ft.get_offload_manager()
    om.load_profile(saved, proxy if passes_proxy else None)
    calls.take()
    proxy(X)
    assert calls.names()[0] == "pass_begin"
    ft.release()
    with pytest.raises(RuntimeError, match="not offloaded any more"):
        proxy(X)


def test_a_profile_loaded_later_allows_no_replan_that_was_not_allowed(ft, calls, saved):  # noqa: F811
    state = json.loads(profile(["layers.0.weight"]))
    calls.answer(PHASE, INFERENCE)
    ft.offload_from_state(Net(), state, on(external_compile=True), allow_strategy_replan=False)
    om = ft.get_offload_manager()
    assert not om.strategy_replan_status.can_request
    om.load_profile(saved)
    assert not om.strategy_replan_status.can_request


def test_a_profile_of_another_model_takes_the_place_of_the_one_before(ft, calls, saved):  # noqa: F811
    proxy = ft.offload(Net(), on())
    other = Net()
    ft.get_offload_manager().load_profile(saved, other)
    assert ft.get_offload_manager().model is other
    with pytest.raises(RuntimeError, match="not offloaded any more"):
        proxy(X)


def sent(calls):
    ((_, *words),) = calls.take("configure")
    return json.loads(" ".join(map(str, words)))


def test_options_of_an_offload_before_are_taken_back(ft, calls, fresh, monkeypatch):  # noqa: F811
    process = {"max_gpu_mem": "1GiB", "log": "debug", "replan": "off", "mode": "auto"}
    origins = {"max_gpu_mem": "keyword", "replan": "keyword", "mode": "keyword", "log": "FT_LOG"}
    monkeypatch.setenv("FAKE_CONFIG", json.dumps({**process, "origins": origins}))
    ft.offload(Net(), on())
    assert sent(calls) == {
        "include_patterns": ["layers.*"],
        "max_gpu_mem": None,
        "replan": "auto",
        "mode": "latency",
    }


def test_what_the_process_was_told_comes_back_when_no_offload_overrides_it(ft, calls, fresh, monkeypatch):  # noqa: F811
    monkeypatch.setenv("FAKE_CONFIG", '{"replan":"off","origins":{"replan":"FT_REPLAN"}}')
    ft.offload(Net(), on(replan="auto"))
    assert sent(calls)["replan"] == "auto"
    monkeypatch.setenv("FAKE_CONFIG", '{"replan":"auto","origins":{"replan":"keyword"}}')
    ft.offload(Net(), on())
    assert sent(calls)["replan"] == "off"


def test_a_strategy_that_is_no_name_is_not_sent_and_none_is(ft, calls, fresh):  # noqa: F811
    from flextensor import GreedyStrategy

    ft.offload(Net(), on(load_strategy=GreedyStrategy()))
    assert "load_strategy" not in sent(calls)
    ft.offload(Net(), on(load_strategy=None))
    assert sent(calls)["load_strategy"] is None


def test_an_offload_that_fails_late_leaves_the_model_as_it_was(ft, calls, monkeypatch):  # noqa: F811
    from flextensor import GreedyStrategy, _native

    monkeypatch.setattr(_native, "model_strategy", lambda model, text: -2)
    model = Net()
    with pytest.raises(RuntimeError, match="does not take the strategy"):
        ft.offload(model, on(load_strategy=GreedyStrategy()))
    assert ft.get_offload_manager().model is None
    assert calls.take("model_drop") == [("model_drop", 1)]
    calls.take()
    model(X)
    assert calls.take() == []


def test_an_offload_that_fails_last_takes_its_hooks_away(ft, calls, monkeypatch):  # noqa: F811
    from flextensor import managed_model

    def refuses(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(managed_model, "hook_root", refuses)
    model = Net()
    with pytest.raises(KeyboardInterrupt):
        ft.offload(model, on())
    assert not any((*part._forward_hooks, *part._forward_pre_hooks) for part in model.modules())
    assert not any("_compiled_call_impl" in vars(part) for part in model.modules())


def test_a_model_that_the_gpu_has_no_room_for_goes_back():
    from flextensor import session

    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 5))
    kept, away, there = session._moved, [], torch.device("meta")

    def short_of_memory(tensor, device, storages):
        if device != there:
            return away.pop(0)
        if len(away) == 3:
            raise torch.OutOfMemoryError("no room")
        away.append(tensor.detach().clone())
        return kept(tensor, device, storages)

    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    session._moved = short_of_memory
    try:
        with pytest.raises(torch.OutOfMemoryError):
            session.move(model, there)
    finally:
        session._moved = kept
    after = model.state_dict()
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items())


def test_views_go_back_to_the_storage_that_the_others_still_have(monkeypatch):
    from flextensor import session

    model = sharing()
    put = session._put

    def once(owner, name, old, new):
        if name == "right":
            monkeypatch.setattr(session, "_put", put)
            raise torch.OutOfMemoryError("no room")
        put(owner, name, old, new)

    homes = [(owner, name, ELSEWHERE) for owner, name, _ in session._places(model)]
    monkeypatch.setattr(session, "_put", once)
    storages = {}
    with pytest.raises(torch.OutOfMemoryError):
        session.bring(model, homes, storages)
    assert not shares(model.left, model.right)
    back = {new.data_ptr(): (new, old) for old, new in storages.values()}
    session.bring(model, homes[:1], back)
    assert shares(model.left, model.right)


def sharing():
    """Views of one storage, one buffer in two places, a plain attribute."""
    model = nn.Module()
    flat = torch.arange(12.0)
    model.left = nn.Parameter(flat[:6].view(2, 3))
    model.right = nn.Parameter(flat[4:].view(2, 4).t())
    model.inner = nn.Module()
    mask = torch.ones(3)
    model.register_buffer("mask", mask)
    model.inner.register_buffer("mask", mask)
    model.table = torch.full((2,), 5.0)
    return model


def shares(one, other):
    return one.untyped_storage().data_ptr() == other.untyped_storage().data_ptr()


class Host:
    """The hook, as far as a model that goes has to do with it."""

    def __init__(self):
        self.swept = 0

    def sweep(self):
        self.swept += 1

    def let_go(self, module):
        pass


@pytest.fixture
def session_of():
    """A session whose tensors count as come from somewhere else."""
    from flextensor import session

    def make(model):
        made = session.Session.__new__(session.Session)
        made._model, made._host = model, Host()
        made._homes = [(owner, name, ELSEWHERE) for owner, name, _ in session._places(model)]
        made._root = type("Root", (), {"unhook": lambda self: None})()
        return made

    return make


def test_what_shared_a_storage_shares_one_on_the_way_back_too(session_of):
    model = sharing()
    before, right = model.left.data_ptr(), model.right.detach().clone()
    session_of(model).close()
    assert model.left.data_ptr() != before, "it was copied"
    assert shares(model.left, model.right) and torch.equal(model.right, right)
    assert shares(model.mask, model.inner.mask)


def test_the_way_back_lets_go_in_steps(session_of, monkeypatch):
    from flextensor import session

    monkeypatch.setattr(session, "_STEP_BYTES", 12)
    made = session_of(sharing())
    made.close()
    assert made._host.swept > 3


def test_without_preserving_plain_attributes_that_were_moved_are_emptied_too(session_of):
    model = sharing()
    session_of(model).close(preserve_model=False)
    assert model.table.numel() == 0 and model.left.numel() == 0


def test_a_released_proxy_that_was_compiled_is_in_nobodys_way(ft, calls):  # noqa: F811
    whole = torch.compile(ft.offload(Net(), on()))
    ft.release()
    ft.offload(Net(), on())
    del whole
