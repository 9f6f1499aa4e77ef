"""Which marks go out, when, and for which module: passes, owners and traps."""

import copy
import gc
import io
import threading

import pytest
from conftest import PRIVATE_ANSWER, REFUSE_MODELS, WANTS, arrive

MARKS = ("pass_begin", "pass_end", "owner_enter", "owner_exit", "trap_enter", "trap_exit")


def names(calls):
    return [call[0] for call in calls]


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


def test_two_models_are_two_roots(calls, nets):
    arrive()
    first, second = nets.Net(), nets.Net()
    for _ in range(2):
        first(nets.tokens)
        second(nets.tokens)
    assert [call[1] for call in calls.take("pass_begin")] == [1, 2, 1, 2]


def test_a_model_called_inside_another_ones_forward_belongs_to_the_outer_pass(calls, nets):
    class Outer(nets.torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nets.Net()

        def forward(self, tokens):
            return self.inner(tokens)

    arrive()
    outer = Outer()
    outer(nets.tokens)
    assert calls.names().count("pass_begin") == 1


def test_a_submodule_called_directly_marks_passes_of_the_model_that_named_its_weights(calls, nets):
    arrive()
    net = nets.Net()
    net(nets.tokens)
    net.layers[0](nets.torch.ones(1, 4))
    net(nets.tokens)
    told = calls.take("model_begin", "pass_begin", "pass_end")
    assert [call[:2] for call in told if call[0] == "model_begin"] == [("model_begin", 1)]
    assert names(told[1:]) == ["pass_begin", "pass_end"] * 3
    assert {call[1] for call in told if call[0] == "pass_begin"} == {1}


def test_a_part_that_ran_before_its_whole_is_named_once(calls, nets):
    arrive()
    net = nets.Net()
    net.layers[0](nets.torch.ones(1, 4))
    net(nets.tokens)
    told = calls.take()
    addresses = [call[3] for call in told if call[0] == "model_weight"]
    assert len(addresses) == len(set(addresses)) == 8
    begins = [call[1] for call in told if call[0] == "pass_begin"]
    ends = [call[1] for call in told if call[0] == "pass_end"]
    assert begins[0] == 1 and sorted(begins[1:]) == [1, 2] and sorted(ends[1:]) == [1, 2]


def test_a_second_model_is_found_by_the_census_after_the_search_has_ended(calls, nets):
    from flextensor import hook

    arrive()
    first, second = nets.Net(), nets.Net()
    for _ in range(20):
        first(nets.tokens)
    assert hook._process._search._global is None
    assert not nets.torch.nn.modules.module._global_forward_pre_hooks
    second(nets.tokens)
    second(nets.tokens)
    assert [call[1] for call in calls.take("pass_begin")][-2:] == [2, 2]


def test_a_later_arrival_starts_the_search_again(calls, nets):
    arrive()
    first = nets.Net()
    for _ in range(20):
        first(nets.tokens)
    later = nets.Net()
    later(nets.tokens)
    assert {call[1] for call in calls.take("pass_begin")} == {1}
    arrive()
    later(nets.tokens)
    assert {call[1] for call in calls.take("pass_begin")} == {2}


def test_a_module_without_weights_on_the_gpu_is_no_root(calls, nets, monkeypatch):
    from flextensor import naming

    monkeypatch.setattr(naming, "on_gpu", lambda tensor: False)
    arrive()
    net = nets.Net()
    net(nets.tokens)
    assert calls.take() == []


def test_a_model_that_moved_to_the_gpu_after_a_first_forward_is_found(calls, nets, monkeypatch):
    from flextensor import naming

    monkeypatch.setattr(naming, "on_gpu", lambda tensor: False)
    arrive()
    net = nets.Net()
    net(nets.tokens)
    monkeypatch.setattr(naming, "on_gpu", lambda tensor: True)
    arrive()
    net(nets.tokens)
    assert calls.names()[-2:] == ["pass_begin", "pass_end"]


def test_a_refused_model_gets_no_hooks(calls, nets):
    calls.answer(REFUSE_MODELS, 1)
    arrive()
    net = nets.Net()
    net(nets.tokens)
    assert calls.take() == []
    assert not net._forward_hooks and not net._forward_pre_hooks


def test_a_deleted_model_is_dropped_and_its_storages_let_go(calls, nets):
    from flextensor import hook

    arrive()
    net = nets.Net()
    net(nets.tokens)
    assert len(hook._process._holding) == 8 - 0
    calls.take()
    del net
    gc.collect()
    assert calls.take() == [("model_drop", 1)]
    assert len(hook._process._holding) == 0


def test_a_replaced_parameter_makes_the_old_storage_private_and_names_the_new_one(calls, nets):
    arrive()
    net = nets.Net()
    net(nets.tokens)
    old = net.head.weight.untyped_storage().data_ptr()
    net.head.weight = nets.torch.nn.Parameter(nets.torch.ones(8, 4))
    calls.take()
    net(nets.tokens)
    net(nets.tokens)
    told = calls.take()
    assert ("weight_private", old) in told
    new = [call for call in told if call[0] == "model_weight"]
    assert [(call[2], call[3]) for call in new] == [
        ("head.weight", net.head.weight.untyped_storage().data_ptr())
    ]
    assert [call[1] for call in told if call[0] == "pass_begin"][-2:] == [1, 2]


def test_data_of_a_parameter_that_was_swapped_is_noticed(calls, nets):
    arrive()
    net = nets.Net()
    net(nets.tokens)
    net.head.weight.data = nets.torch.ones(8, 4)
    calls.take()
    net(nets.tokens)
    assert [call[2] for call in calls.take("model_weight")] == ["head.weight"]


def test_a_storage_stays_held_while_the_program_has_a_view_of_it(calls, nets):
    arrive()
    net = nets.Net()
    net(nets.tokens)
    view = net.head.weight.detach()[1:]
    net.head.weight = nets.torch.nn.Parameter(nets.torch.ones(8, 4))
    calls.take()
    for _ in range(3):
        net(nets.tokens)
    assert calls.take("weight_private") == []
    del view
    for _ in range(3):
        net(nets.tokens)
    assert len(calls.take("weight_private")) == 1


def test_a_storage_is_kept_when_its_pages_could_not_be_made_private(calls, nets):
    from flextensor import hook

    calls.answer(PRIVATE_ANSWER, -3)
    arrive()
    net = nets.Net()
    net(nets.tokens)
    net.head.weight = nets.torch.nn.Parameter(nets.torch.ones(8, 4))
    for _ in range(3):
        net(nets.tokens)
    assert len(hook._process._holding) == 9


def test_a_model_that_went_away_as_a_whole_is_swept_at_the_next_arrival(calls, nets):
    arrive()
    net = nets.Net()
    net(nets.tokens)
    for parameter in net.parameters():
        parameter.data = parameter.data.clone()
    calls.take()
    arrive()
    assert len(calls.take("weight_private")) == 8


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


def test_a_buffer_that_is_replaced_all_the_time_is_left_alone_after_three_times(calls, nets):
    arrive()
    net = nets.Net()
    net.register_buffer("cache", nets.torch.zeros(3))
    for _ in range(12):
        net(nets.tokens)
        net.cache = nets.torch.zeros(3)
    told = calls.take("model_begin", "model_drop", "model_weight")
    assert ("model_drop", 1) not in told
    assert [call[2] for call in told if call[0] == "model_weight"].count("cache") == 3


def test_a_model_moved_away_and_back_is_named_as_a_new_one(calls, nets):
    arrive()
    net = nets.Net()
    net(nets.tokens)
    for _ in range(5):
        calls.take()
        kept = [parameter.data for parameter in net.parameters()]
        for parameter in net.parameters():
            parameter.data = parameter.data.clone()
        net(nets.tokens)
        net(nets.tokens)
        told = calls.take("model_begin", "model_drop", "model_weight")
        assert names(told).count("model_begin") == names(told).count("model_drop") == 1
        assert names(told).count("model_weight") == 8
        del kept


def test_a_root_whose_weights_left_the_gpu_is_found_again_when_they_return(calls, nets, monkeypatch):
    from flextensor import naming

    arrive()
    net = nets.Net()
    net(nets.tokens)
    monkeypatch.setattr(naming, "on_gpu", lambda tensor: False)
    calls.take()
    net(nets.tokens)
    net(nets.tokens)
    assert calls.names().count("pass_begin") <= 1
    assert not net._forward_pre_hooks
    monkeypatch.setattr(naming, "on_gpu", lambda tensor: True)
    arrive()
    net(nets.tokens)
    assert calls.names()[-2:] == ["pass_begin", "pass_end"]


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


def test_endless_reports_of_new_memory_do_not_keep_the_search_on(calls, nets):
    from flextensor import hook

    arrive()
    net = nets.Net()
    searched = 0
    for _ in range(60):
        arrive()
        net(nets.tokens)
        searched += hook._process._search._global is not None
    assert searched < 20
    hook._process._search._pause_end = 0.0
    arrive()
    assert hook._process._search._global is not None


def test_a_report_during_the_pause_is_made_up_for_at_a_later_pass(calls, nets):
    from flextensor import hook

    arrive()
    net = nets.Net()
    for _ in range(30):
        arrive()
        net(nets.tokens)
    assert hook._process._search._global is None and hook._process._search._due
    hook._process._search._pause_end = 0.0
    net(nets.tokens)
    assert hook._process._search._global is not None


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
