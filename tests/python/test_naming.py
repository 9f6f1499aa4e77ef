"""What the hook names: owners, weights, traps, flags, in the order that the interface fixes."""

from conftest import WANTS, WEIGHT_ANSWER, arrive
from flextensor import naming


def test_a_forward_names_the_model_and_then_is_its_first_pass(calls, nets):
    arrive()
    net = nets.Net()
    net(nets.tokens)
    names = calls.names()
    assert names[0] == "model_begin"
    assert names[1:7] == ["model_owner"] * 6
    assert names[7:15] == ["model_weight"] * 8
    assert names[15:] == ["model_end", "pass_begin", "pass_end"]


def test_owners_are_the_innermost_holders_and_traps_the_repeated_blocks(calls, nets):
    arrive()
    nets.Net()(nets.tokens)
    owners = {(call[3], call[4]): call[5] for call in calls.take("model_owner")}
    assert owners == {
        ("embed", "Embedding"): -1,
        ("layers.0.up", "Linear"): 0,
        ("layers.0.down", "Linear"): 0,
        ("layers.1.up", "Linear"): 1,
        ("layers.1.down", "Linear"): 1,
        ("head", "Linear"): -1,
    }


def test_weights_are_named_with_the_address_and_bytes_of_their_storage(calls, nets):
    arrive()
    net = nets.Net()
    net(nets.tokens)
    told = {call[2]: call[3:5] for call in calls.take("model_weight")}
    for name, parameter in net.named_parameters():
        assert told[name] == (parameter.untyped_storage().data_ptr(), parameter.untyped_storage().nbytes())


def test_buffers_are_weights_too(calls, nets):
    arrive()
    net = nets.Net()
    net.register_buffer("table", nets.torch.ones(5))
    net(nets.tokens)
    assert ("table", 0) in [(call[2], call[5]) for call in calls.take("model_weight")]


def test_a_model_over_two_gpus_is_named_as_one_model_for_each_and_its_passes_are_passes_of_both(
    calls, nets, monkeypatch
):
    arrive()
    net = nets.Net()
    second = {parameter.untyped_storage().data_ptr() for parameter in net.layers[1].parameters()}
    monkeypatch.setattr(naming, "device_of", lambda storage: int(storage.data_ptr() in second))
    for _ in range(2):
        net(nets.tokens)
    told = calls.take()
    models = [call[1] for call in told if call[0] == "model_end"]
    assert len(models) == 2
    owners = {model: [call[3] for call in told if call[:2] == ("model_owner", model)] for model in models}
    assert owners[models[0]] == ["embed", "layers.0.up", "layers.0.down", "head"]
    assert owners[models[1]] == ["layers.1.up", "layers.1.down"]
    weights = {model: {call[3] for call in told if call[:2] == ("model_weight", model)} for model in models}
    assert weights[models[1]] == second
    assert not weights[models[0]] & second
    for model in models:
        passes = [call[0] for call in told if call[0].startswith("pass_") and call[1] == model]
        assert passes == ["pass_begin", "pass_end"] * 2


def test_tied_weights_are_named_under_every_owner_with_one_address(calls, nets):
    arrive()
    net = nets.Net()
    net.head.weight = net.embed.weight
    net(nets.tokens)
    tied = [call for call in calls.take("model_weight") if call[2] in ("embed.weight", "head.weight")]
    assert [call[2] for call in tied] == ["embed.weight", "head.weight"]
    assert tied[0][3] == tied[1][3]
    assert tied[0][5] != tied[1][5]


def test_stacked_expert_weights_carry_their_flag_and_convolutions_do_not(calls, nets):
    torch, nn = nets.torch, nets.torch.nn

    class Experts(nn.Module):
        def __init__(self):
            super().__init__()
            self.gate_up = nn.Parameter(torch.ones(2, 3, 3))
            self.conv = nn.Conv1d(3, 3, 1)

        def forward(self, x):
            return self.conv(torch.bmm(x.expand(2, 3, 3), self.gate_up))

    arrive()
    Experts()(torch.ones(3, 3))
    flags = {call[2]: call[6] for call in calls.take("model_weight")}
    assert flags == {"gate_up": 3, "conv.weight": 1, "conv.bias": 1}


