"""Which modules are roots, when they are found, and when the search for them rests."""

import gc

from conftest import REFUSE_MODELS, arrive, names


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


def test_a_part_that_two_models_share_is_named_once_and_marked_in_both_ones_passes(calls, nets):
    """diffusers#2907: what two pipelines share was hooked twice, or went with the one that was let go."""
    arrive()
    first, second = nets.Net(), nets.Net()
    second.layers = first.layers
    for _ in range(2):
        first(nets.tokens)
        second(nets.tokens)
    told = calls.take()
    named = [call[3] for call in told if call[0] == "model_weight"]
    shared = {parameter.untyped_storage().data_ptr() for parameter in first.layers.parameters()}
    assert len(named) == len(set(named)) and shared < set(named)
    marks = [call[:2] for call in told if call[0] == "pass_begin"]
    assert marks[:1] == [("pass_begin", 1)] and sorted(marks[1:3]) == [("pass_begin", 1), ("pass_begin", 2)]
    ends = [call[1] for call in told if call[0] == "pass_end"]
    assert sorted(ends) == sorted(call[1] for call in marks) == [1, 1, 1, 1, 2, 2]

    del first
    gc.collect()
    assert calls.take("model_drop") == [("model_drop", 1)]
    for _ in range(3):
        second(nets.tokens)
    told = calls.take("model_begin", "model_weight", "pass_begin")
    assert {call[3] for call in told if call[0] == "model_weight"} == shared
    assert [call[1] for call in told if call[0] == "model_begin"] == [3]
    marks = [call[1] for call in told if call[0] == "pass_begin"]
    assert sorted(marks) == [2, 2, 2, 3, 3, 3]
