"""Passes of which nothing has to be told: no Python runs for them, and whatever changes meanwhile is noticed all the same."""

import ctypes
import threading
import time

import pytest
from conftest import WANTS, arrive, names

EVERY = 16
MARKS = ("pass_begin", "pass_end", "owner_enter", "owner_exit", "trap_enter", "trap_exit")
PASS = ["pass_begin", "pass_end"]


def quiet(value):
    """The library says that nothing has to be told, or that it has."""
    ctypes.CDLL(None).fake_quiet(int(value))


def untold():
    """Forwards that go on untold, as the library counts them."""
    return ctypes.CDLL(None).fake_untold()


@pytest.fixture
def net(calls, nets):
    """A root that has run."""
    arrive()
    net = nets.Net()
    for _ in range(4):
        net(nets.tokens)
    calls.take()
    return net


def test_one_pass_in_sixteen_is_told_while_nothing_has_to_be(calls, nets, net):
    quiet(True)
    for _ in range(5 * EVERY):
        net(nets.tokens)
    told = calls.take()
    assert names(told) == ["passes_untold", *PASS] * 5
    assert {call[1:] for call in told if call[0] == "passes_untold"} == {(1, EVERY - 1)}
    assert untold() == 0


def test_all_are_told_again_from_the_first_pass_on_that_has_to_be(calls, nets, net):
    quiet(True)
    for _ in range(3):
        net(nets.tokens)
    assert calls.take() == []
    quiet(False)
    for _ in range(3):
        net(nets.tokens)
    assert names(calls.take()) == ["passes_untold", *PASS, *PASS, *PASS]


def test_no_python_of_ours_runs_for_an_untold_pass(calls, nets, net, monkeypatch):
    from flextensor import hook

    def ran(*_):
        raise AssertionError("it ran")

    monkeypatch.setattr(hook.ProcessHook, "before_pass", ran)
    monkeypatch.setattr(hook.ProcessHook, "tune", ran)
    quiet(True)
    for _ in range(EVERY - 1):
        net(nets.tokens)
    assert hook._process._on


@pytest.mark.parametrize("begins_quiet", [True, False])
def test_a_pass_ends_as_it_began_whatever_is_said_in_its_midst(calls, nets, net, begins_quiet):
    calls.answer(WANTS, 3)
    counted = []

    def turn(*_):
        counted.append(untold())
        quiet(not begins_quiet)

    net.layers[0].register_forward_hook(turn)
    quiet(begins_quiet)
    net(nets.tokens)
    told = calls.names()
    assert told == [] if begins_quiet else (told[0], told[-1]) == tuple(PASS)
    assert counted == [int(begins_quiet)] and untold() == 0
    # The next one is told, or not, by what is said then.
    net.layers[0]._forward_hooks.clear()
    net(nets.tokens)
    told = [name for name in calls.names() if name in PASS]
    assert told == (PASS if begins_quiet else [])


def test_roots_within_roots_end_as_each_of_them_began(calls, nets, net):
    class Outer(nets.torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = net
            self.own = nets.torch.nn.Linear(4, 4)
            self.says = (False, False)

        def forward(self, tokens):
            quiet(self.says[0])
            found = self.inner(tokens)
            quiet(self.says[1])
            return found

    arrive()
    outer = Outer()
    for _ in range(4):
        outer(nets.tokens)
    calls.take()
    for first in (False, True):
        for says in [(False, False), (False, True), (True, False), (True, True)]:
            outer.says = says
            quiet(first)
            outer(nets.tokens)
            told = calls.take(*PASS)
            begun = sorted(call[1] for call in told if call[0] == "pass_begin")
            assert begun == sorted(call[1] for call in told if call[0] == "pass_end"), (first, says)
            assert untold() == 0
            quiet(False)
            outer(nets.tokens)
            assert sorted(names(calls.take(*PASS))) == ["pass_begin"] * 2 + ["pass_end"] * 2


def raising(error):
    """A forward that ends so."""

    def forward(tokens):
        raise error

    return forward


def test_an_exception_ends_an_untold_pass_and_an_interrupt_is_made_good_by_the_next_one(calls, nets, net):
    from flextensor import _native

    forward = net.forward
    quiet(True)
    net.forward = raising(ValueError("the program's own"))
    with pytest.raises(ValueError, match="own"):
        net(nets.tokens)
    assert untold() == 0 and not _native.inside_a_pass()
    net.forward = raising(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        net(nets.tokens)
    assert untold() == 1
    net.forward = forward
    net(nets.tokens)
    assert untold() == 0 and not _native.inside_a_pass()
    quiet(False)
    net(nets.tokens)
    assert names(calls.take(*PASS)) == PASS


def test_a_pass_that_was_told_and_interrupted_is_ended_though_nothing_has_to_be_told(calls, nets, net):
    forward, net.forward = net.forward, raising(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        net(nets.tokens)
    net.forward = forward
    quiet(True)
    net(nets.tokens)
    assert names(calls.take(*MARKS)) == [*PASS, *PASS]
    net(nets.tokens)
    assert calls.take() == []


def test_threads_leave_out_their_own_passes(calls, nets, net):
    start = threading.Barrier(5)

    def run():
        start.wait()
        for _ in range(50):
            net(nets.tokens)

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    start.wait()
    for at in range(200):
        quiet(at % 2)
    quiet(False)
    for thread in threads:
        thread.join()
    told = calls.take()
    left_out = sum(call[2] for call in told if call[0] == "passes_untold")
    begun = names(told).count("pass_begin")
    assert begun == names(told).count("pass_end")
    assert 200 - 4 * EVERY <= begun + left_out <= 200
    assert untold() == 0


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_thread_that_ends_in_an_untold_pass_leaves_none_behind(calls, nets, net):
    quiet(True)

    def interrupted(tokens):
        raise SystemExit

    net.forward = interrupted
    thread = threading.Thread(target=lambda: net(nets.tokens))
    thread.start()
    thread.join()
    # What a thread has of its own goes a moment after Python has done with it.
    patience = time.monotonic() + 60
    while untold() and time.monotonic() < patience:
        time.sleep(0)
    assert untold() == 0


def test_modules_inside_an_untold_pass_are_not_searched(calls, nets, net, monkeypatch):
    from flextensor import search

    seen = []
    monkeypatch.setattr(
        search.Search, "seen", lambda self, module, arguments: seen.append(type(module).__name__)
    )
    arrive()
    quiet(True)
    net(nets.tokens)
    assert seen == ["Net"]


def test_a_new_model_is_found_and_told_while_nothing_else_is(calls, nets, net):
    quiet(True)
    net(nets.tokens)
    arrive()
    second = nets.Net()
    second(nets.tokens)
    told = calls.take()
    assert [call[1] for call in told if call[0] == "model_end"] == [2]
    assert [call[:2] for call in told if call[0] in PASS] == [("pass_begin", 2), ("pass_end", 2)]


def test_replaced_weights_are_noticed_within_as_many_passes_as_ever(calls, nets, net):
    old = net.head.weight.untyped_storage().data_ptr()
    quiet(True)
    net.head.weight = nets.torch.nn.Parameter(nets.torch.ones(8, 4))
    for _ in range(2 * EVERY):
        net(nets.tokens)
    told = calls.take()
    assert ("weight_private", old) in told
    assert [call[2] for call in told if call[0] == "model_weight"] == ["head.weight"]
