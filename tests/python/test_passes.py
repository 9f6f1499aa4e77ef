"""Which marks go out, when, and for which module: passes, owners and traps; and that programs notice nothing of it."""

import copy
import io
import threading

import pytest
from conftest import WANTS, arrive, names

MARKS = ("pass_begin", "pass_end", "owner_enter", "owner_exit", "trap_enter", "trap_exit")


def test_every_forward_of_the_root_is_a_pass(calls, nets):
    arrive()
    net = nets.Net()
    for _ in range(3):
        net(nets.tokens)
    assert names(calls.take(*MARKS)) == ["pass_begin", "pass_end"] * 3


def test_owners_and_traps_are_marked_from_the_first_pass_on_while_they_are_wanted(calls, nets):
    calls.answer(WANTS, 3)
    arrive()
    net = nets.Net(blocks=2)
    net(nets.tokens)
    expected = ["pass_begin", "owner_enter", "owner_exit"]
    for _ in range(2):
        expected += ["trap_enter", "owner_enter", "owner_exit", "owner_enter", "owner_exit", "trap_exit"]
    expected += ["owner_enter", "owner_exit", "pass_end"]
    assert names(calls.take(*MARKS)) == expected


def test_owner_events_carry_the_numbers_given_at_naming(calls, nets):
    calls.answer(WANTS, 1)
    arrive()
    net = nets.Net(blocks=2)
    net(nets.tokens)
    assert [call[2] for call in calls.take("owner_enter")] == [0, 1, 2, 3, 4, 5]


def test_hooks_of_owners_go_when_they_are_no_longer_wanted(calls, nets):
    calls.answer(WANTS, 3)
    arrive()
    net = nets.Net()
    net(nets.tokens)
    calls.answer(WANTS, 0)
    calls.take()
    net(nets.tokens)
    assert calls.names() == ["pass_begin", "pass_end"]
    assert all(
        not part._forward_hooks and not part._forward_pre_hooks for part in net.modules() if part is not net
    )


def test_only_owners_of_stacked_experts_are_marked_when_only_they_are_wanted(calls, nets):
    torch, nn = nets.torch, nets.torch.nn

    class Experts(nn.Module):
        def __init__(self):
            super().__init__()
            self.stack = nn.Parameter(torch.ones(2, 3, 3))

        def forward(self, x):
            return torch.bmm(x.expand(2, 3, 3), self.stack)

    calls.answer(WANTS, 4)
    arrive()
    net = nn.Sequential(Experts(), nn.Linear(3, 3))
    net(torch.ones(3, 3))
    assert calls.take("owner_enter", "owner_exit") == [("owner_enter", 1, 0), ("owner_exit", 1, 0)]


def test_a_root_that_holds_weights_itself_is_marked_as_owner_inside_its_pass(calls, nets):
    calls.answer(WANTS, 1)
    arrive()
    net = nets.torch.nn.Linear(3, 3)
    for _ in range(2):
        net(nets.torch.ones(1, 3))
    assert names(calls.take(*MARKS)) == ["pass_begin", "owner_enter", "owner_exit", "pass_end"] * 2


def test_an_exception_in_a_forward_still_ends_owner_trap_and_pass(calls, nets):
    calls.answer(WANTS, 3)
    arrive()
    net = nets.Net(blocks=2)
    net(nets.tokens)
    calls.take()
    net.layers[0].down.forward = lambda x: 1 / 0
    with pytest.raises(ZeroDivisionError):
        net(nets.tokens)
    assert names(calls.take(*MARKS))[-4:] == ["owner_enter", "owner_exit", "trap_exit", "pass_end"]


def test_a_pass_lost_to_an_interrupt_is_ended_before_the_next_one(calls, nets):
    arrive()
    net = nets.Net()
    net(nets.tokens)

    # Not by exec of a text: the interpreter would remember that as unhandled, and end this process like one that was interrupted.
    def interrupted(tokens):
        raise KeyboardInterrupt

    forward, net.forward = net.forward, interrupted
    with pytest.raises(KeyboardInterrupt):
        net(nets.tokens)
    net.forward = forward
    net(nets.tokens)
    assert names(calls.take(*MARKS)) == ["pass_begin", "pass_end"] * 3


def test_a_generate_like_loop_is_one_pass_a_step_and_masks_do_not_change_the_shape(calls, nets):
    torch = nets.torch
    arrive()
    net = nets.Net()
    net(torch.zeros(1, 5, dtype=torch.long), attention_mask=torch.ones(1, 5))
    for step in range(3):
        net(torch.zeros(1, 1, dtype=torch.long), attention_mask=torch.ones(1, 6 + step))
    shapes = [call[2] for call in calls.take("pass_begin")]
    assert len(shapes) == 4
    assert shapes[1] == shapes[2] == shapes[3] != shapes[0]