def test_tables_of_which_single_rows_are_read_carry_their_flag(calls, nets):
    torch, nn = nets.torch, nets.torch.nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.words = nn.Embedding(8, 4)
            self.renormed = nn.Embedding(8, 4, max_norm=1.0)
            self.bag = nn.EmbeddingBag(8, 4)
            self.head = nn.Linear(4, 8, bias=False)

        def forward(self, x):
            return self.head(self.words(x) + self.renormed(x) + self.bag(x[:, None]))

    arrive()
    with torch.no_grad():
        Net()(torch.tensor([1, 2]))
    flags = {call[2]: call[6] for call in calls.take("model_weight")}
    assert flags == {"words.weight": 5, "renormed.weight": 1, "bag.weight": 1, "head.weight": 1}


def test_wrapped_tensors_are_looked_through_to_their_parts(calls, nets):
    from torch.testing._internal.two_tensor import TwoTensor

    torch, nn = nets.torch, nets.torch.nn
    net = nn.Sequential(nn.Linear(3, 3, bias=False))
    halves = torch.ones(3, 3), torch.ones(3, 3)
    net[0].weight = nn.Parameter(TwoTensor(*halves))
    arrive()
    net(torch.ones(1, 3))
    told = [call[3] for call in calls.take("model_weight")]
    assert told == [half.untyped_storage().data_ptr() for half in halves]


def test_meta_tensors_are_not_named(calls, nets):
    arrive()
    net = nets.Net()
    net.register_buffer("nowhere", nets.torch.ones(5, device="meta"))
    net(nets.tokens)
    assert "nowhere" not in [call[2] for call in calls.take("model_weight")]


def test_include_patterns_choose_traps_and_what_may_stream(calls, nets, monkeypatch):
    monkeypatch.setenv("FAKE_CONFIG", '{"include_patterns": ["layers.*"], "exclude_patterns": ["*.down"]}')
    arrive()
    nets.Net()(nets.tokens)
    told = calls.take()
    traps = {call[3]: call[5] for call in told if call[0] == "model_owner"}
    flags = {call[2]: call[6] for call in told if call[0] == "model_weight"}
    assert traps["layers.0.up"] == 0 and traps["layers.1.up"] == 1 and traps["head"] == -1
    assert flags["layers.0.up.weight"] == 1
    assert flags["layers.0.down.weight"] == 0 and flags["head.weight"] == 0


def test_class_patterns_match_on_the_class(calls, nets, monkeypatch):
    monkeypatch.setenv("FAKE_CONFIG", '{"include_patterns": ["class:Embedding"], "exclude_patterns": []}')
    arrive()
    nets.Net()(nets.tokens)
    flags = {call[2]: call[6] for call in calls.take("model_weight")}
    assert [name for name, flag in flags.items() if flag] == ["embed.weight"]


def test_an_exclude_pattern_alone_keeps_automatic_traps_and_bars_what_it_names(calls, nets, monkeypatch):
    monkeypatch.setenv("FAKE_CONFIG", '{"include_patterns": null, "exclude_patterns": ["layers.1"]}')
    arrive()
    nets.Net()(nets.tokens)
    told = calls.take()
    traps = {call[3]: call[5] for call in told if call[0] == "model_owner"}
    flags = {call[2]: call[6] for call in told if call[0] == "model_weight"}
    assert traps["layers.0.up"] == 0 and traps["layers.1.up"] == -1
    assert flags["layers.1.up.weight"] == 0 and flags["head.weight"] == 1


def test_a_block_inside_a_block_is_no_trap_of_its_own(calls, nets):
    torch, nn = nets.torch, nets.torch.nn
    net = nn.Sequential(
        nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    )
    arrive()
    net(torch.ones(1, 2))
    assert [call[5] for call in calls.take("model_owner")] == [0, 0, 1, 1]


def test_weights_outside_managed_memory_are_not_held(calls, nets):
    calls.answer(WEIGHT_ANSWER, -2)
    arrive()
    net = nets.Net()
    net(nets.tokens)
    from flextensor import hook

    assert len(hook._process._holding) == 0


def test_a_layer_that_computes_otherwise_under_hooks_gets_none_below_the_root(calls, nets):
    torch, nn = nets.torch, nets.torch.nn
    calls.answer(WANTS, 1 | 2)
    arrive()

    class Encoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList(
                nn.TransformerEncoderLayer(8, 2, 16, batch_first=True) for _ in range(2)
            )

        def forward(self, x):
            for layer in self.layers:
                assert not any(part._forward_hooks or part._forward_pre_hooks for part in layer.modules())
                x = layer(x)
            return x

    net = Encoder().eval()
    calls.take()
    with torch.inference_mode():
        for _ in range(4):
            net(torch.ones(1, 3, 8))
    assert len(calls.take("pass_begin")) == 4
