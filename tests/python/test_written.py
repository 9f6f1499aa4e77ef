"""Which weights a forward is said to have written."""

import threading

import pytest
from conftest import WANTS, arrive, names


@pytest.fixture
def cached(nets):
    """A model with a registered buffer that its forwards may write."""
    torch, nn = nets.torch, nets.torch.nn

    class Cached(nn.Module):
        def __init__(self):
            super().__init__()
            self.lift = nn.Linear(4, 4)
            self.register_buffer("cache", torch.zeros(4))
            self.write = None

        def forward(self, x):
            if self.write is not None:
                self.write(self.cache)
            return self.lift(x) + self.cache

    return Cached()


def written_in(calls, net, write, forward):
    """What is said of a forward that does `write`."""
    net.write = write
    calls.take()
    forward()
    return calls.take("weight_written", "pass_end")


def test_a_weight_that_a_forward_writes_is_told_before_its_pass_ends_also_where_its_bytes_stay(
    calls, nets, cached
):
    calls.answer(WANTS, 8)
    arrive()
    x = nets.torch.ones(1, 4)
    cached(x)
    told = written_in(calls, cached, lambda cache: cache[1:2].add_(0), lambda: cached(x))
    assert told == [("weight_written", cached.cache.untyped_storage().data_ptr()), ("pass_end", 1)]
    again = written_in(calls, cached, lambda cache: cache.zero_(), lambda: cached(x))
    assert names(again) == ["pass_end"], "it is told once"


def test_a_write_in_inference_mode_is_told(calls, nets, cached):
    calls.answer(WANTS, 8)
    arrive()
    x = nets.torch.ones(1, 4)
    with nets.torch.inference_mode():
        cached(x)
        told = written_in(calls, cached, lambda cache: cache.copy_(cache.clone()), lambda: cached(x))
    assert names(told) == ["weight_written", "pass_end"]


def test_a_write_by_the_very_first_forward_is_told(calls, nets, cached):
    calls.answer(WANTS, 8)
    arrive()
    told = written_in(calls, cached, lambda cache: cache.zero_(), lambda: cached(nets.torch.ones(1, 4)))
    assert names(told) == ["weight_written", "pass_end"]


def test_writes_between_forwards_are_not_told(calls, nets, cached):
    calls.answer(WANTS, 8)
    arrive()
    x = nets.torch.ones(1, 4)
    cached(x)
    with nets.torch.no_grad():
        cached.lift.weight.add_(1)
    assert names(written_in(calls, cached, None, lambda: cached(x))) == ["pass_end"]


def test_weights_are_not_looked_at_when_nobody_wants_to_know(calls, nets, cached, monkeypatch):
    from flextensor import roots

    calls.answer(WANTS, 0)
    arrive()
    x = nets.torch.ones(1, 4)
    cached(x)
    monkeypatch.setattr(roots.Versions, "_read", lambda self: 1 / 0)
    assert names(written_in(calls, cached, lambda cache: cache.zero_(), lambda: cached(x))) == ["pass_end"]


def test_tensors_that_count_nothing_are_left_out(calls, nets):
    torch, nn = nets.torch, nets.torch.nn
    calls.answer(WANTS, 8)
    arrive()
    with torch.inference_mode():
        net = nn.Linear(4, 4)
    x = torch.ones(1, 4)
    net.forward = lambda x: net.bias.add_(1) + x
    with torch.inference_mode():
        net(x)
        net(x)
    assert names(calls.take("weight_written", "pass_end")) == ["pass_end"] * 2


def test_each_thread_tells_what_its_own_passes_wrote(calls, nets, cached):
    calls.answer(WANTS, 8)
    arrive()
    x = nets.torch.ones(1, 4)
    cached(x)
    inside, done = threading.Event(), threading.Event()

    def slow(cache):
        inside.set()
        assert done.wait(60)
        cache.add_(0)

    cached.write = slow
    calls.take()
    thread = threading.Thread(target=lambda: cached(x))
    thread.start()
    assert inside.wait(60)
    cached.write = None
    cached(x)
    assert names(calls.take("weight_written", "pass_end")) == ["pass_end"]
    done.set()
    thread.join()
    assert names(calls.take("weight_written", "pass_end")) == ["weight_written", "pass_end"]