def test_keyword_arguments_count_for_the_shape_from_the_first_pass_on(calls, nets):
    arrive()
    net = nets.Net()
    net(tokens=nets.torch.zeros(2, 7, dtype=nets.torch.long))
    net(tokens=nets.torch.zeros(2, 7, dtype=nets.torch.long))
    net(tokens=nets.torch.zeros(2, 8, dtype=nets.torch.long))
    first, second, third = (call[2] for call in calls.take("pass_begin"))
    assert first == second != third


def test_copies_and_saved_models_are_free_of_the_hook(calls, nets):
    torch = nets.torch
    calls.answer(WANTS, 3)
    arrive()
    net = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.Linear(4, 4))
    x = torch.ones(1, 4)
    expected = net(x)
    buffer = io.BytesIO()
    torch.save(net, buffer)
    assert b"flextensor" not in buffer.getvalue()
    buffer.seek(0)
    loaded, copied = torch.load(buffer, weights_only=False), copy.deepcopy(net)
    for _ in range(20):
        net(x)
    calls.take()
    from flextensor import hook

    hook._process._search.suspend()
    assert torch.equal(loaded(x), expected) and torch.equal(copied(x), expected)
    assert calls.take() == []


def test_state_dict_keys_and_values_are_as_without_us(calls, nets):
    net = nets.Net()
    before = {name: value.data_ptr() for name, value in net.state_dict().items()}
    calls.answer(WANTS, 3)
    arrive()
    net(nets.tokens)
    assert {name: value.data_ptr() for name, value in net.state_dict().items()} == before


def test_threads_mark_their_own_passes(calls, nets):
    arrive()
    net = nets.Net()
    net(nets.tokens)
    calls.take()
    threads = [threading.Thread(target=lambda: [net(nets.tokens) for _ in range(50)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    told = names(calls.take("pass_begin", "pass_end"))
    assert told.count("pass_begin") == told.count("pass_end") == 200


def test_an_error_of_the_hook_is_logged_once_and_the_program_goes_on(calls, nets, monkeypatch, caplog):
    from flextensor import roots

    arrive()
    net = nets.Net()
    expected = net(nets.tokens)

    def broken(*_):
        raise RuntimeError("broken on purpose")

    monkeypatch.setattr(roots.Naming, "changed", broken)
    for _ in range(3):
        assert nets.torch.equal(net(nets.tokens), expected)
    assert [record.name for record in caplog.records] == ["flextensor"]
    assert "broken on purpose" in caplog.text
    assert not net._forward_pre_hooks and not net._forward_hooks


def test_an_error_while_naming_leaves_the_program_alone(calls, nets, monkeypatch, caplog):
    from flextensor import naming

    def broken(*_):
        raise RuntimeError("broken on purpose")

    monkeypatch.setattr(naming, "read", broken)
    arrive()
    net = nets.Net()
    net(nets.tokens)
    net(nets.tokens)
    assert len(caplog.records) == 1
    assert not nets.torch.nn.modules.module._global_forward_pre_hooks


def test_arrivals_between_any_two_bytecodes_do_no_harm(calls, nets):
    import sys

    arrive()
    net = nets.Net()

    def every_line(frame, event, _argument):
        if "flextensor" in frame.f_code.co_filename and event == "line":
            sys.settrace(None)
            arrive()
            sys.settrace(every_line)
        return every_line

    sys.settrace(every_line)
    try:
        for _ in range(3):
            net(nets.tokens)
    finally:
        sys.settrace(None)
    assert names(calls.take("pass_begin", "pass_end")) == ["pass_begin", "pass_end"] * 3


def test_what_a_forward_returns_does_not_count_for_its_shape(calls, nets):
    arrive()

    class Returns(nets.torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nets.torch.nn.Parameter(nets.torch.ones(2))

        def forward(self, x):
            return {"x": x, "weight": self.weight}

    net = Returns()
    assert net(nets.torch.ones(2))["x"].shape == (2,)
    assert names(calls.take(*MARKS)) == ["pass_begin", "pass_end"]


def test_an_interrupt_in_our_own_work_leaves_no_lock_behind(calls, nets):
    from flextensor import hook

    def interrupt():
        raise KeyboardInterrupt

    arrive()
    with pytest.raises(KeyboardInterrupt):
        hook._process.later(interrupt)
    net = nets.Net()
    finished = threading.Thread(target=net, args=(nets.tokens,), daemon=True)
    finished.start()
    finished.join(20)
    assert not finished.is_alive()
    assert calls.names()[-2:] == ["pass_begin", "pass_end"]


def test_what_arrives_while_another_thread_is_at_work_waits_for_nobody_and_is_done_later(calls, nets):
    from flextensor import hook

    arrive()
    held, go = threading.Event(), threading.Event()

    def hold():
        with hook._process._lock:
            held.set()
            go.wait(20)
        hook._process._run_tasks()

    done = []
    holder = threading.Thread(target=hold)
    holder.start()
    held.wait(20)
    hook._process.later(lambda: done.append(True))
    assert done == []
    go.set()
    holder.join(20)
    assert done == [True]
