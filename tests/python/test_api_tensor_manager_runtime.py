"""What a TensorManager over the runtime tells it, and asks of it. The runtime is a stand-in; what moves on a GPU is tried by tests/gpu."""

import pytest

torch = pytest.importorskip("torch", reason="needs the torch that tools/ci_torch.sh installs")
from layered_model import Net, forward, learn, manager, seeded  # noqa: E402


@pytest.fixture
def model():
    return seeded()


class Session:
    """The runtime's side of a model, as far as a manager asks for it; remembers."""

    def __init__(self, order):
        self.order = order

    def models(self):
        return [7]

    def begin_pass(self):
        self.order.append("begin")

    def end_pass(self):
        self.order.append("end")

    def report(self):
        return {"ring": 3}

    def placed(self, report):
        return report["ring"], 5

    def save_profile(self, folder):
        raise RuntimeError("no model is in INFERENCE yet")

    def close(self, *, preserve_model=True):
        self.order.append(("close", preserve_model))


def test_over_the_runtime_traps_make_passes_and_the_choice_is_told(model, monkeypatch, tmp_path):
    order = []
    tm = manager()
    monkeypatch.setattr(tm, "_to_device", lambda model: setattr(tm, "_session", Session(order)))
    told = []
    monkeypatch.setattr("flextensor.runtime_choice.stream", lambda *said: told.append(said))
    tm.set_model(model)
    tm.initialize_warmup()
    with pytest.raises(RuntimeError, match="still holds a model"):
        tm.set_model(model)
    forward(tm, model)
    forward(tm, model)
    assert order == ["begin", "end", "begin"], "a label that comes again begins another pass"
    tm.initialize_profile()
    forward(tm, model)
    assert not told
    tm.initialize_inference()
    assert order == ["begin", "end", "begin", "end", "begin", "end"]
    ((models, name, weights),) = told
    assert (models, name) == ([7], "AllButFirst")
    assert set(weights) == tm.export_state().managed_names()
    usage = tm.get_gpu_memory_usage()
    assert (usage.blocks_bytes, usage.unmapped_tensors_bytes, usage.total_bytes) == (3, 5, 8)
    tm.save_profile(tmp_path)
    assert tm.load_state(tmp_path).additions is None, "the runtime had nothing to add yet"
    forward(tm, model)
    tm.shutdown(preserve_model=False)
    assert order[-1] == ("close", False)


def test_a_restored_choice_is_told_to_the_runtime_unless_it_reads_the_profile_itself(
    model, monkeypatch, tmp_path
):
    before = learn(manager(), model)
    before.save_profile(tmp_path)
    told = []
    monkeypatch.setattr("flextensor.runtime_choice.stream", lambda *said: told.append(said))
    for restore in ("restore_state", "load_profile"):
        tm = manager()
        monkeypatch.setattr(tm, "_to_device", lambda model, tm=tm: setattr(tm, "_session", Session([])))
        if restore == "restore_state":
            tm.restore_state(Net(), before.export_state())
        else:
            tm.load_profile(tmp_path, Net())
        tm.initialize_warmup()
    ((models, name, weights),) = told
    assert (models, name) == ([7], "AllButFirst") and set(weights) == before.export_state().managed_names()


def test_warming_up_twice_brings_the_model_to_the_gpu_once(model, monkeypatch):
    sessions = []

    def begin(*arguments):
        sessions.append(arguments)
        return Session([])

    monkeypatch.setattr("flextensor.manager_session.begin", begin)
    tm = manager()
    tm.device_gpu = torch.device("cuda", 0)
    tm.set_model(model)
    tm.initialize_warmup()
    tm.initialize_warmup()
    assert len(sessions) == 1
