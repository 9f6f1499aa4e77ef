"""Which storages are held, and when they are let go: models that go, weights that are replaced or moved."""

import gc

from conftest import PRIVATE_ANSWER, arrive, names


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


def test_weights_that_change_their_memory_format_are_named_where_they_lie_then(calls, nets):
    """accelerate refused `.to(memory_format=...)` of an offloaded model; moves that change nothing cost nothing."""
    torch = nets.torch

    class Convolutions(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.ModuleList(torch.nn.Conv2d(4, 4, 3, padding=1) for _ in range(3))

        def forward(self, x):
            for layer in self.layers:
                x = layer(x)
            return x

    arrive()
    net, x = Convolutions(), torch.rand(1, 4, 8, 8)
    expected = net(x)
    addresses = [parameter.data_ptr() for parameter in net.parameters()]
    calls.take()
    net.to("cpu").to(torch.float32)
    net(x)
    assert [parameter.data_ptr() for parameter in net.parameters()] == addresses
    assert calls.take("model_begin", "model_weight", "weight_private") == []
    net.to(memory_format=torch.channels_last)
    torch.testing.assert_close(net(x), expected)
    net(x)
    named = {call[3] for call in calls.take("model_weight")}
    assert {layer.weight.untyped_storage().data_ptr() for layer in net.layers} <= named


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
